"""Run a core and the final norm one token at a time, with cached keys and values.

    hidden = interpreter.step(x, count, min_count)              x, hidden (B, D), one token per stream
    hidden = interpreter.step_segment(x, count, min_count)      x, hidden (B, T, D), several tokens per stream

`count` (B,) is the number of tokens that each stream has read before, and `min_count` the smallest of them.

`RingInterpreter` interprets a core's step description (`stairwell.cores.step`), in native code or in PyTorch. It stores
keys and values in ring buffers. `ReferenceInterpreter` calls the reference forward of any other core with the state
that the previous call returned.
Letters: B streams, T tokens, D width, H heads, K head width, P distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from stairwell.cores.core import Core, CoreState, TransformerCore
from stairwell.cores.sliding_window import filled
from stairwell.cores.step import Application, Read
from stairwell.decode.native import NativeSession
from stairwell.decode.program import LayerStep, Program
from stairwell.decode.rings import BatchBuffer, KeyRing, RawRing, attend_parts, log_ramp, lowest
from stairwell.decode.source import Sources
from stairwell.layers import Sublayer
from stairwell.state import State, assemble


class StepInterpreter:
    """The interface through which a decoding session steps a core."""

    program: Program

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process one token per stream. x (B, D) -> (B, D)"""
        raise NotImplementedError

    def logits(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process one token per stream and return the logits of the next token, (B, V)."""
        return self.program.head(self.step(x, count, min_count))

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process several tokens per stream. x (B, T, D) -> (B, T, D)"""
        raise NotImplementedError

    def crop(self, tokens: int) -> None:
        """Remove the last tokens of all streams."""
        raise NotImplementedError

    def load(self, first: int, state: Any) -> None:
        """Replace the streams from index `first` on with those of a state."""
        raise NotImplementedError

    def set_sources(self, sources: Sources) -> None:
        """Set the sources of cross-attention. The session calls this whenever streams or sources change."""
        raise NotImplementedError

    def select(self, index: Tensor) -> None:
        raise NotImplementedError

    def reset(self, index: Tensor) -> None:
        raise NotImplementedError

    def state(self, count: Tensor, croppable: Tensor) -> State:
        raise NotImplementedError

    def projections(self) -> dict[str, Tensor]:
        """Return what a step reads besides the state."""
        return {}

    def restore_projections(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            raise ValueError(f"this model has no keys and values to restore, but {len(tensors)} tensors are given")


def make_interpreter(core: Core[Any, Any], program: Program, capacity: int, max_crop: int) -> StepInterpreter:
    if program.description is None:
        return ReferenceInterpreter(core, program)
    assert isinstance(core, TransformerCore)
    return RingInterpreter(core, program, capacity, max_crop)


@dataclass(frozen=True)
class StepTokens:
    """The tokens of a step: T per stream, and the number of tokens before them in each stream."""

    T: int
    count: Tensor  # (B,): tokens before the first one
    min_count: int  # the smallest count of any stream
    max_count: int  # an upper bound on the counts
    phases: tuple[int, int]  # the smallest and the largest offset of the first token in its chunk
    equal: bool  # whether all streams have the same count

    def range(self, read: Read, C: int) -> tuple[int, int]:
        """Return the smallest and the largest distance from the first token that any token of any stream reads."""
        T, last_phase = self.T, self.phases[1]
        if not read.chunks:
            nearest, farthest = read.distances(self.max_count, C)
        elif T > 1:
            nearest, limit = read.bounds(C)
            farthest = self.max_count + T if limit is None else limit
        else:
            # Distances are linear in the phase, so the extreme phases give the extreme distances.
            nearest, _ = read.distances(self.phases[0], C)
            farthest = self.max_count if read.last is None else read.distances(last_phase, C)[1]
        return nearest - (T - 1), min(farthest, self.max_count)

    def all_visible(self, read: Read) -> bool:
        """Return whether every stream reads the whole range, so that no mask is needed."""
        if self.T > 1:
            return False
        return self.equal or (not read.chunks and read.last is not None and self.min_count >= read.last)


class RingInterpreter(StepInterpreter):
    """Interpreter of a step description, with keys and values in ring buffers."""

    def __init__(self, core: TransformerCore[Any, Any], program: Program, capacity: int, max_crop: int) -> None:
        assert program.description is not None
        self.core, self.program, self.max_crop = core, program, max_crop
        self.description = d = program.description
        self.H, self.K = core.config.heads, core.config.K
        self.like = like = next(core.parameters()).detach()
        farthest = [d.farthest(r) for r in range(len(d.buffers))]
        stored = like.to(torch.bfloat16) if program.cache == "bfloat16" else like
        self.rings = [KeyRing(stored, capacity, self.H, self.K, cast(int, last) + 1 + max_crop) for last in farthest]
        shapes = core.memory_shapes(max_crop)
        self.raw = [RawRing(like, capacity, *shapes[memory.path]) for memory in d.memories]
        self.all_rings: list[KeyRing | RawRing] = [*self.rings, *self.raw]
        self.filled = 0  # the largest number of tokens in any stream
        self.sources: Sources | None = None
        self.attend_source: dict[LayerStep, Sublayer] = {}
        self.native = NativeSession(program.native) if program.native is not None else None

    # Streams

    def buffers(self) -> list[BatchBuffer]:
        return [*self.raw, *(buffer for ring in self.rings for buffer in (ring.keys, ring.values))]

    def set_batch(self, batch: int) -> None:
        self.batch = batch
        for ring in self.rings:
            ring.set_batch(batch)
        self.pass_buffers()

    def pass_buffers(self) -> None:
        if self.native is not None:
            self.native.set_buffers(self.rings, self.raw, self.sources)

    def set_sources(self, sources: Sources) -> None:
        self.sources = sources
        self.attend_source = {layer: sources.attend(layer.layer) for layer in self.program.layers}
        self.pass_buffers()

    def lengthen(self, tokens: int) -> None:
        """Lengthen every buffer if `tokens` more tokens do not fit."""
        needed = self.filled + tokens
        replaced = [ring.lengthen(needed) for ring in self.all_rings]  # a list: any() of a generator would stop early
        if any(replaced):
            self.set_batch(self.batch)

    def reserve(self, batch: int) -> None:
        """Enlarge every buffer if this many streams do not fit."""
        capacity = self.rings[0].keys.all.shape[0]
        if batch > capacity:
            for buffer in self.buffers():
                buffer.grow(max(batch, 2 * capacity))  # doubling keeps the total cost of many joins linear

    def select(self, index: Tensor) -> None:
        self.reserve(len(index))
        # In beam search most streams keep their index, so only the others are copied.
        changed = (index != torch.arange(len(index), device=index.device)).nonzero().flatten()
        for buffer in self.buffers():
            buffer.select(index, changed)
        self.set_batch(len(index))

    def reset(self, index: Tensor) -> None:
        for buffer in self.buffers():
            buffer.reset(index)

    def crop(self, tokens: int) -> None:
        for ring in self.all_rings:
            ring.crop(tokens)
        self.filled -= tokens

    def advance(self, tokens: int) -> None:
        for ring in self.all_rings:
            ring.advance(tokens)
        self.filled += tokens

    def load(self, first: int, state: CoreState) -> None:
        b = state.batch
        max_count = int(state.count.max()) if b else 0
        self.filled = max(self.filled, max_count) if first else max_count
        self.batch = first + b
        self.reserve(self.batch)
        self.lengthen(0)
        memories = dict(state.tensors())
        for raw, described in zip(self.raw, self.description.memories):
            raw.load(first, memories[described.path], max_count)
        for r, (ring, buffer) in enumerate(zip(self.rings, self.description.buffers)):
            memory = memories[buffer.memory]
            n = min(max_count, memory.shape[1], ring.max_slots - 1)  # the other slots are empty or never read
            newest = memory[:, memory.shape[1] - n :]
            vectors = newest if newest.dim() == 3 else newest[:, :, self.description.memory_index(r)[1]]
            keys, values = self.core.layers[buffer.layer].keys_values(vectors)
            is_filled = filled(torch.arange(n, 0, -1, device=state.count.device), state.count[:, None])  # (b, n)
            ring.load(first, keys, values * is_filled[:, None, :, None])
        self.set_batch(self.batch)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        tensors = {path: self.like.new_zeros(self.batch, *shape)
                   for path, shape in self.core.memory_shapes(self.max_crop).items() if not shape[0]}  # fmt: skip
        for raw, memory in zip(self.raw, self.description.memories):
            tensors[memory.path] = raw.memory(self.batch)
        spec = {"type": self.core.state_type.__name__, "max_crop": self.max_crop}
        return assemble(spec, {"count": count, "croppable": croppable, **tensors})

    def projections(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for r, ring in enumerate(self.rings):
            tensors |= {f"keys.{r}": ring.key_slots.clone(), f"values.{r}": ring.value_slots.clone()}
            tensors[f"cursor.{r}"] = torch.tensor(ring.cursor)
        return tensors

    def restore_projections(self, tensors: Mapping[str, Tensor]) -> None:
        if len(tensors) != 3 * len(self.rings):
            raise ValueError(f"there are {len(tensors)} tensors of keys and values, not {3 * len(self.rings)}")
        for r, ring in enumerate(self.rings):
            keys, values, cursor = (tensors.get(f"{name}.{r}", torch.empty(0)) for name in ("keys", "values", "cursor"))
            ring.restore(keys, values, cursor, self.filled)
        self.set_batch(self.batch)

    # Steps

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        if self.native is None:
            return self.program.normed(self.interpret(x[:, None], count, min_count)[:, 0])
        return self.native_step(x, count, logits=False)[0]

    def logits(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        if self.native is None or not self.native.program.V:
            return super().logits(x, count, min_count)
        return cast(Tensor, self.native_step(x, count, logits=True)[1])

    def native_step(self, x: Tensor, count: Tensor, logits: bool) -> tuple[Tensor, Tensor | None]:
        assert self.native is not None
        self.lengthen(1)
        for raw in self.raw:
            raw.claim_slot()
        hidden, next_logits = self.native.step(x, count, logits)
        self.advance(1)
        if not self.native.program.has_norm:
            hidden = self.program.normed(hidden)
        return hidden, next_logits

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process several tokens per stream, together if each layer attends to its own inputs only.

        Tokens processed together read the parameters once. Their number is limited by the slots of a ring beyond those
        that the first token reads."""
        T, slots = x.shape[1], 1 + self.max_crop
        if not self.description.is_parallel or self.sources is not None or min(T, slots) < 2:
            return torch.stack([self.step(x[:, t], count + t, min_count + t) for t in range(T)], 1)
        for ring in self.rings:
            ring.lengthen(ring.max_slots)
        self.set_batch(self.batch)
        outputs, done = [], 0
        for part in torch.split(x, slots, 1):
            outputs.append(self.interpret(part, count + done, min_count + done))
            done += part.shape[1]
        return self.program.normed(torch.cat(outputs, 1))

    # The interpreter in PyTorch

    def interpret(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        """Process tokens together. x (B, T, D) -> (B, T, D), before the final norm"""
        B, T, D = x.shape
        d, layers = self.description, self.program.layers
        self.lengthen(T)
        tokens = self.describe_tokens(T, count, min_count)
        vectors = [x.reshape(B * T, D)]
        for application in d.applications:
            layer = layers[application.layer]
            if application.write is not None:
                self.write(application.write, vectors[-1])
            attend = partial(self.attend, application, layer, tokens)
            vectors.append(layer.apply(vectors[-1], attend, self.attend_source.get(layer)))
        y = vectors[-1].view(B, T, D)
        if d.mix is not None:
            vectors.extend(torch.mm(d.mix.detach(), torch.stack(vectors).view(-1, B * T * D)).view(-1, B * T, D))
        for r in d.final_writes:
            self.write(r, vectors[d.buffers[r].vector])
        for raw, memory in zip(self.raw, d.memories):
            stacked = torch.stack([vectors[vector].view(B, T, D) for vector in memory.vectors], 2)
            raw.write(stacked.view(B, T, *raw.all.shape[2:]))
        self.advance(T)
        return y

    def describe_tokens(self, T: int, count: Tensor, min_count: int) -> StepTokens:
        C = self.description.chunk
        if C == 1:  # no chunks, so the counts need not be copied to the host
            return StepTokens(T, count, min_count, self.filled, (0, 0), min_count == self.filled)
        counts = count.tolist()
        phases = [tokens % C for tokens in counts]
        return StepTokens(T, count, min(counts), max(counts), (min(phases), max(phases)), min(counts) == max(counts))

    def write(self, r: int, vector: Tensor) -> None:
        """Write a vector (B * T, D), as keys and values, to a ring."""
        layer = self.program.layers[self.description.buffers[r].layer]
        self.rings[r].write(*layer.keys_values(vector))

    def attend(self, application: Application, layer: LayerStep, tokens: StepTokens, normed: Tensor) -> Tensor:
        """Return attention without its output projection. (B * T, D) -> (B * T, H * K)"""
        B, T, H, K, d = self.batch, tokens.T, self.H, self.K, self.description
        q = layer.query(normed).view(B, T, H, K).transpose(1, 2).reshape(B * H, T, K)
        by_distance = (q @ self.program.nearest_first.T).view(B, H, T, d.distances)
        span = layer.layer.span
        last = d.nearest + d.distances - 1
        if span is not None:
            by_distance = by_distance + log_ramp(span, self.program.distance)[:, None]
            last = min(last, d.nearest + span.max_span() - 1)
        time = torch.arange(T, device=q.device)
        since_start = tokens.count[:, None, None] + time[:, None]  # (B, T, 1)
        scores: list[Tensor] = []
        values: list[Tensor] = []
        masks: list[Tensor | None] = []
        for read in application.reads:
            nearest, farthest = tokens.range(read, d.chunk)
            farthest = min(farthest, last)
            if farthest < nearest:
                continue
            ring = self.rings[read.buffer]
            for slots, oldest in ring.slices(farthest, nearest):
                n = slots.stop - slots.start
                distance = time[:, None] + oldest - torch.arange(n, device=q.device)  # (T, n)
                index = (distance - d.nearest).clamp(0, d.distances - 1)
                part = by_distance.gather(-1, index.expand(B, H, T, n)).view(B * H, T, n)
                part = torch.baddbmm(part, q, ring.flat_keys[:, :, slots].to(q.dtype))
                mask = None
                if not tokens.all_visible(read):
                    visible = read.visible(distance, since_start, d.chunk) & (distance <= last)
                    mask = ~visible[:, None]  # (B, 1, T, n)
                    part.view(B, H, T, n).masked_fill_(mask, lowest(part.dtype))
                scores.append(part)
                values.append(ring.flat_values[:, slots].to(q.dtype))
                masks.append(mask)
        if not scores:
            return normed.new_zeros(B * T, H * K)
        z = attend_parts(scores, values).view(B, H, T, K)
        masked = [mask for mask in masks if mask is not None]
        if len(masked) == len(scores):  # every slice has a mask, so a token may have nothing to attend to
            z = z.masked_fill(torch.cat(masked, -1).all(-1, keepdim=True), 0)
        return z.transpose(1, 2).reshape(B * T, H * K)


class ReferenceInterpreter(StepInterpreter):
    """Interpreter for any other core: its reference forward, from the state that the previous call returned."""

    carried: State

    def __init__(self, core: Core[Any, Any], program: Program) -> None:
        self.core, self.program = core, program
        self.source: tuple[Tensor, Tensor] | tuple[()] = ()

    def set_sources(self, sources: Sources) -> None:
        self.source = sources.per_stream()

    def step(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        return self.step_segment(x[:, None], count, min_count)[:, 0]

    def step_segment(self, x: Tensor, count: Tensor, min_count: int) -> Tensor:
        y, self.carried = self.core(x, self.carried, None, *self.source)
        return self.program.normed(y)

    def crop(self, tokens: int) -> None:
        self.carried = self.carried.crop(tokens)

    def load(self, first: int, state: State) -> None:
        # Copy the state, because the caller may modify its tensors in place.
        self.carried = (
            type(state).join([self.carried.select(range(first)), state]) if first else state.map(Tensor.clone)
        )

    def select(self, index: Tensor) -> None:
        self.carried = self.carried.select(index)

    def reset(self, index: Tensor) -> None:
        self.carried = self.carried.reset(index)

    def state(self, count: Tensor, croppable: Tensor) -> State:
        return self.carried.map(Tensor.clone)
