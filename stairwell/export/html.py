"""One HTML file that holds trained models and runs them: it opens from the disk, without a server or a network.

    export_html([Shown("Feedback", model, task)], "page.html")

Models of the same task stand side by side. Colors and looks are those of the report.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from stairwell import text
from stairwell.cores import entry
from stairwell.errors import UserError
from stairwell.export.pack import check, pack
from stairwell.export.subject import describe
from stairwell.models import LanguageModel
from stairwell.outputs import Kind, marked, write_output
from stairwell.tasks import Task
from stairwell.version import __version__

LARGEST = 50_000_000  # bytes
PAGE = Kind("a page of stairwell export", marked(b'<meta name="generator" content="stairwell export '))
SCRIPTS = ("engine.js", "vocabulary.js", "dom.js", "track.js", "write.js", "page.js")
SPOKEN = {
    "grid": (
        "Where is the agent?",
        "Drive it yourself. {names} nothing but your actions, and after each one {say} how likely the agent is in each "
        "cell.",
    ),
    "symbols": (
        "Keep track",
        "Press a symbol. {names} one symbol after the other, and after each one {say} how likely each answer is.",
    ),
    "text": (
        "Go on from here",
        "Type a beginning and let the model go on, token by token. Point at any token to see what it attended to.",
    ),
}


@dataclass(frozen=True)
class Shown:
    """A model on a page: what it is called there, and its task or, for text, its vocabulary."""

    name: str
    model: LanguageModel
    subject: Task | text.Vocabulary


def export_html(shown: Sequence[Shown], path: str | os.PathLike[str]) -> int:
    """Write the page, whole or not at all, and return its size in bytes."""
    page = make_page(shown)
    size = len(page.encode("utf-8"))
    if size > LARGEST:
        raise UserError(
            f"the page would have {size / 1e6:.0f} MB, more than the {LARGEST / 1e6:.0f} MB that browsers open easily: "
            f"about {LARGEST * 3 // 16 / 1e6:.0f} million parameters are the most; export a smaller model"
        )
    write_output(path, PAGE, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return size


def from_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Shown]:
    """The trained models of run folders, called after their cores."""
    from stairwell.runs.families import check_kind
    from stairwell.runs.launch import load

    found = []
    for path in paths:
        model, task = load(path, device="cpu", engine="reference")
        check_kind(task.kind, "language", "a page")
        core = check(model)
        found.append(Shown(entry(core).title, model, task))
    return numbered(found)


def numbered(shown: list[Shown]) -> list[Shown]:
    """Models of one name are told apart by a number."""
    names = [one.name for one in shown]
    return [
        Shown(f"{one.name} {names[: i + 1].count(one.name)}", one.model, one.subject)
        if names.count(one.name) > 1
        else one
        for i, one in enumerate(shown)
    ]


def make_page(shown: Sequence[Shown]) -> str:
    if not shown:
        raise UserError("a page needs at least one model")
    subjects = [describe(one.subject) for one in shown]
    for one, subject in zip(shown[1:], subjects[1:]):
        if subject != subjects[0]:
            raise UserError(
                f"'{one.name}' was trained for something else than '{shown[0].name}': models on one page need the same "
                "task and symbols; export them one by one"
            )
    packed = [pack(one.model) for one in shown]
    title, lead = SPOKEN[subjects[0]["kind"]]
    models = [{"name": one.name, "header": part.header} for one, part in zip(shown, packed)]
    return Template(resource("template.html")).substitute(
        title=escape(title),
        lead=escape(lead.format(**grammar([one.name for one in shown]))),
        models="".join(facts(i, one) for i, one in enumerate(shown)),
        version=escape(__version__),
        css=resource("page.css", "stairwell.report") + resource("page.css"),
        theme=resource("theme.js", "stairwell.report"),
        data=embed({"subject": subjects[0], "models": models}),
        blocks="\n".join(
            f'<script type="text/plain" id="parameters-{i}">{part.block}</script>' for i, part in enumerate(packed)
        ),
        script="".join(resource(name) for name in SCRIPTS),
    )


def grammar(names: list[str]) -> dict[str, str]:
    if len(names) == 1:
        return {"names": f"{names[0]} reads", "say": "it says"}
    return {"names": f"{', '.join(names[:-1])} and {names[-1]} read", "say": "they say"}


def facts(number: int, one: Shown) -> str:
    """What a model is, for people."""
    core = one.model.config.core
    wanted = ("width", "layers", "heads", "memory", "chunk", "passes", "compute", "memory_composition")
    rows = {name.replace("_", " "): getattr(core, name) for name in wanted if hasattr(core, name)}
    rows["parameters"] = f"{sum(parameter.numel() for parameter in one.model.parameters()):,}"
    if not isinstance(one.subject, text.Vocabulary):
        rows["task"] = one.subject.describe()
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in rows.items())
    return (
        f'<div class="card" style="--c: var(--c{number % 8})"><h3><span class="swatch"></span>{escape(one.name)}</h3>'
        f"<dl>{items}</dl></div>"
    )


def resource(name: str, package: str = "stairwell.export") -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def embed(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
