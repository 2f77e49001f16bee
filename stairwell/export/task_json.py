"""The task of an exported model as JSON: the vocabulary of a text, or tokens, labels and the rule between them.

A rule is a finite-state machine: `next[state][token]` is the state after a token, `label[state]` the label of a state,
and 0 the initial state. Tasks without a small machine have an example of their test split instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stairwell import text
from stairwell.errors import UserError
from stairwell.models import LanguageModel, Seq2Seq
from stairwell.tasks import StreamTask, groups
from stairwell.tasks.base import IGNORE_INDEX
from stairwell.tasks.group_words import GroupWords, token_elements
from stairwell.tasks.labeled import Labeled, LabeledVocabulary
from stairwell.tasks.language import Language
from stairwell.tasks.pair_task import PairTask
from stairwell.tasks.parity import Parity
from stairwell.tasks.permutations import Permutations, generators, product_table
from stairwell.tasks.random_walk import RESET, RandomWalk, transitions
from stairwell.train.translator import Search

PRODUCT = "The label is the product of the tokens so far."
IMAGES = "A permutation is written as the images of 0, 1, 2 and so on."
MAX_MACHINE = 20_000  # entries of `next`
EXAMPLE_TOKENS = 600
SEARCH_OPTIONS = (
    "beam", "length_penalty", "no_repeat_ngram_size", "break_loops", "max_length", "max_length_ratio", "min_length",
    "min_length_ratio",
)  # fmt: skip


def check_sizes(name: str, model: LanguageModel, task: StreamTask | text.Vocabulary) -> None:
    """Raise an error if the model has other numbers of input and output tokens than its task or vocabulary."""
    is_vocabulary = isinstance(task, text.Vocabulary)
    if isinstance(task, LabeledVocabulary):
        expected = (task.size, len(task.labels))
    else:
        expected = (task.size, task.size) if isinstance(task, text.Vocabulary) else (task.inputs, task.outputs)
    if expected != (model.config.inputs, model.config.V):
        raise UserError(
            f"'{name}' has {model.config.inputs:,} input and {model.config.V:,} output tokens, but its "
            f"{'vocabulary' if is_vocabulary else 'task'} has {expected[0]:,} and {expected[1]:,}; pass the one it was "
            "trained with"
        )


def task_json(task: StreamTask | text.Vocabulary) -> dict[str, Any]:
    """Return a task, or a vocabulary, as the page reads it."""
    if isinstance(task, Labeled | LabeledVocabulary):
        vocabulary = task.vocabulary if isinstance(task, Labeled) else task
        return {"type": "tokens", "item": "event", **vocabulary.to_json()}
    vocabulary = task.vocabulary if isinstance(task, Language) else task
    if isinstance(vocabulary, text.Vocabulary):
        return {"type": "text", "vocabulary": vocabulary_json(vocabulary)}
    return generated_task_json(task)


def vocabulary_json(vocabulary: text.Vocabulary) -> dict[str, Any]:
    """Return a vocabulary as `vocabulary.js` reads it, or the names of tokens and labels."""
    if isinstance(vocabulary, LabeledVocabulary):
        return {"type": vocabulary.type_name, **vocabulary.to_json()}
    table = vocabulary.token_table()
    if table is None:
        raise UserError(
            f"a page cannot encode text with a vocabulary of type '{vocabulary.type_name}'; "
            "it supports bytes, characters, separated, words and bpe"
        )
    return {"type": vocabulary.type_name, **table}


def check_pair_sizes(name: str, model: Seq2Seq, task: PairTask) -> None:
    """Raise an error if a translator or summarizer has other numbers of tokens than the vocabularies of its task."""
    expected, actual = (task.inputs, task.outputs), (model.config.sources, model.config.targets)
    if expected != actual:
        raise UserError(
            f"'{name}' has {actual[0]:,} source and {actual[1]:,} target tokens, but its task has {expected[0]:,} and "
            f"{expected[1]:,}; pass the one it was trained with"
        )


def pair_json(task: PairTask, search: Search) -> dict[str, Any]:
    """Return how a translator or summarizer reads a source and decodes a target: the normalization of texts, the
    vocabularies, and the defaults of the search. The end token of a vocabulary follows its last token."""
    config = task.config
    vocabularies = {name: vocabulary_json(vocabulary) for name, vocabulary in task.vocabularies.items()}
    return {
        "type": "pairs",
        "task": task.verb,
        "source": Path(config.source).suffix.lstrip(".") or config.source,
        "target": Path(config.target).suffix.lstrip(".") or config.target,
        "lowercase": config.lowercase,
        "words": getattr(config, "words", 0),
        "split_names": getattr(config, "split_names", False),
        "max_source_length": config.max_source_length,
        "max_target_length": config.max_target_length,
        "vocabularies": vocabularies,
        "search": {name: getattr(search, name) for name in SEARCH_OPTIONS},
    }


def generated_task_json(task: Any) -> dict[str, Any]:
    """Return the tokens and labels of a generated task, and its machine or an example."""
    names = dict(zip(("tokens", "labels"), task.names()))
    if isinstance(task, RandomWalk):
        following = np.concatenate([transitions(task.config.grid), np.zeros((4 * task.outputs, 1), np.int64)], 1)
        machine = {"next": following.tolist(), "label": (np.arange(len(following)) // 4).tolist()}
        walk = {"type": "grid", "grid": task.config.grid, "first_token": RESET, "reset_memory": task.config.reset}
        return {**walk, **names, "machine": machine}
    if isinstance(task, Parity):
        machine = {"next": [[0, 1], [1, 0]], "label": [0, 1]}
        return {"type": "tokens", **names, "machine": machine}
    if isinstance(task, Permutations | GroupWords):
        following = products(task)
        about = f"{IMAGES} {PRODUCT}" if len(names["labels"][0]) > 1 else PRODUCT
        if following.size <= MAX_MACHINE:
            machine = {"next": following.tolist(), "label": list(range(task.outputs))}
            return {"type": "tokens", "about": about, **names, "machine": machine}
    return {"type": "tokens", **names, "example": example_json(task)}


def products(task: Permutations | GroupWords) -> np.ndarray[Any, Any]:
    """Return the product after each product and token: (products, tokens)."""
    if isinstance(task, GroupWords):
        group, seed = task.config.group, task.config.generator_seed
        table = groups.multiplication_table(group).reshape(task.outputs, task.outputs)
        return table[token_elements(group, seed)[: task.inputs]].T
    following = product_table(task.config.elements).reshape(task.outputs, task.outputs).T
    return following[:, generators(task.config.elements)] if task.config.generators else following


def example_json(task: StreamTask) -> dict[str, Any]:
    """Return the start of the test split: tokens, labels (null where not scored) and where sequences start."""
    batch = next(iter(task.batches("test", 1, EXAMPLE_TOKENS)))
    start = [False] * batch.tokens.shape[1] if batch.start is None else batch.start[0].tolist()
    labels = [None if label == IGNORE_INDEX else label for label in batch.targets[0].tolist()]
    return {"tokens": batch.tokens[0].tolist(), "labels": labels, "start": start}
