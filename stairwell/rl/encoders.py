"""Encoders of observations: one leaf of a space, (B, T, *shape), to one vector per frame, (B, T, D)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .flatten import Leaf, center_and_scale, leaf_nvec
from .spaces import Box

MAX_FEATURE_MAP = 8  # convolutions halve an image until neither side is longer than this
MIN_VARIANCE = 1 / 256  # values rarer than this are scaled as if they had this variance


class BoxEncoder(nn.Module):
    """A linear layer on numbers, scaled to [-1, 1] where they have bounds."""

    center: Tensor
    scale: Tensor

    def __init__(self, box: Box, width: int) -> None:
        super().__init__()
        center, scale = center_and_scale(box)
        self.register_buffer("center", torch.tensor(center, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)
        self.shape = box.shape
        self.linear = nn.Linear(len(center), width)

    def normalize(self, values: Tensor) -> Tensor:
        """Return normalized values (B, T, elements) of (B, T, *shape)."""
        return (values.flatten(2).to(self.center.dtype) - self.center) / self.scale

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(self.normalize(values.reshape(*values.shape[:2], -1)))


class ImageEncoder(BoxEncoder):
    """Convolutions and a linear layer on a small image, (B, T, height, width, channels) or channels first."""

    def __init__(self, box: Box, width: int) -> None:
        super().__init__(box, width)
        self.channels_first = box.shape[0] < box.shape[2]
        channels, rows, columns = box.shape if self.channels_first else (box.shape[2], *box.shape[:2])
        layers: list[nn.Module] = []
        out_channels = 16
        while True:
            stride = 2 if max(rows, columns) > MAX_FEATURE_MAP else 1
            layers += [nn.Conv2d(channels, out_channels, 3, stride, padding=1), nn.ReLU()]
            rows, columns, channels, out_channels = -(-rows // stride), -(-columns // stride), out_channels, 32
            if len(layers) >= 4 and max(rows, columns) <= MAX_FEATURE_MAP:
                break
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Linear(channels * rows * columns, width)

    def forward(self, values: Tensor) -> Tensor:
        B, T = values.shape[:2]
        image = self.normalize(values).view(B * T, *self.shape)
        image = image if self.channels_first else image.permute(0, 3, 1, 2)
        return self.linear(self.convolutions(image).flatten(1)).view(B, T, -1)


class DiscreteEncoder(nn.Module):
    """The sum of one learned embedding per integer, of about unit variance: a bag of embeddings.

    With statistics (`update_statistics`) each one-hot feature is normalized to mean 0 and standard deviation 1. A value
    that is always present contributes nothing, a rare one contributes most. Without this, a key in one of 49 cells is a
    hundredth of the observation, and learning takes millions of frames."""

    offsets: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, nvec: Sequence[int], width: int) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *nvec[:-1]]).cumsum(0), persistent=False)
        self.weight = nn.Parameter(torch.randn(sum(nvec), width) / len(nvec) ** 0.5)
        self.register_buffer("mean", torch.zeros(sum(nvec)))
        self.register_buffer("scale", torch.ones(sum(nvec)))

    def update_statistics(self, values: Tensor) -> None:
        """Set mean and scale of the one-hot features from observations (N, *shape). A common factor keeps the variance
        of the sum."""
        indices = values.reshape(len(values), -1).to(torch.int64) + self.offsets
        N, elements = indices.shape
        frequency = torch.bincount(indices.flatten(), minlength=len(self.mean)) / N
        variance = frequency * (1 - frequency)
        scale = variance.clamp(min=MIN_VARIANCE).rsqrt()
        total = (variance * scale**2).sum()
        if total > 0:
            self.mean.copy_(frequency)
            self.scale.copy_(scale * (elements / total) ** 0.5)

    def forward(self, values: Tensor) -> Tensor:
        """Encode values (B, T, *shape) -> (B, T, D)."""
        B, T = values.shape[:2]
        indices = values.reshape(B * T, -1).to(torch.int64) + self.offsets
        table = self.weight * self.scale[:, None]
        # ONNX has no bags of embeddings.
        exporting = torch.compiler.is_exporting()
        x = F.embedding(indices, table).sum(1) if exporting else F.embedding_bag(indices, table, mode="sum")
        return x.view(B, T, -1) - (self.mean * self.scale) @ self.weight


def make_encoder(leaf: Leaf, width: int) -> nn.Module:
    if isinstance(leaf, Box):
        return (ImageEncoder if len(leaf.shape) == 3 else BoxEncoder)(leaf, width)
    return DiscreteEncoder(leaf_nvec(leaf), width)
