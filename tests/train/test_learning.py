"""Every task is learned at toy size by a small model: a silent bug in labels, shifts or resets could not hide.

One of seconds runs with all other tests. The others are run by name, `pytest -m slow tests/train/test_learning.py`: each
takes about a minute on one thread.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stairwell.cli.display import NullDisplay
from stairwell.runs.load import evaluate_run, new_job, train


def learn(folder: Path, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train and score the test split with the model that was best in validation."""
    small = {
        "core.width": 32,
        "core.layers": 2,
        "train.batch": 64,
        "train.segment": 16,
        "train.learning_rate": 3e-3,
        "train.warmup": 50,
        "train.decay": "cosine",
        "train.curriculum": "",
        "train.validate_every": 100,
        "train.valid_batch": 10,
        "train.checkpoint_every": 0,
        **options,
    }
    job = new_job(name, None, folder / "run", {key: str(value) for key, value in small.items()})
    train(job, "cpu", "auto", lambda title, total, done: NullDisplay())
    scores = evaluate_run(folder / "run", "test", None, 1, 256, "cpu", "auto", None)
    print(f"{name}: {scores}")
    return scores


def toy(length: int, **more: Any) -> dict[str, Any]:
    lengths = {"task.valid_length": length, "task.test_length": length}
    return {"task.length": length, "task.valid_episodes": 100, "task.test_episodes": 200, **lengths, **more}


@pytest.mark.parametrize("name", ["parity/lstm", "parity/feedback"])
def test_a_little_parity_is_learned_in_seconds(name: str, tmp_path: Path) -> None:
    """Neither guessing (50%) nor the last bit alone can come near."""
    sight = {"core.memory": 4} if name == "parity/feedback" else {}
    small = {"core.width": 16, "train.batch": 32, "train.steps": 200, "train.learning_rate": 1e-2, **sight}
    assert learn(tmp_path, name, toy(5, **small))["accuracy"] >= 99


@pytest.mark.slow
def test_random_walk(tmp_path: Path) -> None:
    options = toy(8, **{"task.grid": 3, "core.memory": 8, "train.segment": 18, "train.steps": 800})
    options = {key: value for key, value in options.items() if key not in ("task.valid_length", "task.test_length")}
    assert learn(tmp_path, "random-walk/feedback", options)["accuracy"] >= 95


@pytest.mark.slow
def test_algorithmic(tmp_path: Path) -> None:
    options = {
        "task.variables": 1, "task.statements": 5, "task.valid_episodes": 100, "task.test_episodes": 400,
        "core.width": 64, "core.memory": 32, "train.segment": 24, "train.steps": 1500, "train.batch": 128,
        "train.curriculum": "statements=2..5", "train.curriculum_accuracy": 85,
    }  # fmt: skip
    assert learn(tmp_path, "algorithmic/feedback", options)["accuracy"] >= 90


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy/transformer-xl", "reverse/feedback"])
def test_copy_and_reverse(name: str, tmp_path: Path) -> None:
    curriculum = {"train.curriculum": "length=3..5", "train.curriculum_accuracy": 90}
    options = toy(5, **curriculum, **{"core.heads": 2, "core.memory": 12, "train.segment": 24, "train.steps": 400})
    scores = learn(tmp_path, name, options)
    assert scores["accuracy"] >= 95
    assert scores["sequence_accuracy"] >= 85


@pytest.mark.slow
def test_counting(tmp_path: Path) -> None:
    options = toy(5, **{"core.memory": 12, "train.segment": 24, "train.steps": 200})
    options.pop("task.valid_length")
    scores = learn(tmp_path, "counting/feedback", options)
    assert scores["accuracy"] >= 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parity/lstm", "parity/feedback", "parity/staircase", "parity/deltanet"])
def test_parity(name: str, tmp_path: Path) -> None:
    sight = {"parity/feedback": {"core.memory": 4}, "parity/staircase": {"core.chunk": 1, "core.passes": 3}}
    options = toy(8, **{"train.steps": 400, "train.curriculum": "length=2..8", **sight.get(name, {})})
    assert learn(tmp_path, name, options)["accuracy"] >= 99


LEAGUE = ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words")


@pytest.mark.slow
@pytest.mark.parametrize("task", LEAGUE)
def test_the_tasks_of_the_league(task: str, tmp_path: Path) -> None:
    lengths = {"task.min_length": 2, "task.length": 6, "task.test_min_length": 2, "task.test_length": 6}
    rest = {"task.label": "every", "train.curriculum": "length=2..6", "train.steps": 1200, "train.learning_rate": 5e-3}
    assert learn(tmp_path, f"{task}/lstm", {**lengths, **rest})["last_accuracy"] >= 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s5/lstm", "s5/feedback"])
def test_permutations_of_three(name: str, tmp_path: Path) -> None:
    sight = {"core.memory": 4} if name == "s5/feedback" else {}
    options = toy(8, **{"task.elements": 3, "train.steps": 800, "train.curriculum": "length=2..8", **sight})
    assert learn(tmp_path, name, options)["accuracy"] >= 99


@pytest.mark.slow
def test_language_modeling(tmp_path: Path) -> None:
    """A short text again and again is known by heart."""
    verse = "She walks in beauty, like the night\nOf cloudless climes and starry skies;\n"
    (tmp_path / "verse.txt").write_text(verse * 60)
    options = {
        "task.path": str(tmp_path / "verse.txt"), "task.unit": "characters", "train.batch": 16, "train.segment": 32,
        "train.steps": 400, "core.heads": 2, "core.memory": 16, "train.valid_batch": 1,
    }  # fmt: skip
    assert learn(tmp_path, "lm/feedback", options)["bits_per_character"] < 0.3


@pytest.mark.slow
def test_labeled_streams(tmp_path: Path) -> None:
    """A user's own files: words to add up, the parity of the ones asked at each."""
    dice = random.Random(0)
    tokens, labels = [], []
    for _ in range(4000):
        bits = [dice.randrange(2) for _ in range(dice.randint(1, 6))]
        tokens.append(" ".join("one" if bit else "zero" for bit in bits))
        labels.append(" ".join("odd" if sum(bits[: t + 1]) % 2 else "even" for t in range(len(bits))))
    (tmp_path / "mine.tokens").write_text("\n".join(tokens) + "\n")
    (tmp_path / "mine.labels").write_text("\n".join(labels) + "\n")
    options = {"task.path": str(tmp_path / "mine.tokens"), "train.steps": 500, "train.valid_batch": 1}
    assert learn(tmp_path, "labeled/lstm", options)["accuracy"] >= 95
