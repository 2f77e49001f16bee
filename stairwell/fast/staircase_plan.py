"""The plan of a Staircase's call: its steps, and which tokens enter the state. It has no gradients.

Letters as in `segment_data`; T tokens of the call, S steps, L layers, A layers that LayerDrop keeps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from stairwell.fast.segment_data import Plan

BLOCK_ROWS = 4096  # tokens times batch of a block: fewer mean smaller products and more calls


@dataclass(frozen=True)
class Step:
    """One step. The order of the first nine fields is that of StaircaseStep in csrc/plan.h."""

    offset: int  # of its first token among the tokens of all steps
    tokens: int
    start: int  # index of its first token in the call
    entering: int  # tokens at their first pass: the last ones
    leaving: int  # tokens at their last pass: the first ones
    cache_first: int  # visible cache positions cache_first .. cache_last-1 of [cache in the state | tokens of the call]
    cache_last: int
    pass_kv_first: int  # range of the keys and values from before the call, at their passes
    pass_kv_last: int
    passes: tuple[int, ...]  # of each token, from 0

    @property
    def visible(self) -> int:
        """Number of slots that the last token attends to."""
        return self.cache_last - self.cache_first + self.pass_kv_last - self.pass_kv_first + self.tokens


@dataclass(frozen=True)
class StateCopy:
    """Tokens, among those of all steps, whose layer inputs are copied to positions of pass n in the state."""

    n: int
    tokens: slice
    positions: slice


@dataclass(frozen=True)
class StaircasePlan:
    """All inputs without gradients. The T of `plan` is the number of tokens of all steps."""

    plan: Plan
    T: int
    steps: tuple[Step, ...]
    pass_slots: int  # slots from before the call, of all passes
    cached_before: int  # cache slots from the state
    cached_now: int  # tokens of the call that later chunks of the call attend to in the cache
    caches_input: bool  # the cache contains embeddings (M = 0)
    input_index: tuple[int, ...]  # per layer of the core: index of its input among the layer outputs
    state_copies: tuple[StateCopy, ...]
    state_tokens: tuple[int, ...]  # per pass: tokens of the call that enter the state
    attention_masks: tuple[Tensor, ...]  # per pass and layer: (B, H, T, distances) bool; empty without dropout
    relu_masks: tuple[Tensor, ...]  # (B, T, F) bool

    @property
    def slots(self) -> int:
        return max(step.cache_first + step.visible for step in self.steps)

    @property
    def passes(self) -> int:
        return max(n for step in self.steps for n in step.passes) + 1

    @property
    def saved_tokens(self) -> int:
        """Tokens whose activations are saved: all if gradients are needed, else those of one step."""
        return self.plan.T if self.plan.needs_gradient else max(step.tokens for step in self.steps)

    def sizes(self) -> list[int]:
        """Return all integers in the order of csrc/staircase.cpp."""
        mask_width = self.attention_masks[0].shape[-1] if self.attention_masks else 0
        sizes = [self.T, len(self.steps), self.pass_slots, self.cached_before, self.cached_now, self.slots, mask_width]
        steps = [number for step in self.steps for number in dataclasses.astuple(step)[:9]]
        passes = [n for step in self.steps for n in step.passes]
        return [*sizes, self.passes, int(self.caches_input), *steps, *passes]

    def masks(self) -> list[Tensor | None]:
        depth = self.passes * self.plan.A
        none: list[Tensor | None] = [None] * depth
        return [*(self.attention_masks[:depth] or none), *(self.relu_masks[:depth] or none)]

    def blocks(self) -> list[tuple[int, int, int, int]]:
        """Return the blocks of backward, the last one first: tokens start .. end-1 of steps first .. last-1."""
        blocks, first = [], 0
        for s, step in enumerate(self.steps):
            start, end = self.steps[first].offset, step.offset + step.tokens
            if (end - start) * self.plan.B >= BLOCK_ROWS or s + 1 == len(self.steps):
                blocks.append((start, end, first, s + 1))
                first = s + 1
        return blocks[::-1]
