"""Reliability of runs: kills, interruptions, full disks, damaged files and divergence lose nothing."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stairwell import cli
from stairwell.runs.run import Run
from stairwell.tensor_files import load_tensors
from stairwell.train import CrossEntropy
from tests.commands import (
    TINY,
    Command,
    Completed,
    assert_same_tensors,
    newest_step,
    read_metrics,
    stairwell,
    start_command,
)

STEPS = 40
EVERYTHING = [
    *TINY, "--steps", STEPS, "--quiet", "--model.embedding_dropout", "0.1", "--model.output_dropout", "0.1",
    "--train.curriculum", "length=2..8", "--train.curriculum_accuracy", "3", "--train.accumulate", "2",
]  # fmt: skip
EXPERIMENTS = {
    "random-walk/feedback": ["--core.heads", "2", "--core.memory", "6", "--core.attention_dropout", "0.1"],
    "parity/staircase": [
        *["--core.heads", "2", "--core.chunk", "3", "--core.passes", "2"],
        *["--core.relu_dropout", "0.1", "--core.positions", "random"],
    ],
    "random-walk/lstm": ["--core.dropout", "0.1", "--core.layers", "2"],
}
KILLS = 3


def train(folder: Path, name: str, out: str, *more: object) -> Completed:
    ended = stairwell(folder, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", out, *more)
    assert ended.status == 0, ended
    return ended


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, "random-walk/lstm", "run")
    return folder


def copy_of(uninterrupted: Path, folder: Path) -> Path:
    return Path(shutil.copytree(uninterrupted / "run", folder / "run"))


def kill_after(step: int, delay: float, command: Command, run: Path) -> int:
    """Kill a run some seconds after a step. Return its status, 0 if it ended before."""
    command.wait_until(lambda: newest_step(run) >= step)
    time.sleep(delay)
    command.kill()
    status = command.wait().status
    assert status in (0, -signal.SIGKILL)
    return status


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.quick if name == "random-walk/lstm" else ()) for name in EXPERIMENTS]
)
def test_a_killed_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    """kill -9 several times at random steps; parameters, optimizer, states and metrics end up the same."""
    train(tmp_path, name, "whole")
    generator, run = random.Random(name), tmp_path / "killed"
    arguments: list[object] = [name, *EVERYTHING, *EXPERIMENTS[name]]
    for step in sorted(generator.sample(range(2, STEPS - 2), KILLS)):
        before = Path(shutil.copytree(run, tmp_path / f"before-{step}")) if run.exists() else None
        while True:
            command = start_command(tmp_path, "train", *arguments, "--out", run)
            if kill_after(step, generator.uniform(0, 0.03), command, run) != 0:
                break
            shutil.rmtree(run)  # it ended before the signal arrived: restore the folder and try again
            if before is not None:
                shutil.copytree(before, run)
        arguments = ["--resume", "--quiet"]
    ended = stairwell(tmp_path, "train", *arguments, "--out", run)
    assert ended.status == 0, ended
    assert_same_tensors(run, tmp_path / "whole")
    assert read_metrics(run) == read_metrics(tmp_path / "whole")
    assert not list(run.rglob("*.tmp")), "temporary files are removed"


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_saved_and_prints_how_to_resume(number: int, uninterrupted: Path, tmp_path: Path) -> None:
    name = "random-walk/lstm"
    command = start_command(tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", "run", TEST_WAIT_AT="3")
    assert command.wait_until(lambda: newest_step(tmp_path / "run") >= 3)
    command.kill(number)
    ended = command.wait()
    assert ended.status == 130 and ended.out == "", ended
    line = ended.err.strip().splitlines()[-1]
    assert line.startswith("stopped and saved at step ") and "Traceback" not in ended.err
    resume = line.partition("resume with: stairwell ")[2].split()
    assert resume == ["train", "--resume", "--out", "run"]
    assert Run(tmp_path / "run").checkpoints()
    assert stairwell(tmp_path, *resume).status == 0
    assert_same_tensors(tmp_path / "run", uninterrupted / "run")
    assert read_metrics(tmp_path / "run") == read_metrics(uninterrupted / "run")


def test_a_run_started_with_nohup_ignores_sighup(tmp_path: Path) -> None:
    name = "random-walk/lstm"
    options = [*EVERYTHING, *EXPERIMENTS[name], "--out", "run"]
    command = start_command(
        tmp_path, "train", name, *options, TEST_WAIT_AT="3", TEST_IGNORED_SIGNAL=str(int(signal.SIGHUP))
    )
    assert command.wait_until(lambda: newest_step(tmp_path / "run") >= 3)
    command.kill(signal.SIGHUP)
    assert command.wait().status == 0
    assert newest_step(tmp_path / "run") == STEPS


@pytest.fixture
def interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return a function that sends signals to a run in its eighth step, after a checkpoint of step 5, and returns its
    status and the last line of its output."""
    forward = CrossEntropy.forward

    def run(*numbers: int) -> tuple[int, str]:
        calls: list[int] = []

        def forward_with_signals(self: CrossEntropy, batch: Any) -> Any:
            calls.append(1)
            for number in numbers if len(calls) == 8 else ():
                os.kill(os.getpid(), number)
            return forward(self, batch)

        monkeypatch.setattr(CrossEntropy, "forward", forward_with_signals)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["stairwell", "train", "parity/lstm", *TINY, "--steps", "40", "--out", "run"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        assert output.out == "" and "Traceback" not in output.err
        return int(str(ended.value.code)), output.err.splitlines()[-1]

    return run


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_stops_at_once_without_saving(
    first: int, interrupted: Callable[..., tuple[int, str]]
) -> None:
    status, line = interrupted(first, signal.SIGINT)
    assert status == 1
    assert "stopped at once at step 7; what was learned since the checkpoint of step 5 is not saved" in line
    assert line.endswith("resume with: stairwell train --resume --out run")


def test_a_second_sighup_has_no_effect(interrupted: Callable[..., tuple[int, str]]) -> None:
    status, line = interrupted(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
    assert status == 130 and line.startswith("stopped and saved at step 8 of 40; resume with: stairwell train --resume")


def test_an_interrupt_before_the_first_step_reports_that_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stairwell.runs.config.RunConfig.make_model", interrupted)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stairwell", "train", "parity/lstm", *TINY, "--out", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "stairwell: interrupted before the first step; nothing is saved\n"


def test_a_run_stops_if_its_folder_is_deleted(tmp_path: Path) -> None:
    name, run = "random-walk/lstm", tmp_path / "run"
    command = start_command(
        tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--steps", "100000", "--out", "run"
    )
    assert command.wait_until(lambda: newest_step(run) >= 3)
    command.kill(signal.SIGSTOP)
    shutil.rmtree(run)
    command.kill(signal.SIGCONT)
    ended = command.wait()
    assert ended.status == 1 and ended.out == "", ended
    assert ended.err == "stairwell: run was deleted during the run, so the run has stopped\n"
    assert not run.exists()


def test_resuming_with_fewer_steps_than_done_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--steps", "10").error_line
    assert f"run is at step {STEPS} already, beyond --steps 10" in line
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_one_run_cannot_be_resumed_with_several_seeds(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--seeds", "2").error_line
    assert "run is one run; to resume several --seeds, repeat the command that started them" in line
    assert not list(run.glob("seed-*"))


def test_resuming_a_finished_run_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert_same_tensors(run, uninterrupted / "run")
    assert read_metrics(run) == read_metrics(uninterrupted / "run")


def test_a_finished_run_can_be_extended(uninterrupted: Path, tmp_path: Path) -> None:
    train(tmp_path, "random-walk/lstm", "longer", "--steps", 50)
    copy_of(uninterrupted, tmp_path)
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet", "--steps", 50).status == 0
    assert_same_tensors(tmp_path / "run", tmp_path / "longer")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_byte])
def test_the_checkpoint_before_a_damaged_one_is_used(damage: object, uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    older, newest = Run(run).checkpoints()
    damage(newest)  # type: ignore[operator]
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 0
    assert f"{newest.name} is damaged" in ended.err and "using the checkpoint before it" in ended.err
    assert ended.err.count("\n") == 1
    assert_same_tensors(run, uninterrupted / "run")
    assert read_metrics(run) == read_metrics(uninterrupted / "run")
    for path in Run(run).checkpoints():
        damage(path)  # type: ignore[operator]
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").error_line
    assert "no checkpoint in run can be read" in line and "using" not in line


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[1, 2]\n", b'{"step": "many"}\n', b'{"step": 1}\n', b'{"step": 40'])
def test_a_damaged_log_does_not_prevent_resuming(line: bytes, uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(line)
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert read_metrics(run) == read_metrics(uninterrupted / "run")


def test_a_changed_config_is_reported_when_resuming(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    Run(run).checkpoints()[-1].unlink()
    config = json.loads((run / "config.json").read_text())
    for section, name, value in (("train", "learning_rate", 0.5), ("model", "output_dropout", 0.3)):
        changed = {**config, section: {**config[section], name: value}}
        (run / "config.json").write_text(json.dumps(changed))
        shutil.copytree(run, tmp_path / name)
        ended = stairwell(tmp_path, "train", "--resume", "--out", name, "--quiet")
        assert f"{name}/config.json has changed since step-" in ended.err and ended.err.count("\n") == 1, ended
    changed = {**config, "core": {**config["core"], "width": 16}}
    (run / "config.json").write_text(json.dumps(changed))
    line = stairwell(tmp_path, "train", "--resume", "--out", "run").error_line
    assert "the checkpoint does not fit the model of config.json" in line
    # More steps need no warning.
    (run / "config.json").write_text(json.dumps(config))
    more = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet", "--steps", STEPS + 2)
    assert more.status == 0 and more.err == "", more


def test_a_model_is_not_read_as_a_checkpoint_nor_the_reverse(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    newest, model = Run(run).checkpoints()[-1], run / "model.safetensors"
    shutil.copyfile(model, newest)
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 0 and "(it is another type of file); using the checkpoint before it" in ended.err
    assert_same_tensors(run, uninterrupted / "run")
    shutil.copyfile(newest, model)
    for command in (("eval", "run"), ("train", "--resume", "--out", "run", "--quiet")):
        assert "model.safetensors is damaged (it is another type of file)" in stairwell(tmp_path, *command).error_line


def test_a_lost_model_is_distinguished_from_one_that_was_never_saved(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    (run / "model.safetensors").unlink()
    assert "model.safetensors is missing; restore it from a copy" in stairwell(tmp_path, "eval", "run").error_line
    (run / "metrics.jsonl").unlink()
    assert "run has no model yet" in stairwell(tmp_path, "eval", "run").error_line


def test_a_run_interrupted_before_its_first_validation_can_be_ended_there(
    interrupted: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    interrupted(signal.SIGINT)
    line = stairwell(tmp_path, "eval", "run").error_line
    assert "run has no model yet: the first validation saves one" in line
    command = line.partition("or end at the current step: stairwell ")[2].split()
    assert command == ["train", "--resume", "--out", "run", "--steps", "8"]
    assert stairwell(tmp_path, *command).status == 0
    assert stairwell(tmp_path, "eval", "run").status == 0


def test_every_flipped_bit_of_a_checkpoint_is_detected(uninterrupted: Path, tmp_path: Path) -> None:
    newest = Run(copy_of(uninterrupted, tmp_path)).checkpoints()[-1]
    content, generator = newest.read_bytes(), random.Random(0)
    header = int.from_bytes(content[:8], "little") + 8
    data = generator.sample(range(header, len(content)), 50)
    for offset in (*range(8), *generator.sample(range(8, header), 150), *data):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << generator.randrange(8)
        newest.write_bytes(flipped)
        with pytest.raises(ValueError, match="is damaged"):
            load_tensors(newest)


def test_a_full_disk_keeps_the_old_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    """The system rejects files as large as a checkpoint."""
    run, size = tmp_path / "run", Run(uninterrupted / "run").checkpoints()[-1].stat().st_size
    name = "random-walk/lstm"
    command = start_command(tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", "run", TEST_WAIT_AT="12")
    assert command.wait_until(lambda: newest_step(run) >= 12 and len(Run(run).checkpoints()) == 2)
    command.kill()
    command.wait()
    before = {path.name: path.read_bytes() for path in Run(run).checkpoints()}
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet", TEST_FILE_LIMIT=str(size // 2))
    assert ended.status == 1 and ended.err.count("\n") == 1, ended
    assert "could not be written" in ended.err and "Traceback" not in ended.err
    assert {path.name: path.read_bytes() for path in Run(run).checkpoints()} == before
    assert not list(run.rglob("*.tmp"))
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert_same_tensors(run, uninterrupted / "run")


def test_a_full_disk_names_the_file_that_could_not_be_written(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet", TEST_FILE_LIMIT="100")
    assert ended.status == 1 and ended.err.count("\n") == 1, ended
    assert ended.err == "stairwell: run/task.json: File too large\n"
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_diverging_run_stops_and_saves_no_nan(log_every: int, tmp_path: Path) -> None:
    options = [*TINY, "--train.learning_rate", "1e6", "--train.warmup", "0", "--train.log_every", log_every]
    ended = stairwell(tmp_path, "train", "random-walk/lstm", *options, "--steps", "60", "--out", "run", "--quiet")
    assert ended.status == 1 and ended.out == "" and ended.err.count("\n") == 1, ended
    assert "the run has diverged" in ended.err and "smaller --train.learning_rate" in ended.err
    run = Run(tmp_path / "run")
    for path in [*run.checkpoints(), *(tmp_path / "run").glob("model.safetensors")]:
        tensors, _ = load_tensors(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values()), path


def test_a_run_that_diverges_late_keeps_its_best_model(uninterrupted: Path, tmp_path: Path) -> None:
    """A finite loss far above chance level counts as divergence."""
    run = copy_of(uninterrupted, tmp_path)
    best = (run / "model.safetensors").read_bytes()
    config = json.loads((run / "config.json").read_text())
    config["train"] |= {"learning_rate": 1000.0, "steps": 400, "max_grad_norm": 0.0}
    (run / "config.json").write_text(json.dumps(config))
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 1 and "the run has diverged: the loss is" in ended.err
    assert Run(run).checkpoints()
    assert (run / "model.safetensors").read_bytes() == best
    assert math.isfinite(json.loads(stairwell(tmp_path, "eval", "run", "--json").out)["loss"])


def test_temporary_files_of_a_killed_run_are_removed(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    partial = [run / "checkpoints" / ".step-000000050.safetensors.x.tmp", run / ".model.safetensors.x.tmp"]
    for path in partial:
        path.write_bytes(b"partial")
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert not any(path.exists() for path in partial)


def test_two_runs_cannot_share_a_folder(uninterrupted: Path, tmp_path: Path) -> None:
    name = "random-walk/lstm"
    first = start_command(tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", "run", TEST_WAIT_AT="3")
    assert first.wait_until(lambda: newest_step(tmp_path / "run") >= 3)
    first.kill(signal.SIGSTOP)  # so that it still runs when the others start
    resumed = stairwell(tmp_path, "train", "--resume", "--out", "run")
    started = stairwell(tmp_path, "train", name, *EVERYTHING, "--out", "run")
    first.kill(signal.SIGCONT)
    assert first.wait().status == 0
    assert "another run is writing to run" in resumed.error_line
    assert "run is a run already" in started.error_line
    assert_same_tensors(tmp_path / "run", uninterrupted / "run")
    assert read_metrics(tmp_path / "run") == read_metrics(uninterrupted / "run")


def test_other_files_in_the_checkpoint_folder_are_ignored(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    newest = Run(run).checkpoints()[-1]
    for name in (f"{newest.stem}_backup.safetensors", "step-last.safetensors", "step-.safetensors"):
        shutil.copyfile(newest, newest.with_name(name))
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert Run(run).checkpoints()[-1] == newest


def test_a_checkpoint_of_another_optimizer_is_a_user_error(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    config = json.loads((run / "config.json").read_text())
    config["train"]["optimizer"] = "rmsprop"
    (run / "config.json").write_text(json.dumps(config))
    line = stairwell(tmp_path, "train", "--resume", "--out", "run").error_line
    assert "the checkpoint was made with another optimizer" in line


def test_duplicate_keys_in_a_config_are_rejected(uninterrupted: Path, tmp_path: Path) -> None:
    path = copy_of(uninterrupted, tmp_path) / "config.json"
    path.write_text(path.read_text().replace('"train": {', '"train": {"batch": 4,', 1))
    assert "the key 'batch' occurs twice" in stairwell(tmp_path, "train", "--resume", "--out", "run").error_line


def test_a_model_with_the_task_of_another_run_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a rose is a rose. " * 60)
    (tmp_path / "b.txt").write_text("e boat it e boat. " * 60)
    options = [option for option in zip(TINY[::2], TINY[1::2]) if not option[0].startswith("--task")]
    for name in "ab":
        arguments = [*(word for option in options for word in option), "--task.path", f"{name}.txt", "--steps", "1"]
        ended = stairwell(tmp_path, "train", "lm/lstm", *arguments, "--task.unit", "characters", "--out", name)
        assert ended.status == 0, ended
    shutil.copyfile(tmp_path / "b" / "task.json", tmp_path / "a" / "task.json")
    assert "model.safetensors and task.json are not of the same run" in stairwell(tmp_path, "eval", "a").error_line


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")], ids=["folder", "link"])
def test_a_lock_that_is_not_a_file_is_rejected(
    make: Callable[[Path], None], uninterrupted: Path, tmp_path: Path
) -> None:
    lock = copy_of(uninterrupted, tmp_path) / ".lock"
    lock.unlink(missing_ok=True)
    make(lock)
    line = stairwell(tmp_path, "train", "--resume", "--out", "run").error_line
    assert ".lock is not a regular file" in line
