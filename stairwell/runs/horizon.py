"""The horizon of a trained run: streams without end are followed until the first mistake, and beyond.

    result = measure("runs/s5", tokens=10_000_000, rows=4)      also written to runs/s5/horizon.json

A model is called on one segment after the other with its state handed on, which by the law of splits is the same as one
call of the whole; nothing is kept but the state and a few counts, so the memory does not grow. Places in a stream are
counted from 1. Letters: B streams, T tokens of a segment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from stairwell import configs
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.models import LanguageModel
from stairwell.provenance import provenance
from stairwell.roles import Role
from stairwell.runs.trainings import load
from stairwell.tasks.base import IGNORE
from stairwell.tasks.endless import StreamName, endless_batches
from stairwell.tasks.generated import Array, Endless
from stairwell.train import Run, Watch

FILE = "horizon.json"
PER_DECADE = 8  # points of the curve for each power of ten
EDGES = np.unique(np.round(10 ** (np.arange(13 * PER_DECADE) / PER_DECADE)).astype(np.int64))  # each begins a bin
MOST_GROWING = 100_000  # tokens; a state that keeps all of them is followed no further


@dataclass(frozen=True)
class Tally:
    """What was seen so far. A new one is made for every segment, so that an interruption finds one that is whole."""

    tokens: int  # of each stream
    first: Array  # (B,): where the first mistake came; 0: none has
    mistakes: Array  # (B,)
    asked: Array  # (bins,): labels asked at the places of each bin, in all streams
    wrong: Array  # (bins,): how many of these the model did not know

    @classmethod
    def empty(cls, streams: int) -> Self:
        rows, bins = np.zeros(streams, dtype=np.int64), np.zeros(len(EDGES), dtype=np.int64)
        return cls(0, rows, rows, bins, bins)

    def plus(self, answers: Array, targets: Array) -> Tally:
        """With the next segment of all streams: answers, targets (B, T)."""
        asked = targets != IGNORE
        wrong = asked & (answers != targets)
        places = self.tokens + 1 + np.arange(targets.shape[1])
        bins = np.searchsorted(EDGES, places, side="right") - 1
        here = np.where(wrong.any(axis=1), places[wrong.argmax(axis=1)], 0)
        return Tally(
            self.tokens + targets.shape[1],
            np.where(self.first > 0, self.first, here),
            self.mistakes + wrong.sum(axis=1),
            self.asked + np.bincount(bins, asked.sum(axis=0), len(EDGES)).astype(np.int64),
            self.wrong + np.bincount(bins, wrong.sum(axis=0), len(EDGES)).astype(np.int64),
        )


@torch.no_grad()
def follow(
    model: LanguageModel, task: Endless, streams: Sequence[StreamName], tokens: int, segment: int = 256
) -> Iterator[Tally]:
    """Follow so many tokens of every stream; what was seen so far, after each segment."""
    device = next(model.parameters()).device
    model.eval()
    state, tally = model.init_state(len(streams)), Tally.empty(len(streams))
    if tokens > MOST_GROWING and any(leaf.role is Role.GROWING for leaf in state.leaves()):
        raise UserError(
            f"this model keeps all of its past; it can be followed for {MOST_GROWING:,} tokens, not {tokens:,}"
        )
    for batch in endless_batches(task, streams, tokens, segment):
        logits, state = model(batch.tokens.to(device), state)
        tally = tally.plus(logits.argmax(-1).cpu().numpy(), batch.targets.numpy())
        yield tally


@dataclass(frozen=True)
class FollowedStream:
    seed: int
    row: int
    first_mistake: int | None
    "its place in the stream, counted from 1; none where there was no mistake"
    mistakes: int


@dataclass(frozen=True)
class Horizon:
    """What horizon.json holds, as far as it is drawn."""

    tokens: int
    "of each stream"
    trained_on: int
    "tokens of the longest training episode"
    streams: tuple[FollowedStream, ...]
    places: tuple[int, ...]
    "where each bin of the curve begins; it ends where the next one begins, and the last one with the streams"
    asked: tuple[int, ...]
    wrong: tuple[int, ...]

    @property
    def first_mistakes(self) -> list[int]:
        return sorted(stream.first_mistake for stream in self.streams if stream.first_mistake is not None)

    @property
    def faultless(self) -> int:
        """How many streams had no mistake."""
        return sum(stream.first_mistake is None for stream in self.streams)


def measure(
    path: str | Path,
    tokens: int,
    rows: int = 4,
    seeds: int = 1,
    segment: int = 256,
    device: str = "auto",
    engine: str = "auto",
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Follow `rows` streams of each of `seeds` seeds and write down what was seen. Whoever interrupts it gets what was
    seen until then, with `interrupted`; a longer measurement that is there already is not written over by that."""
    model, task = load(path, device, engine)
    endless = stream_of(task)
    streams = [StreamName(seed, row) for seed in range(seeds) for row in range(rows)]
    tally, began, interrupted = Tally.empty(len(streams)), time.monotonic(), False
    try:
        for tally in follow(model, endless, streams, tokens, segment):
            if watch is not None:
                watch(progress(tally, len(streams), tokens, time.monotonic() - began))
    except KeyboardInterrupt:
        if not tally.tokens:
            raise
        interrupted = True
    seconds = time.monotonic() - began
    result = {
        "run": Path(path).name,
        "task": task.describe(),
        "update": Run(path).load_model()[1]["step"],
        "wanted": tokens,
        "interrupted": interrupted,
        "trained_on": trained_on(task),
        **as_json(tally, streams),
        "segment": segment,
        "engine": model.core.engine_name,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tally.tokens * len(streams) / max(seconds, 1e-9)),
        "provenance": provenance(),
    }
    known = read(path)
    kept = not interrupted or known is None or known.tokens <= tally.tokens
    if kept:
        write_text(Path(path) / FILE, json.dumps(result, indent=1) + "\n")
    return {**result, "kept": kept}


def stream_of(task: Any) -> Endless:
    """The task's stream without end; a plain error where it has none."""
    if not hasattr(task, "endless"):
        raise UserError("a stream without end is made by the task itself; this task reads what others have made")
    stream: Endless = task.endless()
    return stream


def trained_on(task: Any) -> int:
    return int(getattr(task.config, "length", 0))


def progress(tally: Tally, streams: int, tokens: int, seconds: float) -> dict[str, Any]:
    rate = tally.tokens / max(seconds, 1e-9)
    return {
        "event": "following",
        "tokens": tally.tokens,
        "of": tokens,
        "rate": rate * streams,
        "left": (tokens - tally.tokens) / max(rate, 1e-9),
        "faultless": int((tally.first == 0).sum()),
        "streams": streams,
    }


def as_json(tally: Tally, streams: Sequence[StreamName]) -> dict[str, Any]:
    used = EDGES[tally.tokens >= EDGES]
    return {
        "tokens": tally.tokens,
        "streams": [
            {"seed": seed, "row": row, "first_mistake": int(first) or None, "mistakes": int(mistakes)}
            for (seed, row), first, mistakes in zip(streams, tally.first, tally.mistakes, strict=True)
        ],
        "curve": {
            "places": used.tolist(),
            "asked": tally.asked[: len(used)].tolist(),
            "wrong": tally.wrong[: len(used)].tolist(),
        },
    }


def read(path: str | Path) -> Horizon | None:
    """What a run folder knows of its horizon; none where nobody has measured it, or where the file is damaged."""
    try:
        data = json.loads((Path(path) / FILE).read_text(encoding="utf-8"))
        return from_json(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def from_json(data: dict[str, Any]) -> Horizon:
    curve = data["curve"]
    return Horizon(
        data["tokens"],
        data["trained_on"],
        tuple(configs.from_json(FollowedStream, stream, FILE) for stream in data["streams"]),
        *(tuple(map(int, curve[name])) for name in ("places", "asked", "wrong")),
    )
