"""A soak: random trainings, random kills, random damage, for as long as one likes.

    SOAK_SECONDS=600 SOAK_SEED=1 python -m pytest -s -m slow tests/test_soak.py

Every run folder either resumes bit for bit or says in one line why not, and a folder that was refused has lost nothing:
with the damaged file brought back it resumes bit for bit. A command that is told to write where something is loses
nothing either. The seed and every round are printed; a round depends on the
seed and its number alone, apart from the moment of a kill, which is the machine's.
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

from stairwell.train.run import Run
from tests.commands import TINY, Completed, assert_same_tensors, newest_step, read_metrics, stairwell, start_command

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED", str(random.SystemRandom().randrange(10**6))))
STEPS = 30
CONFIGS = 16  # trainings that are cut and damaged in ever new ways
TEXT = "".join(f"the quick brown fox jumps over the lazy dog {i}\n" for i in range(60))
CHANGED = "has changed since"  # what is told where numbers may differ
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@dataclass(frozen=True)
class Config:
    """A random training, made of its number."""

    name: str
    options: tuple[str, ...]

    @staticmethod
    def draw(number: int) -> Config:
        dice = random.Random(f"{SEED} config {number}")
        task = dice.choice(["parity", "random-walk", "copy", "counting", "lm", "labeled", "group-words"])
        core = dice.choice(["lstm", "feedback", "transformer-xl", "staircase", "cached-staircase", "deltanet"])
        options = [*TINY[: TINY.index("--train.curriculum")], "--steps", str(STEPS), "--quiet"]
        files = {"lm": "text.txt", "labeled": "mine.tokens"}
        if task in files:
            options += ["--task.path", files[task]]
        else:
            options += ["--task.valid_episodes", "4", "--task.test_episodes", "4"]
        if core not in ("lstm", "deltanet"):
            options += ["--core.heads", "2", "--core.attention_dropout", dice.choice(["0", "0.1"])]
        options += ["--train.optimizer", dice.choice(["adam", "adamw", "rmsprop"])]
        options += ["--train.accumulate", dice.choice(["1", "2"]), "--seed", str(dice.randrange(100))]
        options += ["--model.output_dropout", dice.choice(["0", "0.2"])]
        options += ["--train.finetune_steps", dice.choice(["0", "7"])]
        return Config(f"{task}/{core}", tuple(options))


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def cut(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content) + 1)])


def append(path: Path, dice: random.Random) -> None:
    with path.open("ab") as file:
        file.write(dice.choice([b"\xff\xfe\n", b"[1]\n", b'{"step": 3}', b"\0" * 100]))


def become_a_folder(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.mkdir()


def be_another(path: Path, dice: random.Random) -> None:
    others = [other for other in sorted(path.parent.parent.rglob("*")) if other.is_file() and other != path]
    shutil.copyfile(dice.choice(others), path)


# Commands that write, and the option that says where. Not every model can be written in every way: then they say so.
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
    "a part of": cut,
    "more bytes in": append,
    "no bytes in": lambda path, dice: path.write_bytes(b""),
    "a folder in place of": become_a_folder,
    "no": lambda path, dice: path.unlink(),
    "another file in place of": be_another,
}


def kind_of(path: Path) -> str:
    if path.suffix == ".tmp":
        return "half-written file"
    return {"checkpoints": "checkpoint", "tensorboard": "event file"}.get(path.parent.name, path.name)


class Soak:
    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.harmed = folder, Counter[str](), Path()
        (folder / "text.txt").write_text(TEXT)
        (folder / "mine.tokens").write_text("a b a b\n" * 40)
        (folder / "mine.labels").write_text("0 1 - 1\n" * 40)
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to("run/config.json")

    def whole(self, number: int) -> Path:
        """The training that nothing happened to."""
        run = self.folder / f"whole-{number}"
        if not run.exists():
            config = Config.draw(number)
            ended = stairwell(self.folder, "train", config.name, *config.options, "--out", run.name)
            assert ended.status == 0, (config, ended)
        return run

    def round(self, number: int) -> str:
        """One training cut, damaged and resumed; what happened, in words."""
        dice = random.Random(f"{SEED} round {number}")
        config_number = dice.randrange(CONFIGS)
        whole, config, run = self.whole(config_number), Config.draw(config_number), self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(self.folder / "kept", ignore_errors=True)
        kills = [self.cut_short(config, run, dice) for _ in range(dice.randint(1, 3))]
        story = f"{config.name}: {', '.join(kills)}"
        if not (run / "config.json").exists():
            self.done["cut before it was a run"] += 1
            return f"{story}; nothing there yet"
        shutil.copytree(run, self.folder / "kept")
        if dice.random() < 0.5:
            story += f"; {self.write_elsewhere(run, dice)}"
        if Run(run).has_results and dice.random() < 0.2:
            story += f"; {self.lose_the_checkpoints(run, dice)}"
        story += f"; {self.harm(run, dice)}"
        self.look(run, dice)
        if dice.random() < 0.2:
            story += f"; {self.fill_the_disk(run, dice)}"
        if config.name.startswith("lm/") and dice.random() < 0.3:
            story += f"; {self.change_the_corpus(run)}"
        ended = self.resume(run)
        if ended.status == 0:
            changed = CHANGED in ended.err
            self.done["went on, and said what had changed" if changed else "went on bit for bit"] += 1
            if not changed:
                assert_same_tensors(run, whole)
            return f"{story}; went on {ended.err.strip()}"
        self.done["refused in a line"] += 1
        # Nothing more was lost than what the damage took.
        self.bring_back(run)
        assert (again := self.resume(run)).status == 0, (ended, again)
        assert_same_tensors(run, whole)
        assert read_metrics(run) == read_metrics(whole)
        return f"{story}; {ended.err.strip()}"

    def cut_short(self, config: Config, run: Path, dice: random.Random) -> str:
        """Begin or go on, and be stopped at some moment in some way."""
        asked = ["--resume", "--quiet"] if (run / "config.json").exists() else [config.name, *config.options]
        command = start_command(self.folder, "train", *asked, "--out", run.name)
        moment, number = dice.randrange(0, STEPS), dice.choice(SIGNALS)
        # Before its output is opened a command is not yet one.
        command.wait_until(lambda: (self.folder / f"{command.pid}.err").exists() and newest_step(run) >= moment)
        time.sleep(dice.uniform(0, 0.05))
        command.kill(number)
        ended = command.wait()
        self.done[f"stopped by {number.name}"] += 1
        assert "Traceback" not in ended.err, ended
        return f"{number.name} at {newest_step(run)}"

    def write_elsewhere(self, run: Path, dice: random.Random) -> str:
        """Tell a command to write where something is already, or twice to a new path."""
        writer = dice.choice(WRITERS)
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
        target = dice.choice(targets).relative_to(self.folder)
        before = self.contents()
        refused = stairwell(self.folder, *writer, target)
        self.in_a_line(refused)
        assert refused.status == 2, refused
        assert self.contents() == before, refused
        self.done[f"{writer[0]} {writer[-1]} was refused a path"] += 1
        if writer[0] == "train":
            return refused.err.strip()
        new = self.folder / "new"
        statuses = [stairwell(self.folder, *writer, new.name) for _ in range(2)]
        for ended in statuses:
            self.in_a_line(ended)
        # A file that the command itself wrote is replaced, a folder is not.
        assert statuses[1].status == (2 if writer[-1] == "--hf" else statuses[0].status), statuses
        if new.is_dir():
            shutil.rmtree(new)
        for path in self.folder.glob("new*"):
            path.unlink()
        assert self.contents() == before, statuses
        self.done[f"{writer[0]} {writer[-1]} {'wrote' if statuses[0].status == 0 else 'could not write'} twice"] += 1
        return refused.err.strip()

    def lose_the_checkpoints(self, run: Path, dice: random.Random) -> str:
        """Resume without checkpoints, with more steps or fewer: refused, and nothing is lost."""
        (run / "checkpoints").rename(self.folder / "checkpoints")
        before = self.contents()
        ended = stairwell(self.folder, "train", "--resume", "--out", run.name, "--steps", dice.choice([1, 5, 90]))
        assert ended.status == 2 and "has no checkpoint to resume from" in ended.err, ended
        assert self.contents() == before, ended
        (self.folder / "checkpoints").rename(run / "checkpoints")
        self.done["no checkpoints were refused"] += 1
        return ended.err.strip()

    def contents(self) -> dict[str, int]:
        """A hash of every file but what commands say."""
        files = [path for path in self.folder.rglob("*") if path.suffix not in (".out", ".err", ".go")]
        known = [path for path in files if path.is_file() and path.name != ".lock"]
        return {str(path): zlib.crc32(path.read_bytes()) for path in known}

    def harm(self, run: Path, dice: random.Random) -> str:
        """Damage some file, or none."""
        # Each kind of file is as likely as any other, however many there are of it.
        kinds: dict[str, list[Path]] = {}
        for path in sorted(path for path in run.rglob("*") if path.is_file()):
            kinds.setdefault(kind_of(path), []).append(path)
        files = kinds[dice.choice(sorted(kinds))]
        kind, path = dice.choice([*DAMAGES, "nothing happened to"]), dice.choice(files)
        self.harmed = path.relative_to(run)
        if kind in DAMAGES:
            DAMAGES[kind](path, dice)
        self.done[f"{kind} {kind_of(path)}"] += 1
        return f"{kind} {self.harmed}"

    def fill_the_disk(self, run: Path, dice: random.Random) -> str:
        """Go on where no file can become larger than so many bytes."""
        limit = dice.choice([500, 2000, 5000, 20000])  # what is told must fit too
        before = set(run.rglob("*.tmp"))
        ended = self.resume(run, TEST_FILE_LIMIT=str(limit))
        self.done[f"a full disk {'did no harm' if ended.status == 0 else 'was told in a line'}"] += 1
        assert set(run.rglob("*.tmp")) <= before, ended
        return f"a disk full at {limit} bytes ({ended.err.strip()})"

    def change_the_corpus(self, run: Path) -> str:
        text = self.folder / "text.txt"
        text.write_text(TEXT + "and more\n")
        ended = self.resume(run)
        text.write_text(TEXT)
        assert ended.status == 2, ended
        self.done["a changed corpus was refused"] += 1
        return ended.err.strip()

    def look(self, run: Path, dice: random.Random) -> None:
        """Other commands on what is there: they answer, or say in a line why not."""
        command = dice.choice([["eval", "--json"], ["report"], ["generate", "--tokens", "3"], ["eval", "--rows", "2"]])
        ended = stairwell(self.folder, command[0], run.name, *command[1:])
        self.in_a_line(ended)
        self.done[f"{command[0]} {'answered' if ended.status == 0 else 'refused in a line'}"] += 1

    def resume(self, run: Path, **environment: str) -> Completed:
        ended = stairwell(self.folder, "train", "--resume", "--out", run.name, "--quiet", **environment)
        self.in_a_line(ended)
        return ended

    def in_a_line(self, ended: Completed) -> None:
        assert "Traceback" not in ended.err, ended
        if ended.status:
            assert ended.status in (1, 2) and ended.out == "", ended
            assert ended.err.splitlines()[-1].startswith("stairwell: "), ended

    def bring_back(self, run: Path) -> None:
        """The damaged file as it was; what the refused training has written stays."""
        path = run / self.harmed
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "kept" / self.harmed, path)


def test_every_run_folder_resumes_bit_for_bit_or_says_why_not(tmp_path: Path) -> None:
    print(f"SOAK_SEED={SEED}")
    soak, began, rounds = Soak(tmp_path), time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        try:
            story = soak.round(rounds)
        except BaseException:
            print(f"round {rounds} of SOAK_SEED={SEED} failed; its folder: {tmp_path}")
            raise
        print(f"{rounds}: {story}", flush=True)
        rounds += 1
    print(f"{rounds} rounds, {len(soak.done)} kinds:")
    for kind, times in sorted(soak.done.items()):
        print(f"{times:6} {kind}")
    assert rounds
