"""The horizon of a trained run: streams without end are followed until the first mistake, and beyond.

    result = measure("runs/s5", tokens=10_000_000, streams=4)      also written to runs/s5/horizon.json

Labeled data does not go on without end: every sequence of a split, or of other data, is a stream as long as it is.

A model is called on one segment after the other with its state handed on, which by the law of splits is the same as one
call of the whole; nothing is kept but the state and a few counts, so the memory does not grow. Places in a stream are
counted from 1. Letters: B streams, T tokens of a segment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from stairwell import configs
from stairwell.errors import UserError
from stairwell.files import parse_json, write_text
from stairwell.models import LanguageModel
from stairwell.provenance import provenance
from stairwell.runs import sizes
from stairwell.runs.load import load
from stairwell.state import FieldType
from stairwell.tasks import Split
from stairwell.tasks.base import IGNORE, Batch
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from stairwell.tasks.generated import Array, EndlessStream
from stairwell.tasks.labeled import Labeled
from stairwell.train import Callback, Run

FILE = "horizon.json"
PER_DECADE = 8  # points of the curve for each power of ten
EDGES = np.unique(np.round(10 ** (np.arange(13 * PER_DECADE) / PER_DECADE)).astype(np.int64))  # each begins a bin
TOGETHER = 64  # sequences of labeled data that are followed side by side
MOST_GROWING = 100_000  # tokens; a state that keeps all of them is followed no further


@dataclass(frozen=True)
class Tally:
    """What was seen so far. A new one is made for every segment, so that an interruption finds one that is whole."""

    followed: Array  # (B,): tokens of each stream so far; behind its own end nothing is asked
    first: Array  # (B,): where the first mistake came; 0: none has
    mistakes: Array  # (B,)
    asked: Array  # (bins,): labels asked at the places of each bin, in all streams
    wrong: Array  # (bins,): how many of these the model did not know

    @classmethod
    def empty(cls, streams: int) -> Self:
        rows, bins = np.zeros(streams, dtype=np.int64), np.zeros(len(EDGES), dtype=np.int64)
        return cls(rows, rows, rows, bins, bins)

    @property
    def tokens(self) -> int:
        """Of the stream that was followed farthest."""
        return int(self.followed.max(initial=0))

    def plus(self, answers: Array, targets: Array) -> Tally:
        """With the next segment of all streams: answers, targets (B, T)."""
        asked = targets != IGNORE
        wrong = asked & (answers != targets)
        places = self.tokens + 1 + np.arange(targets.shape[1])
        bins = np.searchsorted(EDGES, places, side="right") - 1
        here = np.where(wrong.any(axis=1), places[wrong.argmax(axis=1)], 0)
        return Tally(
            self.followed + targets.shape[1],
            np.where(self.first > 0, self.first, here),
            self.mistakes + wrong.sum(axis=1),
            self.asked + np.bincount(bins, asked.sum(axis=0), len(EDGES)).astype(np.int64),
            self.wrong + np.bincount(bins, wrong.sum(axis=0), len(EDGES)).astype(np.int64),
        )

    def beside(self, other: Tally) -> Tally:
        """With other streams, which were followed apart from these."""
        return Tally(
            np.concatenate([self.followed, other.followed]),
            np.concatenate([self.first, other.first]),
            np.concatenate([self.mistakes, other.mistakes]),
            self.asked + other.asked,
            self.wrong + other.wrong,
        )


def follow(
    model: LanguageModel, task: EndlessStream, streams: Sequence[StreamId], tokens: int, segment: int = 256
) -> Iterator[Tally]:
    """Follow so many tokens of every stream; what was seen so far, after each segment."""
    check_growing(model, tokens)
    yield from tallied(model, endless_batches(task, streams, tokens, segment), len(streams))


def follow_sequences(
    model: LanguageModel, task: Labeled, split: Split, count: int, tokens: int, segment: int = 256
) -> Iterator[Tally]:
    """Follow up to so many tokens of the first `count` sequences of a split; what was seen so far, after each
    segment."""
    lengths = np.minimum(task.stream_lengths(split)[:count], tokens)
    check_growing(model, int(lengths.max()))
    before = Tally.empty(0)
    for first in range(0, len(lengths), TOGETHER):
        group, together = range(first, min(first + TOGETHER, len(lengths))), before
        for tally in tallied(model, task.stream_batches(split, group, tokens, segment), len(group)):
            yield (together := before.beside(tally))
        before = together


def check_growing(model: LanguageModel, tokens: int) -> None:
    if tokens > MOST_GROWING and any(leaf.field_type is FieldType.GROWING for leaf in model.init_state(1).leaves()):
        raise UserError(
            f"this model keeps all of its past; it can be followed for {MOST_GROWING:,} tokens, not {tokens:,}"
        )


@torch.no_grad()
def tallied(model: LanguageModel, batches: Iterable[Batch], streams: int) -> Iterator[Tally]:
    """Carry a state from segment to segment; what was seen so far, after each."""
    device = next(model.parameters()).device
    model.eval()
    state, tally = model.init_state(streams), Tally.empty(streams)
    for batch in batches:
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
    tokens: int | None = None
    "of this stream, where streams end by themselves; none: as many as were followed of all"


@dataclass(frozen=True)
class Horizon:
    """What horizon.json holds, as far as it is drawn."""

    tokens: int
    "of each stream, or of the longest"
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
    def equal(self) -> bool:
        """Whether all streams were followed for as many tokens."""
        return all(stream.tokens in (None, self.tokens) for stream in self.streams)

    @property
    def faultless(self) -> int:
        """How many streams had no mistake."""
        return sum(stream.first_mistake is None for stream in self.streams)


def measure(
    path: str | Path,
    tokens: int,
    rows: int | None = None,
    seeds: int | None = None,
    segment: int = 256,
    device: str = "auto",
    engine: str = "auto",
    callback: Callback | None = None,
    split: Split = "test",
    data: str | None = None,
) -> dict[str, Any]:
    """Follow streams and write down what was seen: `rows` (4) streams of each of `seeds` (1) seeds that the task makes,
    or the first `rows` (all) sequences of a split of labeled data, or of other data. Whoever interrupts it gets what
    was seen until then, with `interrupted`; a longer measurement that is there already is not written over by that."""
    model, task = load(path, device, engine)
    Run(path).check_writable()
    chosen: Streams
    if isinstance(task, Labeled):
        chosen = given_streams(model, task, split, data, rows, seeds, tokens, segment)
    else:
        chosen = made_streams(model, task, split, data, rows, seeds, tokens, segment)
    tally, began, interrupted = Tally.empty(0), time.monotonic(), False
    try:
        for tally in chosen.follow:
            if callback is not None:
                callback(progress(tally, chosen, time.monotonic() - began))
    except KeyboardInterrupt:
        if not tally.tokens:
            raise
        interrupted = True
    seconds = time.monotonic() - began
    result = {
        "run": Path(path).name,
        **chosen.about,
        "update": Run(path).load_model()[1]["step"],
        "wanted": tokens,
        "interrupted": interrupted,
        "trained_on": trained_on(task),
        **as_json(tally, chosen),
        "segment": segment,
        "engine": model.core.engine_name,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(chosen.read(tally) / max(seconds, 1e-9)),
        "provenance": provenance(),
    }
    known = read(path)
    kept = not interrupted or known is None or known.tokens <= tally.tokens
    if kept:
        write_text(Path(path) / FILE, json.dumps(result, indent=1) + "\n")
    return {**result, "kept": kept}


@dataclass(frozen=True)
class Streams:
    """What is followed."""

    names: list[StreamId]
    lengths: Array  # (B,): tokens of each
    follow: Iterator[Tally]
    "what was seen so far, after each segment"
    about: dict[str, Any]
    end: bool
    "whether they end by themselves"

    def read(self, tally: Tally) -> int:
        """Return how many tokens were read of all streams."""
        return int(np.minimum(tally.followed, self.lengths[: len(tally.followed)]).sum())


def made_streams(
    model: LanguageModel,
    task: Any,
    split: str,
    data: str | None,
    rows: int | None,
    seeds: int | None,
    tokens: int,
    segment: int,
) -> Streams:
    """Streams that the task makes without end."""
    if data is not None or split != "test":
        raise UserError("--horizon makes its own streams; leave out --data and --split")
    endless, seeds, rows = stream_of(task), seeds or 1, rows or 4
    sizes.check_streams(model, rows * seeds, BLOCK, f"--rows (now {rows:,}) or --seeds (now {seeds:,})")
    names = [StreamId(seed, row) for seed in range(seeds) for row in range(rows)]
    found = follow(model, endless, names, tokens, segment)
    return Streams(names, np.full(len(names), tokens), found, {"task": task.describe()}, end=False)


def given_streams(
    model: LanguageModel,
    task: Labeled,
    split: Split,
    data: str | None,
    rows: int | None,
    seeds: int | None,
    tokens: int,
    segment: int,
) -> Streams:
    """The sequences of labeled data: nobody has labels for what comes after their ends."""
    if seeds is not None:
        raise UserError("--seeds is for tasks that make their own streams; labeled data is the same for every seed")
    if data is not None:
        task = task.with_data(data)
    lengths = np.minimum(task.stream_lengths(split)[:rows], tokens)
    sizes.check_streams(model, len(lengths), 1, f"--rows (now {len(lengths):,})")
    names = [StreamId(0, row) for row in range(len(lengths))]
    about = {"task": task.describe(), "split": split}
    return Streams(names, lengths, follow_sequences(model, task, split, len(lengths), tokens, segment), about, end=True)


def stream_of(task: Any) -> EndlessStream:
    """The task's stream without end; a plain error where it has none."""
    if not hasattr(task, "endless_stream"):
        raise UserError(
            "this task has no endless streams: --horizon and --inside are for tasks that generate their own tokens, "
            "--horizon for labeled data too"
        )
    stream: EndlessStream = task.endless_stream()
    return stream


def trained_on(task: Any) -> int:
    """Return the tokens of the longest training episode; 0 where nobody can tell, as without the training data."""
    if not isinstance(task, Labeled):
        return int(getattr(task.config, "length", 0))
    try:
        return int(task.stream_lengths("train").max())
    except UserError:
        return 0


def progress(tally: Tally, streams: Streams, seconds: float) -> dict[str, Any]:
    """Tokens of each stream or, where they end by themselves, of all."""
    read, total = streams.read(tally), int(streams.lengths.sum())
    rate = read / max(seconds, 1e-9)
    share = 1 if streams.end else len(streams.names)
    return {
        "event": "following",
        "tokens": read // share,
        "of": total // share,
        "each": not streams.end,
        "rate": rate,
        "left": (total - read) / max(rate, 1e-9),
        "faultless": int((tally.first == 0).sum()),
        "streams": len(tally.first),
    }


def as_json(tally: Tally, streams: Streams) -> dict[str, Any]:
    used = EDGES[tally.tokens >= EDGES]
    lengths = np.minimum(tally.followed, streams.lengths[: len(tally.followed)]).tolist()
    begun = zip(streams.names, lengths, tally.first, tally.mistakes)  # an interruption may leave some that were not
    return {
        "tokens": tally.tokens,
        "streams": [
            {"seed": seed, "row": row, "first_mistake": int(first) or None, "mistakes": int(mistakes)}
            | ({"tokens": length} if streams.end else {})
            for (seed, row), length, first, mistakes in begun
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
        data = parse_json((Path(path) / FILE).read_bytes())
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
