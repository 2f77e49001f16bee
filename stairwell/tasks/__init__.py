"""Tasks: the papers' data, today's yardsticks, and the user's own files. One task is one file and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stairwell.errors import UserError, nearest
from stairwell.tasks import spec
from stairwell.tasks.base import IGNORE, Batch, BatchSource, Data, Known, Score, Spec, Split, Task

# Name: module, class, what it is for. Modules are imported when they are used.
TASKS: dict[str, tuple[str, str, str]] = {
    "random-walk": ("random_walk", "RandomWalk", "say where an agent stands, given only its actions"),
    "algorithmic": ("algorithmic", "Algorithmic", "execute simple programs and say what they print"),
    "copy": ("copying", "Copying", "repeat a sequence of digits, also ten times longer ones than in training"),
    "reverse": ("copying", "Copying", "repeat a sequence of digits backwards"),
    "counting": ("counting", "Counting", "as many Bs as there were As"),
    "parity": ("parity", "Parity", "whether the number of ones so far is odd"),
    "s5": ("permutations", "Permutations", "the running product of permutations of five elements"),
    "parity-check": ("parity_check", "ParityCheck", "whether the number of ones is odd, asked at the last bit only"),
    "even-pairs": ("even_pairs", "EvenPairs", "whether the number of neighbors that differ is odd"),
    "cycle-navigation": ("cycle_navigation", "CycleNavigation", "where a walk on a circle of five places ends"),
    "modular-arithmetic": ("modular_arithmetic", "ModularArithmetic", "the value of an expression modulo five"),
    "group-words": ("group_words", "Words", "the product of a word over generators of A5 or S5"),
    "lm": ("language", "Language", "language modeling on any text file or folder"),
    "translation": ("translation", "Translation", "sentences of one language into another: parallel files"),
    "summarization": ("summarization", "Summarization", "an article's first words into a few sentences"),
    "labeled": ("labeled", "Labeled", "your own state tracking: two parallel files of tokens and labels"),
}


def task_type(name: str) -> tuple[type[Any], type[Any]]:
    """A task's config and class by its name."""
    if name not in TASKS:
        raise UserError(f"unknown task '{name}'{nearest(name, TASKS)}")
    module_name, class_name, _ = TASKS[name]
    # Rooms above add tasks of their own, with the module's full name.
    module = importlib.import_module(module_name if "." in module_name else f"stairwell.tasks.{module_name}")
    return module.Config, getattr(module, class_name)


def make_task(name: str, config: Any) -> Task:
    """A task from its config. No file is opened."""
    task: Task = task_type(name)[1](config)
    return task


def kept_tasks(name: str, configs: Sequence[Any], folder: Path) -> list[Task]:
    """The tasks of a run's phases as its folder has kept them; what a task makes itself needs nothing kept."""
    kind = task_type(name)[1]
    if not kind.reads_files:
        return [kind(config) for config in configs]
    return [kind.kept(config, known) for config, known in zip(configs, spec.read(folder, name), strict=True)]


__all__ = [
    "IGNORE",
    "TASKS",
    "Batch",
    "BatchSource",
    "Data",
    "Known",
    "Score",
    "Spec",
    "Split",
    "Task",
    "kept_tasks",
    "make_task",
    "task_type",
]
