"""Staircase attention (Ju et al., 2021, arXiv 2106.04279): each chunk goes through the same layers several times.

    H_{i+1}^N, H_{i+2}^{N-1}, ..., H_{i+N}^1 = TC(H_{i+1}^{N-1}, H_{i+2}^{N-2}, ..., H_{i+N}^0)         equation 3

Chunk i (C tokens) goes through the transformer core TC N times. Along a diagonal of that equation: at pass n, chunk i
attends, in every layer, to its own tokens up to the current one, and to chunk i-d at pass n+d, for every 1 <= d <= N-n.
A diagonal can be computed at once or chunk by chunk; the reference forward goes chunk by chunk.

Cached Staircase (section 3.2.1): only M passes are computed, H_i^n = H_i^M for n > M. Where n+d > M, every layer
attends to the same final states H_{i-d}^M, through its own norm and projections. M = N is Staircase; with M = 0 later
chunks attend to a chunk's embeddings (the memory network). Global Cached Staircase (appendix B.1): all earlier chunks
stay in the cache.

Letters: B batch size, T tokens, C chunk, N passes, M computed passes, L layers, D width. The phase of a token is its
offset in its chunk. A slot that is `back` slots back has `back` tokens between it and the current one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from stairwell.configs import check_at_least
from stairwell.cores.core import CoreState, Source, TransformerCore, module_list
from stairwell.cores.sliding_window import (
    KeysValues,
    concat_time,
    next_counts,
    slide,
    tokens_since_start,
    zero_before_start,
)
from stairwell.cores.step import Application, Buffer, Read, StepDescription, StoredVectors
from stairwell.errors import UserError
from stairwell.layers import Layer, LayerConfig, Masks, RelativePosition, Slots
from stairwell.state import GROWING, SIZE, SLOTS


@dataclass(frozen=True)
class VisibleRange:
    """Part of what a token of chunk i attends to: the chunks i-nearest to i-farthest, at one pass or in the cache."""

    pass_number: int | None  # None: the cache
    nearest: int
    farthest: int | None  # None: up to the stream's start

    def range_back(self, phases: tuple[int, int], max_count: int, C: int) -> tuple[int, int]:
        """Return (near, far): the slots near..far-1 back are visible to some stream, if all phases are within `phases`
        and no stream has more than `max_count` tokens since its start."""
        near = 0 if self.nearest == 0 else phases[0] + (self.nearest - 1) * C
        return near, max_count if self.farthest is None else min(phases[1] + self.farthest * C, max_count)

    def visible(self, back: Tensor, since_start: Tensor, C: int) -> Tensor:
        """Return which slots `back` (j,) are visible to a token with since_start (B,) tokens before it. (B, j) bool"""
        # Chunk i-d of a slot: d = 0 for the tokens of the current chunk so far, then one more every C slots.
        d = (back - (since_start % C)[:, None]).div(C, rounding_mode="floor") + 1
        visible = (d >= self.nearest) & (back < since_start[:, None])
        return visible if self.farthest is None else visible & (d <= self.farthest)


@dataclass(frozen=True)
class HostCounts:
    """Tokens since start and phases of a call, copied from the device once: minimum and maximum over the batch for each
    token. Slots and shapes are chosen from these."""

    chunk: int
    min_count: list[int]
    max_count: list[int]
    min_phase: list[int]
    max_phase: list[int]
    any_start: bool  # whether a start flag is set within the call

    @staticmethod
    def of(since_start: Tensor, start: Tensor | None, chunk: int) -> HostCounts:
        """Return the counts of a call. since_start (B, T) int64, start (B, T) bool"""
        phase = since_start % chunk
        starts = torch.zeros_like(since_start[0]) if start is None else start.any(0).to(since_start.dtype)
        table = torch.stack([since_start.amin(0), since_start.amax(0), phase.amin(0), phase.amax(0), starts])
        min_count, max_count, min_phase, max_phase, any_starts = table.tolist()
        return HostCounts(chunk, min_count, max_count, min_phase, max_phase, any(any_starts))

    @property
    def in_phase(self) -> bool:
        """Whether all streams always have the same phase."""
        return self.min_phase == self.max_phase

    def segments(self) -> list[tuple[int, int]]:
        """Split a call where any stream starts a chunk: (first, last) such that no stream crosses a chunk boundary."""
        edges = [t for t, phase in enumerate(self.min_phase) if phase == 0]
        return list(pairwise(sorted({0, *edges, len(self.max_count)})))

    def visible_ranges(
        self, config: BaseStaircaseConfig, n: int, t: int, span: int
    ) -> list[tuple[VisibleRange, int, int]]:
        """Return the non-empty visible ranges of token t at pass n with their slots (near, far), limited to `span`."""
        phases = self.min_phase[t], self.max_phase[t]
        ranges = [(part, *part.range_back(phases, self.max_count[t], self.chunk)) for part in config.visible_ranges(n)]
        return [(part, near, min(far, span)) for part, near, far in ranges if near < min(far, span)]


class BaseStaircaseConfig(LayerConfig):
    """What all Staircases have: chunks of C tokens, a context of N chunks (None: all), a cache after M passes."""

    chunk: int

    @property
    def N(self) -> int | None:
        raise NotImplementedError

    @property
    def M(self) -> int:
        raise NotImplementedError

    @property
    def distances(self) -> int:
        """Number of distances with their own position embedding."""
        raise NotImplementedError

    @property
    def computed(self) -> int:
        """Number of computed passes: M, but at least one for the output."""
        return max(self.M, 1)

    @property
    def caches(self) -> bool:
        return self.N is None or self.M < self.N

    def visible_ranges(self, n: int) -> list[VisibleRange]:
        """Return what a token attends to at pass n, farthest first: chunk i-d at pass n+d for every d <= N-n, from the
        cache where that pass is not computed."""
        farthest = None if self.N is None else self.N - n
        first_cached = max(self.M - n + 1, 1)
        passes = first_cached - 1 if farthest is None else min(first_cached - 1, farthest)
        ranges = [VisibleRange(n + d, d, d) for d in range(passes, -1, -1)]
        if farthest is None or first_cached <= farthest:
            ranges.insert(0, VisibleRange(None, first_cached, farthest))
        return ranges


@dataclass(frozen=True, kw_only=True)
class StaircaseConfig(BaseStaircaseConfig):
    chunk: int = 32
    "Tokens per chunk: the paper's forward size (C)."
    passes: int = 4
    "Number of passes of a chunk through the layers (N); the paper's step size is passes * chunk."

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
    """Cached Staircase (Ju et al., 2021): after M passes, the final states of a chunk are cached for later chunks."""

    passes: int = 8
    "Number of chunks in the context, the current one included (N); the paper's step size is passes * chunk."
    compute: int = 1
    "Number of passes before a chunk is cached (M); 0: the cache contains embeddings."

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.compute <= self.passes:
            raise ValueError(f"compute (M) must be in 0..passes (N = {self.passes}), not {self.compute}")

    @property
    def M(self) -> int:
        return self.compute


@dataclass(frozen=True, kw_only=True)
class GlobalCachedStaircaseConfig(BaseStaircaseConfig):
    """Global Cached Staircase (Ju et al., 2021): all earlier chunks stay in the cache, so the state grows."""

    chunk: int = 32
    "Tokens per chunk: the paper's forward size (C)."
    compute: int = 1
    "Number of passes before a chunk is cached (M); 0: the cache contains embeddings."
    distances: int = 512
    "Number of learned distances; farther ones share the last."
    max_tokens: int | None = None
    "Maximum number of tokens since a stream's start, since the state grows with them; none: no limit."

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "chunk", "distances")
        check_at_least(self, 0, "compute")

    @property
    def N(self) -> None:
        return None

    @property
    def M(self) -> int:
        return self.compute


@dataclass(frozen=True, kw_only=True)
class MultiVectorRNNConfig(StaircaseConfig):
    """Section 3.3: one backward and one forward token, an RNN whose state is the L layer inputs of one token."""

    chunk: int = field(default=1, init=False)
    passes: int = field(default=2, init=False)


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkConfig(CachedStaircaseConfig):
    """Section 3.3: past tokens are represented by their embeddings only (Sukhbaatar et al., 2015)."""

    chunk: int = field(default=1, init=False)
    passes: int = 100
    "Number of tokens in the context, the current one included."
    compute: int = field(default=0, init=False)


@dataclass(frozen=True, eq=False)
class StaircaseState(CoreState):
    # For pass n = 1..computed (B, n*C - 1 + max_crop, L, D): every layer's input at that pass.
    passes: tuple[Tensor, ...] = field(metadata=SLOTS)
    # (B, N*C - 1 + max_crop, D): the cached state of each token; no slots without a cache.
    cache: Tensor = field(metadata=SLOTS)


@dataclass(frozen=True, eq=False)
class GlobalCachedStaircaseState(StaircaseState):
    cache: Tensor = field(metadata=GROWING)  # (B, tokens of the longest stream, D)
    max_tokens: int | None = field(default=None, kw_only=True, metadata=SIZE)


class Staircase(TransformerCore[BaseStaircaseConfig, StaircaseState]):
    state_type: type[StaircaseState] = StaircaseState

    def __init__(self, config: BaseStaircaseConfig) -> None:
        super().__init__(config)
        self.layers = module_list(Layer(config, config.distances) for _ in range(config.layers))
        self.position = RelativePosition(config, config.distances)

    def depth(self) -> int:
        return self.config.computed * self.config.layers

    def memory_shapes(self, max_crop: int) -> dict[str, tuple[int, ...]]:
        C, L, D = self.config.chunk, self.config.layers, self.width
        shapes: dict[str, tuple[int, ...]] = {
            f"passes.{n - 1}": (n * C - 1 + max_crop, L, D) for n in range(1, self.config.computed + 1)
        }
        # A global cache starts empty and grows.
        N = self.config.N if self.config.caches else None
        shapes["cache"] = (N * C - 1 + max_crop if N is not None else 0, D)
        return shapes

    def describe_step(self) -> StepDescription:
        config, L, passes = self.config, self.config.layers, range(1, self.config.computed + 1)
        depth = len(passes) * L
        reads = {n: config.visible_ranges(n) for n in passes}
        caches = any(visible.pass_number is None for ranges in reads.values() for visible in ranges)

        def read(visible: VisibleRange, l: int) -> Read:
            buffer = depth + l if visible.pass_number is None else (visible.pass_number - 1) * L + l
            return Read(buffer, visible.nearest, visible.farthest, chunks=True)

        return StepDescription(
            applications=tuple(
                Application(l, tuple(read(visible, l) for visible in reads[n]), write=(n - 1) * L + l)
                for n in passes
                for l in range(L)
            ),
            # Those of pass 1, one per layer, then of pass 2, ..., then the cache's.
            buffers=(
                *(Buffer(l, (n - 1) * L + l, f"passes.{n - 1}") for n in passes for l in range(L)),
                *(Buffer(l, config.M * L, "cache") for l in range(L) if caches),
            ),
            memories=(
                *(StoredVectors(f"passes.{n - 1}", tuple(range((n - 1) * L, n * L))) for n in passes),
                *([StoredVectors("cache", (config.M * L,))] if config.caches else []),
            ),
            nearest=0,
            distances=config.distances,
            chunk=config.chunk,
            cross=config.cross,
        )

    def reference(
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
        since_start = tokens_since_start(state.count, start, T)
        known = HostCounts.of(since_start, start, self.config.chunk)
        spans = [self.attention_span(layer, max(known.max_count)) for layer in self.layers]
        sources = self.source_slots(source)
        # Keys and values of the past for layer l at pass n (index n - 1), and of the cache.
        past = [
            [KeysValues(layer.keys_values, state.passes[n - 1][:, :, l]) for n in passes]
            for l, layer in enumerate(self.layers)
        ]
        cache = [KeysValues(layer.keys_values, state.cache) for layer in self.layers] if self.config.caches else []
        inputs: list[list[Tensor]] = [[] for _ in passes]
        cached: list[Tensor] = []
        outputs: list[Tensor] = []
        for first, last in known.segments():
            h = x[:, first:last]  # H^0
            if M == 0:
                cached.append(h)
            for n in passes:
                layer_inputs: list[Tensor] = []
                for l, layer in enumerate(self.layers):
                    layer_inputs.append(h)
                    ranges = known.visible_ranges(self.config, n, first, spans[l])
                    slots = self.slots(layer, h, ranges, past[l], cache[l] if cache else None, since_start[:, first])
                    h = self.apply_layer(layer, (n - 1) * L + l, h, slots, sources[l], masks, first, last)
                    # The segment's own keys are the last part. Only this pass and earlier ones attend to them.
                    past[l][n - 1].append_projected(slots.keys[-1], slots.values[-1])
                inputs[n - 1].append(torch.stack(layer_inputs, 2))
                if n == M:
                    cached.append(h)
            outputs.append(h)
            for keys_values in cache:
                keys_values.append(cached[-1])
        count, croppable = next_counts(state.count, state.croppable, start, since_start, state.max_crop)
        memory = tuple(
            slide(old, concat_time(new), count, start) for old, new in zip(state.passes, inputs, strict=True)
        )
        next_cache = self.next_cache(state, cached, count, start, known)
        after = replace(state, count=count, croppable=croppable, passes=memory, cache=next_cache)
        return concat_time(outputs), after

    def next_cache(
        self, state: StaircaseState, cached: list[Tensor], count: Tensor, start: Tensor | None, known: HostCounts
    ) -> Tensor:
        return slide(state.cache, concat_time(cached), count, start) if self.config.caches else state.cache

    def slots(
        self,
        layer: Layer,
        h: Tensor,
        ranges: list[tuple[VisibleRange, int, int]],
        past: list[KeysValues],
        cache: KeysValues | None,
        since_start: Tensor,
    ) -> Slots:
        """Return what a layer attends to at a pass: chunk i-d at pass n+d, from the cache where that pass is not
        computed, and the tokens h (B, t, D) themselves. No stream crosses a chunk boundary within h; since_start (B,)
        is that of the first token."""
        B, t, _ = h.shape
        C = self.config.chunk
        keys: list[Tensor] = []
        values: list[Tensor] = []
        back: list[Tensor] = []  # tokens between each slot and h
        visible: list[Tensor] = []
        for part, near, far in ranges:
            keys_values = cache if part.pass_number is None else past[part.pass_number - 1]
            assert keys_values is not None
            part_keys, part_values = keys_values.slice_back(near, far)
            slot = torch.arange(far - 1, near - 1, -1, device=h.device)
            keys.extend(part_keys)
            values.extend(part_values)
            back.append(slot)
            visible.append(part.visible(slot, since_start, C))
        own_keys, own_values = layer.keys_values(h)
        time = torch.arange(t, device=h.device)
        distance = torch.cat([*back, -1 - time])[None] + 1 + time[:, None]  # (t, J)
        before = torch.cat([*visible, torch.ones(B, t, dtype=torch.bool, device=h.device)], 1)
        return Slots([*keys, own_keys], [*values, own_values], distance, before[:, None] & (distance >= 0))


class GlobalCachedStaircase(Staircase):
    state_type = GlobalCachedStaircaseState
    config: GlobalCachedStaircaseConfig

    def init_state(self, batch: int, max_crop: int = 0) -> StaircaseState:
        state = super().init_state(batch, max_crop)
        assert isinstance(state, GlobalCachedStaircaseState)
        return replace(state, max_tokens=self.config.max_tokens)

    def distances(self, state: StaircaseState, T: int) -> int:
        return state.cache.shape[1] + T

    def describe_step(self) -> StepDescription:
        return super().describe_step()  # it follows the config

    def next_cache(
        self, state: StaircaseState, cached: list[Tensor], count: Tensor, start: Tensor | None, known: HostCounts
    ) -> Tensor:
        longest = known.max_count[-1] + 1
        if self.config.max_tokens is not None and longest > self.config.max_tokens:
            raise UserError(
                f"a stream has read {longest} tokens since its start, more than max_tokens={self.config.max_tokens}; "
                "reset it (start flags or state.reset) or raise max_tokens"
            )
        grown = torch.cat([state.cache, *cached], 1)
        grown = grown[:, grown.shape[1] - longest :]
        return grown if start is None else zero_before_start(grown.clone(), count)
