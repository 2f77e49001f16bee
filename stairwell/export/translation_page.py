"""Export translators and summarizers as one HTML file that runs them in a browser.

    export_translation_html([PageTranslator("Feedback", model, task, search)], "page.html", weights="int8")

The page normalizes, searches and decodes as `stairwell translate` and `stairwell summarize` do. Its parameters are
those of the model or, with `weights` int8, of the model that `stairwell.decode.weights` rounds.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stairwell.cores import entry, name_of
from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.export.html import core_facts, numbered, write_page
from stairwell.export.pack import PackedModel, pack_quantized
from stairwell.export.task_json import check_pair_sizes, pair_json
from stairwell.models import Seq2Seq
from stairwell.report.colors import assign_colors
from stairwell.report.templates import render
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Search

WEIGHTS = ("float32", "int8")
SCRIPTS = (
    "export/engine.js", "export/vocabulary.js", "export/seq2seq_engine.js", "export/translator.js", "report/dom.js",
    "export/panels.js", "export/translation_page.js",
)  # fmt: skip
# Languages of common corpora, by the suffixes of their files.
LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "en": "English", "es": "Spanish", "et": "Estonian",
    "fi": "Finnish", "fr": "French", "hi": "Hindi", "hu": "Hungarian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
LEADS = {
    "translate": (
        "Type a text and {names} it, in this page and without a network. Point at a token of the translation to see "
        "which tokens of the input it attended to."
    ),
    "summarize": (
        "Paste an article and {names} it, in this page and without a network. Point at a token of the summary to see "
        "which tokens of the article it attended to."
    ),
}


@dataclass(frozen=True)
class PageTranslator:
    """A translator or summarizer on a page: its name there, its task, and the defaults of its search."""

    name: str
    model: Seq2Seq
    task: PairTask
    search: Search = field(default_factory=Search)


def export_translation_html(
    translators: Sequence[PageTranslator],
    path: str | os.PathLike[str],
    title: str = "",
    weights: Weights = "float32",
) -> int:
    """Write the page. Return its size in bytes. The title defaults to the task."""
    return write_page(make_translation_page(translators, title, weights), path)


def translators_of_runs(paths: Iterable[str | os.PathLike[str]]) -> list[PageTranslator]:
    """Load the translators of run folders, with their tuned searches. They are named after their cores."""
    from stairwell.runs.families import check_family
    from stairwell.runs.load import find_result, load
    from stairwell.train.translator import SEARCH, load_search

    translators = []
    for path in paths:
        model, task = load(path, device="cpu", engine="reference")
        check_family(task.family, "pairs", "the page of a translator")
        assert isinstance(task, PairTask) and isinstance(model, Seq2Seq)
        name = name_of(model.config.core)
        title = entry(name).title if name else type(model.core).__name__
        search = load_search(find_result(path, SEARCH).parent, task)
        translators.append(PageTranslator(title, model, task, search))
    names = numbered([one.name for one in translators])
    return [replace(one, name=name) for one, name in zip(translators, names)]


def make_translation_page(translators: Sequence[PageTranslator], title: str = "", weights: Weights = "float32") -> str:
    """Return the HTML of the page."""
    if not translators:
        raise UserError("a page needs at least one translator")
    if weights not in WEIGHTS:
        raise UserError(f"weights {weights}: the page of a translator has parameters in {' or '.join(WEIGHTS)}")
    for one in translators:
        check_pair_sizes(one.name, one.model, one.task)
        if one.search.temperature:
            raise UserError(f"'{one.name}': a page searches and does not sample; use a temperature of 0")
    described = [pair_json(one.task, one.search) for one in translators]
    searches = [task.pop("search") for task in described]
    for one, other in zip(translators[1:], described[1:]):
        if other != described[0]:
            raise UserError(
                f"'{one.name}' and '{translators[0].name}' were trained for different tasks or vocabularies; export "
                "them to separate pages"
            )
    packed = [pack_seq2seq(one.model, weights) for one in translators]
    colors = assign_colors([part.header["core"]["name"] for part in packed])
    names, verb = [one.name for one in translators], translators[0].task.verb
    listed = f"{names[0]} {verb}s" if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]} {verb}s"
    return render(
        "export/page.html",
        generator="export",
        brand="stairwell",
        scripts=SCRIPTS,
        title=title or default_title(described[0]),
        lead=LEADS[verb].format(names=listed),
        models=[(one.name, color, translator_facts(one, weights)) for one, color in zip(translators, colors)],
        data={
            "task": described[0],
            "names": names_of_sides(described[0]),
            "models": [
                {"name": one.name, "color": color, "header": part.header, "search": search}
                for one, color, part, search in zip(translators, colors, packed, searches)
            ],
        },
        blocks=[part.block for part in packed],
    )


def default_title(task: dict[str, Any]) -> str:
    source, target = names_of_sides(task)
    return "Summarize" if task["task"] == "summarize" else f"Translate {source} to {target}"


def names_of_sides(task: dict[str, Any]) -> list[str]:
    """Return the names of source and target, for people."""
    if task["task"] == "summarize":
        return ["Article", "Summary"]
    return [LANGUAGES.get(task[side], task[side]) for side in ("source", "target")]


def translator_facts(one: PageTranslator, weights: Weights) -> dict[str, Any]:
    """Return the sizes of a model and its task, for people."""
    facts = core_facts(one.model)
    facts["encoder layers"] = one.model.config.encoder_layers
    facts["matrices of the decoder"] = weights
    return facts | {"task": one.task.describe()}


def pack_seq2seq(model: Seq2Seq, weights: Weights = "float32") -> PackedModel:
    """Return a translator or summarizer for `seq2seq_engine.js`."""
    config = model.config
    encoder = {"layers": config.encoder_layers, "heads": config.encoder_heads, "norm": config.encoder_norm}
    return pack_quantized(copy.deepcopy(model), weights, seq2seq={"encoder": encoder, "outputs": config.targets})
