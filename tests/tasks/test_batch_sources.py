"""Properties of all batch sources and of all generated tasks."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.configs import field_help
from stairwell.data.packed import LabeledTokens, Packed
from stairwell.tasks import algorithmic, copying, counting, parity, permutations, random_walk
from stairwell.tasks.base import IGNORE_INDEX, BatchSource, StreamTask, TokenBatch
from stairwell.tasks.batch_sources import SequenceSource
from stairwell.tasks.generated import EpisodeSource, LengthConfig

MODULES = [random_walk, algorithmic, copying, counting, parity, permutations]
SIZES = {"valid_episodes": 11, "test_episodes": 13}


def generated(**options: Any) -> list[Any]:
    """Return one small task of each type, as pytest parameters."""
    options = SIZES | options
    tasks: dict[str, StreamTask] = {
        "random walk": random_walk.RandomWalk(random_walk.RandomWalkConfig(length=20, **options)),
        "algorithmic": algorithmic.Algorithmic(algorithmic.AlgorithmicConfig(statements=12, **options)),
        "copy": copying.Copying(copying.CopyingConfig(length=9, test_length=15, **options)),
        "counting": counting.Counting(counting.CountingConfig(length=30, **options)),
        "parity": parity.Parity(LengthConfig(length=20, test_length=33, **options)),
        "permutations": permutations.Permutations(
            permutations.PermutationsConfig(length=20, test_length=33, **options)
        ),
    }
    return [pytest.param(task, id=name) for name, task in tasks.items()]


def pairs(first: list[Any], second: list[Any]) -> list[Any]:
    return [pytest.param(*a.values, *b.values, id=a.id) for a, b in zip(first, second)]


def fixed() -> list[Any]:
    """Return the finite batch sources, as functions of streams, batch and seed like `StreamTask.batch_source`."""
    numbers = np.random.default_rng(0).integers(0, 50, size=(3, 301))

    def sequence(streams: range, batch: int, seed: int) -> SequenceSource:
        return SequenceSource(LabeledTokens(numbers[0], numbers[1], np.flatnonzero(numbers[2] == 0)), streams, batch)

    return [pytest.param(sequence, id="fixed sequence")]


def every_source() -> list[Any]:
    endless = [pytest.param(param.values[0].batch_source, id=f"{param.id}, endless") for param in generated()]
    finite = [pytest.param(p.values[0].batch_source, id=f"{p.id}, finite") for p in generated(train_episodes=7)]
    return endless + finite + fixed()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks of a few episodes, so that short tests cross many block boundaries."""
    monkeypatch.setattr(EpisodeSource, "BLOCK", 100)


def joined(batches: list[TokenBatch], dim: int = 1) -> list[torch.Tensor]:
    parts = [torch.cat([b.tokens for b in batches], dim), torch.cat([b.targets for b in batches], dim)]
    starts = [b.start for b in batches if b.start is not None]
    return [*parts, torch.cat(starts, dim)] if starts else parts


def read(batch_source: BatchSource, *lengths: int) -> list[torch.Tensor]:
    return joined([batch_source.read(length) for length in lengths])


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))


def as_json(position: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(position))


def merged(*positions: dict[str, Any]) -> dict[str, Any]:
    """Return the position of one process that continues several."""
    return positions[0] | {"streams": [stream for position in positions for stream in position["streams"]]}


@pytest.mark.parametrize("make", every_source())
def test_a_stream_does_not_depend_on_the_length_of_reads(make: Any) -> None:
    at_once, in_segments, by_token = (make(range(4), 4, 3) for _ in range(3))
    expected = read(at_once, 1000)
    assert same(read(in_segments, *[7] * 100, 250, 50), expected)
    assert same(read(by_token, *[1] * 1000), expected)
    assert at_once.position() == in_segments.position() == by_token.position()


@pytest.mark.parametrize("make", every_source())
def test_two_processes_read_the_same_streams_as_one(make: Any) -> None:
    one, first, second = make(range(4), 4, 3), make(range(3), 4, 3), make(range(3, 4), 4, 3)
    expected = [one.read(77), one.read(300)]
    for batch in expected:
        assert same(joined([first.read(len(batch.tokens[0])), second.read(len(batch.tokens[0]))], 0), joined([batch]))
    assert merged(first.position(), second.position()) == one.position()


@pytest.mark.parametrize("make", every_source())
def test_a_position_can_be_resumed_with_another_number_of_processes(make: Any) -> None:
    source = make(range(4), 4, 3)
    source.read(173)
    position = as_json(source.position())
    expected = read(source, 400)
    streams = position["streams"]

    one = make(range(4), 4, 3)
    one.seek(merged(position | {"streams": streams[:2]}, position | {"streams": streams[2:]}))
    assert same(read(one, 400), expected)
    halves = [make(range(2), 4, 3), make(range(2, 4), 4, 3)]
    for half, own in zip(halves, (streams[:2], streams[2:])):
        half.seek(position | {"streams": own})
    assert same(joined([half.read(400) for half in halves], 0), expected)


@pytest.mark.parametrize("make", every_source())
@pytest.mark.parametrize("before", [0, 1, 99, 100, 101, 350])
def test_a_resumed_source_continues_with_the_next_token(make: Any, before: int) -> None:
    stopped, resumed = make(range(3), 3, 5), make(range(3), 3, 5)
    stopped.read(before)
    resumed.read(17)  # its own position does not matter
    resumed.seek(as_json(stopped.position()))
    assert resumed.position() == stopped.position()
    assert same(read(resumed, 64, 300), read(stopped, 64, 300))


@pytest.mark.parametrize("make", every_source())
def test_a_position_with_another_number_of_streams_is_rejected(make: Any) -> None:
    with pytest.raises(ValueError, match="the position has 3 streams, the batch source 2"):
        make(range(2), 2, 0).seek(make(range(3), 3, 0).position())


@pytest.mark.parametrize("make", every_source())
@pytest.mark.parametrize("streams, batch", [(range(2, 5), 4), (range(0), 4), (range(1), 0)])
def test_streams_outside_the_batch_are_rejected(make: Any, streams: range, batch: int) -> None:
    with pytest.raises(ValueError, match=r"indices must be in 0\.\.batch-1"):
        make(streams, batch, 0)


@pytest.mark.parametrize("task", generated())
def test_an_endless_stream_depends_on_its_index_and_the_seed_only(task: StreamTask) -> None:
    alone = read(task.batch_source(range(2, 3), 3, 1), 500)
    among_many = [part[2:3] for part in read(task.batch_source(range(8), 8, 1), 500)]
    assert same(alone, among_many)
    streams = (
        read(task.batch_source(range(8), 8, 1), 500)[0].tolist()
        + read(task.batch_source(range(8), 8, 2), 500)[0].tolist()
    )
    assert len({tuple(stream) for stream in streams}) == 16


@pytest.mark.parametrize("task", generated())
def test_an_endless_stream_never_repeats_a_block(task: StreamTask) -> None:
    stream = read(task.batch_source(range(1), 1, 0), 3000)[0][0].tolist()
    windows = [tuple(stream[first : first + 60]) for first in range(len(stream) - 60)]
    if not isinstance(task, counting.Counting):  # where counts may repeat
        assert len(set(windows)) == len(windows)
    assert stream[:1000] != stream[1000:2000]


@pytest.mark.parametrize("task", generated())
def test_a_negative_seed_is_rejected(task: StreamTask) -> None:
    with pytest.raises(ValueError, match="seed -1; a seed must be 0 or more"):
        task.batch_source(range(1), 1, -1)


@pytest.mark.parametrize("task", generated())
def test_a_changed_difficulty_is_part_of_the_position(task: StreamTask) -> None:
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
def test_a_change_does_not_depend_on_the_length_of_reads(task: StreamTask) -> None:
    name = "statements" if isinstance(task, algorithmic.Algorithmic) else "length"
    at_once, by_token, half = (
        task.batch_source(range(4), 4, 2),
        task.batch_source(range(4), 4, 2),
        task.batch_source(range(2, 4), 4, 2),
    )
    for batch_source, lengths in ((at_once, [240]), (by_token, [1] * 240), (half, [24] * 10)):
        read(batch_source, *lengths)
        batch_source.change(**{name: 6})
    expected = read(at_once, 300)
    assert same(read(by_token, 300), expected)
    assert same(read(half, 300), [part[2:] for part in expected])


@pytest.mark.parametrize("task", generated())
def test_a_change_does_not_repeat_tokens(task: StreamTask) -> None:
    batch_source = task.batch_source(range(2), 2, 0)
    before = read(batch_source, 90)
    batch_source.change(**batch_source.position()["options"])
    assert not same(read(batch_source, 90), before)


@pytest.mark.parametrize("task", generated())
def test_only_curriculum_options_can_change(task: StreamTask) -> None:
    batch_source = task.batch_source(range(1), 1, 0)
    with pytest.raises(ValueError, match=r"cannot change 'grid' during training; .* can change"):
        batch_source.change(grid=4)
    name = next(iter(batch_source.position()["options"]))
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        batch_source.change(**{name: 0})


@pytest.mark.parametrize("task", generated(train_episodes=7))
def test_a_finite_set_repeats_exactly_and_is_the_same_for_every_seed(task: StreamTask) -> None:
    tokens, targets, *start = read(task.batch_source(range(1), 1, 0), 4000)
    epoch = next(n for n in range(20, 2000) if torch.equal(tokens[:, n:], tokens[:, :-n]))
    assert torch.equal(targets[:, epoch:], targets[:, :-epoch])
    for flags in start:
        assert int(flags[:, :epoch].sum()) == 7
    assert same(read(task.batch_source(range(1), 1, 99), 4000), [tokens, targets, *start])


@pytest.mark.parametrize("task", generated(train_episodes=6))
def test_the_streams_of_a_finite_set_start_evenly_spaced(task: StreamTask) -> None:
    single = read(task.batch_source(range(1), 1, 0), 3000)[0][0].tolist()
    epoch = next(n for n in range(20, 2000) if single[n:] == single[:-n])
    single = single[: 2 * epoch]
    starts = []
    for stream in read(task.batch_source(range(3), 3, 0), epoch)[0].tolist():
        starts.append(next(first for first in range(epoch) if single[first : first + epoch] == stream))
    assert starts[0] == 0 < starts[1] < starts[2]
    if not isinstance(task, counting.Counting | algorithmic.Algorithmic):  # whose episodes differ in length
        assert starts == [0, epoch // 3, 2 * epoch // 3]


@pytest.mark.parametrize("task", generated(train_episodes=7))
def test_a_finite_set_has_no_curriculum(task: StreamTask) -> None:
    with pytest.raises(
        ValueError, match="cannot change length of a finite training set; a curriculum needs an endless"
    ):
        task.batch_source(range(1), 1, 0).change(length=4)


@pytest.mark.parametrize("endless, finite", pairs(generated(), generated(train_episodes=7)))
def test_training_sets_and_splits_differ(endless: StreamTask, finite: StreamTask) -> None:
    sources = [read(task.batch_source(range(1), 1, 0), 200)[0][0] for task in (endless, finite)]
    sources += [next(endless.batches(split, 1, 200)).tokens[0] for split in ("valid", "test")]
    assert len({tuple(source.tolist()) for source in sources}) == 4


def test_training_sets_and_splits_share_no_episode() -> None:
    config = permutations.PermutationsConfig(length=12, test_length=12, valid_episodes=300, test_episodes=300)
    endless = permutations.Permutations(config)
    finite = permutations.Permutations(replace(config, train_episodes=300))
    sources = [read(endless.batch_source(range(10), 10, seed), 12 * 30)[0] for seed in (0, 1, 2)]
    sources.append(read(finite.batch_source(range(1), 1, 0), 12 * 300)[0])
    sources += [joined(list(endless.batches(split, 1, 512)))[0] for split in ("valid", "test")]
    episodes = [tuple(episode) for source in sources for episode in source.reshape(-1, 12).tolist()]
    assert len(set(episodes)) == len(episodes) == 6 * 300


@pytest.mark.parametrize("task", generated())
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_does_not_depend_on_the_segment_length(task: StreamTask, split: Any) -> None:
    expected = joined(list(task.batches(split, 3, 10_000)))
    for segment in (1, 7, 64):
        batches = list(task.batches(split, 3, segment))
        assert all(batch.tokens.shape[1] == segment for batch in batches[:-1])
        assert same(joined(batches), expected)


@pytest.mark.parametrize("task", generated())
@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_split_has_the_same_episodes_at_any_batch_size(task: StreamTask, split: Any) -> None:
    single = torch.stack(joined(list(task.batches(split, 1, 50)))[:2])[:, 0]
    for batch in (2, 5, 20):
        unpadded = []
        for stream in torch.stack(joined(list(task.batches(split, batch, 50)))[:2], dim=1):
            present = ((stream[0] != 0) | (stream[1] != IGNORE_INDEX)).nonzero()
            unpadded.append(stream[:, : int(present.max()) + 1 if len(present) else 0])
        assert torch.equal(torch.cat(unpadded, dim=1), single)


@pytest.mark.parametrize("task", generated())
def test_streams_that_end_early_are_padded_and_the_padding_is_not_scored(task: StreamTask) -> None:
    tokens, targets, *start = joined(list(task.batches("valid", 8, 50)))  # 11 episodes: 1 or 2 per stream
    for b in (0, 1):
        end = int(((tokens[b] != 0) | (targets[b] != IGNORE_INDEX)).nonzero().max()) + 1
        assert (targets[b, end:] == IGNORE_INDEX).all()
        assert not any(flags[b, end:].any() for flags in start)
    shortest = min(int((stream != IGNORE_INDEX).sum()) for stream in targets)
    assert shortest < int((targets != IGNORE_INDEX).sum(dim=1).max())


@pytest.mark.parametrize("task", generated())
def test_batch_size_and_segment_of_a_split_must_be_at_least_one(task: StreamTask) -> None:
    for batch, segment in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="both must be at least 1"):
            next(task.batches("test", batch, segment))


@pytest.mark.parametrize("task", generated())
def test_tokens_and_labels_are_within_the_vocabulary(task: StreamTask) -> None:
    read_batches = [joined([task.batch_source(range(8), 8, 0).read(2000)]), joined(list(task.batches("test", 1, 100)))]
    for tokens, targets, *_ in read_batches:
        assert tokens.dtype == targets.dtype == torch.int64
        assert tokens.min() >= 0 and tokens.max() < task.inputs
        scored = targets[targets != IGNORE_INDEX]
        assert scored.min() >= 0 and scored.max() < task.outputs
    assert task.primary_metric in task.score().result()


@pytest.mark.parametrize("endless, finite", pairs(generated(), generated(train_episodes=7)))
def test_a_description_states_whether_training_data_is_unlimited(endless: StreamTask, finite: StreamTask) -> None:
    assert "unlimited training episodes, 11 for validation" in endless.describe()
    assert "7 training episodes, 11 for validation" in finite.describe()
    assert "\n" not in endless.describe()


def task_of(module: Any) -> Any:
    """Return the class of the task in a module."""
    (task,) = (
        value for value in vars(module).values() if hasattr(value, "describe") and value.__module__ == module.__name__
    )
    return task


@pytest.mark.parametrize("module", MODULES)
def test_every_option_is_documented(module: Any) -> None:
    config = task_of(module).config_type
    assert set(field_help(config)) == {field.name for field in fields(config)}


@pytest.mark.parametrize("module", MODULES)
def test_invalid_split_sizes_are_rejected(module: Any) -> None:
    task = task_of(module)
    with pytest.raises(ValueError, match="train_episodes is -1; it must be at least 0"):
        task(task.config_type(train_episodes=-1))
    with pytest.raises(ValueError, match="test_episodes is 0; it must be at least 1"):
        task(task.config_type(test_episodes=0))


def test_a_fixed_sequence_is_read_in_streams_that_wrap_around() -> None:
    batch = SequenceSource(Packed(np.arange(10, dtype=np.uint16)), range(3), 3).read(12)
    assert batch.tokens.tolist() == [[(first + t) % 10 for t in range(12)] for first in (0, 3, 6)]
    assert batch.start is None


def test_the_last_token_of_a_sequence_has_no_target() -> None:
    batch = SequenceSource(Packed(np.array([5, 6, 7], dtype=np.uint8)), range(1), 1).read(7)
    assert batch.tokens.tolist() == [[5, 6, 7, 5, 6, 7, 5]]
    assert batch.targets.tolist() == [[6, 7, IGNORE_INDEX, 6, 7, IGNORE_INDEX, 6]]


def test_a_stream_is_reset_at_its_first_token_and_where_it_wraps_around() -> None:
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


def test_an_empty_sequence_is_rejected() -> None:
    with pytest.raises(ValueError, match="the training sequence is empty"):
        SequenceSource(Packed(np.arange(0)), range(1), 1)


@pytest.mark.parametrize("start", [None, torch.arange(12).view(4, 3) % 5 == 0])
def test_a_batch_counts_its_terms_and_splits_into_parts(start: torch.Tensor | None) -> None:
    tokens = torch.arange(12).view(4, 3)
    batch = TokenBatch(tokens, torch.where(tokens % 4 == 1, IGNORE_INDEX, tokens), start)
    parts = batch.parts(2)
    assert batch.terms == 9 == sum(part.terms for part in parts)
    assert same(joined(parts, 0), joined([batch]))
    moved = batch.to("meta")
    assert moved.tokens.is_meta and moved.targets.is_meta
    assert moved.start is None if start is None else moved.start is not None and moved.start.is_meta
