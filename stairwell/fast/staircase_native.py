"""Staircases in C++: a call made ready for `staircase_segment`, and the state after it.

Folding norms and projecting what came before the call are left to autograd, as in `feedback`.
Letters as in `staircase_segment`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.fast.feedback import fold, project
from stairwell.fast.staircase_diagonals import Diagonals
from stairwell.fast.staircase_segment import Climb, Diagonal, Leaving, Stairs
from stairwell.fast.trace import Inputs, Plan, leaves


class NativeSteps(Diagonals):
    """One call."""

    def climb(self) -> tuple[Tensor, Any]:
        core, alive = self.core, self.alive
        olds = [self.old_inputs(s) for s in range(self.E)]
        cache = self.old_cache()
        before = [part for parts in olds for part in parts]
        diagonals = self.diagonals([sum(part.shape[1] for part in parts) for parts in olds], cache.shape[1])
        W = max(d.J for d in diagonals)
        sets = [project(core.layers[l], torch.cat([cache, *(part[:, :, l] for part in before)], 1)) for l in alive]
        old = [both.old[:, cache.shape[1] :] for both in sets]
        layers = [fold(core.layers[l], W, None) for l in alive]
        for both, weights in zip(sets, layers, strict=True):
            both.old = both.old[:, : cache.shape[1]]
            weights.ramp = weights.ramp.flip(-1) if weights.ramp is not None else None
        positions = self.positions()[:W].flip(0)
        inputs = Inputs(self.x.transpose(0, 1).contiguous(), self.x.new_zeros(0), positions, sets, layers)
        stairs = self.stairs(diagonals, W, cache.shape[1], inputs)
        y, *remembered = Climb.apply(stairs, [old, inputs], *leaves([old, inputs]))
        return y, self.state_after(remembered, [y if core.config.M > 0 else self.x])

    def stairs(self, diagonals: list[Diagonal], W: int, cached_before: int, inputs: Inputs) -> Stairs:
        config, masks, A = self.core.config, self.masks, len(self.alive)
        B, T, D = self.x.shape
        layer = self.core.layers[0]

        def chosen(drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(drawn[n * self.L + l] for n in range(self.E) for l in self.alive) if drawn else ()

        attention_kept, relu_kept = (chosen(masks.attention), chosen(masks.relu)) if masks else ((), ())
        plan = Plan(
            *(B, sum(d.t for d in diagonals), D, config.heads, config.K, config.F, W - 1, 1),
            pre=layer.pre,
            itself=True,
            eps=layer.attention_norm.eps,
            reach=(W - 1,) * A,
            set_of=tuple(range(A)),
            memory_of=(0,) * A,
            age=self.age,
            full=False,
            needs_gradient=inputs.need_gradient,
            attention_kept=attention_kept,
            attention_rate=layer.attention.rate,
            relu_rate=layer.feed_forward.rate,
        )
        remembered = tuple(min(old.shape[1], T) for old in self.state.passes)
        return Stairs(
            plan=plan,
            T=T,
            diagonals=tuple(diagonals),
            old=diagonals[-1].old_last,
            cached_before=cached_before,
            cached_now=self.chunks[-1][0] if self.cache_sight is not None else 0,
            caches_input=config.M == 0,
            level_of=tuple(sum(k < l for k in self.alive) for l in range(self.L)),
            leaving=tuple(part for s, d in enumerate(diagonals) for part in self.leaving(s, d, remembered)),
            remembered=remembered,
            attention_kept=attention_kept,
            relu_kept=relu_kept,
        )

    def diagonals(self, olds: list[int], cached_before: int) -> list[Diagonal]:
        found, place, old = [], 0, 0
        for s in range(self.steps):
            on = self.on(s)
            begin, end = self.chunks[on[0]][0], self.chunks[on[-1]][1]
            low, high = (cached_before + slot for slot in self.cached(s))
            known = old + (olds[s] if s < self.E else 0)
            passes = tuple(s - c for c in on for _ in range(self.size(c)))
            stepping_on = self.size(s) if s < len(self.chunks) else 0
            stepping_off = self.size(s - self.E + 1) if s >= self.E - 1 else 0
            found.append(Diagonal(place, end - begin, begin, stepping_on, stepping_off, low, high, old, known, passes))
            place, old = place + end - begin, known
        return found

    def size(self, c: int) -> int:
        return self.chunks[c][1] - self.chunks[c][0]

    def leaving(self, s: int, d: Diagonal, remembered: tuple[int, ...]) -> list[Leaving]:
        """What the state will hold of diagonal s: of each pass the newest tokens."""
        found = []
        for c in self.on(s):
            oldest = self.x.shape[1] - remembered[s - c]
            first, last = max(self.chunks[c][0], oldest), self.chunks[c][1]
            if first < last:
                tokens = slice(d.place + first - d.begin, d.place + last - d.begin)
                found.append(Leaving(s - c, tokens, slice(first - oldest, last - oldest)))
        return found
