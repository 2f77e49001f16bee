"""Tasks: the papers' data, state-tracking benchmarks, and the user's own files. Each task is one module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stairwell.configs import Config
from stairwell.errors import UserError, suggestion
from stairwell.tasks import saved_task
from stairwell.tasks.base import (
    IGNORE_INDEX,
    BatchSource,
    RestorableTask,
    SavedTask,
    ScoreAccumulator,
    Split,
    StreamTask,
    Task,
    TokenBatch,
)

# Name: module, class, description. Modules are imported when they are used.
TASKS: dict[str, tuple[str, str, str]] = {
    "random-walk": ("random_walk", "RandomWalk", "position of an agent, given only its actions"),
    "algorithmic": ("algorithmic", "Algorithmic", "outputs of simple programs"),
    "copy": ("copying", "Copying", "repeat a sequence of digits, tested on ten times the training length"),
    "reverse": ("copying", "Copying", "repeat a sequence of digits in reverse"),
    "counting": ("counting", "Counting", "n times A, followed by n times B"),
    "parity": ("parity", "Parity", "parity of the ones so far"),
    "s5": ("permutations", "Permutations", "running product of permutations of five elements"),
    "parity-check": ("parity_check", "ParityCheck", "parity of the ones, scored at the last bit only"),
    "even-pairs": ("even_pairs", "EvenPairs", "parity of the number of adjacent bits that differ"),
    "cycle-navigation": ("cycle_navigation", "CycleNavigation", "end of a walk on a cycle of five positions"),
    "modular-arithmetic": ("modular_arithmetic", "ModularArithmetic", "value of an expression modulo five"),
    "group-words": ("group_words", "GroupWords", "product of a word over generators of a group"),
    "lm": ("language", "Language", "language modeling on any text file or folder"),
    "translation": ("translation", "Translation", "translation between two languages, from parallel files"),
    "summarization": ("summarization", "Summarization", "summaries of articles"),
    "labeled": ("labeled", "Labeled", "your own state-tracking data: parallel files of tokens and labels"),
}


def task_type(name: str) -> tuple[type[Any], type[Any]]:
    """Return the config and the class of a task by its name."""
    if name not in TASKS:
        raise UserError(f"unknown task '{name}'{suggestion(name, TASKS)}")
    module_name, class_name, _ = TASKS[name]
    # Packages above register tasks of their own under the module's full name.
    module = importlib.import_module(module_name if "." in module_name else f"stairwell.tasks.{module_name}")
    task_class = getattr(module, class_name)
    return task_class.config_type, task_class


def make_task(name: str, config: Config) -> Task:
    """Return a task from its config. No file is opened."""
    task: Task = task_type(name)[1](config)
    return task


def load_tasks(name: str, configs: Sequence[Config], folder: Path) -> list[Task]:
    """Return the tasks of a run's phases. A task that generates its data follows from its config."""
    task_class = task_type(name)[1]
    if not issubclass(task_class, RestorableTask):
        return [task_class(config) for config in configs]
    saved_tasks = saved_task.read(folder, name)
    restore: Any = task_class.from_saved
    return [restore(config, saved) for config, saved in zip(configs, saved_tasks, strict=True)]


__all__ = [
    "IGNORE_INDEX",
    "TASKS",
    "BatchSource",
    "RestorableTask",
    "SavedTask",
    "ScoreAccumulator",
    "Split",
    "StreamTask",
    "Task",
    "TokenBatch",
    "load_tasks",
    "make_task",
    "task_type",
]
