"""Tasks: the papers' data, today's yardsticks, and the user's own files. One task is one file and one line here."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import Any

from stairwell.tasks.base import IGNORE, Batch, Score, Split, Stream, Task

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
    "even-pairs": ("even_pairs", "EvenPairs", "whether the number of neighbours that differ is odd"),
    "cycle-navigation": ("cycle_navigation", "CycleNavigation", "where a walk on a circle of five places ends"),
    "modular-arithmetic": ("modular_arithmetic", "ModularArithmetic", "the value of an expression modulo five"),
    "group-words": ("group_words", "Words", "the product of a word over generators of A5 or S5"),
    "lm": ("language", "Language", "language modelling on any text file or folder"),
    "labelled": ("labelled", "Labelled", "your own state tracking: two parallel files of tokens and labels"),
}


def task_type(name: str) -> tuple[type[Any], type[Any]]:
    """A task's config and class by its name."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, 1, 0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(TASKS)}"
        raise ValueError(f"unknown task '{name}'; {hint}")
    module_name, class_name, _ = TASKS[name]
    module = importlib.import_module(f"stairwell.tasks.{module_name}")
    return module.Config, getattr(module, class_name)


def make_task(name: str, config: Any, vocabulary: Path | None = None) -> Task:
    """A task from its config; `vocabulary` is the file of a run whose symbols it must use."""
    task = task_type(name)[1]
    if vocabulary is not None and vocabulary.exists():
        from stairwell import text

        return task(config, text.load(vocabulary))
    return task(config)


__all__ = ["IGNORE", "TASKS", "Batch", "Score", "Split", "Stream", "Task", "make_task", "task_type"]
