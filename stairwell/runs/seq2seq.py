"""What a trained sequence-to-sequence run is for: translate and summarize texts, tune how it searches, distil it.

The search that `tune` finds is kept in the run's folder, and later commands begin from it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from stairwell import configs
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.outputs import FOLDER, check, write_output_folder
from stairwell.runs.load import load
from stairwell.tasks import Split, task_type, text_scores
from stairwell.tasks.baselines import baselines
from stairwell.tasks.pair_task import PairTask
from stairwell.train.run import Run
from stairwell.train.translator import SEARCH, Translator, load_search

PENALTIES = (0.0, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0)


def open_translator(
    run: str | os.PathLike[str], task_name: str | None = None, device: str = "auto", batch: int = 64, **options: Any
) -> Translator:
    """The model of a run, ready to write; `task_name`: what it must have been trained for."""
    model, task = load(run, device)
    if not isinstance(task, PairTask) or (task_name is not None and type(task) is not task_type(task_name)[1]):
        wanted = task_name or "translation or summarization"
        raise UserError(f"{os.fspath(run)} was not trained for {wanted}, so it cannot do this")
    return Translator(model, task, load_search(Path(run), task, **options), batch)


def tune(
    run: str | os.PathLike[str],
    penalties: Sequence[float] = PENALTIES,
    sentences: int = 0,
    device: str = "auto",
    tell: Callable[[float, float], None] = lambda penalty, score: None,
    **options: Any,
) -> dict[str, Any]:
    """Find the length penalty with the best score on the validation set and keep it in the run's folder.

    The penalty only orders hypotheses, but a search also stops by it: every value is a search of its own."""
    translator = open_translator(run, None, device, **options)
    Run(run).check_writable()
    asked, wanted = translator.task.sources_and_targets("valid", sentences)
    scores: dict[float, float] = {}
    for penalty in penalties:
        translator.search = dataclasses.replace(translator.search, length_penalty=penalty)
        said = [best[0].text for best in translator.translate(asked)]
        scores[penalty] = translator.task.text_metrics(said, wanted)[translator.task.metric]
        tell(penalty, scores[penalty])
    best = max(scores, key=lambda penalty: scores[penalty])
    search = dataclasses.replace(translator.search, length_penalty=best)
    write_text(Path(run) / SEARCH, json.dumps(configs.to_json(search), indent=2) + "\n")
    metric = translator.task.metric
    return {
        "run": str(run),
        "length_penalty": best,
        metric: scores[best],
        "sentences": len(wanted),
        "beam": search.beam,
    }


def compare(
    first: str | os.PathLike[str], second: str | os.PathLike[str], split: Split = "test", device: str = "auto"
) -> dict[str, Any]:
    """BLEU of two translators on the sentences of the first one's split, and how probable their difference is by
    chance. Each searches as it was tuned."""
    translators = [open_translator(run, "translation", device) for run in (first, second)]
    task = translators[0].task
    asked, wanted = task.sources_and_targets(split)
    said = [[best[0].text for best in translator.translate(asked)] for translator in translators]
    lowercase = task.config.lowercase or translators[1].task.config.lowercase
    found = text_scores.paired_test(said[0], said[1], wanted, lowercase)
    return {"split": split, "sentences": len(wanted), "case": "lower" if lowercase else "mixed", **found}


def score_baselines(
    run: str | os.PathLike[str], split: Split = "test", device: str = "auto", data: str | None = None
) -> dict[str, float]:
    """The scores of what costs nothing, on the split that a run of summaries is scored on, or on that of other data."""
    task = open_translator(run, "summarization", device).task
    articles, wanted = (task if data is None else task.with_data(data)).sources_and_targets(split)
    read = [task.normalize_source(article) for article in articles]  # no more of an article than the model reads
    train = ((task.normalize_source(article), summary) for article, summary in task.locations["train"].pairs())
    found = {name: task.text_metrics(said, wanted) for name, said in baselines(train, read).items()}
    return {f"{name}_{metric}": value for name, scores in found.items() for metric, value in scores.items()}


def distill(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    device: str = "auto",
    batch: int = 64,
    tell: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> dict[str, Any]:
    """A corpus whose training targets are what the run writes for its training sources (Kim & Rush, 2016); valid and
    test are as they were. The run's own data must be there."""
    check(out, FOLDER, "--out")
    translator = open_translator(run, None, device, batch, **options)
    task, config = translator.task, translator.task.config
    source, target = (Path(name).suffix.lstrip(".") or name for name in (config.source, config.target))
    if source == target:
        source, target = "source", "target"
    counts: dict[str, Any] = {}

    def write(folder: Path) -> None:
        for split, place in task.locations.items():
            pairs = said_by(translator, place.pairs, tell) if split == "train" else place.pairs()
            counts[split] = write_pairs(pairs, folder / f"{split}.{source}", folder / f"{split}.{target}")

    write_output_folder(out, write)
    return {"out": os.fspath(out), "source": source, "target": target, **counts, "sources_cut": translator.cut}


def said_by(
    translator: Translator, pairs: Callable[[], Iterable[tuple[str, str]]], tell: Callable[[int], None]
) -> Iterable[tuple[str, str]]:
    """The sources once more, each with what the model writes for it."""
    written = translator.translate(source for source, _ in pairs())
    for done, ((source, _), best) in enumerate(zip(pairs(), written, strict=True), 1):
        tell(done)
        yield source, best[0].text


def write_pairs(pairs: Iterable[tuple[str, str]], source: Path, target: Path) -> int:
    """Two parallel files, one line a pair whatever is in it; how many pairs they have."""
    count = 0
    with (
        open(source, "w", encoding="utf-8", newline="\n") as sources,
        # Half a pair of surrogates can come out of a tokenizer; a file cannot hold it.
        open(target, "w", encoding="utf-8", newline="\n", errors="replace") as targets,
    ):
        for asked, said in pairs:
            print(" ".join(asked.split()), file=sources)
            print(" ".join(said.split()), file=targets)
            count += 1
    return count
