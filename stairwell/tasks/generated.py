"""Tasks that make their own episodes from random numbers: training feeds and splits.

A row depends on its own number and the seed only. Letters: B rows, T tokens of one read, E episodes, W tokens of the
longest of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np

from stairwell.data.cache import Array
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE, Batch, Kind, Known, Split
from stairwell.tasks.batch_sources import check_position, check_rows, check_segments, to_batch
from stairwell.tasks.scores import SequenceScore, TokenScore
from stairwell.text import Vocabulary

_SOURCES = {"train": 0, "valid": 1, "test": 2, "finite": 3, "endless": 4}  # of random numbers
# The tasks that have a stream without end.
ENDLESS = (
    "random-walk", "parity", "s5", "parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic",
    "group-words",
)  # fmt: skip


class Episodes(Protocol):
    """How a generated task makes its episodes, a frozen dataclass of its options. Random numbers are drawn for each row
    apart; what follows from them is worked out for all rows at once, which is what makes it fast."""

    adjustable: ClassVar[tuple[str, ...]]  # the options that a curriculum may change

    @property
    def documents(self) -> bool:
        """Whether every episode begins anew, with a start flag at its first token."""

    @property
    def size(self) -> int:
        """About how many tokens an episode has."""

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """The random numbers of `count` episodes: (count, ...)."""

    def play(self, draws: Array) -> Played:
        """The episodes that follow from these numbers."""


@runtime_checkable
class Endless(Protocol):
    """How a task's episode goes on without end."""

    @property
    def opening(self) -> tuple[int, ...]:
        """Tokens that a stream begins with and that are not asked about."""

    def go_on(self, rng: np.random.Generator, length: int) -> Array:
        """The next tokens of one stream, (length,)."""

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        """tokens (B, T) and what the last call carried on (none at the beginning) -> the label after each token (B, T),
        and what to carry on."""

    def asks(self, place: Array) -> Array:
        """Whether a token's label is asked, by its place behind the opening, counted from 1."""


@dataclass(frozen=True)
class Played:
    tokens: Array  # (E, W)
    targets: Array  # (E, W), IGNORE where nothing is scored
    present: Array | None = None  # (E, W) bool: which of these tokens exist; None when all do


class EpisodeSource:
    """Episodes in parallel rows, endless or a finite set of `count` episodes that repeats.

    Endless: block k of row r is drawn from the seed, r and k alone. Finite: a data set that is the same for every
    seed; row r begins with its episode `r * count // batch` and goes on from the first after the last.
    """

    BLOCK = 2048  # tokens, about: many enough to be worth a random generator, few enough to be made without a pause

    def __init__(self, episodes: Episodes, rows: range, batch: int, seed: int, count: int = 0) -> None:
        check_rows(rows, batch)
        if seed < 0:
            raise UserError(f"seed {seed}; a seed must be 0 or more")
        self.episodes, self.rows, self.batch, self.seed, self.count = episodes, rows, batch, seed, count
        self._reader = _Reader([_Row(row) for row in rows], self._blocks)

    def read(self, length: int) -> Batch:
        return _symbols_to_batch(self._reader.read(length), self.episodes.documents)

    def position(self) -> dict[str, Any]:
        rows = [[row.block, row.offset] for row in self._reader.rows]
        return {"rows": rows, "options": {name: getattr(self.episodes, name) for name in self.episodes.adjustable}}

    def seek(self, position: dict[str, Any]) -> None:
        check_position(position, len(self.rows))
        self.episodes = _adjust(self.episodes, position["options"])
        rows = [_Row(row, block, offset, left=-offset) for row, (block, offset) in zip(self.rows, position["rows"])]
        self._reader = _Reader(rows, self._blocks)

    def change(self, **options: Any) -> None:
        """Every row leaves what it has not read of its block, an episode under way included, and begins a new one."""
        if self.count:
            raise UserError(
                f"cannot change {', '.join(options) or 'anything'} of a finite training set; "
                "a curriculum needs an endless one (train_episodes = 0)"
            )
        self.episodes = _adjust(self.episodes, options)
        rows = [_Row(row.number, row.block + (row.offset > 0)) for row in self._reader.rows]
        self._reader = _Reader(rows, self._blocks)

    def _blocks(self, wanted: list[tuple[int, int]]) -> list[Array]:
        count = max(1, self.BLOCK // self.episodes.size)
        if not self.count:
            drawn = [[(random_numbers("train", row, block, self.seed), count)] for row, block in wanted]
            return _play(self.episodes, drawn)
        orders = []
        for row, block in wanted:
            first = row * self.count // self.batch + block * count
            orders.append([(random_numbers("finite", (first + i) % self.count), 1) for i in range(count)])
        return _play(self.episodes, orders)


def episode_batches(episodes: Episodes, count: int, split: Split, rows: int, segment: int) -> Iterator[Batch]:
    """A split of `count` episodes once, `segment` tokens at a time. Episode e is the same however many rows there are;
    each row has a run of whole episodes, and rows that end early are filled up with token 0, not scored."""
    check_segments(rows, segment)
    shares = [range(row * count // rows, (row + 1) * count // rows) for row in range(rows)]
    at_once = max(1, 32 * EpisodeSource.BLOCK // (episodes.size * rows))  # the fewer rows, the larger their blocks

    def blocks(wanted: list[tuple[int, int]]) -> list[Array]:
        runs = [shares[row][block * at_once : (block + 1) * at_once] for row, block in wanted]
        return _play(episodes, [[(random_numbers(split, episode), 1) for episode in run] for run in runs])

    reader = _Reader([_Row(row, blocks=-(-len(share) // at_once)) for row, share in enumerate(shares)], blocks)
    while (symbols := reader.read(segment)).shape[2]:
        yield _symbols_to_batch(symbols, episodes.documents)


class GeneratedTask:
    """What all generated tasks share. The splits are fresh episodes, the same for every seed, as many as the config's
    `valid_episodes` and `test_episodes`; `valid` and `test` make theirs where these differ from the training's."""

    kind: Kind = "language"
    reads_files: ClassVar[bool] = False
    primary_metric = "accuracy"
    higher_is_better = True
    vocabularies: Mapping[str, Vocabulary] = {}

    def __init__(
        self,
        config: Any,
        train: Episodes,
        inputs: int,
        outputs: int,
        valid: Episodes | None = None,
        test: Episodes | None = None,
    ) -> None:
        check_at_least(0, train_episodes=config.train_episodes)
        check_at_least(1, valid_episodes=config.valid_episodes, test_episodes=config.test_episodes)
        self.config: Any = config
        self.train, self.inputs, self.outputs = train, inputs, outputs
        self.splits = {"valid": (valid or train, config.valid_episodes), "test": (test or train, config.test_episodes)}

    def score(self) -> TokenScore:
        return SequenceScore()

    def batch_source(self, rows: range, batch: int, seed: int) -> EpisodeSource:
        return EpisodeSource(self.train, rows, batch, seed, count=self.config.train_episodes)

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[Batch]:
        episodes, count = self.splits[split]
        return episode_batches(episodes, count, split, rows, segment)

    def facts(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "outputs": self.outputs}

    def endless(self) -> Endless:
        """An episode that never ends, where the task has such a thing."""
        if not isinstance(self.train, Endless):
            raise UserError(f"the episodes of this task must end; a stream without end have {', '.join(ENDLESS)}")
        return self.train

    def fingerprint(self) -> dict[str, str]:
        return {}

    @classmethod
    def kept(cls, config: Any, known: Known) -> Self:
        return cast(Any, cls)(config)

    def with_config(self, config: Any) -> Self:
        return cast(Any, type(self))(config)

    def with_data(self, path: str) -> Self:
        raise UserError("--data is for tasks that read files; this one makes its own")

    def sets(self) -> str:
        """The sizes of the sets, for `describe`."""
        c = self.config
        training = f"a finite training set of {c.train_episodes:,}" if c.train_episodes else "an endless training set"
        return f"{training}, {c.valid_episodes:,} fresh ones to validate, {c.test_episodes:,} to test"


class LengthTask(GeneratedTask):
    """A task whose config has a `length` for training, a `valid_length` (0: the same) and a `test_length`."""

    def __init__(self, config: Any, train: Any, inputs: int, outputs: int) -> None:
        check_at_least(0, valid_length=config.valid_length)
        check_at_least(1, test_length=config.test_length)
        valid = replace(train, length=config.valid_length or config.length)
        super().__init__(config, train, inputs, outputs, valid, replace(train, length=config.test_length))


@dataclass(frozen=True)
class Sequences:
    """Episodes of `length` tokens, each with a label that follows from those so far; they can go on without end."""

    length: int
    adjustable: ClassVar[tuple[str, ...]] = ("length",)
    documents: ClassVar[bool] = True
    opening: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_at_least(1, length=self.length)

    @property
    def size(self) -> int:
        return self.length

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        raise NotImplementedError

    def follow(self, tokens: Array, before: Array | None) -> tuple[Array, Array]:
        raise NotImplementedError

    def play(self, draws: Array) -> Played:
        return Played(draws, self.follow(draws, None)[0])

    def go_on(self, rng: np.random.Generator, length: int) -> Array:
        return replace(self, length=length).draw(rng, 1)[0]

    def asks(self, place: Array) -> Array:
        return place > 0


def check_at_least(least: int, **options: int) -> None:
    for name, value in options.items():
        if value < least:
            raise UserError(f"{name} is {value}; it must be at least {least}")


def check_at_most(most: int, **options: int) -> None:
    for name, value in options.items():
        if value > most:
            raise UserError(f"{name} is {value:,}; it must be at most {most:,}")


def random_numbers(source: str, number: int, block: int = 0, seed: int = 0) -> np.random.Generator:
    """Four numbers, the seed last because it alone may be larger than 32 bits: no two sources ever coincide."""
    return np.random.default_rng([_SOURCES[source], number, block, seed])


def _adjust(episodes: Episodes, options: dict[str, Any]) -> Episodes:
    for name in options:
        if name not in episodes.adjustable:
            raise UserError(f"cannot change '{name}' during training; {' and '.join(episodes.adjustable)} can change")
    return replace(episodes, **options)  # type: ignore[type-var]


def _play(episodes: Episodes, orders: Sequence[Sequence[tuple[np.random.Generator, int]]]) -> list[Array]:
    """One block (3, n) of tokens, targets and starts for each order, which names generators and how many episodes to
    draw from each."""
    played = episodes.play(np.concatenate([episodes.draw(rng, count) for order in orders for rng, count in order]))
    E, W = played.tokens.shape
    symbols = np.zeros((3, E, W), dtype=np.int32)
    symbols[0], symbols[1] = played.tokens, played.targets
    if played.present is None:
        symbols[2, :, 0] = 1
        flat, ends = symbols.reshape(3, E * W), np.arange(1, E + 1) * W
    else:
        symbols[2, np.arange(E), played.present.argmax(axis=1)] = 1  # an episode's first token that exists
        flat, ends = symbols[:, played.present], np.cumsum(played.present.sum(axis=1))
    episodes_of_order = np.array([sum(count for _, count in order) for order in orders])
    return np.split(flat, ends[np.cumsum(episodes_of_order) - 1][:-1], axis=1)


def _symbols_to_batch(symbols: Array, documents: bool) -> Batch:
    return to_batch(symbols[0], symbols[1], symbols[2] if documents else None)


@dataclass
class _Row:
    number: int
    block: int = 0  # the block that holds the row's next token
    offset: int = 0  # where in that block it stands
    left: int = 0  # tokens at hand; below 0 while a block is still to be skipped up to the offset
    blocks: int | None = None  # how many the row has; None when it has no end
    waiting: deque[Array] = field(default_factory=deque)  # blocks at hand, the one being read first

    @property
    def next_block(self) -> int:
        return self.block + len(self.waiting)

    @property
    def exhausted(self) -> bool:
        return self.next_block == self.blocks


class _Reader:
    """Rows made of blocks, read in bites of any size. `make` turns a list of (row number, block number) into blocks."""

    def __init__(self, rows: list[_Row], make: Callable[[list[tuple[int, int]]], list[Array]]) -> None:
        self.rows, self.make = rows, make

    def read(self, length: int) -> Array:
        """(3, B, T): T is `length`, or what the longest row still has when all rows come to an end."""
        self._fetch(length)
        length = min(length, max(row.left for row in self.rows))
        symbols = np.zeros((3, len(self.rows), length), dtype=np.int64)
        for bite, row in zip(symbols.swapaxes(0, 1), self.rows):
            filled = 0
            while filled < length and row.waiting:
                filled += _take(row, bite[:, filled:])
            bite[1, filled:] = IGNORE
        return symbols

    def _fetch(self, length: int) -> None:
        """When a row runs dry, every row gets a block in waiting: blocks of varying sizes would otherwise drift apart
        and be made one row at a time, which is slow."""
        while any(row.left < length and not row.exhausted for row in self.rows):
            hungry = [row for row in self.rows if (row.left < length or len(row.waiting) < 2) and not row.exhausted]
            for row, block in zip(hungry, self.make([(row.number, row.next_block) for row in hungry])):
                row.waiting.append(block)
                row.left += block.shape[1]


def _take(row: _Row, space: Array) -> int:
    """Fill `space` (3, n) from the row's current block as far as it goes."""
    block = row.waiting[0]
    size = min(space.shape[1], block.shape[1] - row.offset)
    space[:, :size] = block[:, row.offset : row.offset + size]
    row.offset += size
    row.left -= size
    if row.offset == block.shape[1]:
        row.waiting.popleft()
        row.block, row.offset = row.block + 1, 0
    return size
