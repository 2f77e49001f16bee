"""Staircase attention (Ju et al., 2021, arXiv 2106.04279): chunks climb through the same layers, pass after pass.

    H_{i+1}^N, H_{i+2}^{N-1}, ..., H_{i+N}^1 = TC(H_{i+1}^{N-1}, H_{i+2}^{N-2}, ..., H_{i+N}^0)         equation 3

Chunk i (C tokens) goes through the transformer core TC N times. Read off a diagonal of that equation: at pass n chunk
i sees, in every layer, its own tokens up to the current one, and chunk i-d at pass n+d, for every 1 <= d <= N-n.
Whether the diagonal is computed at once or chunk by chunk is a schedule; the walk below goes chunk by chunk.

Cached Staircase (section 3.2.1): only M passes are computed, H_i^n = H_i^M for n > M. Where n+d > M every layer sees
the same final states H_{i-d}^M, through its own norm and projections. M = N is Staircase; with M = 0 later chunks see a
chunk's embeddings (the memory network). Global Cached Staircase (appendix B.1): all earlier chunks stay in the cache.
Letters: B rows, T tokens, C chunk, N passes, M computed passes, L layers, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from stairwell.configs import check_at_least
from stairwell.cores.core import CoreState, Source, TransformerCore, module_list
from stairwell.cores.time import KeysValues, ages, along_time, counts, forget, slide
from stairwell.errors import UserError
from stairwell.field_types import GROWING, SIZE, SLOTS
from stairwell.layers import Layer, LayerConfig, Masks, RelativePosition, Slots


@dataclass(frozen=True)
class VisibleRange:
    """Part of what a token sees: the chunks i-nearest to i-farthest, i its own chunk, at one pass or in the cache.

    Letters: `back` counts the tokens between a slot and the present one, 0 for the token just before it."""

    pass_number: int | None  # none: the cache
    nearest: int
    farthest: int | None  # none: as far as the row goes

    def range_back(self, phases: tuple[int, int], oldest: int, C: int) -> tuple[int, int]:
        """The slots near..far-1 back that some row sees, for rows whose phases lie in a range and none is older."""
        near = 0 if self.nearest == 0 else phases[0] + (self.nearest - 1) * C
        return near, oldest if self.farthest is None else min(phases[1] + self.farthest * C, oldest)

    def sees(self, back: Tensor, age: Tensor, C: int) -> Tensor:
        """Which slots (j,) back a token of age (B,) sees. (B, j) bool"""
        # A slot lies in chunk i-d: d = 0 for as many as the open chunk has tokens, then one more every C slots.
        d = (back - (age % C)[:, None]).div(C, rounding_mode="floor") + 1
        visible = (d >= self.nearest) & (back < age[:, None])
        return visible if self.farthest is None else visible & (d <= self.farthest)


@dataclass(frozen=True)
class HostAges:
    """What has to be known of the ages of a call's tokens to choose slots and shapes, read from the device once: for
    each token the least and the greatest over the batch. A phase counts the tokens of the open chunk before a token."""

    chunk: int
    newest: list[int]
    oldest: list[int]
    lowest_phase: list[int]
    highest_phase: list[int]
    begun: bool  # whether a sequence starts within the call, by a flag

    @staticmethod
    def of(age: Tensor, start: Tensor | None, chunk: int) -> HostAges:
        """age (B, T) int64, start (B, T) bool"""
        phase = age % chunk
        begun = torch.zeros_like(age[0]) if start is None else start.any(0).to(age.dtype)
        table = torch.stack([age.amin(0), age.amax(0), phase.amin(0), phase.amax(0), begun])
        newest, oldest, lowest, highest, starts = table.tolist()
        return HostAges(chunk, newest, oldest, lowest, highest, any(starts))

    @property
    def together(self) -> bool:
        """Whether all sequences are always at the same place of their chunks."""
        return self.lowest_phase == self.highest_phase

    def pieces(self) -> list[tuple[int, int]]:
        """Cut a call wherever any row begins a chunk: (first, last) such that no row crosses an edge in between."""
        edges = [t for t, phase in enumerate(self.lowest_phase) if phase == 0]
        return list(pairwise(sorted({0, *edges, len(self.oldest)})))

    def in_sight(self, config: ClimbConfig, n: int, t: int, reach: int) -> list[tuple[VisibleRange, int, int]]:
        """What token t sees at pass n: the slots near..far-1 back of each part, none farther than `reach`."""
        phases = self.lowest_phase[t], self.highest_phase[t]
        found = [(sight, *sight.range_back(phases, self.oldest[t], self.chunk)) for sight in config.in_sight(n)]
        return [(sight, near, min(far, reach)) for sight, near, far in found if near < min(far, reach)]


class ClimbConfig(LayerConfig):
    """What all Staircases are: chunks of C tokens, N chunks in sight (none: all), cached after M passes."""

    chunk: int

    @property
    def N(self) -> int | None:
        raise NotImplementedError

    @property
    def M(self) -> int:
        raise NotImplementedError

    @property
    def distances(self) -> int:
        """How many distances have a vector of their own."""
        raise NotImplementedError

    @property
    def computed(self) -> int:
        """How many passes are computed: one even for M = 0, for the output."""
        return max(self.M, 1)

    @property
    def caches(self) -> bool:
        return self.N is None or self.M < self.N

    def in_sight(self, n: int) -> list[VisibleRange]:
        """What a token sees at pass n, the farthest first: chunk i-d as it was at pass n+d, for every d <= N-n; in the
        cache where that pass is not computed."""
        farthest = None if self.N is None else self.N - n
        first_cached = max(self.M - n + 1, 1)
        passes = first_cached - 1 if farthest is None else min(first_cached - 1, farthest)
        sights = [VisibleRange(n + d, d, d) for d in range(passes, -1, -1)]
        if farthest is None or first_cached <= farthest:
            sights.insert(0, VisibleRange(None, first_cached, farthest))
        return sights


@dataclass(frozen=True, kw_only=True)
class StaircaseConfig(ClimbConfig):
    chunk: int = 32
    "tokens that climb together: the paper's forward size (C)"
    passes: int = 4
    "how often a chunk goes through the layers (N); the paper's step size is passes * chunk"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "chunk", "passes")

    @property
    def N(self) -> int:
        return self.passes

    @property
    def M(self) -> int:
        return self.passes

    @property
    def distances(self) -> int:
        return self.passes * self.chunk


@dataclass(frozen=True, kw_only=True)
class CachedStaircaseConfig(StaircaseConfig):
    """Cached Staircase (Ju et al., 2021): a chunk is computed in few passes, then seen from a cache as it came out."""

    passes: int = 8
    "how many chunks, the current one included, are in sight (N); the paper's step size is passes * chunk"
    compute: int = 1
    "how many passes are computed before a chunk is cached (M); 0: the cache holds embeddings"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.compute <= self.passes:
            raise ValueError(f"compute (M) must be in 0..passes (N = {self.passes}), not {self.compute}")

    @property
    def M(self) -> int:
        return self.compute


@dataclass(frozen=True, kw_only=True)
class GlobalCachedStaircaseConfig(ClimbConfig):
    """Global Cached Staircase (Ju et al., 2021): all earlier chunks stay in the cache, so the state grows."""

    chunk: int = 32
    "tokens that climb together: the paper's forward size (C)"
    compute: int = 1
    "how many passes are computed before a chunk is cached (M); 0: the cache holds embeddings"
    distances: int = 512
    "learned distances; farther ones share the last"
    max_tokens: int | None = None
    "refuse streams longer than this many tokens since their start (the state grows with them); none: no limit"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "chunk", "distances")
        if self.compute < 0:
            raise ValueError(f"compute (M) must be at least 0, not {self.compute}")

    @property
    def N(self) -> None:
        return None

    @property
    def M(self) -> int:
        return self.compute


@dataclass(frozen=True, kw_only=True)
class MultiVectorRNNConfig(StaircaseConfig):
    """Section 3.3: one backward and one forward token, an RNN whose state is the L inputs of one token."""

    chunk: int = field(default=1, init=False)
    passes: int = field(default=2, init=False)


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkConfig(CachedStaircaseConfig):
    """Section 3.3: the past is seen through its embeddings only (Sukhbaatar et al., 2015)."""

    chunk: int = field(default=1, init=False)
    passes: int = 100
    "how many tokens, the current one included, are in sight"
    compute: int = field(default=0, init=False)


@dataclass(frozen=True, eq=False)
class StaircaseState(CoreState):
    # For pass n = 1..computed (B, n*C - 1 + max_crop, L, D): every layer's input at that pass.
    passes: tuple[Tensor, ...] = field(metadata=SLOTS)
    # (B, N*C - 1 + max_crop, D): the state each token is cached in; no slots where nothing is cached.
    cache: Tensor = field(metadata=SLOTS)


@dataclass(frozen=True, eq=False)
class GlobalCachedStaircaseState(StaircaseState):
    cache: Tensor = field(metadata=GROWING)  # (B, tokens of the longest row, D)
    max_tokens: int | None = field(default=None, kw_only=True, metadata=SIZE)


class Staircase(TransformerCore):
    state_type: type[CoreState] = StaircaseState

    def __init__(self, config: ClimbConfig) -> None:
        super().__init__(config.width)
        self.config: Any = config  # a ClimbConfig
        self.layers = module_list(Layer(config, config.distances) for _ in range(config.layers))
        self.position = RelativePosition(config, config.distances)

    def depth(self) -> int:
        return self.config.computed * self.config.layers

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        C, L, D = self.config.chunk, self.config.layers, self.width
        shapes: dict[str, tuple[int, ...]] = {
            f"passes.{n - 1}": (n * C - 1 + max_crop, L, D) for n in range(1, self.config.computed + 1)
        }
        shapes["cache"] = (self.cache_slots(max_crop), D)
        return shapes

    def cache_slots(self, max_crop: int) -> int:
        return self.config.N * self.config.chunk - 1 + max_crop if self.config.caches else 0

    def walk(
        self,
        x: Tensor,
        state: StaircaseState,
        start: Tensor | None = None,
        source: Source | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, StaircaseState]:
        B, T, _ = x.shape
        L, M = self.config.layers, self.config.M
        passes = range(1, self.config.computed + 1)
        age = ages(state.count, start, T)
        known = HostAges.of(age, start, self.config.chunk)
        reach = [self.reach(layer, max(known.oldest)) for layer in self.layers]
        sources = self.source_slots(source)
        # What layer l sees of the past at pass n (at place n - 1), and of the cache.
        past = [
            [KeysValues(layer.keys_values, state.passes[n - 1][:, :, l]) for n in passes]
            for l, layer in enumerate(self.layers)
        ]
        cache = [KeysValues(layer.keys_values, state.cache) for layer in self.layers] if self.config.caches else []
        inputs: list[list[Tensor]] = [[] for _ in passes]
        cached: list[Tensor] = []
        outputs: list[Tensor] = []
        for first, last in known.pieces():
            h = x[:, first:last]  # H^0
            if M == 0:
                cached.append(h)
            for n in passes:
                layer_inputs: list[Tensor] = []
                for l, layer in enumerate(self.layers):
                    layer_inputs.append(h)
                    sights = known.in_sight(self.config, n, first, reach[l])
                    slots = self.slots(layer, h, sights, past[l], cache[l] if cache else None, age[:, first])
                    h = self.apply_layer(layer, (n - 1) * L + l, h, slots, sources[l], masks, first, last)
                    # The piece's own keys come last. Only this pass and earlier ones ever look at them.
                    past[l][n - 1].append_projected(slots.keys[-1], slots.values[-1])
                inputs[n - 1].append(torch.stack(layer_inputs, 2))
                if n == M:
                    cached.append(h)
            outputs.append(h)
            for keys_values in cache:
                keys_values.append(cached[-1])
        count, croppable = counts(state.count, state.croppable, start, age, state.max_crop)
        remembered = tuple(
            slide(old, along_time(new), count, start) for old, new in zip(state.passes, inputs, strict=True)
        )
        cache_after = self.next_cache(state, cached, count, start, known)
        return along_time(outputs), replace(
            state, count=count, croppable=croppable, passes=remembered, cache=cache_after
        )

    def next_cache(
        self, state: StaircaseState, cached: list[Tensor], count: Tensor, start: Tensor | None, known: HostAges
    ) -> Tensor:
        return slide(state.cache, along_time(cached), count, start) if self.config.caches else state.cache

    def slots(
        self,
        layer: Layer,
        h: Tensor,
        sights: list[tuple[VisibleRange, int, int]],
        past: list[KeysValues],
        cache: KeysValues | None,
        age: Tensor,
    ) -> Slots:
        """What a layer sees at a pass: chunk i-d at pass n+d, from the cache where that pass is not computed, and the
        tokens h (B, t, D) themselves. No row crosses a chunk's edge within h; age (B,) is that of its first token."""
        B, t, _ = h.shape
        C = self.config.chunk
        keys: list[Tensor] = []
        values: list[Tensor] = []
        back: list[Tensor] = []  # for each slot how many tokens lie between it and h
        visible: list[Tensor] = []
        for sight, near, far in sights:
            at = cache if sight.pass_number is None else past[sight.pass_number - 1]
            assert at is not None
            part_keys, part_values = at.back(near, far)
            slot = torch.arange(far - 1, near - 1, -1, device=h.device)
            keys.extend(part_keys)
            values.extend(part_values)
            back.append(slot)
            visible.append(sight.sees(slot, age, C))
        own_keys, own_values = layer.keys_values(h)
        time = torch.arange(t, device=h.device)
        distance = torch.cat([*back, -1 - time])[None] + 1 + time[:, None]  # (t, J)
        before = torch.cat([*visible, torch.ones(B, t, dtype=torch.bool, device=h.device)], 1)
        return Slots([*keys, own_keys], [*values, own_values], distance, before[:, None] & (distance >= 0))


class GlobalCachedStaircase(Staircase):
    state_type: type[CoreState] = GlobalCachedStaircaseState
    config: GlobalCachedStaircaseConfig

    def cache_slots(self, max_crop: int) -> int:
        return 0

    def init_state(self, batch: int, max_crop: int = 0) -> CoreState:
        return replace(super().init_state(batch, max_crop), max_tokens=self.config.max_tokens)  # type: ignore[call-arg]

    def distances(self, state: GlobalCachedStaircaseState, T: int) -> int:
        return state.cache.shape[1] + T

    def next_cache(
        self, state: StaircaseState, cached: list[Tensor], count: Tensor, start: Tensor | None, known: HostAges
    ) -> Tensor:
        longest = known.oldest[-1] + 1
        if self.config.max_tokens is not None and longest > self.config.max_tokens:
            raise UserError(
                f"a row has read {longest} tokens since its start, more than max_tokens={self.config.max_tokens}; "
                "begin anew (start flags or state.reset) or raise max_tokens"
            )
        grown = torch.cat([state.cache, *cached], 1)
        grown = grown[:, grown.shape[1] - longest :]
        return grown if start is None else forget(grown.clone(), count)
