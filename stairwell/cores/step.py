"""Description of a core's decoding step (one token) as data: everything a decoder needs besides the parameters.

A step computes numbered vectors. Vector 0 is its input, vector a is the output of the a-th layer application, whose
input is vector a - 1; vectors A + 1 and above are mixes: weighted sums of vectors 0..A. Keys and values of past vectors
are kept in buffers with one entry per token. An application first writes its own input to a buffer, if it has one, and
then attends to entries of buffers by their distance, 0 for the current token. All other buffers are written at the end.

`describe_step` of a core returns its description. It is interpreted by PyTorch and native code (`stairwell.decode`), by
the exported graph (`stairwell.export.step`) and by JavaScript (`engine.js`). Only `Read` defines which tokens a layer
attends to. Batch size, dtype and `max_crop` are not part of a description.

Letters: B batch size, A layer applications, D width, C chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from stairwell.cores.sliding_window import filled

Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Read:
    """Entries of a buffer that a layer attends to: those at distance first..last or, with `chunks`, those of the chunks
    i-first to i-last, where i is the chunk of the current token. `last` None: back to the start of the stream.

    No read extends beyond the start of its stream: the largest distance is the number of tokens since start."""

    buffer: int
    first: int
    last: int | None
    chunks: bool = False

    def distances(self, since_start: Count, C: int) -> tuple[Count | int, Count | int]:
        """Return the nearest and the farthest distance for a token with `since_start` tokens before it; the farthest
        may exceed `since_start`."""
        if not self.chunks:
            return self.first, since_start if self.last is None else self.last
        phase = since_start % C
        nearest = 0 if self.first == 0 else phase + (self.first - 1) * C + 1
        return nearest, since_start if self.last is None else phase + self.last * C

    def visible(self, distance: Tensor, since_start: Tensor, C: int) -> Tensor:
        """Return whether a token attends to the entries at `distance`; the shapes are broadcast."""
        nearest, farthest = self.distances(since_start, C)
        return (nearest <= distance) & (distance <= farthest) & filled(distance, since_start)

    def bounds(self, C: int) -> tuple[int, int | None]:
        """Return the nearest and the farthest distance over all tokens; None if unbounded."""
        if not self.chunks:
            return self.first, self.last
        return max(self.first - 1, 0) * C + (self.first > 0), None if self.last is None else (self.last + 1) * C - 1


@dataclass(frozen=True)
class Application:
    """One application of a layer. Its input may be written to a buffer before it attends."""

    layer: int
    reads: tuple[Read, ...]
    write: int | None = None


@dataclass(frozen=True)
class Buffer:
    """Keys and values of one vector per token, as projected by a layer (after its attention norm, with pre-norm)."""

    layer: int
    vector: int
    memory: str  # path of the memory in the state that stores the raw vectors


@dataclass(frozen=True)
class StoredVectors:
    """The raw vectors of past tokens in the state: the path of the tensor and what it holds for each token."""

    path: str
    vectors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StepDescription:
    applications: tuple[Application, ...]
    buffers: tuple[Buffer, ...]
    memories: tuple[StoredVectors, ...]
    nearest: int  # the smallest distance; the first position embedding is for this distance
    distances: int  # number of position embeddings; larger distances share the last one
    chunk: int = 1
    cross: bool = False  # each application attends to the source, after its own attention
    mix: Tensor | None = None  # (mixes, A + 1); None: there are no mixes

    @property
    def mixes(self) -> int:
        return 0 if self.mix is None else len(self.mix)

    @property
    def final_writes(self) -> tuple[int, ...]:
        """Indices of the buffers that are written at the end of a step."""
        written = {a.write for vector, a in enumerate(self.applications) if self._writes_own_vector(a, vector)}
        return tuple(r for r in range(len(self.buffers)) if r not in written)

    def _writes_own_vector(self, application: Application, vector: int) -> bool:
        return application.write is not None and self.buffers[application.write].vector == vector

    @property
    def is_parallel(self) -> bool:
        """Whether the tokens of a call can be processed together, layer by layer: each layer attends only to its
        own inputs."""
        return not self.final_writes and all(
            read.buffer == application.write for application in self.applications for read in application.reads
        )

    @property
    def is_bounded(self) -> bool:
        """Whether the number of entries of every buffer is bounded."""
        return all(self.farthest(r) is not None for r in range(len(self.buffers)))

    def farthest(self, buffer: int) -> int | None:
        """Return the farthest distance at which a buffer is read; None if unbounded."""
        reads = [read for application in self.applications for read in application.reads if read.buffer == buffer]
        limits = [limit for _, limit in (read.bounds(self.chunk) for read in reads) if limit is not None]
        return max(limits, default=0) if len(limits) == len(reads) else None

    def memory_index(self, buffer: int) -> tuple[int, int]:
        """Return the index of the memory that stores a buffer's raw vectors, and the index of the vector in it."""
        source = self.buffers[buffer]
        (index,) = (i for i, memory in enumerate(self.memories) if memory.path == source.memory)
        return index, self.memories[index].vectors.index(source.vector)

    def check(self, layers: int) -> None:
        """Raise an error if indices or shapes are inconsistent."""
        vectors = len(self.applications) + 1 + self.mixes
        for application in self.applications:
            used = {read.buffer for read in application.reads} | {application.write} - {None}
            if not 0 <= application.layer < layers or not used <= set(range(len(self.buffers))):
                raise ValueError(
                    f"a layer application refers to a layer or a buffer that does not exist: {application}"
                )
        for r, buffer in enumerate(self.buffers):
            if not 0 <= buffer.layer < layers or not 0 <= buffer.vector < vectors:
                raise ValueError(f"a buffer refers to a layer or a vector that does not exist: {buffer}")
            self.memory_index(r)
        if self.mix is not None and self.mix.shape[1] != len(self.applications) + 1:
            raise ValueError(f"a mix has {len(self.applications) + 1} weights, one per vector, not {self.mix.shape[1]}")

    def to_json(self) -> dict[str, Any]:
        """Return the description as plain lists and numbers, for other languages."""
        return {
            "applications": [
                {
                    "layer": application.layer,
                    "write": application.write,
                    "reads": [vars(read) for read in application.reads],
                }
                for application in self.applications
            ],
            "buffers": [
                {"layer": buffer.layer, "vector": buffer.vector, "farthest": self.farthest(r)}
                for r, buffer in enumerate(self.buffers)
            ],
            "final_writes": list(self.final_writes),
            "memories": [{"path": memory.path, "vectors": list(memory.vectors)} for memory in self.memories],
            "mix": [] if self.mix is None else self.mix.detach().to(torch.float64).tolist(),
            "nearest": self.nearest,
            "distances": self.distances,
            "chunk": self.chunk,
            "cross": self.cross,
        }
