"""Tasks that generate their episodes from random numbers: training batches and splits.

A stream depends on its own index and the seed only. Letters: B streams, T tokens per read, E episodes, W tokens of the
longest episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np

from stairwell.configs import Config
from stairwell.data.cache import Array
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, FamilyName, Split, TokenBatch
from stairwell.tasks.batch_sources import check_position, check_segments, check_streams, to_batch
from stairwell.tasks.scores import SequenceScore, TokenScore

_PURPOSES = {"train": 0, "valid": 1, "test": 2, "finite": 3, "endless": 4}
ENDLESS_TASKS = (
    "random-walk", "parity", "s5", "parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic",
    "group-words",
)  # fmt: skip


class Episodes(Protocol):
    """Generates the episodes of a task. Implemented as a frozen dataclass of the task's options.

    Random numbers are sampled for each stream separately; `build` then processes all streams at once, which is fast."""

    curriculum_options: ClassVar[tuple[str, ...]]  # the options that a curriculum may change

    @property
    def reset(self) -> bool:
        """Whether the state is reset at the first token of every episode."""

    @property
    def size(self) -> int:
        """The approximate number of tokens per episode."""

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        """Return the random numbers of `count` episodes: (count, ...)."""

    def build(self, samples: Array) -> EpisodeArrays:
        """Return the episodes that follow from these numbers."""


@runtime_checkable
class EndlessStream(Protocol):
    """Generates an episode that continues without end."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Unscored tokens at the start of a stream."""

    def generate(self, rng: np.random.Generator, length: int) -> Array:
        """Return the next tokens of one stream: (length,)."""

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        """Return the label after each token (B, T), and the state to carry to the next call. `carry` is None at the
        start of a stream. tokens (B, T)."""

    def is_scored(self, positions: Array) -> Array:
        """Return whether tokens are scored, by their positions after the prefix, counted from 1."""


@dataclass(frozen=True)
class EpisodeArrays:
    tokens: Array  # (E, W)
    targets: Array  # (E, W), IGNORE_INDEX where nothing is scored
    present: Array | None = None  # (E, W) bool: False is padding; None: no padding


class EpisodeSource:
    """Episodes in parallel streams, either endless or a finite set of `count` episodes that repeats.

    Endless: block k of stream b is sampled from the seed, b and k only. Finite: the data set is the same for every
    seed; stream b starts with episode `b * count // batch` and continues with the first episode after the last.
    """

    BLOCK = 2048  # approximate tokens: a random generator per block is cheap, and a block is generated without a pause

    def __init__(self, episodes: Episodes, streams: range, batch: int, seed: int, count: int = 0) -> None:
        check_streams(streams, batch)
        if seed < 0:
            raise UserError(f"seed {seed}; a seed must be 0 or more")
        self.episodes, self.streams, self.batch, self.seed, self.count = episodes, streams, batch, seed, count
        self._reader = _BlockReader([_Stream(index) for index in streams], self._blocks)

    def read(self, length: int) -> TokenBatch:
        return _to_batch(self._reader.read(length), self.episodes.reset)

    def position(self) -> dict[str, Any]:
        streams = [[stream.block, stream.offset] for stream in self._reader.streams]
        options = {name: getattr(self.episodes, name) for name in self.episodes.curriculum_options}
        return {"streams": streams, "options": options}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self.streams))
        self.episodes = _with_options(self.episodes, position["options"])
        streams = [
            _Stream(index, block, offset, available=-offset)
            for index, (block, offset) in zip(self.streams, position["streams"])
        ]
        self._reader = _BlockReader(streams, self._blocks)

    def change(self, **options: Any) -> None:
        """Start a new block in every stream; the rest of the current block, and of its episode, is dropped."""
        if self.count:
            raise UserError(
                f"cannot change {', '.join(options) or 'anything'} of a finite training set; "
                "a curriculum needs an endless one (train_episodes = 0)"
            )
        self.episodes = _with_options(self.episodes, options)
        streams = [_Stream(stream.index, stream.block + (stream.offset > 0)) for stream in self._reader.streams]
        self._reader = _BlockReader(streams, self._blocks)

    def _blocks(self, requests: list[tuple[int, int]]) -> list[Array]:
        count = max(1, self.BLOCK // self.episodes.size)
        if not self.count:
            samples = [[(random_generator("train", index, block, self.seed), count)] for index, block in requests]
            return _build_blocks(self.episodes, samples)
        samples = []
        for index, block in requests:
            first = index * self.count // self.batch + block * count
            samples.append([(random_generator("finite", (first + i) % self.count), 1) for i in range(count)])
        return _build_blocks(self.episodes, samples)


def episode_batches(episodes: Episodes, count: int, split: Split, batch: int, segment: int) -> Iterator[TokenBatch]:
    """Yield a split of `count` episodes once, `segment` tokens at a time. The episodes do not depend on the batch size.
    Each stream has consecutive whole episodes; streams that end early are padded with token 0, which is not scored."""
    check_segments(batch, segment)
    shares = [range(b * count // batch, (b + 1) * count // batch) for b in range(batch)]
    per_block = max(1, 32 * EpisodeSource.BLOCK // (episodes.size * batch))  # fewer streams have larger blocks

    def blocks(requests: list[tuple[int, int]]) -> list[Array]:
        chosen = [shares[index][block * per_block : (block + 1) * per_block] for index, block in requests]
        return _build_blocks(episodes, [[(random_generator(split, episode), 1) for episode in own] for own in chosen])

    streams = [_Stream(b, blocks=-(-len(share) // per_block)) for b, share in enumerate(shares)]
    reader = _BlockReader(streams, blocks)
    while (arrays := reader.read(segment)).shape[2]:
        yield _to_batch(arrays, episodes.reset)


@dataclass(frozen=True)
class EpisodesConfig(Config):
    """The numbers of episodes of a generated task."""

    train_episodes: int = 0
    """Size of the training set, which repeats (the papers: 10000 episodes); 0: endless."""
    valid_episodes: int = 200
    """Episodes of the validation split."""
    test_episodes: int = 1000
    """Episodes of the test split."""


@dataclass(frozen=True)
class LengthConfig(EpisodesConfig):
    """Episodes of one length per split."""

    length: int = 40
    """Length of a training episode in tokens, bits or digits."""
    valid_length: int = 0
    """Length of a validation episode; 0: as in training."""
    test_length: int = 400
    """Length of a test episode."""


class GeneratedTask:
    """Base class of generated tasks. The splits have `valid_episodes` and `test_episodes` episodes that are not in the
    training set and do not depend on the seed; `valid` and `test` generate them if they differ from training."""

    config: EpisodesConfig
    config_type: ClassVar[type[EpisodesConfig]]
    family: FamilyName = "streams"
    primary_metric = "accuracy"
    higher_is_better = True

    def __init__(
        self,
        config: EpisodesConfig,
        train: Episodes,
        inputs: int,
        outputs: int,
        valid: Episodes | None = None,
        test: Episodes | None = None,
    ) -> None:
        check_at_least(0, train_episodes=config.train_episodes)
        check_at_least(1, valid_episodes=config.valid_episodes, test_episodes=config.test_episodes)
        self.config = config
        self.train, self.inputs, self.outputs = train, inputs, outputs
        self.splits = {"valid": (valid or train, config.valid_episodes), "test": (test or train, config.test_episodes)}

    def score(self) -> TokenScore:
        return SequenceScore()

    def batch_source(self, streams: range, batch: int, seed: int) -> EpisodeSource:
        return EpisodeSource(self.train, streams, batch, seed, count=self.config.train_episodes)

    def batches(self, split: Split, batch: int, segment: int) -> Iterator[TokenBatch]:
        episodes, count = self.splits[split]
        return episode_batches(episodes, count, split, batch, segment)

    def facts(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "outputs": self.outputs}

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names of the tokens and of the labels, in the order of their ids: numbers unless a task has
        better ones."""
        return numbers(self.inputs), numbers(self.outputs)

    def endless_stream(self) -> EndlessStream:
        """Return the generator of endless streams; raise if the task has none."""
        if not isinstance(self.train, EndlessStream):
            raise UserError(f"this task has no endless streams; these tasks do: {', '.join(ENDLESS_TASKS)}")
        return self.train

    def with_config(self, config: Any) -> Self:
        return cast(Any, type(self))(config)

    def describe_splits(self) -> str:
        """Return the sizes of the splits, for `describe`."""
        c = self.config
        training = f"{c.train_episodes:,}" if c.train_episodes else "unlimited"
        return f"{training} training episodes, {c.valid_episodes:,} for validation, {c.test_episodes:,} for testing"


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


class LengthTask(GeneratedTask):
    """A task of episodes of one length per split."""

    config: LengthConfig

    def __init__(self, config: LengthConfig, train: Any, inputs: int, outputs: int) -> None:
        check_at_least(0, valid_length=config.valid_length)
        check_at_least(1, test_length=config.test_length)
        valid = replace(train, length=config.valid_length or config.length)
        super().__init__(config, train, inputs, outputs, valid, replace(train, length=config.test_length))


@dataclass(frozen=True)
class FixedLengthEpisodes:
    """Episodes of `length` tokens with a label per token, which follows from the tokens so far. Can be endless."""

    length: int
    curriculum_options: ClassVar[tuple[str, ...]] = ("length",)
    reset: ClassVar[bool] = True
    prefix: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def size(self) -> int:
        return self.length

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        raise NotImplementedError

    def labels(self, tokens: Array, carry: Array | None) -> tuple[Array, Array]:
        raise NotImplementedError

    def build(self, samples: Array) -> EpisodeArrays:
        return EpisodeArrays(samples, self.labels(samples, None)[0])

    def generate(self, rng: np.random.Generator, length: int) -> Array:
        return replace(self, length=length).sample(rng, 1)[0]

    def is_scored(self, positions: Array) -> Array:
        return positions > 0


def check_at_least(minimum: int, **options: int) -> None:
    for name, value in options.items():
        if value < minimum:
            raise UserError(f"{name} is {value}; it must be at least {minimum}")


def check_at_most(maximum: int, **options: int) -> None:
    for name, value in options.items():
        if value > maximum:
            raise UserError(f"{name} is {value:,}; it must be at most {maximum:,}")


def random_generator(purpose: str, index: int, block: int = 0, seed: int = 0) -> np.random.Generator:
    """Return a generator that no other purpose, index, block or seed shares."""
    # The seed is last because it alone may exceed 32 bits.
    return np.random.default_rng([_PURPOSES[purpose], index, block, seed])


def _with_options(episodes: Episodes, options: dict[str, Any]) -> Episodes:
    for name in options:
        if name not in episodes.curriculum_options:
            allowed = " and ".join(episodes.curriculum_options)
            raise UserError(f"cannot change '{name}' during training; {allowed} can change")
    return replace(episodes, **options)  # type: ignore[type-var]


def _build_blocks(episodes: Episodes, requests: Sequence[Sequence[tuple[np.random.Generator, int]]]) -> list[Array]:
    """Return one block (3, n) of tokens, targets and starts per request, which lists random generators and the number
    of episodes to sample from each."""
    samples = [episodes.sample(rng, count) for request in requests for rng, count in request]
    arrays = episodes.build(np.concatenate(samples))
    E, W = arrays.tokens.shape
    stacked = np.zeros((3, E, W), dtype=np.int32)
    stacked[0], stacked[1] = arrays.tokens, arrays.targets
    if arrays.present is None:
        stacked[2, :, 0] = 1
        flat, ends = stacked.reshape(3, E * W), np.arange(1, E + 1) * W
    else:
        stacked[2, np.arange(E), arrays.present.argmax(axis=1)] = 1  # the first token that is not padding
        flat, ends = stacked[:, arrays.present], np.cumsum(arrays.present.sum(axis=1))
    episodes_per_request = np.array([sum(count for _, count in request) for request in requests])
    return np.split(flat, ends[np.cumsum(episodes_per_request) - 1][:-1], axis=1)


def _to_batch(arrays: Array, reset: bool) -> TokenBatch:
    return to_batch(arrays[0], arrays[1], arrays[2] if reset else None)


@dataclass
class _Stream:
    index: int
    block: int = 0  # the block of the next token
    offset: int = 0  # the next token's offset in that block
    available: int = 0  # tokens in the queue; negative while a block is to be skipped up to the offset
    blocks: int | None = None  # total number; None if the stream is endless
    queue: deque[Array] = field(default_factory=deque)  # generated blocks; the first is being read

    @property
    def next_block(self) -> int:
        return self.block + len(self.queue)

    @property
    def exhausted(self) -> bool:
        return self.next_block == self.blocks

    def read_into(self, out: Array) -> int:
        """Copy from the current block into `out` (3, n) and return the number of tokens copied."""
        block = self.queue[0]
        size = min(out.shape[1], block.shape[1] - self.offset)
        out[:, :size] = block[:, self.offset : self.offset + size]
        self.offset += size
        self.available -= size
        if self.offset == block.shape[1]:
            self.queue.popleft()
            self.block, self.offset = self.block + 1, 0
        return size


class _BlockReader:
    """Reads any number of tokens from streams of blocks. `generate` returns the blocks of a list of (stream index,
    block number)."""

    def __init__(self, streams: list[_Stream], generate: Callable[[list[tuple[int, int]]], list[Array]]) -> None:
        self.streams, self.generate = streams, generate

    def read(self, length: int) -> Array:
        """Return (3, B, T). T is `length`, or what remains of the longest stream when all streams end."""
        self._fill_queues(length)
        length = min(length, max(stream.available for stream in self.streams))
        arrays = np.zeros((3, len(self.streams), length), dtype=np.int64)
        for out, stream in zip(arrays.swapaxes(0, 1), self.streams):
            filled = 0
            while filled < length and stream.queue:
                filled += stream.read_into(out[:, filled:])
            out[1, filled:] = IGNORE_INDEX
        return arrays

    def _fill_queues(self, length: int) -> None:
        """Generate blocks. When one stream has too few tokens, every stream with less than two blocks gets one:
        otherwise blocks of different sizes would soon be generated one stream at a time, which is slow."""
        while any(stream.available < length and not stream.exhausted for stream in self.streams):
            needy = [s for s in self.streams if (s.available < length or len(s.queue) < 2) and not s.exhausted]
            for stream, block in zip(needy, self.generate([(s.index, s.next_block) for s in needy])):
                stream.queue.append(block)
                stream.available += block.shape[1]
