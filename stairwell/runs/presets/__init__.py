"""Presets: typed functions that return the RunConfigs of `stairwell train` and of the papers' tables.

`stairwell train random-walk/feedback` starts from `random_walk("feedback")`, a small model that trains on two CPU cores
in minutes; the tables of both papers start from `random_walk("feedback", "laptop")` and `(..., "paper")`. All cores of
a task and scale have about the same number of parameters and the same data, curriculum and number of steps; only the
context that they attend to differs. A table's variants change single fields with `RunConfig.replace` and `with_core`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.runs.config import RunConfig
from stairwell.runs.presets.agents import (
    agent_run,
    corridor,
    easy_maze,
    maze,
    rl,
    water_maze,
)
from stairwell.runs.presets.build import PresetScale, base_run, match_parameters, matched_feedback, small_run, with_core
from stairwell.runs.presets.generated import (
    algorithmic,
    benchmark,
    copy,
    counting,
    labeled,
    long_algorithmic,
    long_random_walk,
    parity,
    random_walk,
    reverse,
    s5,
    short_random_walk,
)
from stairwell.runs.presets.pairs import decoder_run, iwslt, summaries, summarization, translation, wmt
from stairwell.runs.presets.text import (
    base_data,
    char_ptb,
    enwik8,
    enwik8_passes,
    language_model,
    reddit,
    shakespeare,
    small_wikitext,
    wikitext,
)
from stairwell.tasks import TASKS, task_type

BENCHMARK = ("parity-check", "even-pairs", "cycle-navigation", "modular-arithmetic", "group-words")
PRESETS: dict[str, Callable[[str], RunConfig]] = {
    "random-walk": random_walk,
    "algorithmic": algorithmic,
    "copy": copy,
    "reverse": reverse,
    "counting": counting,
    "parity": parity,
    "s5": s5,
    "labeled": labeled,
    **{name: partial(benchmark, name) for name in BENCHMARK},
    "lm": language_model,
    "translation": translation,
    "summarization": summarization,
    "rl": rl,
}


def preset(name: str) -> RunConfig:
    """Return the preset of a name `task/core`, such as `random-walk/feedback`."""
    task_name, slash, core_name = name.partition("/")
    if not slash:
        example = f"{name if name in TASKS else 'random-walk'}/feedback"
        raise UserError(f"'{name}' is not TASK/CORE, such as {example}; `stairwell list` shows tasks and cores")
    task_type(task_name)  # raises if there is no such task
    config_type(core_name)
    return PRESETS[task_name](core_name) if task_name in PRESETS else small_run(task_name, core_name)


__all__ = [
    "PRESETS",
    "PresetScale",
    "agent_run",
    "algorithmic",
    "base_data",
    "base_run",
    "benchmark",
    "char_ptb",
    "copy",
    "corridor",
    "counting",
    "decoder_run",
    "easy_maze",
    "enwik8",
    "enwik8_passes",
    "iwslt",
    "labeled",
    "language_model",
    "long_algorithmic",
    "long_random_walk",
    "match_parameters",
    "matched_feedback",
    "maze",
    "parity",
    "preset",
    "random_walk",
    "reddit",
    "reverse",
    "rl",
    "s5",
    "shakespeare",
    "short_random_walk",
    "small_run",
    "small_wikitext",
    "summaries",
    "summarization",
    "translation",
    "water_maze",
    "wikitext",
    "with_core",
    "wmt",
]  # fmt: skip
