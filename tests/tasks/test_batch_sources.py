"""What every feed promises, and what every generated task promises with it."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.data.packed import LabeledTokens, Packed
from stairwell.tasks import algorithmic, copying, counting, parity, permutations, random_walk
from stairwell.tasks.base import IGNORE, Batch, BatchSource, Task
from stairwell.tasks.batch_sources import SequenceSource
from stairwell.tasks.generated import EpisodeSource

MODULES = [random_walk, algorithmic, copying, counting, parity, permutations]
SIZES = {"valid_episodes": 11, "test_episodes": 13}


def generated(**options: Any) -> list[Any]:
    """One small task of each kind, as pytest parameters."""
    options = SIZES | options
    tasks: dict[str, Task] = {
        "random walk": random_walk.RandomWalk(random_walk.Config(length=20, **options)),
        "algorithmic": algorithmic.Algorithmic(algorithmic.Config(statements=12, **options)),
        "copy": copying.Copying(copying.Config(length=9, test_length=15, **options)),
        "counting": counting.Counting(counting.Config(length=30, **options)),
        "parity": parity.Parity(parity.Config(length=20, test_length=33, **options)),
        "permutations": permutations.Permutations(permutations.Config(length=20, test_length=33, **options)),
    }
    return [pytest.param(task, id=name) for name, task in tasks.items()]


def pairs(first: list[Any], second: list[Any]) -> list[Any]:
    return [pytest.param(*a.values, *b.values, id=a.id) for a, b in zip(first, second)]


def fixed() -> list[Any]:
    """The finite kinds of feed, as functions of rows, batch and seed like `Task.feed`."""
    numbers = np.random.default_rng(0).integers(0, 50, size=(3, 301))

    def sequence(rows: range, batch: int, seed: int) -> SequenceSource:
        return SequenceSource(LabeledTokens(numbers[0], numbers[1], np.flatnonzero(numbers[2] == 0)), rows, batch)

    return [pytest.param(sequence, id="fixed sequence")]


def every_feed() -> list[Any]:
    endless = [pytest.param(param.values[0].batch_source, id=f"{param.id}, endless") for param in generated()]
    finite = [pytest.param(p.values[0].batch_source, id=f"{p.id}, finite") for p in generated(train_episodes=7)]
    return endless + finite + fixed()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few episodes, so that short tests cross many of their borders."""
    monkeypatch.setattr(EpisodeSource, "BLOCK", 100)


def joined(batches: list[Batch], dim: int = 1) -> list[torch.Tensor]:
    parts = [torch.cat([b.tokens for b in batches], dim), torch.cat([b.targets for b in batches], dim)]
    starts = [b.start for b in batches if b.start is not None]
    return [*parts, torch.cat(starts, dim)] if starts else parts


def read(batch_source: BatchSource, *lengths: int) -> list[torch.Tensor]:
    return joined([batch_source.read(length) for length in lengths])


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))


def as_json(position: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(position))


def together(*positions: dict[str, Any]) -> dict[str, Any]:
    """The position of one process that takes over from several."""
    return positions[0] | {"rows": [row for position in positions for row in position["rows"]]}


@pytest.mark.parametrize("make", every_feed())
def test_a_row_does_not_depend_on_how_it_is_read(make: Any) -> None:
    whole, bites, ones = (make(range(4), 4, 3) for _ in range(3))
    expected = read(whole, 1000)
    assert same(read(bites, *[7] * 100, 250, 50), expected)
    assert same(read(ones, *[1] * 1000), expected)
    assert whole.position() == bites.position() == ones.position()


@pytest.mark.parametrize("make", every_feed())
def test_rows_dealt_to_two_processes_are_the_rows_of_one(make: Any) -> None:
    one, first, second = make(range(4), 4, 3), make(range(3), 4, 3), make(range(3, 4), 4, 3)
    expected = [one.read(77), one.read(300)]
    for batch in expected:
        assert same(joined([first.read(len(batch.tokens[0])), second.read(len(batch.tokens[0]))], 0), joined([batch]))
    assert together(first.position(), second.position()) == one.position()


@pytest.mark.parametrize("make", every_feed())
def test_one_process_takes_over_what_two_began_and_the_reverse(make: Any) -> None:
    begun = make(range(4), 4, 3)
    begun.read(173)
    position = as_json(begun.position())
    expected = read(begun, 400)

    one = make(range(4), 4, 3)
    one.seek(together(position | {"rows": position["rows"][:2]}, position | {"rows": position["rows"][2:]}))
    assert same(read(one, 400), expected)
    halves = [make(range(2), 4, 3), make(range(2, 4), 4, 3)]
    for half, rows in zip(halves, (position["rows"][:2], position["rows"][2:])):
        half.seek(position | {"rows": rows})
    assert same(joined([half.read(400) for half in halves], 0), expected)


@pytest.mark.parametrize("make", every_feed())
@pytest.mark.parametrize("before", [0, 1, 99, 100, 101, 350])
def test_a_stopped_stream_goes_on_with_the_very_next_token(make: Any, before: int) -> None:
    stopped, resumed = make(range(3), 3, 5), make(range(3), 3, 5)
    stopped.read(before)
    resumed.read(17)  # wherever it stands, it goes where it is told
    resumed.seek(as_json(stopped.position()))
    assert resumed.position() == stopped.position()
    assert same(read(resumed, 64, 300), read(stopped, 64, 300))


@pytest.mark.parametrize("make", every_feed())
def test_a_position_of_other_rows_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="a position of 3 rows for a feed of 2 rows"):
        make(range(2), 2, 0).seek(make(range(3), 3, 0).position())


@pytest.mark.parametrize("make", every_feed())
@pytest.mark.parametrize("rows, batch", [(range(2, 5), 4), (range(0), 4), (range(1), 0)])
def test_rows_outside_the_batch_are_refused(make: Any, rows: range, batch: int) -> None:
    with pytest.raises(ValueError, match="rows must be some of"):
        make(rows, batch, 0)


@pytest.mark.parametrize("task", generated())
def test_an_endless_row_depends_on_its_number_and_the_seed_only(task: Task) -> None:
    alone = read(task.batch_source(range(2, 3), 3, 1), 500)
    among_many = [part[2:3] for part in read(task.batch_source(range(8), 8, 1), 500)]
    assert same(alone, among_many)
    rows = (
        read(task.batch_source(range(8), 8, 1), 500)[0].tolist()
        + read(task.batch_source(range(8), 8, 2), 500)[0].tolist()
    )
    assert len({tuple(row) for row in rows}) == 16


@pytest.mark.parametrize("task", generated())
def test_an_endless_row_never_repeats_a_block(task: Task) -> None:
    row = read(task.batch_source(range(1), 1, 0), 3000)[0][0].tolist()
    pieces = [tuple(row[at : at + 60]) for at in range(len(row) - 60)]
    if not isinstance(task, counting.Counting):  # there a number may well come again
        assert len(set(pieces)) == len(pieces)
    assert row[:1000] != row[1000:2000]


@pytest.mark.parametrize("task", generated())
def test_a_negative_seed_is_refused(task: Task) -> None:
    with pytest.raises(ValueError, match="seed -1; a seed must be 0 or more"):
        task.batch_source(range(1), 1, -1)


@pytest.mark.parametrize("task", generated())
def test_a_change_of_difficulty_is_part_of_the_position(task: Task) -> None:
    name = "statements" if isinstance(task, algorithmic.Algorithmic) else "length"
    changed, plain = task.batch_source(range(3), 3, 2), task.batch_source(range(3), 3, 2)
    assert same(read(changed, 130), read(plain, 130))
    changed.change(**{name: 5})
    assert changed.position()["options"][name] == 5
    assert not same(read(changed, 40), read(plain, 40))

    resumed = task.batch_source(range(3), 3, 2)
    resumed.seek(as_json(changed.position()))
    assert same(read(resumed, 33, 500), read(changed, 33, 500))
    changed.change(**{name: 4})
    resumed.change(**{name: 4})
    assert same(read(resumed, 200), read(changed, 200))


@pytest.mark.parametrize("task", generated())
def test_a_change_does_not_depend_on_how_the_stream_was_read(task: Task) -> None:
    name = "statements" if isinstance(task, algorithmic.Algorithmic) else "length"
    one, bites, half = (
        task.batch_source(range(4), 4, 2),
        task.batch_source(range(4), 4, 2),
        task.batch_source(range(2, 4), 4, 2),
    )
    for batch_source, lengths in ((one, [240]), (bites, [1] * 240), (half, [24] * 10)):
        read(batch_source, *lengths)
        batch_source.change(**{name: 6})
    expected = read(one, 300)
    assert same(read(bites, 300), expected)
    assert same(read(half, 300), [part[2:] for part in expected])


@pytest.mark.parametrize("task", generated())
def test_a_change_never_brings_back_what_was_read(task: Task) -> None:
    batch_source = task.batch_source(range(2), 2, 0)
    before = read(batch_source, 90)
    batch_source.change(**batch_source.position()["options"])
    assert not same(read(batch_source, 90), before)


@pytest.mark.parametrize("task", generated())
def test_only_what_a_curriculum_may_turn_can_change(task: Task) -> None:
    batch_source = task.batch_source(range(1), 1, 0)
    with pytest.raises(ValueError, match=r"cannot change 'grid' during training; .* can change"):
        batch_source.change(grid=4)
    name = next(iter(batch_source.position()["options"]))
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        batch_source.change(**{name: 0})


@pytest.mark.parametrize("task", generated(train_episodes=7))
def test_a_finite_set_repeats_exactly_and_is_the_same_for_every_seed(task: Task) -> None:
    tokens, targets, *start = read(task.batch_source(range(1), 1, 0), 4000)
    lap = next(n for n in range(20, 2000) if torch.equal(tokens[:, n:], tokens[:, :-n]))
    assert torch.equal(targets[:, lap:], targets[:, :-lap])
    for flags in start:
        assert int(flags[:, :lap].sum()) == 7
    assert same(read(task.batch_source(range(1), 1, 99), 4000), [tokens, targets, *start])


@pytest.mark.parametrize("task", generated(train_episodes=6))
def test_the_rows_of_a_finite_set_begin_evenly_spread_over_its_episodes(task: Task) -> None:
    single = read(task.batch_source(range(1), 1, 0), 3000)[0][0].tolist()
    lap = next(n for n in range(20, 2000) if single[n:] == single[:-n])
    single = single[: 2 * lap]
    begins = []
    for row in read(task.batch_source(range(3), 3, 0), lap)[0].tolist():
        begins.append(next(at for at in range(lap) if single[at : at + lap] == row))
    assert begins[0] == 0 < begins[1] < begins[2]
    if not isinstance(task, counting.Counting | algorithmic.Algorithmic):  # whose episodes differ in length
        assert begins == [0, lap // 3, 2 * lap // 3]


@pytest.mark.parametrize("task", generated(train_episodes=7))
def test_a_finite_set_has_no_curriculum(task: Task) -> None:
    with pytest.raises(
        ValueError, match="cannot change length of a finite training set; a curriculum needs an endless"
    ):
        task.batch_source(range(1), 1, 0).change(length=4)


@pytest.mark.parametrize("endless, finite", pairs(generated(), generated(train_episodes=7)))
def test_training_sets_and_splits_differ(endless: Task, finite: Task) -> None:
    sources = [read(task.batch_source(range(1), 1, 0), 200)[0][0] for task in (endless, finite)]
    sources += [next(endless.batches(split, 1, 200)).tokens[0] for split in ("valid", "test")]
    assert len({tuple(source.tolist()) for source in sources}) == 4


def test_training_sets_and_splits_share_no_episode() -> None:
    config = permutations.Config(length=12, test_length=12, valid_episodes=300, test_episodes=300)
    endless = permutations.Permutations(config)
    finite = permutations.Permutations(replace(config, train_episodes=300))
    sources = [read(endless.batch_source(range(10), 10, seed), 12 * 30)[0] for seed in (0, 1, 2)]
    sources.append(read(finite.batch_source(range(1), 1, 0), 12 * 300)[0])
    sources += [joined(list(endless.batches(split, 1, 512)))[0] for split in ("valid", "test")]
    episodes = [tuple(episode) for source in sources for episode in source.reshape(-1, 12).tolist()]
    assert len(set(episodes)) == len(episodes) == 6 * 300


@pytest.mark.parametrize("task", generated())
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_does_not_depend_on_the_segment_length(task: Task, split: Any) -> None:
    expected = joined(list(task.batches(split, 3, 10_000)))
    for segment in (1, 7, 64):
        batches = list(task.batches(split, 3, segment))
        assert all(batch.tokens.shape[1] == segment for batch in batches[:-1])
        assert same(joined(batches), expected)


@pytest.mark.parametrize("task", generated())
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_holds_the_same_episodes_in_any_number_of_rows(task: Task, split: Any) -> None:
    single = torch.stack(joined(list(task.batches(split, 1, 50)))[:2])[:, 0]
    for rows in (2, 5, 20):
        content = []
        for row in torch.stack(joined(list(task.batches(split, rows, 50)))[:2], dim=1):
            real = ((row[0] != 0) | (row[1] != IGNORE)).nonzero()
            content.append(row[:, : int(real.max()) + 1 if len(real) else 0])
        assert torch.equal(torch.cat(content, dim=1), single)


@pytest.mark.parametrize("task", generated())
def test_rows_that_end_early_are_filled_up_and_not_scored(task: Task) -> None:
    tokens, targets, *start = joined(list(task.batches("valid", 8, 50)))  # 11 episodes: 1 or 2 a row
    for row in (0, 1):
        end = int(((tokens[row] != 0) | (targets[row] != IGNORE)).nonzero().max()) + 1
        assert (targets[row, end:] == IGNORE).all()
        assert not any(flags[row, end:].any() for flags in start)
    shortest = min(int((row != IGNORE).sum()) for row in targets)
    assert shortest < int((targets != IGNORE).sum(dim=1).max())


@pytest.mark.parametrize("task", generated())
def test_a_split_is_read_in_at_least_one_row_and_token(task: Task) -> None:
    for rows, segment in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="both must be at least 1"):
            next(task.batches("test", rows, segment))


@pytest.mark.parametrize("task", generated())
def test_tokens_and_labels_are_within_what_the_task_says(task: Task) -> None:
    seen = [joined([task.batch_source(range(8), 8, 0).read(2000)]), joined(list(task.batches("test", 1, 100)))]
    for tokens, targets, *_ in seen:
        assert tokens.dtype == targets.dtype == torch.int64
        assert tokens.min() >= 0 and tokens.max() < task.inputs
        scored = targets[targets != IGNORE]
        assert scored.min() >= 0 and scored.max() < task.outputs
    assert task.primary_metric in task.score().result()


@pytest.mark.parametrize("endless, finite", pairs(generated(), generated(train_episodes=7)))
def test_a_description_says_whether_the_training_set_is_endless(endless: Task, finite: Task) -> None:
    assert "an endless training set, 11 fresh ones to validate" in endless.describe()
    assert "a finite training set of 7, 11 fresh ones to validate" in finite.describe()
    assert "\n" not in endless.describe()


@pytest.mark.parametrize("module", MODULES)
def test_every_option_explains_itself(module: Any) -> None:
    (config,) = ast.parse(inspect.getsource(module.Config)).body
    assert isinstance(config, ast.ClassDef)
    explained = []
    for field, after in zip(config.body, config.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(after.value.value, str) and isinstance(field.target, ast.Name)
            explained.append(field.target.id)
    assert explained == [field.name for field in fields(module.Config)]


@pytest.mark.parametrize("module", MODULES)
def test_set_sizes_that_make_no_sense_are_refused(module: Any) -> None:
    (task,) = (value for value in vars(module).values() if hasattr(value, "describe"))
    with pytest.raises(ValueError, match="train_episodes is -1; it must be at least 0"):
        task(module.Config(train_episodes=-1))
    with pytest.raises(ValueError, match="test_episodes is 0; it must be at least 1"):
        task(module.Config(test_episodes=0))


def test_a_fixed_sequence_is_dealt_into_rows_that_wrap_around() -> None:
    batch = SequenceSource(Packed(np.arange(10, dtype=np.uint16)), range(3), 3).read(12)
    assert batch.tokens.tolist() == [[(begin + t) % 10 for t in range(12)] for begin in (0, 3, 6)]
    assert batch.start is None


def test_the_last_token_of_a_sequence_has_no_target() -> None:
    batch = SequenceSource(Packed(np.array([5, 6, 7], dtype=np.uint8)), range(1), 1).read(7)
    assert batch.tokens.tolist() == [[5, 6, 7, 5, 6, 7, 5]]
    assert batch.targets.tolist() == [[6, 7, IGNORE, 6, 7, IGNORE, 6]]


def test_a_row_begins_anew_at_its_first_token_and_where_it_wraps_around() -> None:
    batch_source = SequenceSource(Packed(np.arange(6), np.array([1])), range(2), 2)
    first, second = batch_source.read(4).start, batch_source.read(9).start
    assert first is not None and second is not None
    flags = torch.cat([first, second], dim=1)
    assert flags.int().tolist() == [[1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1], [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]]


def test_a_memory_mapped_sequence_stays_on_disk(tmp_path: Any) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens")
    on_disk = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    data = Packed(on_disk)
    batch_source = SequenceSource(data, range(2), 2)
    assert batch_source.data is data and data.ids is on_disk
    assert batch_source.read(3).tokens.tolist() == [[0, 1, 2], [500, 501, 502]]


def test_a_fixed_sequence_has_no_curriculum() -> None:
    with pytest.raises(ValueError, match="cannot change length of a fixed training sequence"):
        SequenceSource(Packed(np.arange(3)), range(1), 1).change(length=2)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="the training sequence is empty"):
        SequenceSource(Packed(np.arange(0)), range(1), 1)


@pytest.mark.parametrize("start", [None, torch.arange(12).view(4, 3) % 5 == 0])
def test_a_batch_knows_its_terms_and_falls_into_parts(start: torch.Tensor | None) -> None:
    tokens = torch.arange(12).view(4, 3)
    batch = Batch(tokens, torch.where(tokens % 4 == 1, IGNORE, tokens), start)
    parts = batch.parts(2)
    assert batch.terms == 9 == sum(part.terms for part in parts)
    assert same(joined(parts, 0), joined([batch]))
    moved = batch.to("meta")
    assert moved.tokens.is_meta and moved.targets.is_meta
    assert moved.start is None if start is None else moved.start is not None and moved.start.is_meta
