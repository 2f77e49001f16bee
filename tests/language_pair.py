"""A tiny language pair for tests: words are translated one by one, in reverse order."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = {
    "ba": "one", "ke": "two", "li": "three", "mo": "four", "nu": "five", "pa": "six", "ro": "seven", "su": "eight",
}  # fmt: skip


def sentences(count: int, seed: int, longest: int = 4) -> list[tuple[str, str]]:
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = generator.choices(list(WORDS), k=generator.randint(1, longest))
        pairs.append((" ".join(words), " ".join(WORDS[word] for word in reversed(words))))
    return pairs


def write(folder: Path, train: int = 400, valid: int = 40, longest: int = 4) -> Path:
    """Write a folder of parallel files and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate((("train", train), ("val", valid), ("test_2020", valid))):
        pairs = sentences(count, seed, longest)
        (folder / f"{split}.xx").write_text("".join(source + "\n" for source, _ in pairs), encoding="utf-8")
        (folder / f"{split}.yy").write_text("".join(target + "\n" for _, target in pairs), encoding="utf-8")
    return folder


# Options of a model that learns it in seconds.
TINY = [
    "--task.source", "xx", "--task.target", "yy", "--task.vocabulary", "300", "--task.max_target_length", "16",
    "--core.width", "32", "--core.layers", "1", "--core.inner", "64", "--core.heads", "2",
    "--core.residual_dropout", "0", "--core.attention_dropout", "0", "--core.relu_dropout", "0",
    "--model.encoder_layers", "1",
    "--model.encoder_heads", "2", "--model.encoder_inner", "64", "--model.encoder_dropout", "0",
    "--model.encoder_attn_drop", "0", "--model.encoder_relu_drop", "0", "--model.embedding_dropout", "0",
    "--train.batch", "64", "--train.batch_tokens", "512", "--train.learning_rate", "5e-3", "--train.warmup", "50",
    "--train.log_every", "20", "--train.validate_every", "100", "--train.checkpoint_every", "100",
]  # fmt: skip
