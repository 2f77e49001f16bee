"""Size schedules: a smaller core at first, the full core at the end; resuming at any step changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.runs.run import Run
from stairwell.train import Interrupted, evaluate
from stairwell.train.size_schedule import SizeSchedule
from tests.commands import TINY, assert_same_tensors, read_metrics, stairwell
from tests.train.test_loop import task_of, trainer

SCHEDULE = "2:chunk=1,passes=1;4:chunk=2,passes=2"
STAIRCASE: dict[str, Any] = {
    "core__chunk": 2, "core__passes": 3, "train__size_schedule": SCHEDULE, "train__checkpoint_every": 1,
}  # fmt: skip


def states(run: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape[1:]) for tensor in run.objective.states[0].passes]


def test_sizes_follow_the_schedule_and_states_are_reset_where_they_change(tmp_path: Path) -> None:
    run = trainer(tmp_path, "random-walk/staircase", **STAIRCASE)
    vectors = run.model.core.position.vectors
    assert vectors.shape[0] == 6, "position embeddings of the full core"
    sizes = []
    for _ in range(6):
        run.train_step()
        core = run.model.core.config
        sizes.append((core.chunk, core.passes, int(run.objective.states[0].count[0])))
    assert sizes == [(1, 1, 8), (1, 1, 16), (2, 2, 8), (2, 2, 16), (2, 3, 8), (2, 3, 16)]
    assert states(run) == [(2 * n - 1, 2, 8) for n in (1, 2, 3)]


def test_a_smaller_core_is_the_core_of_that_size_with_the_same_parameters(tmp_path: Path) -> None:
    run = trainer(tmp_path, "parity/staircase", **STAIRCASE)
    run.train_step()
    core, D = run.model.core, 8
    small = CORES["staircase"].core(core.config).eval()
    parameters = {**core.state_dict(), "position.vectors": core.position.vectors[:1]}
    small.load_state_dict(parameters)
    x = torch.randn(2, 5, D)
    torch.testing.assert_close(core.eval()(x, core.init_state(2))[0], small(x, small.init_state(2))[0])


@pytest.mark.parametrize("name", ["staircase", "cached-staircase", "universal"])
def test_validation_uses_the_full_core(name: str, tmp_path: Path) -> None:
    sizes = {"core__passes": 2, "train__size_schedule": "5:passes=1", "train__validate_every": 2}
    run = trainer(tmp_path, f"parity/{name}", **sizes)
    for _ in range(2):
        run.train_step()
    scores = run.validate()
    assert run.model.core.config.passes == 1 and int(run.objective.states[0].count[0]) > 0
    run.objective.resize({})
    assert run.model.core.config.passes == 2
    assert scores == evaluate(run.model, task_of(run), "valid", streams=2, segment=8)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_run_resumes_bit_for_bit_around_a_change_of_size(stop: int, tmp_path: Path) -> None:
    options = {**STAIRCASE, "core__relu_dropout": 0.2, "train__accumulate": 2, "train__validate_every": 3}
    whole = trainer(tmp_path / "whole", "random-walk/staircase", **options)
    whole.run()
    run = trainer(tmp_path / "run", "random-walk/staircase", **options)
    with pytest.raises(Interrupted):
        run.run(lambda event: setattr(run, "stop_requested", run.progress.step >= stop))
    assert run.progress.step == stop
    again = trainer(tmp_path / "run", "random-walk/staircase", **options)
    assert again.resume() == []
    again.run()
    for (name, ours), (_, theirs) in zip(again.model.named_parameters(), whole.model.named_parameters()):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(again.objective.states, whole.objective.states):
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True))
    assert read_metrics(tmp_path / "run") == read_metrics(tmp_path / "whole")
    assert [record.get("sizes") for record in Run(tmp_path / "run").metrics() if "loss" in record] == [
        *[{"chunk": 1, "passes": 1}] * 2, *[{"chunk": 2, "passes": 2}] * 2, None, None,
    ]  # fmt: skip


def test_a_run_of_the_command_line_has_the_full_core(tmp_path: Path) -> None:
    options = [*TINY, "--core.chunk", "2", "--core.passes", "2", "--train.size_schedule", "3:passes=1", "--steps", "6"]
    assert stairwell(tmp_path, "train", "parity/staircase", *options, "--quiet", "--out", "run").status == 0
    assert stairwell(tmp_path, "eval", "run", "--streams", "2").status == 0
    assert stairwell(tmp_path, "train", "parity/staircase", *options, "--quiet", "--out", "again").status == 0
    assert_same_tensors(tmp_path / "run", tmp_path / "again")


@pytest.mark.parametrize("text", ["passes=1", "x:passes=1", "0:passes=1", "5:", "5:passes", "5:passes=x", "5:=1"])
def test_an_invalid_schedule_is_rejected(text: str) -> None:
    with pytest.raises(UserError, match=r"cannot read train\.size_schedule"):
        SizeSchedule.parse(text)


@pytest.mark.parametrize(
    ("name", "size_schedule", "message"),
    [
        ("staircase", "3:memory=1", "'memory' of this core cannot change; there are: chunk, passes"),
        ("staircase", "3:passes=9", "passes 9 is above core.passes, 3"),
        ("staircase", "3:passes=0", "passes must be at least 1"),
        ("staircase", "2:passes=2;3:passes=1", "passes must not decrease"),
        ("staircase", "6:passes=1", "ends at step 6 of 6, so the full core would never be trained"),
        ("feedback", "3:passes=1", "has neither chunks nor passes"),
    ],
)
def test_a_schedule_that_does_not_fit_the_core_is_rejected(
    name: str, size_schedule: str, message: str, tmp_path: Path
) -> None:
    sizes = {"core__chunk": 2, "core__passes": 3} if name == "staircase" else {}
    with pytest.raises(UserError, match=message):
        trainer(tmp_path, f"parity/{name}", train__size_schedule=size_schedule, **sizes)


def test_steps_must_increase() -> None:
    with pytest.raises(UserError, match="must increase"):
        SizeSchedule.parse("5:passes=1;5:passes=2")
