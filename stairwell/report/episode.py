"""An episode of an agent, step by step: images, actions, rewards, values and attention.

To keep pages small, an image is stored as the rectangle that changed since the image before.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stairwell.errors import UserError
from stairwell.report.attention import layer_names
from stairwell.rl.agent import Agent
from stairwell.rl.evaluation import split_seed
from stairwell.rl.render import RenderedStep, render_episodes
from stairwell.rl.task import RLTask

MAX_STEPS = 200
MAX_CHARACTERS = 300_000  # of an episode in a page
MAX_COLORS = 256  # of a PNG with a palette
MAX_PIXELS = {True: 800, False: 240}  # along the longer side; for images with few colors, with many colors

Pixels = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class Patch:
    """A rectangle of an image."""

    x: int
    y: int
    image: str
    "Data URL."


@dataclass(frozen=True)
class EpisodeStep:
    action: str
    reward: float
    value: float
    "Expected return from here on."
    observation: str
    "Summary of the observation, for environments without images."
    attention: list[list[int]]
    "Attention of each layer to the frames in memory, newest first, in thousandths, averaged over heads."
    patch: Patch | None
    "What changed since the image before; None if nothing changed."

    @property
    def size(self) -> int:
        """The approximate number of characters in a page."""
        image = len(self.patch.image) if self.patch else 0
        return 120 + image + len(self.observation) + 3 * sum(map(len, self.attention))


@dataclass(frozen=True)
class RecordedEpisode:
    width: int
    "Width of the images; 0 without images."
    height: int
    layers: list[str]
    first: int
    "Distance in frames to the newest frame that the agent can attend to."
    steps: list[EpisodeStep]
    done: bool
    "Whether the steps reach the end of the episode."


def read_episode(agent: Agent, task: RLTask) -> RecordedEpisode | None:
    """Return the first episode of the test split, cut at the size limits; None if the environment is not available."""
    try:
        return read_episodes(agent, task, 1)[0]
    except (UserError, OSError):
        return None


def read_episodes(agent: Agent, task: RLTask, episodes: int) -> list[RecordedEpisode]:
    """Return the first episodes of the test split, each cut at the size limits."""
    frames = render_episodes(agent, task, episodes, split_seed(0, "test"))
    return [record(agent, episode) for _, episode in groupby(frames, key=lambda frame: frame.episode)]


def record(agent: Agent, episode: Iterator[RenderedStep]) -> RecordedEpisode:
    """Return the steps of an episode up to the size limits."""
    frames: list[RenderedStep] = []
    steps: list[EpisodeStep] = []
    encoder = PatchEncoder()
    for frame in islice(episode, MAX_STEPS):
        steps.append(make_step(frame, encoder))
        frames.append(frame)
        if sum(step.size for step in steps) > MAX_CHARACTERS:
            break
    core = agent.config.core
    names = layer_names(len(frames[0].attention), core.layers)
    first = getattr(core, "first", 1)
    return RecordedEpisode(encoder.width, encoder.height, names, first, steps, frames[-1].done)


def make_step(frame: RenderedStep, encoder: PatchEncoder) -> EpisodeStep:
    attention = [np.rint(1000 * weights).astype(int).tolist() for weights in frame.attention]
    reward, value = float(f"{frame.reward:.4g}"), float(f"{frame.value:.4g}")
    if frame.image is None:
        return EpisodeStep(frame.action, reward, value, frame.observation, attention, None)
    return EpisodeStep(frame.action, reward, value, "", attention, encoder.encode(frame.image))


class PatchEncoder:
    """Encode consecutive images as patches. The first image decides the format: PNG, which is exact, for few colors,
    or smaller JPEG for many."""

    def __init__(self) -> None:
        self.previous: Pixels | None = None
        self.few_colors = True
        self.width, self.height = 0, 0

    def encode(self, image: Pixels) -> Patch | None:
        if self.previous is None:
            self.few_colors = len(to_palette(image)[0]) <= MAX_COLORS
        pixels, previous = reduce_size(image, MAX_PIXELS[self.few_colors]), self.previous
        self.height, self.width = max(self.height, pixels.shape[0]), max(self.width, pixels.shape[1])
        self.previous = pixels
        if previous is None or previous.shape != pixels.shape:
            return Patch(0, 0, self.data_url(pixels))
        changed = (pixels != previous).any(-1)
        if not changed.any():
            return None
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        top, left = int(rows[0]), int(columns[0])
        return Patch(left, top, self.data_url(pixels[top : rows[-1] + 1, left : columns[-1] + 1]))

    def data_url(self, pixels: Pixels) -> str:
        return png_url(pixels) if self.few_colors else data_url(Image.fromarray(pixels), "jpeg", quality=70)


def reduce_size(image: Pixels, max_pixels: int) -> Pixels:
    """Reduce an image that is too large by an integer factor."""
    factor = -(-max(image.shape[:2]) // max_pixels)
    return image if factor == 1 else np.asarray(Image.fromarray(image).reduce(factor))


def to_palette(pixels: Pixels) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return the colors of an image and, for each pixel, the index of its color."""
    red, green, blue = (pixels[..., i].astype(np.int32) for i in range(3))
    colors, indices = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    return colors, indices.reshape(pixels.shape[:2])


def png_url(pixels: Pixels) -> str:
    """Return a PNG with a palette. It is exact unless an image has more colors after its size was reduced."""
    colors, indices = to_palette(pixels)
    if len(colors) > MAX_COLORS:
        return data_url(Image.fromarray(pixels).quantize(MAX_COLORS), "png", optimize=True)
    image = Image.fromarray(indices.astype(np.uint8), mode="P")
    image.putpalette([int(color) >> shift & 255 for color in colors for shift in (16, 8, 0)])
    return data_url(image, "png", optimize=True)


def data_url(image: Image.Image, file_format: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format=file_format.upper(), **options)
    return f"data:image/{file_format};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
