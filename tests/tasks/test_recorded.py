"""Batches, positions and metrics of every task have the recorded hashes.

A hash may change only if the task is defined differently, or with the versions of numpy's generators and of tokenizers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.tasks import IGNORE_INDEX, StreamTask, TokenBatch, task_type

pytestmark = pytest.mark.quick

WORDS = ["der", "die", "das", "rose", "is", "a", "rose", "and", "żółw", "ate", "naïve", "無限", "fish"]
WORDS += [",", ".", "!", "12"]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("random-walk", "algorithmic", "copy", "counting", "parity", "s5")},
    "reverse": ("reverse", {"reverse": True}),
    "random-walk finite": ("random-walk", {"train_episodes": 70, "reset": True}),
    "algorithmic finite": ("algorithmic", {"train_episodes": 30, "equality": True, "variables": 5}),
    "s5 generators": ("s5", {"generators": True, "length": 7}),
    "bytes": ("lm", {"path": "book.txt"}),
    "packed": ("lm", {"path": "book.gz", "unit": "words"}),
    "characters": ("lm", {"path": "book.txt", "unit": "characters", "documents": "lines"}),
    "words": ("lm", {"path": "named", "unit": "words", "end_of_line": False}),
    "wide": ("lm", {"path": "wide.txt", "unit": "words"}),
    "bpe": ("lm", {"path": "many", "unit": "bpe", "vocabulary": 300}),
    "few": ("lm", {"path": "few", "unit": "characters"}),
    "many": ("lm", {"path": "many", "documents": "none"}),
    "episodes": ("lm", {"path": "many", "unit": "words", "episode": 8}),
    "separated": ("lm", {"path": "letters", "unit": "characters", "separated": True}),
    "labeled": ("labeled", {"path": "walks"}),
    "labeled pair": ("labeled", {"path": "walk.tokens"}),
}

RECORDED = {
    "random-walk": "2ca5c4d2d7045fce",
    "algorithmic": "68930c16c4917b5b",
    "copy": "50b370134a365ebd",
    "counting": "4aed7ba36b9156bc",
    "parity": "70ee5b2fa3cc9cfa",
    "s5": "197d74835e83b089",
    "reverse": "2ece22cbe41cb54b",
    "random-walk finite": "c657daff4bf2e15e",
    "algorithmic finite": "dc7a13fea6e4aa87",
    "s5 generators": "3f886b854e259252",
    "bytes": "313eb6cb854607e8",
    "packed": "4bb4863e8b0898ec",
    "characters": "811e672814e67d6f",
    "words": "ea94338fd76fc369",
    "wide": "7e730155cff7afb5",
    "bpe": "6d543356b1b42551",
    "few": "76297c8850474667",
    "many": "5bc469c1de1de221",
    "episodes": "d608e218b0d5bf71",
    "separated": "55ceeeb53b1e5927",
    "labeled": "631625ae168721b0",
    "labeled pair": "fae32037196c40a1",
}


def prose(seed: int, lines: int) -> str:
    generator = random.Random(seed)
    return "".join(" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) + "\n" for _ in range(lines))


def random_lines(alphabet: str, seed: int) -> str:
    return "\n".join(" ".join(random.Random(n + seed).choices(alphabet, k=n % 7)) for n in range(90))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    letters = "\n".join(" ".join(random.Random(n).choices("abc_", k=9)) for n in range(40)) + "\n"
    contents = {"book.txt": prose(0, 400), "wide.txt": prose(5, 400).replace("\n", "  ")}
    contents |= {f"many/{i}.txt": prose(i, 12) for i in range(45)} | {f"few/{i}.txt": prose(i, 12) for i in range(4)}
    for i, split in enumerate(("train", "valid", "test")):
        contents |= {f"named/ptb.{split}.txt": prose(0, 300) + prose(i, 60), f"letters/{split}.txt": letters}
        contents |= {f"walks/{split}.tokens": random_lines("abc", 0), f"walks/{split}.labels": random_lines("xy-", 1)}
    contents |= {"walk.tokens": random_lines("abc", 0), "walk.labels": random_lines("xy-", 1)}
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "book.gz").write_bytes(gzip.compress(prose(0, 400).encode()))
    return folder


def digest(batches: Iterable[TokenBatch]) -> str:
    content = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for part in (batch.tokens, batch.targets, batch.start):
            shape = "none" if part is None else str(tuple(part.shape))
            content.update(shape.encode() + (b"" if part is None else part.to(torch.int32).numpy().tobytes()))
    return content.hexdigest()


def scored(task: StreamTask, batches: Iterable[TokenBatch]) -> dict[str, float]:
    """Return the metrics of random losses and of labels that are correct half of the time."""
    score, generator = task.score(), torch.Generator().manual_seed(0)
    for batch in batches:
        nll = torch.rand(batch.tokens.shape, generator=generator, dtype=torch.float64)
        correct = torch.randint(0, 2, batch.tokens.shape, generator=generator) == 1
        score.add(batch, nll * (batch.targets != IGNORE_INDEX), torch.where(correct, batch.targets, 0))
    return {name: float(f"{value:.12g}") for name, value in score.result().items()}


@pytest.mark.parametrize("case", CASES)
def test_a_task_has_the_recorded_hash(case: str, corpora: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path))
    monkeypatch.chdir(corpora)
    name, options = CASES[case]
    config_type, task_class = task_type(name)
    task = task_class(config_type(**options))
    batch_source = task.batch_source(range(1, 4), 5, 3)
    content: dict[str, Any] = {
        "train": digest([batch_source.read(n) for n in (1, 60, 300)]),
        "position": batch_source.position()["streams"],
    }
    valid, test = list(task.batches("valid", 3, 50)), list(task.batches("test", 1, 97))[:20]
    content |= {"valid": digest(valid), "test": digest(test), "sizes": [task.inputs, task.outputs]}
    content["score"] = scored(task, valid)
    text = json.dumps(content, sort_keys=True)
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == RECORDED[case], text
