"""The section of a page in which an agent's episode is stepped through; `played.js` draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from stairwell.report.compare import Model, one_run_each

ROOM = 900_000  # characters that all episodes of a page may take


def gather_played(found: Sequence[Model]) -> tuple[list[dict[str, Any]], list[str]]:
    """One episode a model, and the names of the models for whose episodes there is no room."""
    shown: list[dict[str, Any]] = []
    left_out, room = [], ROOM
    for model, _, episode in one_run_each(found, lambda run: run.episode):
        made = asdict(episode)
        room -= len(json.dumps(made, separators=(",", ":")))
        if room < 0:
            left_out.append(model.name)
        else:
            shown.append({"name": model.name, "color": model.color, **made})
    return shown, left_out


def played_section(found: Sequence[Model], shown: Sequence[dict[str, Any]], left_out: Sequence[str]) -> str:
    if not shown:
        return ""
    words = "The first episode of the test split, not picked; actions are drawn from the policy, as in training."
    if len(shown) > 1:
        words += " All begin from the same seed and go on as each of them acts."
    if any(len(model.runs) > 1 for model in found):
        words += " Of each model one seed is shown."
    if left_out:
        words += f" There is no room for {', '.join(left_out)}."
    if any(episode["layers"] for episode in shown):
        words += (
            " A layer's strip has a place for every frame: the fuller its color, the more attention that frame gets "
            "at this step; the most that one gets is written beside it. What the memory holds is outlined."
        )
    return (
        f"<section><h2>An episode, step by step</h2><p>{escape(words)}</p>"
        '<p class="note">Arrow keys go on and back, Home and End to its ends, the space bar plays. Click a strip to go '
        "to a step.</p><div data-played></div></section>"
    )
