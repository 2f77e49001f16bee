"""Small models learn every task at a small size, which a bug in labels, shifts or resets would prevent.

One test takes seconds and runs by default. The others take about a minute each:
`pytest -m slow tests/train/test_learning.py`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stairwell.runs.launch import new_run, train
from stairwell.runs.load import evaluate_run

pytestmark = pytest.mark.quick


def learn(folder: Path, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the scores of the best model on the test split."""
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
    train(
        *new_run(name, None, folder / "run", {key: str(value) for key, value in small.items()}),
        resume=False,
        device="cpu",
    )
    scores = evaluate_run(folder / "run", "test", device="cpu")
    print(f"{name}: {scores}")
    return scores


def short_task(length: int, **more: Any) -> dict[str, Any]:
    lengths = {"task.valid_length": length, "task.test_length": length}
    return {"task.length": length, "task.valid_episodes": 100, "task.test_episodes": 200, **lengths, **more}


@pytest.mark.parametrize("name", ["parity/lstm", "parity/feedback"])
def test_short_parity_is_learned_in_seconds(name: str, tmp_path: Path) -> None:
    """Chance level is 50%."""
    memory = {"core.memory": 4} if name == "parity/feedback" else {}
    small = {"core.width": 16, "train.batch": 32, "train.steps": 200, "train.learning_rate": 1e-2, **memory}
    assert learn(tmp_path, name, short_task(5, **small))["accuracy"] >= 99


@pytest.mark.slow
def test_random_walk(tmp_path: Path) -> None:
    options = short_task(8, **{"task.grid": 3, "core.memory": 8, "train.segment": 18, "train.steps": 800})
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
    options = short_task(
        5, **curriculum, **{"core.heads": 2, "core.memory": 12, "train.segment": 24, "train.steps": 400}
    )
    scores = learn(tmp_path, name, options)
    assert scores["accuracy"] >= 95
    assert scores["sequence_accuracy"] >= 85


@pytest.mark.slow
def test_counting(tmp_path: Path) -> None:
    options = short_task(5, **{"core.memory": 12, "train.segment": 24, "train.steps": 200})
    options.pop("task.valid_length")
    scores = learn(tmp_path, "counting/feedback", options)
    assert scores["accuracy"] >= 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parity/lstm", "parity/feedback", "parity/staircase", "parity/deltanet"])
def test_parity(name: str, tmp_path: Path) -> None:
    context = {"parity/feedback": {"core.memory": 4}, "parity/staircase": {"core.chunk": 1, "core.passes": 3}}
    options = short_task(8, **{"train.steps": 400, "train.curriculum": "length=2..8", **context.get(name, {})})
    assert learn(tmp_path, name, options)["accuracy"] >= 99


STATE_TRACKING = ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words")


@pytest.mark.slow
@pytest.mark.parametrize("task", STATE_TRACKING)
def test_state_tracking(task: str, tmp_path: Path) -> None:
    lengths = {"task.min_length": 2, "task.length": 6, "task.test_min_length": 2, "task.test_length": 6}
    rest = {"task.label": "every", "train.curriculum": "length=2..6", "train.steps": 1200, "train.learning_rate": 5e-3}
    assert learn(tmp_path, f"{task}/lstm", {**lengths, **rest})["last_accuracy"] >= 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s5/lstm", "s5/feedback"])
def test_permutations_of_three(name: str, tmp_path: Path) -> None:
    memory = {"core.memory": 4} if name == "s5/feedback" else {}
    options = short_task(8, **{"task.elements": 3, "train.steps": 800, "train.curriculum": "length=2..8", **memory})
    assert learn(tmp_path, name, options)["accuracy"] >= 99


@pytest.mark.slow
def test_language_modeling(tmp_path: Path) -> None:
    """A short text that repeats is memorized."""
    verse = "She walks in beauty, like the night\nOf cloudless climes and starry skies;\n"
    (tmp_path / "verse.txt").write_text(verse * 60)
    options = {
        "task.path": str(tmp_path / "verse.txt"), "task.unit": "characters", "train.batch": 16, "train.segment": 32,
        "train.steps": 400, "core.heads": 2, "core.memory": 16, "train.valid_batch": 1,
    }  # fmt: skip
    assert learn(tmp_path, "lm/feedback", options)["bits_per_character"] < 0.3


@pytest.mark.slow
def test_labeled_streams(tmp_path: Path) -> None:
    """A user's own files: words and the parity of the ones so far."""
    generator = random.Random(0)
    tokens, labels = [], []
    for _ in range(4000):
        bits = [generator.randrange(2) for _ in range(generator.randint(1, 6))]
        tokens.append(" ".join("one" if bit else "zero" for bit in bits))
        labels.append(" ".join("odd" if sum(bits[: t + 1]) % 2 else "even" for t in range(len(bits))))
    (tmp_path / "mine.tokens").write_text("\n".join(tokens) + "\n")
    (tmp_path / "mine.labels").write_text("\n".join(labels) + "\n")
    options = {"task.path": str(tmp_path / "mine.tokens"), "train.steps": 500, "train.valid_batch": 1}
    assert learn(tmp_path, "labeled/lstm", options)["accuracy"] >= 95
