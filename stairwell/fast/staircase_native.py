"""Staircases in native code: prepare a call for `staircase_segment`, and compute the state after it.

Autograd handles the folding of norms and the projection of the state, as in `feedback`. Letters as in
`staircase_segment`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.fast.feedback import fold, project
from stairwell.fast.segment_data import Inputs, Plan, leaves
from stairwell.fast.staircase_plan import StaircasePlan, StateCopy, Step
from stairwell.fast.staircase_segment import StaircaseSegment
from stairwell.fast.staircase_steps import StaircaseSteps


class NativeStaircase(StaircaseSteps):
    """One call of a Staircase in native code."""

    def run(self) -> tuple[Tensor, Any]:
        core, active_layers = self.core, self.active_layers
        state_inputs = [self.state_inputs(s) for s in range(self.E)]
        cache = self.state_cache()
        steps = self.steps([sum(part.shape[1] for part in parts) for parts in state_inputs], cache.shape[1])
        W = max(step.visible for step in steps)
        before = [part for parts in state_inputs for part in parts]
        kv_groups = [
            project(core.layers[l], torch.cat([cache, *(part[:, :, l] for part in before)], 1)) for l in active_layers
        ]
        pass_kv = [group.state_kv[:, cache.shape[1] :] for group in kv_groups]
        layers = [fold(core.layers[l], W, None) for l in active_layers]
        for group, weights in zip(kv_groups, layers, strict=True):
            group.state_kv = group.state_kv[:, : cache.shape[1]]
            weights.ramp = weights.ramp.flip(-1) if weights.ramp is not None else None
        positions = self.positions()[:W].flip(0)
        inputs = Inputs(self.x.transpose(0, 1).contiguous(), self.x.new_zeros(0), positions, kv_groups, layers)
        staircase = self.plan(steps, W, cache.shape[1], inputs)
        y, *new_inputs = StaircaseSegment.apply(staircase, [pass_kv, inputs], *leaves([pass_kv, inputs]))
        return y, self.next_state(new_inputs, [y if core.config.M > 0 else self.x])

    def plan(self, steps: list[Step], W: int, cached_before: int, inputs: Inputs) -> StaircasePlan:
        config, masks, A = self.core.config, self.masks, len(self.active_layers)
        B, T, D = self.x.shape

        def select(layer_masks: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if not layer_masks:
                return ()
            return tuple(layer_masks[n * self.L + l] for n in range(self.E) for l in self.active_layers)

        attention_masks, relu_masks = (select(masks.attention), select(masks.relu)) if masks else ((), ())
        plan = Plan(
            *(B, sum(step.tokens for step in steps), D, config.heads, config.K, config.F, W - 1, 1),
            pre_norm=config.norm == "pre",
            attend_to_current=True,
            eps=self.core.layers[0].attention_norm.eps,
            spans=(W - 1,) * A,
            kv_group=tuple(range(A)),
            group_memory=(0,) * A,
            since_start=self.since_start,
            full=False,
            needs_gradient=inputs.need_gradient,
            attention_masks=attention_masks,
            attention_rate=config.attention_dropout,
            relu_rate=config.relu_dropout,
        )
        state_tokens = tuple(min(old.shape[1], T) for old in self.state.passes)
        return StaircasePlan(
            plan=plan,
            T=T,
            steps=tuple(steps),
            pass_slots=steps[-1].pass_kv_last,
            cached_before=cached_before,
            cached_now=self.chunks[-1][0] if self.cache_range is not None else 0,
            caches_input=config.M == 0,
            input_index=tuple(sum(k < l for k in self.active_layers) for l in range(self.L)),
            state_copies=tuple(
                copy for s, step in enumerate(steps) for copy in self.state_copies(s, step, state_tokens)
            ),
            state_tokens=state_tokens,
            attention_masks=attention_masks,
            relu_masks=relu_masks,
        )

    def steps(self, pass_slots: list[int], cached_before: int) -> list[Step]:
        """Return the steps, given the number of slots from before the call in each of the first E steps."""
        steps, offset, pass_kv_first = [], 0, 0
        for s in range(self.S):
            chunks = self.chunks_of(s)
            start, end = self.chunks[chunks[0]][0], self.chunks[chunks[-1]][1]
            cache_first, cache_last = (cached_before + position for position in self.cached(s))
            pass_kv_last = pass_kv_first + (pass_slots[s] if s < self.E else 0)
            steps.append(
                Step(
                    offset=offset,
                    tokens=end - start,
                    start=start,
                    entering=self.size(s) if s < len(self.chunks) else 0,
                    leaving=self.size(s - self.E + 1) if s >= self.E - 1 else 0,
                    cache_first=cache_first,
                    cache_last=cache_last,
                    pass_kv_first=pass_kv_first,
                    pass_kv_last=pass_kv_last,
                    passes=tuple(s - c for c in chunks for _ in range(self.size(c))),
                )
            )
            offset, pass_kv_first = offset + end - start, pass_kv_last
        return steps

    def size(self, c: int) -> int:
        return self.chunks[c][1] - self.chunks[c][0]

    def state_copies(self, s: int, step: Step, state_tokens: tuple[int, ...]) -> list[StateCopy]:
        """Return the tokens of step s whose layer inputs enter the state: the newest ones of each pass."""
        copies = []
        for c in self.chunks_of(s):
            oldest = self.x.shape[1] - state_tokens[s - c]
            first, last = max(self.chunks[c][0], oldest), self.chunks[c][1]
            if first < last:
                tokens = slice(step.offset + first - step.start, step.offset + last - step.start)
                copies.append(StateCopy(s - c, tokens, slice(first - oldest, last - oldest)))
        return copies
