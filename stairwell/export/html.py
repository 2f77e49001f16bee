"""Export trained models as one self-contained HTML file that runs them in a browser.

    export_html([PageModel("Feedback", model, task)], "page.html")

The file opens from the disk, without a server or a network. Models of the same task are shown side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stairwell import text
from stairwell.cores import entry
from stairwell.errors import UserError
from stairwell.export.pack import pack_language_model, supported_core
from stairwell.export.task_json import check_sizes, task_json
from stairwell.models import LanguageModel
from stairwell.outputs import OutputType, contains_bytes, write_output
from stairwell.report.colors import assign_colors
from stairwell.report.templates import render
from stairwell.tasks import StreamTask
from stairwell.tasks.labeled import Labeled

MAX_BYTES = 50_000_000
PAGE = OutputType("a page of stairwell export", contains_bytes(b'<meta name="generator" content="stairwell export '))
SCRIPTS = (
    "export/engine.js", "export/vocabulary.js", "report/dom.js", "report/grid.js", "export/panels.js",
    "export/tracking_page.js", "export/text_page.js", "export/main.js",
)  # fmt: skip
FACTS = ("width", "layers", "heads", "memory", "chunk", "passes", "compute", "memory_composition")
TITLES = {
    "grid": (
        "Track the agent",
        "Drive the agent. {names} only your actions and {predict} the agent's cell after each one.",
    ),
    "tokens": (
        "State tracking",
        "Press a token. {names} one token after the other and {predict} the label after each one.",
    ),
    "events": (
        "State tracking",
        "Press or paste events. {names} one event after the other and {predict} the label after each one.",
    ),
    "text": (
        "Generate text",
        "Type a prompt and let the model continue it, token by token. Point at a token to see what it attended to.",
    ),
}


@dataclass(frozen=True)
class PageModel:
    """A model on a page: its name there, and its task or, for text, its vocabulary."""

    name: str
    model: LanguageModel
    task: StreamTask | text.Vocabulary
    accuracy: float | None = None
    "Accuracy on the validation split, %."


def export_html(models: Sequence[PageModel], path: str | os.PathLike[str], title: str = "") -> int:
    """Write the page. Return its size in bytes. The title defaults to the name of labeled data, or the kind of task."""
    return write_page(make_page(models, title), path)


def write_page(page: str, path: str | os.PathLike[str]) -> int:
    """Write the HTML of a page. Return its size in bytes. Raise an error if it is too large for browsers."""
    size = len(page.encode("utf-8"))
    if size > MAX_BYTES:
        raise UserError(
            f"the page would have {size / 1e6:.0f} MB; browsers open at most {MAX_BYTES / 1e6:.0f} MB easily, about "
            f"{MAX_BYTES * 3 // 16 / 1e6:.0f} million parameters. Export a smaller model."
        )
    write_output(path, PAGE, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return size


def from_runs(paths: Iterable[str | os.PathLike[str]]) -> list[PageModel]:
    """Load the models of run folders. They are named after their cores."""
    from stairwell.runs.families import check_family
    from stairwell.runs.load import load, open_run

    models = []
    for path in paths:
        task: Any
        model, task = load(path, device="cpu", engine="reference")
        check_family(task.family, "streams", "a page")
        scores = open_run(path).load_model()[1].get("valid", {}) if isinstance(task, Labeled) else {}
        models.append(PageModel(entry(supported_core(model)).title, model, task, scores.get("accuracy")))
    return with_unique_names(models)


def with_unique_names(models: list[PageModel]) -> list[PageModel]:
    """Number the models that have the same name."""
    return [replace(one, name=name) for one, name in zip(models, numbered([one.name for one in models]))]


def numbered(names: list[str]) -> list[str]:
    """Return the names, with a number where several are the same."""
    return [f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def make_page(models: Sequence[PageModel], title: str = "") -> str:
    """Return the HTML of the page."""
    if not models:
        raise UserError("a page needs at least one model")
    for one in models:
        check_sizes(one.name, one.model, one.task)
    task, *others = [task_json(one.task) for one in models]
    for one, other in zip(models[1:], others):
        if other != task:
            raise UserError(
                f"'{one.name}' and '{models[0].name}' were trained for different tasks or vocabularies; export them to "
                "separate pages"
            )
    packed = [pack_language_model(one.model) for one in models]
    default_title, lead = TITLES["events" if "item" in task else task["type"]]
    colors = assign_colors([part.header["core"]["name"] for part in packed])
    return render(
        "export/page.html",
        generator="export",
        brand="stairwell",
        scripts=SCRIPTS,
        title=title or data_title(models[0].task) or default_title,
        lead=f"{lead.format(**sentence_parts([one.name for one in models]))} {task.get('about', '')}".strip(),
        disclose_models=task["type"] != "text",
        models=[(one.name, color, model_facts(one)) for one, color in zip(models, colors)],
        data={
            "task": task,
            "models": [
                {"name": one.name, "color": color, "header": part.header}
                for one, color, part in zip(models, colors, packed)
            ],
        },
        blocks=[part.block for part in packed],
    )


def data_title(task: StreamTask | text.Vocabulary) -> str:
    """Return the name of labeled data, or an empty string."""
    return Path(task.config.path).stem if isinstance(task, Labeled) else ""


def sentence_parts(names: list[str]) -> dict[str, str]:
    if len(names) == 1:
        return {"names": f"The model ({names[0]}) reads", "predict": "predicts"}
    return {"names": f"{', '.join(names[:-1])} and {names[-1]} read", "predict": "predict"}


def model_facts(one: PageModel) -> dict[str, Any]:
    """Return the sizes of a model and its task, for people."""
    facts = core_facts(one.model)
    if one.accuracy is not None:
        facts["validation accuracy"] = f"{one.accuracy:.1f}%"
    if not isinstance(one.task, text.Vocabulary):
        facts["task"] = one.task.describe()
    return facts


def core_facts(model: Any) -> dict[str, Any]:
    """Return the sizes of a model, for people."""
    core = model.config.core
    facts = {name.replace("_", " "): getattr(core, name) for name in FACTS if hasattr(core, name)}
    facts["parameters"] = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    return facts
