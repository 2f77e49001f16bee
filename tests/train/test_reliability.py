"""A training loses nothing: killed, interrupted, out of disk, damaged, diverged, it goes on as if nothing had been."""

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
from stairwell.train import CrossEntropy, Run
from stairwell.train.run import load_tensors
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
    """A folder with one training from beginning to end."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, "random-walk/lstm", "run")
    return folder


def copy_of(uninterrupted: Path, folder: Path) -> Path:
    return Path(shutil.copytree(uninterrupted / "run", folder / "run"))


def killed_at(moment: int, later: float, command: Command, run: Path) -> int:
    """Kill a training some seconds after an update; 0 if it was quicker than that."""
    command.wait_until(lambda: newest_step(run) >= moment)
    time.sleep(later)
    command.kill()
    status = command.wait().status
    assert status in (0, -signal.SIGKILL)
    return status


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_killed_training_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    """kill -9 at random moments, several times; weights, optimizer, states and metrics end up the same."""
    train(tmp_path, name, "whole")
    dice, run, kills = random.Random(name), tmp_path / "killed", []
    arguments: list[object] = [name, *EVERYTHING, *EXPERIMENTS[name]]
    moments = sorted(dice.sample(range(2, STEPS - 2), KILLS))
    for moment in moments:
        before = Path(shutil.copytree(run, tmp_path / f"before-{moment}")) if run.exists() else None
        while (
            killed_at(moment, dice.uniform(0, 0.03), start_command(tmp_path, "train", *arguments, "--out", run), run)
            == 0
        ):
            shutil.rmtree(run)  # It was over before the signal came: put back what there was and kill it again.
            if before is not None:
                shutil.copytree(before, run)
        kept = [path.stem for path in Run(run).checkpoints()]
        kills.append(f"at update {newest_step(run)}+ with {', '.join(kept) or 'no checkpoint'}")
        arguments = ["--resume", "--quiet"]
    ended = stairwell(tmp_path, "train", *arguments, "--out", run)
    assert ended.status == 0, ended
    print(f"{name}: killed {'; '.join(kills)}; resumed each time, all weights bit-identical after {STEPS} updates")
    assert_same_tensors(run, tmp_path / "whole")
    assert read_metrics(run) == read_metrics(tmp_path / "whole")
    assert not list(run.rglob("*.tmp")), "what was half-written is gone"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_training_saves_and_says_how_to_go_on(number: int, uninterrupted: Path, tmp_path: Path) -> None:
    name = "random-walk/lstm"
    command = start_command(tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", "run", TEST_WAIT_AT="3")
    assert command.wait_until(lambda: newest_step(tmp_path / "run") >= 3)
    command.kill(number)
    ended = command.wait()
    assert ended.status == 130 and ended.out == "", ended
    line = ended.err.strip().splitlines()[-1]
    assert line.startswith("stopped and saved at update ") and "Traceback" not in ended.err
    told = line.partition("go on with: stairwell ")[2].split()
    assert told == ["train", "--resume", "--out", "run"]
    assert Run(tmp_path / "run").checkpoints()
    assert stairwell(tmp_path, *told).status == 0
    assert_same_tensors(tmp_path / "run", uninterrupted / "run")
    assert read_metrics(tmp_path / "run") == read_metrics(uninterrupted / "run")


def test_a_training_begun_with_nohup_does_not_stop_with_its_terminal(tmp_path: Path) -> None:
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
    """A training that these signals meet in the middle of its eighth update, after five were saved: its status and the
    last line it leaves."""
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
        told = capsys.readouterr()
        assert told.out == "" and "Traceback" not in told.err
        return int(str(ended.value.code)), told.err.splitlines()[-1]

    return run


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_stops_at_once_and_does_not_claim_to_have_saved(
    first: int, interrupted: Callable[..., tuple[int, str]]
) -> None:
    status, line = interrupted(first, signal.SIGINT)
    assert status == 1
    assert "stopped at once at update 7; what was learned since the checkpoint of update 5 is not saved" in line
    assert line.endswith("go on with: stairwell train --resume --out run")


def test_a_terminal_that_says_twice_that_it_is_gone_does_no_harm(interrupted: Callable[..., tuple[int, str]]) -> None:
    status, line = interrupted(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
    assert status == 130 and line.startswith(
        "stopped and saved at update 8 of 40; go on with: stairwell train --resume"
    )


def test_an_interrupt_before_the_first_update_says_that_nothing_is_saved(
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
    assert capsys.readouterr().err == "stairwell: interrupted before the first update; nothing is saved\n"


def test_a_run_folder_that_is_deleted_during_a_training_is_told_at_once(tmp_path: Path) -> None:
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
    assert ended.err == "stairwell: run was deleted during the training, so the training has stopped\n"
    assert not run.exists()


def test_resuming_with_fewer_updates_than_were_done_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--steps", "10").error_line
    assert f"run is at update {STEPS} already, beyond --steps 10; leave out --steps, or name more" in line
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_one_training_cannot_be_resumed_with_several_seeds(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--seeds", "2").error_line
    assert "run is one training; to go on with several --seeds, give the command that began them again" in line
    assert not list(run.glob("seed-*"))


def test_a_finished_training_that_is_resumed_stays_as_it_is(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert_same_tensors(run, uninterrupted / "run")
    assert read_metrics(run) == read_metrics(uninterrupted / "run")


def test_more_updates_than_first_asked_for_equal_a_longer_training(uninterrupted: Path, tmp_path: Path) -> None:
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
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_used(
    damage: object, uninterrupted: Path, tmp_path: Path
) -> None:
    run = copy_of(uninterrupted, tmp_path)
    older, newest = Run(run).checkpoints()
    damage(newest)  # type: ignore[operator]
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 0
    assert f"{newest.name} is damaged" in ended.err and "going back to the one before" in ended.err
    assert ended.err.count("\n") == 1
    assert_same_tensors(run, uninterrupted / "run")
    assert read_metrics(run) == read_metrics(uninterrupted / "run")
    for path in Run(run).checkpoints():
        damage(path)  # type: ignore[operator]
    line = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").error_line
    assert "no checkpoint in run can be read" in line and "going back" not in line


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[1, 2]\n", b'{"step": "many"}\n', b'{"step": 1}\n', b'{"step": 40'])
def test_a_damaged_log_does_not_keep_a_whole_checkpoint_from_being_used(
    line: bytes, uninterrupted: Path, tmp_path: Path
) -> None:
    run = copy_of(uninterrupted, tmp_path)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(line)
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert read_metrics(run) == read_metrics(uninterrupted / "run")


def test_a_changed_config_is_told_where_a_training_goes_on(uninterrupted: Path, tmp_path: Path) -> None:
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
    assert "the checkpoint does not fit config.json" in line
    # More steps are what resuming is for.
    (run / "config.json").write_text(json.dumps(config))
    more = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet", "--steps", STEPS + 2)
    assert more.status == 0 and more.err == "", more


def test_a_model_and_a_checkpoint_cannot_take_each_others_place(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    newest, model = Run(run).checkpoints()[-1], run / "model.safetensors"
    shutil.copyfile(model, newest)
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 0 and "(another file stands in its place); going back to the one before" in ended.err
    assert_same_tensors(run, uninterrupted / "run")
    shutil.copyfile(newest, model)
    for command in (("eval", "run"), ("train", "--resume", "--out", "run", "--quiet")):
        assert (
            "model.safetensors is damaged (another file stands in its place)"
            in stairwell(tmp_path, *command).error_line
        )


def test_a_model_that_was_lost_is_told_from_one_that_was_never_saved(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    (run / "model.safetensors").unlink()
    assert "model.safetensors is missing; bring it back from a copy" in stairwell(tmp_path, "eval", "run").error_line
    (run / "metrics.jsonl").unlink()
    assert "run holds no model yet" in stairwell(tmp_path, "eval", "run").error_line


def test_a_training_stopped_before_its_first_validation_can_be_ended_there_and_used(
    interrupted: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    interrupted(signal.SIGINT)
    told = stairwell(tmp_path, "eval", "run").error_line
    assert "run holds no model yet: one is kept from the first validation on" in told
    command = told.partition("or end it where it is: stairwell ")[2].split()
    assert command == ["train", "--resume", "--out", "run", "--steps", "8"]
    assert stairwell(tmp_path, *command).status == 0
    assert stairwell(tmp_path, "eval", "run").status == 0


def test_every_flipped_byte_of_a_checkpoint_is_found(uninterrupted: Path, tmp_path: Path) -> None:
    newest = Run(copy_of(uninterrupted, tmp_path)).checkpoints()[-1]
    whole, dice = newest.read_bytes(), random.Random(0)
    header = int.from_bytes(whole[:8], "little") + 8
    places = [*range(8), *dice.sample(range(8, header), 150), *dice.sample(range(header, len(whole)), 50)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << dice.randrange(8)
        newest.write_bytes(flipped)
        with pytest.raises(ValueError, match="is damaged"):
            load_tensors(newest)


def test_a_full_disk_leaves_the_old_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    """The operating system refuses to make files as large as a checkpoint."""
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
def test_a_diverging_training_stops_and_keeps_what_was_good(log_every: int, tmp_path: Path) -> None:
    options = [*TINY, "--train.learning_rate", "1e6", "--train.warmup", "0", "--train.log_every", log_every]
    ended = stairwell(tmp_path, "train", "random-walk/lstm", *options, "--steps", "60", "--out", "run", "--quiet")
    assert ended.status == 1 and ended.out == "" and ended.err.count("\n") == 1, ended
    assert "the training has diverged" in ended.err and "smaller --train.learning_rate" in ended.err
    run = Run(tmp_path / "run")
    for path in [*run.checkpoints(), *(tmp_path / "run").glob("model.safetensors")]:
        tensors, _ = load_tensors(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values()), path


def test_a_training_that_diverges_late_keeps_its_good_model(uninterrupted: Path, tmp_path: Path) -> None:
    """A finite loss far beyond guessing is divergence too."""
    run = copy_of(uninterrupted, tmp_path)
    good, kept = (run / "model.safetensors").read_bytes(), Run(run).checkpoints()[-1]
    config = json.loads((run / "config.json").read_text())
    config["train"] |= {"learning_rate": 1000.0, "steps": 400, "max_grad_norm": 0.0}
    (run / "config.json").write_text(json.dumps(config))
    ended = stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet")
    assert ended.status == 1 and "the training has diverged: the loss is" in ended.err
    assert kept.exists() or Run(run).checkpoints()
    assert (run / "model.safetensors").read_bytes() == good
    assert math.isfinite(json.loads(stairwell(tmp_path, "eval", "run", "--json").out)["loss"])


def test_what_a_killed_training_had_half_written_is_removed(uninterrupted: Path, tmp_path: Path) -> None:
    run = copy_of(uninterrupted, tmp_path)
    halves = [run / "checkpoints" / ".step-000000050.safetensors.x.tmp", run / ".model.safetensors.x.tmp"]
    for half in halves:
        half.write_bytes(b"half")
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--quiet").status == 0
    assert not any(half.exists() for half in halves)


def test_two_trainings_cannot_share_a_folder(uninterrupted: Path, tmp_path: Path) -> None:
    name = "random-walk/lstm"
    first = start_command(tmp_path, "train", name, *EVERYTHING, *EXPERIMENTS[name], "--out", "run", TEST_WAIT_AT="3")
    assert first.wait_until(lambda: newest_step(tmp_path / "run") >= 3)
    first.kill(signal.SIGSTOP)  # so that it is surely still at work when the others come
    resumed = stairwell(tmp_path, "train", "--resume", "--out", "run")
    begun = stairwell(tmp_path, "train", name, *EVERYTHING, "--out", "run")
    first.kill(signal.SIGCONT)
    assert first.wait().status == 0
    assert "another training is writing to run" in resumed.error_line
    assert "run holds a training already" in begun.error_line
    assert_same_tensors(tmp_path / "run", uninterrupted / "run")
    assert read_metrics(tmp_path / "run") == read_metrics(uninterrupted / "run")
