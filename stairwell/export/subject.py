"""What the page knows of a model's task, as JSON: the vocabulary of a text, or symbols, labels and the rule that leads
from one to the other.

A rule is a machine: `next[state][symbol]` is the state after a symbol, `label[state]` what the model should say then;
it begins in state 0. Tasks whose rule is no small machine come with a stretch of their test split instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stairwell import text
from stairwell.errors import UserError
from stairwell.tasks import Task
from stairwell.tasks.algorithmic import WORDS, Algorithmic
from stairwell.tasks.base import IGNORE
from stairwell.tasks.copying import Copying
from stairwell.tasks.counting import SYMBOLS, Counting
from stairwell.tasks.labeled import Labeled
from stairwell.tasks.language import Language
from stairwell.tasks.parity import Parity
from stairwell.tasks.permutations import Permutations, generators, images, products
from stairwell.tasks.random_walk import ACTIONS, RESET, RandomWalk, _transitions

LARGEST_MACHINE = 20_000  # entries
SAMPLE = 600  # tokens of the test split


def describe(subject: Task | text.Vocabulary) -> dict[str, Any]:
    """The page's side of a task, or of a vocabulary alone."""
    if isinstance(subject, Labeled):
        words = subject.vocabulary
        return {"kind": "symbols", "symbols": list(words.symbols), "labels": list(words.labels)}
    vocabulary = subject.vocabulary if isinstance(subject, Language) else subject
    if isinstance(vocabulary, text.Vocabulary):
        return {"kind": "text", "vocabulary": vocabulary_json(vocabulary)}
    return task_json(subject)


def vocabulary_json(vocabulary: text.Vocabulary) -> dict[str, Any]:
    kind = vocabulary.kind
    if isinstance(vocabulary, text.Bytes):
        return {"kind": kind, "symbols": []}
    if isinstance(vocabulary, text.Words):
        return {"kind": kind, "symbols": list(vocabulary.words), "end_of_line": vocabulary.end_of_line}
    if isinstance(vocabulary, text.BPE):
        return {"kind": kind, **byte_pairs(vocabulary)}
    if isinstance(vocabulary, text.Characters | text.Separated):
        return {"kind": kind, "symbols": list(vocabulary.symbols)}
    raise UserError(f"a page cannot read text by {kind}; it reads bytes, characters, separated, words and bpe")


def byte_pairs(vocabulary: text.BPE) -> dict[str, Any]:
    """The symbols by id, and the pairs of ids that are merged, in the order in which they were learned."""
    model = vocabulary.to_json()["tokenizer"]["model"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    return {
        "symbols": sorted(model["vocab"], key=model["vocab"].__getitem__),
        "merges": [[model["vocab"][part] for part in pair] for pair in pairs],
    }


def task_json(task: Any) -> dict[str, Any]:
    """A generated task: its symbols, its labels, and its rule or a sample of it."""
    if isinstance(task, RandomWalk):
        following = np.concatenate([_transitions(task.config.grid), np.zeros((4 * task.outputs, 1), np.int64)], 1)
        machine = {"next": following.tolist(), "label": (np.arange(len(following)) // 4).tolist()}
        walk = {"kind": "grid", "grid": task.config.grid, "opening": RESET, "fresh": task.config.fresh}
        return {**walk, "symbols": list(ACTIONS), "labels": numbers(task.outputs), "machine": machine}
    if isinstance(task, Parity):
        machine = {"next": [[0, 1], [1, 0]], "label": [0, 1]}
        return {"kind": "symbols", "symbols": ["0", "1"], "labels": ["even", "odd"], "machine": machine}
    if isinstance(task, Permutations):
        return permutations_json(task)
    symbols, labels = numbers(task.inputs), numbers(task.outputs)
    if isinstance(task, Counting):
        symbols = labels = list(SYMBOLS)
    elif isinstance(task, Copying):
        symbols = [*labels, "SEP", "END"]
    elif isinstance(task, Algorithmic):
        symbols, labels = list(WORDS[: task.inputs]), [str(value + 1) for value in range(task.outputs)]
    return {"kind": "symbols", "symbols": symbols, "labels": labels, "sample": sample(task)}


def permutations_json(task: Permutations) -> dict[str, Any]:
    """Permutations by their images: 10234 swaps the first two of five."""
    elements = task.config.elements
    labels = ["".join(map(str, image)) for image in images(elements)]
    described: dict[str, Any] = {"kind": "symbols", "symbols": labels, "labels": labels}
    following = products(elements).reshape(task.outputs, task.outputs).T  # (running product, factor)
    if task.config.generators:
        following, described["symbols"] = following[:, generators(elements)], ["swap", "cycle"]
    if following.size > LARGEST_MACHINE:
        return {**described, "sample": sample(task)}
    return {**described, "machine": {"next": following.tolist(), "label": list(range(task.outputs))}}


def sample(task: Task) -> dict[str, Any]:
    """The beginning of the test split: tokens, labels (null where nothing is asked) and where a row begins anew."""
    batch = next(iter(task.batches("test", 1, SAMPLE)))
    start = [False] * batch.tokens.shape[1] if batch.start is None else batch.start[0].tolist()
    labels = [None if label == IGNORE else label for label in batch.targets[0].tolist()]
    return {"tokens": batch.tokens[0].tolist(), "labels": labels, "start": start}


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]
