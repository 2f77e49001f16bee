"""Use of trained sequence-to-sequence runs: translate, summarize, tune the search, compare, distill.

`tune` saves the search in the run folder; later commands use it by default.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stairwell import checkpoints, configs
from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.outputs import FOLDER, check, write_output_folder
from stairwell.runs.load import check_results_writable, config_of, find_result, load, open_run, results_folder
from stairwell.tasks import Split, task_type, text_scores
from stairwell.tasks.baselines import baselines
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import SEARCH, Translator, load_search

PENALTIES = (0.0, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 2.0)


def open_translator(
    run: str | os.PathLike[str],
    task_name: str | None = None,
    device: str = "auto",
    batch: int = 64,
    weights: Weights = "float32",
    **options: Any,
) -> Translator:
    """Return the translator of a run; `task_name`: the task that it must have been trained for."""
    model, task = load(run, device, weights=weights)
    if not isinstance(task, PairTask) or (task_name is not None and type(task) is not task_type(task_name)[1]):
        expected = task_name or "translation or summarization"
        raise UserError(f"{os.fspath(run)} was not trained for {expected}; name a run that was")
    return Translator(model, task, load_search(find_result(run, SEARCH).parent, task, **options), batch)


@contextmanager
def naming_source_of_data(run: str | os.PathLike[str]) -> Iterator[None]:
    """Add to an error about missing data of a pretrained model where the data is from."""
    try:
        yield
    except UserError as error:
        folder = open_run(run).path
        if folder.parent != checkpoints.FOLDER:
            raise
        message = str(error).partition("; the run was trained on it")[0]
        raise UserError(f"{message}; 'Training data' in {folder / 'README.md'} says where to get it") from None


def tune(
    run: str | os.PathLike[str],
    penalties: Sequence[float] = PENALTIES,
    sentences: int = 0,
    device: str = "auto",
    callback: Callable[[float, float], None] = lambda penalty, score: None,
    **options: Any,
) -> dict[str, Any]:
    """Find the length penalty with the best score on the validation set and save it in the run folder.

    A search also uses the penalty to decide when to stop, so every value needs its own search."""
    translator = open_translator(run, None, device, **options)
    check_results_writable(run)
    with naming_source_of_data(run):
        sources, references = translator.task.sources_and_targets("valid", sentences)
    scores: dict[float, float] = {}
    for penalty in penalties:
        translator.search = dataclasses.replace(translator.search, length_penalty=penalty)
        outputs = [best[0].text for best in translator.translate(sources)]
        scores[penalty] = translator.task.text_metrics(outputs, references)[translator.task.metric]
        callback(penalty, scores[penalty])
    best = max(scores, key=lambda penalty: scores[penalty])
    search = dataclasses.replace(translator.search, length_penalty=best)
    write_text(results_folder(run) / SEARCH, json.dumps(configs.to_json(search), indent=2) + "\n")
    metric = translator.task.metric
    return {
        "run": str(run),
        "length_penalty": best,
        metric: scores[best],
        "sentences": len(references),
        "beam": search.beam,
    }


def compare(
    first: str | os.PathLike[str], second: str | os.PathLike[str], split: Split = "test", device: str = "auto"
) -> dict[str, Any]:
    """Return the BLEU of two translators on a split of the first one's data, and the p-value of the difference. Each
    uses its tuned search."""
    for run in (first, second):
        if (config := config_of(open_run(run))).task_name != "translation":
            both = shlex.join([os.fspath(first), os.fspath(second)])
            raise UserError(
                f"{os.fspath(run)} is a run of {config.name}, but compare is for translators; to compare the scores "
                f"and curves of any runs: stairwell report {both}"
            )
    translators = [open_translator(run, "translation", device) for run in (first, second)]
    task = translators[0].task
    with naming_source_of_data(first):
        sources, references = task.sources_and_targets(split)
    outputs = [[best[0].text for best in translator.translate(sources)] for translator in translators]
    lowercase = task.config.lowercase or translators[1].task.config.lowercase
    result = text_scores.paired_test(outputs[0], outputs[1], references, lowercase)
    return {"split": split, "sentences": len(references), "case": "lower" if lowercase else "mixed", **result}


def score_baselines(
    run: str | os.PathLike[str], split: Split = "test", device: str = "auto", data: str | None = None
) -> dict[str, float]:
    """Return the scores of simple baselines on a split of the data of a summarization run, or of other data."""
    task = open_translator(run, "summarization", device).task
    articles, references = (task if data is None else task.with_data(data)).sources_and_targets(split)
    sources = [task.normalize_source(article) for article in articles]  # truncated as for the model
    train = ((task.normalize_source(article), summary) for article, summary in task.locations["train"].pairs())
    scores = {name: task.text_metrics(texts, references) for name, texts in baselines(train, sources).items()}
    return {f"{name}_{metric}": value for name, metrics in scores.items() for metric, value in metrics.items()}


def distill(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    device: str = "auto",
    batch: int = 64,
    callback: Callable[[int], None] = lambda done: None,
    **options: Any,
) -> dict[str, Any]:
    """Write a corpus whose training targets are the run's outputs for its training sources (Kim & Rush, 2016);
    valid and test are copied. Needs the data of the run."""
    check(out, FOLDER, "--out")
    translator = open_translator(run, None, device, batch, **options)
    task, config = translator.task, translator.task.config
    source, target = (Path(name).suffix.lstrip(".") or name for name in (config.source, config.target))
    if source == target:
        source, target = "source", "target"
    counts: dict[str, Any] = {}

    def write(folder: Path) -> None:
        for split, files in task.locations.items():
            pairs = distilled_pairs(translator, files.pairs, callback) if split == "train" else files.pairs()
            counts[split] = write_pairs(pairs, folder / f"{split}.{source}", folder / f"{split}.{target}")

    write_output_folder(out, write)
    return {"out": os.fspath(out), "source": source, "target": target, **counts, "sources_cut": translator.cut}


def distilled_pairs(
    translator: Translator, pairs: Callable[[], Iterable[tuple[str, str]]], callback: Callable[[int], None]
) -> Iterable[tuple[str, str]]:
    """Yield every source with the model's output for it."""
    outputs = translator.translate(source for source, _ in pairs())
    for done, ((source, _), best) in enumerate(zip(pairs(), outputs, strict=True), 1):
        callback(done)
        yield source, best[0].text


def write_pairs(pairs: Iterable[tuple[str, str]], source: Path, target: Path) -> int:
    """Write two parallel files with one line per pair. Return the number of pairs."""
    count = 0
    with (
        open(source, "w", encoding="utf-8", newline="\n") as sources,
        # A tokenizer can produce a lone surrogate, which cannot be encoded.
        open(target, "w", encoding="utf-8", newline="\n", errors="replace") as targets,
    ):
        for source_text, target_text in pairs:
            print(" ".join(source_text.split()), file=sources)
            print(" ".join(target_text.split()), file=targets)
            count += 1
    return count
