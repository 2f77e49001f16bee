"""A core that grows while it is trained: the whole core in the end, and a stop at any update changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.train import Interrupted, Run, evaluate
from stairwell.train.size_schedule import SizeSchedule
from tests.commands import TINY, assert_same_weights, measured, stairwell
from tests.train.test_loop import task_of, trainer

GROWTH = "2:chunk=1,passes=1;4:chunk=2,passes=2"
STAIRCASE: dict[str, Any] = {"core__chunk": 2, "core__passes": 3, "train__growth": GROWTH, "train__checkpoint_every": 1}


def states(run: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape[1:]) for tensor in run.objective.states[0].passes]


def test_sizes_follow_the_plan_and_states_begin_anew_at_its_edges(tmp_path: Path) -> None:
    run = trainer(tmp_path, "random-walk/staircase", **STAIRCASE)
    vectors = run.model.core.position.vectors
    assert vectors.shape[0] == 6, "distances are those of the whole core"
    seen = []
    for _ in range(6):
        run.update()
        core = run.model.core.config
        seen.append((core.chunk, core.passes, int(run.objective.states[0].count[0])))
    assert seen == [(1, 1, 8), (1, 1, 16), (2, 2, 8), (2, 2, 16), (2, 3, 8), (2, 3, 16)]
    assert states(run) == [(2 * n - 1, 2, 8) for n in (1, 2, 3)]


def test_a_smaller_core_is_the_core_of_that_size_with_the_same_parameters(tmp_path: Path) -> None:
    run = trainer(tmp_path, "parity/staircase", **STAIRCASE)
    run.update()
    core, D = run.model.core, 8
    small = CORES["staircase"].core(core.config).eval()
    own = {**core.state_dict(), "position.vectors": core.position.vectors[:1]}
    small.load_state_dict(own)
    x = torch.randn(2, 5, D)
    torch.testing.assert_close(core.eval()(x, core.init_state(2))[0], small(x, small.init_state(2))[0])


@pytest.mark.parametrize("name", ["staircase", "cached-staircase", "universal"])
def test_validation_is_of_the_whole_core(name: str, tmp_path: Path) -> None:
    sizes = {"core__passes": 2, "train__growth": "5:passes=1", "train__validate_every": 2}
    run = trainer(tmp_path, f"parity/{name}", **sizes)
    for _ in range(2):
        run.update()
    found = run.validate()
    assert run.model.core.config.passes == 1 and int(run.objective.states[0].count[0]) > 0
    run.objective.resize({})
    assert run.model.core.config.passes == 2
    assert found == evaluate(run.model, task_of(run), "valid", rows=2, segment=8)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_stopped_before_at_and_after_an_edge_it_goes_on_bit_for_bit(stop: int, tmp_path: Path) -> None:
    options = {**STAIRCASE, "core__relu_dropout": 0.2, "train__accumulate": 2, "train__validate_every": 3}
    whole = trainer(tmp_path / "whole", "random-walk/staircase", **options)
    whole.run()
    run = trainer(tmp_path / "run", "random-walk/staircase", **options)
    with pytest.raises(Interrupted):
        run.run(lambda event: setattr(run, "stop_asked", run.progress.step >= stop))
    assert run.progress.step == stop
    again = trainer(tmp_path / "run", "random-walk/staircase", **options)
    assert again.resume() == []
    again.run()
    for (name, ours), (_, theirs) in zip(again.model.named_parameters(), whole.model.named_parameters()):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(again.objective.states, whole.objective.states):
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True))
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert [record.get("sizes") for record in Run(tmp_path / "run").metrics() if "loss" in record] == [
        *[{"chunk": 1, "passes": 1}] * 2, *[{"chunk": 2, "passes": 2}] * 2, None, None,
    ]  # fmt: skip


def test_the_command_line_takes_it_and_the_run_is_of_the_whole_core(tmp_path: Path) -> None:
    options = [*TINY, "--core.chunk", "2", "--core.passes", "2", "--train.size_schedule", "3:passes=1", "--steps", "6"]
    assert stairwell(tmp_path, "train", "parity/staircase", *options, "--quiet", "--out", "run").status == 0
    assert stairwell(tmp_path, "eval", "run", "--rows", "2").status == 0
    assert stairwell(tmp_path, "train", "parity/staircase", *options, "--quiet", "--out", "again").status == 0
    assert_same_weights(tmp_path / "run", tmp_path / "again")


@pytest.mark.parametrize("text", ["passes=1", "x:passes=1", "0:passes=1", "5:", "5:passes", "5:passes=x", "5:=1"])
def test_what_cannot_be_read_is_said(text: str) -> None:
    with pytest.raises(UserError, match=r"cannot read train\.growth"):
        SizeSchedule.parse(text)


@pytest.mark.parametrize(
    ("name", "size_schedule", "words"),
    [
        ("staircase", "3:memory=1", "no 'memory' that grows; it has chunk, passes"),
        ("staircase", "3:passes=9", "passes 9 is above core.passes, 3"),
        ("staircase", "3:passes=0", "passes must be at least 1"),
        ("staircase", "2:passes=2;3:passes=1", "passes must not become smaller"),
        ("staircase", "6:passes=1", "ends at update 6 of 6: the whole core would never be trained"),
        ("feedback", "3:passes=1", "has neither chunks nor passes"),
    ],
)
def test_what_does_not_fit_the_core_is_refused_before_anything_is_trained(
    name: str, size_schedule: str, words: str, tmp_path: Path
) -> None:
    sizes = {"core__chunk": 2, "core__passes": 3} if name == "staircase" else {}
    with pytest.raises(UserError, match=words):
        trainer(tmp_path, f"parity/{name}", train__growth=size_schedule, **sizes)


def test_updates_must_rise() -> None:
    with pytest.raises(UserError, match="must rise"):
        SizeSchedule.parse("5:passes=1;5:passes=2")
