"""Data structures of a segment: plan, inputs, saved activations, gradients.

Memory slots are ordered by distance, nearest first. What a token can attend to is then a prefix, and positions, spans
and dropout masks need no index. Keys are stored newest first in P = T + R positions: token t's key is at T-1-t, and
the slots visible to token t start at T-t. With `attend_to_current` the token's own key (distance 0) precedes them and
is stored separately.
Letters: B batch, T tokens, R memory slots in the longest attention span, W distances of a layer (its span, plus 1 with
`attend_to_current`), D width, H heads, K head width, F inner width, A layers (without those that LayerDrop skips),
G memories, J source tokens. Activations are time first: (T, B, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stairwell.fast.buffer_pool import pooled_empty

# Backward runs in blocks of tokens: fewer blocks need more memory, more blocks make products slow.
SINGLE_BLOCK_BYTES = 1 << 24  # of the gradients of a segment in float32: up to this size there is one block
BLOCKS = 8  # in a larger segment, if they are not too small
BLOCK_ROWS = 128  # tokens times batch of a block, at least
MAX_PANEL = 32  # columns of a panel of packed parameters (csrc/vector.h), at most


def leaves(tree: Any) -> list[Tensor | None]:
    """Return the tensors of nested dataclasses and lists, in field order. Absent options are None."""
    if tree is None or isinstance(tree, Tensor):
        return [tree]
    parts = tree if isinstance(tree, list) else vars(tree).values()
    return [leaf for part in parts for leaf in leaves(part)]


def unflatten(tree: Any, leaves: Iterator[Tensor | None]) -> Any:
    """Return a tree of the same structure with other tensors."""
    if tree is None or isinstance(tree, Tensor):
        return next(leaves)
    if isinstance(tree, list):
        return [unflatten(part, leaves) for part in tree]
    return type(tree)(*(unflatten(part, leaves) for part in vars(tree).values()))


def tree_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to every tensor of a tree."""
    return unflatten(tree, (None if leaf is None else function(leaf) for leaf in leaves(tree)))


@dataclass(frozen=True)
class Plan:
    """Sizes of a segment and all inputs without gradients."""

    B: int
    T: int
    D: int
    H: int
    K: int
    F: int
    R: int
    G: int
    pre_norm: bool
    attend_to_current: bool
    eps: float
    spans: tuple[int, ...]  # attention span of each layer, at most R
    kv_group: tuple[int, ...]  # per layer: the group of keys and values that it attends to
    group_memory: tuple[int, ...]  # per group: the memory that it is projected from
    since_start: Tensor  # (B, T) int64: tokens since the stream's start
    full: bool  # every slot is known to be filled at every token
    needs_gradient: bool
    rounds_kv: bool = False  # keys and values are stored in bfloat16
    attention_masks: tuple[Tensor, ...] = ()  # per layer: (B, H, T, distances) bool; empty without dropout
    relu_masks: tuple[Tensor, ...] = ()  # (B, T, F) bool
    cross_masks: tuple[Tensor, ...] = ()  # (B, H, T, J) bool
    residual_masks: tuple[Tensor, ...] = ()  # (sublayers, B, T, D) bool
    attention_rate: float = 0.0
    relu_rate: float = 0.0
    residual_rate: float = 0.0
    source_mask: Tensor | None = None  # (B, J) bool

    @property
    def A(self) -> int:
        return len(self.spans)

    @property
    def P(self) -> int:
        return self.T + self.R

    @property
    def saved_tokens(self) -> int:
        """Tokens whose activations are saved: all if gradients are needed, else only the last one."""
        return self.T if self.needs_gradient else 1

    @property
    def block(self) -> int:
        """Tokens per block of backward; parameter gradients are computed once per block."""
        rows, row_bytes = self.B * self.T, 4 * self.A * (3 * self.D + self.H * self.K + self.F)
        if rows * row_bytes <= SINGLE_BLOCK_BYTES:
            return self.T
        return min(self.T, -(-max(BLOCK_ROWS, rows // BLOCKS) // self.B))

    def width(self, a: int) -> int:
        """Number of distances of layer a (W)."""
        return self.spans[a] + self.attend_to_current

    def layers_of_group(self, group: int) -> list[int]:
        return [a for a in range(self.A) if self.kv_group[a] == group]


@dataclass
class KVProjection:
    """Projection of a memory to keys and values, and the projected memory of the state."""

    state_kv: Tensor  # (B, R, 2HK): keys, then values, nearest slot first
    weight: Tensor  # (2HK, D)
    bias: Tensor | None  # (2HK)


@dataclass
class LayerWeights:
    """Folded parameters of a layer. With pre-norm they include the affine part of the norms, with post-norm not."""

    query: Tensor  # (HK, D), divided by sqrt(K)
    query_bias: Tensor | None
    out: Tensor  # (D, HK)
    inner: Tensor  # (F, D)
    inner_bias: Tensor
    outer: Tensor  # (D, F)
    outer_bias: Tensor
    ramp: Tensor | None = None  # (H, W): adaptive span
    cross_query: Tensor | None = None
    cross_query_bias: Tensor | None = None
    cross_out: Tensor | None = None
    cross_keys: Tensor | None = None  # (B, H, J, K)
    cross_values: Tensor | None = None
    attention_scale: Tensor | None = None  # (D): post-norm only
    attention_shift: Tensor | None = None
    cross_scale: Tensor | None = None
    cross_shift: Tensor | None = None
    feed_scale: Tensor | None = None
    feed_shift: Tensor | None = None


@dataclass
class Inputs:
    """All inputs with gradients."""

    x: Tensor  # (T, B, D)
    mix: Tensor  # (G, A + 1)
    position: Tensor  # (W, K)
    kv_groups: list[KVProjection]
    layers: list[LayerWeights]

    @property
    def need_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves(self))


@dataclass
class SublayerActivations:
    """Input and norm of attention, cross-attention or feed-forward."""

    input: Tensor  # (T, B, D): standardized with pre-norm
    normed: Tensor | None  # (T, B, D): the standardized residual sum, with post-norm
    rstd: Tensor  # (T, B): 1 / standard deviation


@dataclass
class AttentionActivations:
    query: Tensor  # (T, B, HK)
    weights: Tensor  # (T, B, H, W)
    weights_after_dropout: Tensor | None
    z: Tensor  # (T, B, HK): weighted sum of values

    @property
    def used_weights(self) -> Tensor:
        return self.weights if self.weights_after_dropout is None else self.weights_after_dropout


@dataclass
class LayerActivations:
    attention: SublayerActivations
    self_attention: AttentionActivations
    current_kv: Tensor | None  # (T, B, 2HK): the token's own key and value
    cross: SublayerActivations | None
    cross_attention: AttentionActivations | None
    feed: SublayerActivations
    active: Tensor  # (T, B, F): after ReLU and its dropout


@dataclass
class Activations:
    """Results of forward and the activations that backward needs."""

    y: Tensor  # (T, B, D)
    memory: Tensor  # (G, T, B, D): the memory of each token
    layer_outputs: list[Tensor]  # x^0 .. x^A, each (T, B, D); the last is y
    memory_input: Tensor  # (G, T, B, D): the input of the key and value projections
    memory_rstd: Tensor  # (G, T, B)
    keys: list[Tensor]  # per group: (B, H, P, K), in bfloat16 if the plan rounds them
    values: list[Tensor]
    layers: list[LayerActivations]


def make_activations(plan: Plan, inputs: Inputs) -> Activations:
    """Return uninitialized activations."""
    B, T, D, HK, saved = plan.B, plan.T, plan.D, plan.H * plan.K, plan.saved_tokens
    empty = partial(pooled_empty, inputs.x)

    def sublayer() -> SublayerActivations:
        normed = None if plan.pre_norm else empty(saved, B, D)
        return SublayerActivations(empty(saved, B, D), normed, empty(saved, B))

    def attention(width: int, dropout: bool) -> AttentionActivations:
        weights_after_dropout = empty(saved, B, plan.H, width) if dropout else None
        return AttentionActivations(
            empty(saved, B, HK), empty(saved, B, plan.H, width), weights_after_dropout, empty(saved, B, HK)
        )

    def layer(a: int) -> LayerActivations:
        keys = inputs.layers[a].cross_keys
        return LayerActivations(
            sublayer(),
            attention(plan.width(a), bool(plan.attention_masks)),
            empty(saved, B, 2 * HK) if plan.attend_to_current else None,
            sublayer() if keys is not None else None,
            attention(keys.shape[2], bool(plan.cross_masks)) if keys is not None else None,
            sublayer(),
            empty(saved, B, plan.F),
        )

    stored = inputs.x.new_empty(0, dtype=torch.bfloat16) if plan.rounds_kv else inputs.x
    y = empty(T, B, D)
    return Activations(
        y,
        empty(plan.G, T, B, D),
        [inputs.x, *(empty(saved, B, D) for _ in range(plan.A - 1)), y],
        empty(plan.G, saved, B, D),
        empty(plan.G, saved, B),
        [pooled_empty(stored, B, plan.H, plan.P, plan.K) for _ in inputs.kv_groups],
        [pooled_empty(stored, B, plan.H, plan.P, plan.K) for _ in inputs.kv_groups],
        [layer(a) for a in range(plan.A)],
    )


@dataclass
class LayerGradients:
    """Gradients of a layer's activations. Those that earlier tokens need are stored for all T tokens, the others for
    the N tokens of a block."""

    attention_out: Tensor  # (N, B, D): of the sublayer's output
    attention_normed: Tensor | None  # (N, B, D): of the output of its post-norm
    query: Tensor  # (N, B, HK)
    scores: Tensor  # (T, B, H, W)
    z: Tensor  # (T, B, HK)
    current_kv: Tensor | None  # (N, B, 2HK)
    cross_out: Tensor | None  # (N, B, D)
    cross_normed: Tensor | None  # (N, B, D)
    cross_query: Tensor | None  # (N, B, HK)
    cross_scores: Tensor | None  # (N, B, H, J)
    cross_z: Tensor | None  # (N, B, HK)
    feed_out: Tensor  # (N, B, D)
    feed_normed: Tensor | None  # (N, B, D)
    inner: Tensor  # (N, B, F): before ReLU


@dataclass
class Gradients:
    """Results of backward."""

    x: Tensor  # (T, B, D)
    memory: Tensor  # (G, T, B, D)
    state_kv: list[Tensor]  # per group: (B, R, 2HK)
    new_kv: list[Tensor]  # per group: (T, B, 2HK)
    layers: list[LayerGradients]
    packed: Tensor | None = None  # buffer in which native loops keep packed parameters from block to block


def make_gradients(plan: Plan, inputs: Inputs, saved: Activations) -> Gradients:
    """Return uninitialized gradients."""
    HK2 = 2 * plan.H * plan.K
    return Gradients(
        pooled_empty(saved.y, *saved.y.shape),
        pooled_empty(saved.memory, *saved.memory.shape),
        [pooled_empty(saved.y, plan.B, plan.R, HK2) for _ in saved.keys],
        [pooled_empty(saved.y, plan.T, plan.B, HK2) for _ in saved.keys],
        [make_layer_gradients(layer, plan.block, scores=plan.T, z=plan.T) for layer in saved.layers],
        pooled_empty(saved.y, packed_size(inputs)) if plan.block < plan.T and saved.y.is_cpu else None,
    )


def packed_size(inputs: Inputs) -> int:
    """Return an upper bound on the elements of all matrices as packed for backward."""
    shapes = [leaf.shape for leaf in leaves(inputs) if leaf is not None and leaf.dim() == 2]
    return sum(rows * -(-columns // MAX_PANEL) * MAX_PANEL for rows, columns in shapes)


def make_layer_gradients(saved: LayerActivations, block: int, scores: int, z: int) -> LayerGradients:
    """Return uninitialized gradients for the tokens of a block, or for the given number of tokens (scores, z)."""

    def gradient_of(tensor: Tensor | None, tokens: int = block) -> Any:
        return None if tensor is None else pooled_empty(tensor, tokens, *tensor.shape[1:])

    attention, cross, cross_attention = saved.self_attention, saved.cross, saved.cross_attention
    return LayerGradients(
        attention_out=gradient_of(saved.attention.input),
        attention_normed=gradient_of(saved.attention.normed),
        query=gradient_of(attention.query),
        scores=gradient_of(attention.weights, scores),
        z=gradient_of(attention.z, z),
        current_kv=gradient_of(saved.current_kv),
        cross_out=gradient_of(cross.input) if cross else None,
        cross_normed=gradient_of(cross.normed) if cross else None,
        cross_query=gradient_of(cross_attention.query) if cross_attention else None,
        cross_scores=gradient_of(cross_attention.weights) if cross_attention else None,
        cross_z=gradient_of(cross_attention.z) if cross_attention else None,
        feed_out=gradient_of(saved.feed.input),
        feed_normed=gradient_of(saved.feed.normed),
        inner=gradient_of(saved.active),
    )


def make_totals(inputs: Inputs, gradients: Gradients) -> Inputs:
    """Return the gradients of all inputs: those that backward fills, and zeros to accumulate the others."""
    zeros = partial(tree_map, torch.zeros_like)
    kv_groups = [
        KVProjection(state_kv, zeros(group.weight), zeros(group.bias))
        for state_kv, group in zip(gradients.state_kv, inputs.kv_groups, strict=True)
    ]
    return Inputs(gradients.x, zeros(inputs.mix), zeros(inputs.position), kv_groups, zeros(inputs.layers))
