"""Soak test: random runs, kills and damage for a given time.

    SOAK_SECONDS=600 SOAK_SEED=1 python -m pytest -s -m slow tests/test_soak.py

Every run either resumes bit for bit or is rejected in one line, and a rejected run resumes bit for bit once the damaged
file is restored. Commands never replace existing files. The seed and every round are printed; a round depends only on
the seed and its number, except for the exact moment of a kill.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stairwell.runs.run import Run
from tests.commands import TINY, Completed, assert_same_tensors, newest_step, read_metrics, stairwell, start_command

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", str(random.SystemRandom().randrange(10**6))))
STEPS = 30
CONFIGS = 16  # different configs of runs
TEXT = "".join(f"the quick brown fox jumps over the lazy dog {i}\n" for i in range(60))
CHANGED = "has changed since"  # warning that numbers may differ
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@dataclass(frozen=True)
class Config:
    """A random run, determined by its number."""

    name: str
    options: tuple[str, ...]

    @staticmethod
    def sample(number: int) -> Config:
        generator = random.Random(f"{SEED} config {number}")
        task = generator.choice(["parity", "random-walk", "copy", "counting", "lm", "labeled", "group-words"])
        core = generator.choice(["lstm", "feedback", "transformer-xl", "staircase", "cached-staircase", "deltanet"])
        options = [*TINY[: TINY.index("--train.curriculum")], "--steps", str(STEPS), "--quiet"]
        files = {"lm": "text.txt", "labeled": "mine.tokens"}
        if task in files:
            options += ["--task.path", files[task]]
        else:
            options += ["--task.valid_episodes", "4", "--task.test_episodes", "4"]
        if core not in ("lstm", "deltanet"):
            options += ["--core.heads", "2", "--core.attention_dropout", generator.choice(["0", "0.1"])]
        options += ["--train.optimizer", generator.choice(["adam", "adamw", "rmsprop"])]
        options += ["--train.accumulate", generator.choice(["1", "2"]), "--seed", str(generator.randrange(100))]
        options += ["--model.output_dropout", generator.choice(["0", "0.2"])]
        options += ["--train.finetune_steps", generator.choice(["0", "7"])]
        return Config(f"{task}/{core}", tuple(options))


def flip(path: Path, generator: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, generator: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: generator.randrange(len(content) + 1)])


def append(path: Path, generator: random.Random) -> None:
    with path.open("ab") as file:
        file.write(generator.choice([b"\xff\xfe\n", b"[1]\n", b'{"step": 3}', b"\0" * 100]))


def replace_by_folder(path: Path, generator: random.Random) -> None:
    path.unlink()
    path.mkdir()


def replace_by_other_file(path: Path, generator: random.Random) -> None:
    others = [other for other in sorted(path.parent.parent.rglob("*")) if other.is_file() and other != path]
    shutil.copyfile(generator.choice(others), path)


# Commands that write, with the option of the output path. Some models do not support all exports.
WRITERS = [
    ["export", "run", "--html"],
    ["export", "run", "--onnx"],
    ["export", "run", "--torch-export"],
    ["export", "run", "--hf"],
    ["report", "run", "--out"],
    ["generate", "run", "--tokens", "3", "--save-state"],
    ["train", "parity/lstm", *TINY, "--steps", "2", "--quiet", "--out"],
]


Damage = Callable[[Path, random.Random], None]
DAMAGES: dict[str, Damage] = {
    "a flipped bit in": flip,
    "a part of": truncate,
    "more bytes in": append,
    "no bytes in": lambda path, generator: path.write_bytes(b""),
    "a folder in place of": replace_by_folder,
    "no": lambda path, generator: path.unlink(),
    "another file in place of": replace_by_other_file,
}


def file_type(path: Path) -> str:
    if path.suffix == ".tmp":
        return "temporary file"
    return {"checkpoints": "checkpoint", "tensorboard": "event file"}.get(path.parent.name, path.name)


class Soak:
    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.damaged = folder, Counter[str](), Path()
        (folder / "text.txt").write_text(TEXT)
        (folder / "mine.tokens").write_text("a b a b\n" * 40)
        (folder / "mine.labels").write_text("0 1 - 1\n" * 40)
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to("run/config.json")

    def reference_run(self, number: int) -> Path:
        """Return the run of a config without interruptions."""
        run = self.folder / f"whole-{number}"
        if not run.exists():
            config = Config.sample(number)
            ended = stairwell(self.folder, "train", config.name, *config.options, "--out", run.name)
            assert ended.status == 0, (config, ended)
        return run

    def round(self, number: int) -> str:
        """Interrupt, damage and resume a run. Return a description."""
        generator = random.Random(f"{SEED} round {number}")
        config_number = generator.randrange(CONFIGS)
        whole, config, run = self.reference_run(config_number), Config.sample(config_number), self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(self.folder / "before", ignore_errors=True)
        kills = [self.interrupt(config, run, generator) for _ in range(generator.randint(1, 3))]
        description = f"{config.name}: {', '.join(kills)}"
        if not (run / "config.json").exists():
            self.done["interrupted before it was a run"] += 1
            return f"{description}; no run yet"
        shutil.copytree(run, self.folder / "before")
        if generator.random() < 0.5:
            description += f"; {self.write_to_existing(run, generator)}"
        if Run(run).has_results and generator.random() < 0.2:
            description += f"; {self.remove_checkpoints(run, generator)}"
        description += f"; {self.damage(run, generator)}"
        self.use(run, generator)
        if generator.random() < 0.2:
            description += f"; {self.fill_the_disk(run, generator)}"
        if config.name.startswith("lm/") and generator.random() < 0.3:
            description += f"; {self.change_the_corpus(run)}"
        ended = self.resume(run)
        if ended.status == 0:
            changed = CHANGED in ended.err
            self.done["resumed with a warning" if changed else "resumed bit for bit"] += 1
            if not changed:
                assert_same_tensors(run, whole)
            return f"{description}; resumed {ended.err.strip()}"
        self.done["rejected in one line"] += 1
        # Nothing is lost except for the damaged file.
        self.restore(run)
        assert (again := self.resume(run)).status == 0, (ended, again)
        assert_same_tensors(run, whole)
        assert read_metrics(run) == read_metrics(whole)
        return f"{description}; {ended.err.strip()}"

    def interrupt(self, config: Config, run: Path, generator: random.Random) -> str:
        """Start or resume a run, and stop it with a random signal at a random step."""
        arguments = ["--resume", "--quiet"] if (run / "config.json").exists() else [config.name, *config.options]
        command = start_command(self.folder, "train", *arguments, "--out", run.name)
        step, number = generator.randrange(0, STEPS), generator.choice(SIGNALS)
        # A process that has not opened its output yet does not run the command.
        command.wait_until(lambda: (self.folder / f"{command.pid}.err").exists() and newest_step(run) >= step)
        time.sleep(generator.uniform(0, 0.05))
        command.kill(number)
        ended = command.wait()
        self.done[f"stopped by {number.name}"] += 1
        assert "Traceback" not in ended.err, ended
        return f"{number.name} at {newest_step(run)}"

    def write_to_existing(self, run: Path, generator: random.Random) -> str:
        """Let a command write to an existing path, which is rejected, and twice to a new one."""
        writer = generator.choice(WRITERS)
        there = sorted(path for path in run.rglob("*") if path.name != ".lock")
        corpora = [self.folder / name for name in ("text.txt", "mine.tokens", "pipe", "link")]
        targets = [
            *there,
            run,
            *corpora,
            run / "horizon.json",
            run / "checkpoints" / "new",
            self.folder / "text.txt" / "x",
        ]
        target = generator.choice(targets).relative_to(self.folder)
        before = self.contents()
        rejected = stairwell(self.folder, *writer, target)
        self.check_output(rejected)
        assert rejected.status == 2, rejected
        assert self.contents() == before, rejected
        self.done[f"{writer[0]} {writer[-1]} was rejected a path"] += 1
        if writer[0] == "train":
            return rejected.err.strip()
        new = self.folder / "new"
        statuses = [stairwell(self.folder, *writer, new.name) for _ in range(2)]
        for ended in statuses:
            self.check_output(ended)
        # A command replaces its own files, but no folders.
        assert statuses[1].status == (2 if writer[-1] == "--hf" else statuses[0].status), statuses
        if new.is_dir():
            shutil.rmtree(new)
        for path in self.folder.glob("new*"):
            path.unlink()
        assert self.contents() == before, statuses
        self.done[f"{writer[0]} {writer[-1]} {'wrote' if statuses[0].status == 0 else 'could not write'} twice"] += 1
        return rejected.err.strip()

    def remove_checkpoints(self, run: Path, generator: random.Random) -> str:
        """Resume without checkpoints, which is rejected and changes nothing."""
        (run / "checkpoints").rename(self.folder / "checkpoints")
        before = self.contents()
        ended = stairwell(self.folder, "train", "--resume", "--out", run.name, "--steps", generator.choice([1, 5, 90]))
        assert ended.status == 2 and "has no checkpoint to resume from" in ended.err, ended
        assert self.contents() == before, ended
        (self.folder / "checkpoints").rename(run / "checkpoints")
        self.done["no checkpoints were rejected"] += 1
        return ended.err.strip()

    def contents(self) -> dict[str, int]:
        """Return a hash of every file except the output of commands."""
        files = [path for path in self.folder.rglob("*") if path.suffix not in (".out", ".err", ".go")]
        known = [path for path in files if path.is_file() and path.name != ".lock"]
        return {str(path): zlib.crc32(path.read_bytes()) for path in known}

    def damage(self, run: Path, generator: random.Random) -> str:
        """Damage a random file, or none. All types of files have the same probability."""
        by_type: dict[str, list[Path]] = {}
        for path in sorted(path for path in run.rglob("*") if path.is_file()):
            by_type.setdefault(file_type(path), []).append(path)
        files = by_type[generator.choice(sorted(by_type))]
        kind, path = generator.choice([*DAMAGES, "nothing happened to"]), generator.choice(files)
        self.damaged = path.relative_to(run)
        if kind in DAMAGES:
            DAMAGES[kind](path, generator)
        self.done[f"{kind} {file_type(path)}"] += 1
        return f"{kind} {self.damaged}"

    def fill_the_disk(self, run: Path, generator: random.Random) -> str:
        """Resume with a limit on the size of files."""
        limit = generator.choice([500, 2000, 5000, 20000])  # the error message must fit too
        before = set(run.rglob("*.tmp"))
        ended = self.resume(run, TEST_FILE_LIMIT=str(limit))
        self.done[f"a full disk {'had no effect' if ended.status == 0 else 'was reported in one line'}"] += 1
        assert set(run.rglob("*.tmp")) <= before, ended
        return f"a disk full at {limit} bytes ({ended.err.strip()})"

    def change_the_corpus(self, run: Path) -> str:
        text = self.folder / "text.txt"
        text.write_text(TEXT + "and more\n")
        ended = self.resume(run)
        text.write_text(TEXT)
        assert ended.status == 2, ended
        self.done["a changed corpus was rejected"] += 1
        return ended.err.strip()

    def use(self, run: Path, generator: random.Random) -> None:
        """Run another command on the run: it works, or is rejected in one line."""
        command = generator.choice(
            [["eval", "--json"], ["report"], ["generate", "--tokens", "3"], ["eval", "--streams", "2"]]
        )
        ended = stairwell(self.folder, command[0], run.name, *command[1:])
        self.check_output(ended)
        self.done[f"{command[0]} {'worked' if ended.status == 0 else 'rejected in one line'}"] += 1

    def resume(self, run: Path, **environment: str) -> Completed:
        ended = stairwell(self.folder, "train", "--resume", "--out", run.name, "--quiet", **environment)
        self.check_output(ended)
        return ended

    def check_output(self, ended: Completed) -> None:
        assert "Traceback" not in ended.err, ended
        if ended.status:
            assert ended.status in (1, 2) and ended.out == "", ended
            assert ended.err.splitlines()[-1].startswith("stairwell: "), ended

    def restore(self, run: Path) -> None:
        """Restore the damaged file; what the rejected command has written stays."""
        path = run / self.damaged
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "before" / self.damaged, path)


def test_every_run_resumes_bit_for_bit_or_is_rejected_in_one_line(tmp_path: Path) -> None:
    print(f"SOAK_SEED={SEED}")
    soak, start, rounds = Soak(tmp_path), time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        try:
            description = soak.round(rounds)
        except BaseException:
            print(f"round {rounds} of SOAK_SEED={SEED} failed; its folder: {tmp_path}")
            raise
        print(f"{rounds}: {description}", flush=True)
        rounds += 1
    print(f"{rounds} rounds, {len(soak.done)} types of events:")
    for kind, times in sorted(soak.done.items()):
        print(f"{times:6} {kind}")
    assert rounds
