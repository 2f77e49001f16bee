"""Long-stream evaluation: how many tokens a trained model reads until its first mistake, and how accurate it is after.

    result = measure("runs/s5", tokens=10_000_000, streams=4)      also written to runs/s5/horizon.json

Tasks that generate their data have endless streams. Labeled data has sequences that end: each one is a stream. An
agent walks through an endless corridor and is asked for the door at positions on a logarithmic scale.

The model reads one segment after another and passes its state on, which gives the same outputs as one call on the whole
stream. Only the state and a few counts are stored, so memory use is constant. Positions in a stream start at 1.
Letters: B streams, T tokens of a segment.
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
from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.files import parse_json, write_text
from stairwell.models import LanguageModel
from stairwell.provenance import provenance
from stairwell.rl.agent import Agent
from stairwell.rl.environments.corridor import CorridorConfig
from stairwell.rl.long_corridor import Walk, corridors
from stairwell.rl.task import RLTask
from stairwell.runs import sizes
from stairwell.runs.load import check_results_writable, find_result, load, open_run, results_folder
from stairwell.runs.run import Run
from stairwell.state import FieldType
from stairwell.tasks import Split
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from stairwell.tasks.generated import Array, EndlessStream
from stairwell.tasks.labeled import Labeled
from stairwell.train import Callback

FILE = "horizon.json"
PER_DECADE = 8  # points of the curve per power of ten
EDGES = np.unique(np.round(10 ** (np.arange(13 * PER_DECADE) / PER_DECADE)).astype(np.int64))  # first positions of bins
GROUP = 64  # sequences of labeled data per batch
MAX_GROWING = 100_000  # tokens; the limit of models whose state grows with every token


@dataclass(frozen=True)
class MistakeCounts:
    """Mistakes so far. Immutable, so that an interruption never leaves a segment half counted."""

    tokens_read: Array  # (B,); after the end of a stream nothing is scored
    first: Array  # (B,): position of the first mistake; 0: none
    mistakes: Array  # (B,)
    scored: Array  # (bins,): labels at the positions of each bin, in all streams
    wrong: Array  # (bins,): how many of them the model predicted wrong

    @classmethod
    def empty(cls, streams: int) -> Self:
        per_stream, bins = np.zeros(streams, dtype=np.int64), np.zeros(len(EDGES), dtype=np.int64)
        return cls(per_stream, per_stream, per_stream, bins, bins)

    @property
    def tokens(self) -> int:
        """Tokens read of the longest stream."""
        return int(self.tokens_read.max(initial=0))

    def add_segment(self, predictions: Array, targets: Array) -> MistakeCounts:
        """Return the counts with the next segment of all streams; predictions, targets (B, T)."""
        scored = targets != IGNORE_INDEX
        wrong = scored & (predictions != targets)
        positions = self.tokens + 1 + np.arange(targets.shape[1])
        bins = np.searchsorted(EDGES, positions, side="right") - 1
        first = np.where(wrong.any(axis=1), positions[wrong.argmax(axis=1)], 0)
        return MistakeCounts(
            self.tokens_read + targets.shape[1],
            np.where(self.first > 0, self.first, first),
            self.mistakes + wrong.sum(axis=1),
            self.scored + np.bincount(bins, scored.sum(axis=0), len(EDGES)).astype(np.int64),
            self.wrong + np.bincount(bins, wrong.sum(axis=0), len(EDGES)).astype(np.int64),
        )

    def add_streams(self, other: MistakeCounts) -> MistakeCounts:
        """Return the counts with other streams."""
        return MistakeCounts(
            np.concatenate([self.tokens_read, other.tokens_read]),
            np.concatenate([self.first, other.first]),
            np.concatenate([self.mistakes, other.mistakes]),
            self.scored + other.scored,
            self.wrong + other.wrong,
        )


def read_streams(
    model: LanguageModel, task: EndlessStream, streams: Sequence[StreamId], tokens: int, segment: int = 256
) -> Iterator[MistakeCounts]:
    """Read `tokens` tokens of every stream; yield the counts after each segment."""
    check_growing(model, tokens)
    yield from count_mistakes(model, endless_batches(task, streams, tokens, segment), len(streams))


def read_sequences(
    model: LanguageModel, task: Labeled, split: Split, count: int, tokens: int, segment: int = 256
) -> Iterator[MistakeCounts]:
    """Read at most `tokens` tokens of the first `count` sequences of a split; yield the counts after each segment."""
    lengths = np.minimum(task.stream_lengths(split)[:count], tokens)
    check_growing(model, int(lengths.max()))
    before = MistakeCounts.empty(0)
    for first in range(0, len(lengths), GROUP):
        group, counts = range(first, min(first + GROUP, len(lengths))), before
        for of_group in count_mistakes(model, task.stream_batches(split, group, tokens, segment), len(group)):
            yield (counts := before.add_streams(of_group))
        before = counts


def check_growing(model: LanguageModel, tokens: int) -> None:
    if tokens > MAX_GROWING and any(leaf.field_type is FieldType.GROWING for leaf in model.init_state(1).leaves()):
        raise UserError(
            f"the state of this model grows with every token: it can read {MAX_GROWING:,} tokens, not {tokens:,}"
        )


def count_mistakes(model: LanguageModel, batches: Iterable[TokenBatch], streams: int) -> Iterator[MistakeCounts]:
    """Pass the state from segment to segment; yield the counts after each."""
    yield from count_segments(predictions(model, batches, streams), streams)


@torch.no_grad()
def predictions(model: LanguageModel, batches: Iterable[TokenBatch], streams: int) -> Iterator[tuple[Array, Array]]:
    """Yield predictions and targets (B, T) segment by segment."""
    device = next(model.parameters()).device
    model.eval()
    state = model.init_state(streams)
    for batch in batches:
        logits, state = model(batch.tokens.to(device), state)
        yield logits.argmax(-1).cpu().numpy(), batch.targets.numpy()


def count_segments(segments: Iterable[tuple[Array, Array]], streams: int) -> Iterator[MistakeCounts]:
    counts = MistakeCounts.empty(streams)
    for predicted, targets in segments:
        yield (counts := counts.add_segment(predicted, targets))


@dataclass(frozen=True)
class StreamResult:
    """One stream in horizon.json."""

    seed: int
    stream: int
    "Index of the stream among those of its seed."
    first_mistake: int | None
    "Position of the first mistake, from 1; None if there was none."
    mistakes: int
    tokens: int | None = None
    "Length of a stream that ends; None for endless streams."


@dataclass(frozen=True)
class Horizon:
    """The part of horizon.json that is plotted."""

    tokens: int
    "Tokens read of each stream, or of the longest."
    trained_on: int
    "Tokens of the longest training episode."
    streams: tuple[StreamResult, ...]
    positions: tuple[int, ...]
    "First position of each bin of the curve. The last bin ends with the streams."
    scored: tuple[int, ...]
    wrong: tuple[int, ...]
    step: int | None = None
    "Step of the evaluated parameters; None if the file does not have it."

    @property
    def first_mistakes(self) -> list[int]:
        return sorted(stream.first_mistake for stream in self.streams if stream.first_mistake is not None)

    @property
    def equal(self) -> bool:
        """Whether the same number of tokens was read of all streams."""
        return all(stream.tokens in (None, self.tokens) for stream in self.streams)

    @property
    def error_free(self) -> int:
        """Number of streams without a mistake."""
        return sum(stream.first_mistake is None for stream in self.streams)


def measure(
    path: str | Path,
    tokens: int,
    streams: int | None = None,
    seeds: int | None = None,
    segment: int = 256,
    device: str = "auto",
    engine: str = "auto",
    callback: Callback | None = None,
    split: Split = "test",
    data: str | None = None,
    weights: Weights = "float32",
) -> dict[str, Any]:
    """Evaluate a run on long streams, write horizon.json and return its content.

    Generated tasks and corridors: `streams` (4) endless streams of each of `seeds` (1) seeds. Labeled data: the first
    `streams` (all) sequences of a split, or of other data. On KeyboardInterrupt the result so far is returned with
    `interrupted`; it does not replace a longer result. Results of rounded parameters are not written.
    """
    model, task = load(path, device, engine, weights)
    check_results_writable(path)
    options = StreamOptions(tokens, streams, seeds, segment, split, data)
    chosen: LongStreams
    if isinstance(task, RLTask):
        chosen = corridor_streams(model, task, options)
    elif isinstance(task, Labeled):
        chosen = labeled_streams(model, task, options)
    else:
        chosen = generated_streams(model, task, options)
    counts, start, interrupted = MistakeCounts.empty(0), time.monotonic(), False
    try:
        for counts in chosen.counts:
            if callback is not None:
                callback(progress(counts, chosen, time.monotonic() - start))
    except KeyboardInterrupt:
        if not counts.tokens:
            raise
        interrupted = True
    seconds = time.monotonic() - start
    result = {
        "run": Path(path).name,
        **chosen.description,
        "step": open_run(path).load_model()[1]["step"],
        "requested_tokens": tokens,
        "interrupted": interrupted,
        "trained_on": trained_on(task, open_run(path)),
        **to_json(counts, chosen),
        "segment": segment,
        "engine": model.core.engine_name,
        "weights": weights,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(chosen.tokens_read(counts) / max(seconds, 1e-9)),
        "provenance": provenance(),
    }
    earlier = read(path)
    saved = not interrupted or earlier is None or earlier.tokens <= counts.tokens
    if saved and weights == "float32":
        write_text(results_folder(path) / FILE, json.dumps(result, indent=1) + "\n")
    return {**result, "saved": saved}


@dataclass(frozen=True)
class LongStreams:
    """The streams of an evaluation."""

    ids: list[StreamId]
    lengths: Array  # (B,): tokens of each
    counts: Iterator[MistakeCounts]
    "The counts after each segment."
    description: dict[str, Any]
    end: bool
    "Whether the streams end, as those of labeled data do."

    def tokens_read(self, counts: MistakeCounts) -> int:
        """Return the number of tokens read of all streams."""
        return int(np.minimum(counts.tokens_read, self.lengths[: len(counts.tokens_read)]).sum())


@dataclass(frozen=True)
class StreamOptions:
    """Options of `measure`."""

    tokens: int
    streams: int | None
    seeds: int | None
    segment: int
    split: Split
    data: str | None

    def endless(self, model: LanguageModel | Agent, name: str) -> tuple[int, int, list[StreamId]]:
        """Return the numbers of seeds and streams per seed, and the ids of all streams; `name` is that of the streams
        in errors."""
        if self.data is not None or self.split != "test":
            raise UserError(f"--horizon generates the {name} of this task; leave out --data and --split")
        seeds, streams = self.seeds or 1, self.streams or 4
        sizes.check_streams(model, streams * seeds, BLOCK, f"--streams (now {streams:,}) or --seeds (now {seeds:,})")
        return seeds, streams, [StreamId(seed, stream) for seed in range(seeds) for stream in range(streams)]


def generated_streams(model: LanguageModel, task: Any, options: StreamOptions) -> LongStreams:
    """Return the endless streams of a task that generates its data."""
    endless = stream_of(task)
    _, _, ids = options.endless(model, "streams")
    counts = read_streams(model, endless, ids, options.tokens, options.segment)
    return LongStreams(ids, np.full(len(ids), options.tokens), counts, {"task": task.describe()}, end=False)


def corridor_streams(agent: Agent, task: RLTask, options: StreamOptions) -> LongStreams:
    """Return endless corridors, in which agents are asked for the door at the positions of the curve."""
    seeds, streams, ids = options.endless(agent, "corridors")
    walk = Walk(agent, corridors(task, seeds, streams))
    counts = count_segments(walk.segments(options.tokens, EDGES.tolist(), options.segment), len(ids))
    return LongStreams(ids, np.full(len(ids), options.tokens), counts, {"task": task.describe()}, end=False)


def labeled_streams(model: LanguageModel, task: Labeled, options: StreamOptions) -> LongStreams:
    """Return the sequences of labeled data."""
    if options.seeds is not None:
        raise UserError("--seeds is for tasks that generate their streams; labeled data is the same for every seed")
    if options.data is not None:
        task = task.with_data(options.data)
    lengths = np.minimum(task.stream_lengths(options.split)[: options.streams], options.tokens)
    sizes.check_streams(model, len(lengths), 1, f"--streams (now {len(lengths):,})")
    ids = [StreamId(0, stream) for stream in range(len(lengths))]
    counts = read_sequences(model, task, options.split, len(lengths), options.tokens, options.segment)
    return LongStreams(ids, lengths, counts, {"task": task.describe(), "split": options.split}, end=True)


def stream_of(task: Any) -> EndlessStream:
    """Return the task's endless stream; raise an error if it has none."""
    if not hasattr(task, "endless_stream"):
        raise UserError(
            "this task has no endless streams: --horizon and --inside need a task that generates its data; --horizon "
            "also reads labeled data and follows agents in a corridor"
        )
    stream: EndlessStream = task.endless_stream()
    return stream


def trained_on(task: Any, run: Run) -> int:
    """Return the tokens of the longest training episode, which a curriculum may not have reached; 0 if unknown, as
    without the training data."""
    if isinstance(task, RLTask):
        return int(task.config.length or CorridorConfig().length)
    if not isinstance(task, Labeled):
        stages = [record.get("stage") or {} for record in run.metrics()]
        reached = [int(stage["length"]) for stage in stages if "length" in stage]
        return min([int(getattr(task.config, "length", 0)), *([max(reached)] if reached else [])])
    try:
        return int(task.stream_lengths("train").max())
    except UserError:
        return 0


def progress(counts: MistakeCounts, streams: LongStreams, seconds: float) -> dict[str, Any]:
    """Return a progress event: tokens of each endless stream, or of all sequences together."""
    read, total = streams.tokens_read(counts), int(streams.lengths.sum())
    rate = read / max(seconds, 1e-9)
    share = 1 if streams.end else len(streams.ids)
    return {
        "event": "reading",
        "tokens": read // share,
        "of": total // share,
        "each": not streams.end,
        "rate": rate,
        "left": (total - read) / max(rate, 1e-9),
        "error_free": int((counts.first == 0).sum()),
        "streams": len(counts.first),
    }


def to_json(counts: MistakeCounts, streams: LongStreams) -> dict[str, Any]:
    used = EDGES[counts.tokens >= EDGES]
    lengths = np.minimum(counts.tokens_read, streams.lengths[: len(counts.tokens_read)]).tolist()
    started = zip(streams.ids, lengths, counts.first, counts.mistakes)  # after an interruption not all have started
    return {
        "tokens": counts.tokens,
        "streams": [
            {"seed": seed, "stream": stream, "first_mistake": int(first) or None, "mistakes": int(mistakes)}
            | ({"tokens": length} if streams.end else {})
            for (seed, stream), length, first, mistakes in started
        ],
        "curve": {
            "positions": used.tolist(),
            "scored": counts.scored[: len(used)].tolist(),
            "wrong": counts.wrong[: len(used)].tolist(),
        },
    }


def read(path: str | Path) -> Horizon | None:
    """Return the long-stream evaluation of a run folder; None if there is none, or if the file is damaged."""
    try:
        data = parse_json(find_result(path, FILE).read_bytes())
        return from_json(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def from_json(data: dict[str, Any]) -> Horizon:
    positions, scored, wrong = (tuple(map(int, data["curve"][name])) for name in ("positions", "scored", "wrong"))
    streams = tuple(configs.from_json(StreamResult, stream, FILE) for stream in data["streams"])
    return Horizon(data["tokens"], data["trained_on"], streams, positions, scored, wrong, data.get("step"))
