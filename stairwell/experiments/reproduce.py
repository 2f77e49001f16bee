"""Run an experiment: train what is missing, resume what was interrupted, measure, write the table and the report.

The folder of an experiment has one run folder per variant and seed, each with `result.json` once it is finished, and
`result.json`, `report.html`, `curves.png` and, if its variants differ in a number, `sweep.png` of the whole.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stairwell import report
from stairwell.errors import MissingPackage, UserError
from stairwell.experiments.cost import estimate, format_duration, machine_rate, total_tokens
from stairwell.experiments.experiment import (
    SCALES,
    Experiment,
    Variant,
    changes_text,
    context_of,
    mean_and_deviation,
)
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE
from stairwell.files import write_folder, write_text
from stairwell.outputs import OutputType, check, has_keys
from stairwell.provenance import provenance
from stairwell.report import Panel, Point, Table
from stairwell.report.plots import FIGURE
from stairwell.runs.config import RunConfig
from stairwell.runs.device import choose_device
from stairwell.runs.launch import RESULT_FILE, Show, check_same_config, primary_metric, train_many
from stairwell.runs.load import config_of
from stairwell.runs.run import Run
from stairwell.train import Callback

# Matrix-product rates of the machines that the scales are made for.
TYPICAL = {"laptop": (150e9, "two CPU cores"), "paper": (15e12, "one GPU of 15 TFLOP/s")}
MIN_POINTS = 2  # different x of a plot
SAVED_METRICS = ("valid_accuracy", "valid_return", "valid_loss")  # besides the primary metric
RESULT = OutputType("a result of stairwell reproduce", has_keys("experiment", "variants"))

Say = Callable[[str], None]


def run_of(out: Path, variant: Variant, seed: int) -> Run:
    return Run(out / variant.folder / f"seed-{seed}")


def missing(experiment: Experiment, out: Path, only: Sequence[str] = ()) -> list[tuple[Variant, int]]:
    """Return the variants and seeds that have no result yet. A folder with another config is rejected."""
    for variant, seed in experiment.runs(only):
        check_same_config(run_of(out, variant, seed), variant.config.with_seed(seed))
    return [run for run in experiment.runs(only) if read_result(out, *run) is None]


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    device: str,
    engine: str,
    jobs: int | None,
    show: Show,
    callback: Callback,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Train and measure what is missing, of all variants or of `only` some. Return and write the result."""
    check_data(experiment)
    check(out / "result.json", RESULT, "--out")
    report.check_report(out / "report.html", out / "curves.png", "--out")
    check(out / "sweep.png", FIGURE, "--out")
    to_train = missing(experiment, out, only)
    if not to_train:
        results = [result for run in experiment.runs(only) if (result := read_result(out, *run))]
        check_trained_with(out, results, device, engine)
    to_train = [run for run in to_train if not copy_finished(experiment, out, *run, device, engine)]
    named = {f"{variant.name}, seed {seed}": (variant, seed) for variant, seed in to_train}
    train_many(
        {name: (variant.config.with_seed(seed), run_of(out, variant, seed)) for name, (variant, seed) in named.items()},
        lambda name, result: finish(experiment, out, *named[name], result, device, engine),
        jobs=min(jobs or experiment.jobs, max(len(named), 1)),
        device=device, engine=engine, show=show, callback=callback,
    )  # fmt: skip
    result = summarize(experiment, out)
    write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def check_trained_with(out: Path, results: Sequence[dict[str, Any]], device: str, engine: str) -> None:
    """Reject a device or an engine that a finished folder was not trained with: nothing there is trained again."""
    requested = {"device": "auto" if device == "auto" else str(choose_device(device)), "engine": engine}
    for name, value in requested.items():
        used = {result.get(name, "not recorded") for result in results} - {value}
        if value != "auto" and used:
            was = f"--{name} {value}: everything in {out} is trained already ({name}: {', '.join(sorted(used))})"
            raise UserError(f"{was}; leave out --{name}, or choose another --out")


def copy_finished(experiment: Experiment, out: Path, variant: Variant, seed: int, device: str, engine: str) -> bool:
    """Copy the run of the same config from another experiment in a neighboring folder, and measure it. Return whether
    there was one."""
    run, config = run_of(out, variant, seed), variant.config.with_seed(seed)
    if run.exists and (run.checkpoints() or not run.has_results):
        return False
    for path in sorted(out.parent.glob(f"*/*/seed-*/{RESULT_FILE}")):
        other = Run(path.parent)
        if not has_config(other, config):
            continue
        if not run.exists:
            write_folder(run.path, lambda target, source=other.path: copy_run(source, target))  # type: ignore[misc]
        result = {**json.loads(path.read_text(encoding="utf-8")), "run": str(run.path)}
        finish(experiment, out, variant, seed, result, device, engine)
        return True
    return False


def copy_run(source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("checkpoints", ".lock", RESULT_FILE)
    shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)


def has_config(run: Run, config: RunConfig) -> bool:
    """Return whether a folder is a run of this config. A run that cannot be read, as of another version, is not."""
    try:
        return run.exists and config_of(run) == config
    except UserError:
        return False


def check_data(experiment: Experiment) -> None:
    """Reject missing text before anything is trained."""
    for path in {getattr(variant.config.task, "path", "stdlib") for variant in experiment.variants}:
        if not path or (path != "stdlib" and not Path(path).exists()):
            wrong = f"there is no file or folder {path}; " if path else ""
            raise UserError(f"{wrong}{experiment.name} reads {experiment.data or 'a corpus'}: --task.path must name it")


def finish(
    experiment: Experiment, out: Path, variant: Variant, seed: int, result: dict[str, Any], device: str, engine: str
) -> None:
    """Measure a trained run and write its result, which marks it as finished."""
    run = run_of(out, variant, seed)
    stages = [record["stage"] for record in run.metrics() if "stage" in record]
    result["stage"] = stages[-1] if stages else None  # how far the curriculum came
    result.setdefault("device", str(choose_device(device)))
    result.setdefault("engine", engine)
    result["measured"] = {column.title: column.measure(run, device, engine) for column in experiment.columns}
    result.setdefault("provenance", provenance())
    write_text(run.path / RESULT_FILE, json.dumps(result) + "\n")


def read_result(out: Path, variant: Variant, seed: int) -> dict[str, Any] | None:
    path = run_of(out, variant, seed).path / RESULT_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def summarize(experiment: Experiment, out: Path) -> dict[str, Any]:
    """Return our numbers and the paper's, per variant, as plain JSON. Variants without a result have no seeds."""
    finished = [result for run in experiment.runs() if (result := read_result(out, *run))]
    about = provenance()
    commits = sorted({result["provenance"]["commit"] for result in finished})
    variants = [summarize_variant(experiment, out, variant) for variant in experiment.variants]
    trained = [variant for variant, summary in zip(experiment.variants, variants, strict=True) if summary["seeds"]]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "scale": experiment.scale,
        "claim": experiment.claim,
        "notes": list(experiment.notes),
        "changed": changes_text(trained),
        "data": finished[0]["data"] if finished else "",
        "columns": [column.title for column in experiment.columns],
        "variants": variants,
        "provenance": {**about, "commit": ", ".join(commits) or about["commit"]},
    }


def summarize_variant(experiment: Experiment, out: Path, variant: Variant) -> dict[str, Any]:
    titles = [column.title for column in experiment.columns]
    by_seed = {seed: result for v, seed in experiment.runs() if v is variant and (result := read_result(out, v, seed))}
    results = list(by_seed.values())
    primary = primary_metric(variant.config)
    best = best_by_validation(results, primary) if results else None
    return {
        "name": variant.name,
        "context": context_of(variant.config),
        "parameters": results[0]["parameters"] if results else None,
        "steps": variant.config.train.total_steps,
        "tokens": results[0]["tokens"] if results else None,
        "seconds": [result["seconds"] for result in results],
        "threads": sorted({result.get("threads", result["provenance"]["threads"]) for result in results}),
        "seeds": list(by_seed),
        "commits": [result["provenance"]["commit"] for result in results],
        "valid": [
            {name: result[name] for name in sorted({primary[0], *SAVED_METRICS} & {*result})} for result in results
        ],
        "stages": [result.get("stage") for result in results],
        "measured": {title: [result["measured"][title] for result in results] for title in titles},
        "best": best["measured"] if best else {},
        "paper": dict(zip(titles, variant.paper)) if variant.paper else {},
        "config": variant.config.to_json(),
    }


def best_by_validation(results: list[dict[str, Any]], primary: tuple[str, bool]) -> dict[str, Any]:
    """Return the best seed by the task's primary metric. Results published without that metric have the loss instead,
    which the metrics of language models follow."""
    name, higher_is_better = primary if all(primary[0] in result for result in results) else ("valid_loss", False)
    return (max if higher_is_better else min)(results, key=lambda result: result[name])


def table(result: dict[str, Any]) -> Table:
    """Return a table of our numbers and the paper's, for the terminal and the report."""
    several = any(len(variant["seeds"]) > 1 for variant in result["variants"])
    columns = ["model", "context", "parameters", "tokens"]
    printed = {title for variant in result["variants"] for title, number in variant["paper"].items() if number}
    for title in result["columns"]:
        columns += [title, *(["best validation seed"] if several else []), *(["paper"] if title in printed else [])]
    lines = []
    for variant in result["variants"]:
        cells = [variant["name"], variant["context"]]
        cells += [f"{variant[name]:,}" if variant[name] is not None else "" for name in ("parameters", "tokens")]
        for title in result["columns"]:
            values = [value for value in variant["measured"][title] if value is not None]
            cells.append(mean_and_deviation(values) or "not run")
            if several:
                best = variant["best"].get(title)
                cells.append(f"{best:.4g}" if best is not None else "")
            if title in printed:
                cells.append(variant["paper"].get(title, ""))
        lines.append(cells)
    seeds = sorted({len(variant["seeds"]) for variant in result["variants"] if variant["seeds"]})
    count = f"{' or '.join(map(str, seeds)) or 'no'} seed{'s' if seeds != [1] else ''} per model"
    return Table(result["title"], columns, lines, f"{result['scale']} scale; {count}; {result['paper']}")


def remarks(result: dict[str, Any]) -> list[str]:
    """Return what a reader of the table must know: options that are not the experiment's, seeds that do not start at 0,
    and curricula that ended before the task's difficulty."""
    trained = [variant for variant in result["variants"] if variant["seeds"]]
    texts = [f"changed: {', '.join(result['changed'])}"] if result["changed"] else []
    if (seeds := sorted({seed for variant in trained for seed in variant["seeds"]})) and seeds[0]:
        texts.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    if unfinished := [text for variant in trained if (text := unfinished_curriculum(variant))]:
        texts.append(f"the curriculum did not reach the task's difficulty: {'; '.join(unfinished)}")
    return texts


def unfinished_curriculum(variant: dict[str, Any]) -> str:
    """Return the stages at which seeds of a variant ended below the last: "Feedback at length 38 of 100"; empty if
    there are none."""
    stages = RunConfig.from_json(variant["config"], variant["name"]).train.make_curriculum().stages
    reached = [stage for stage in variant["stages"] if stage and stages and stage != stages[-1]]
    if not reached:
        return ""
    options = [
        f"{name} {' or '.join(map(str, sorted({stage[name] for stage in reached})))} of {last}"
        for name, last in stages[-1].items()
        if any(stage[name] != last for stage in reached)
    ]
    some = f" ({len(reached)} of {len(variant['seeds'])} seeds)" if len(variant["seeds"]) > 1 else ""
    return f"{variant['name']} at {', '.join(options)}{some}"


def panels(experiment: Experiment, result: dict[str, Any]) -> list[Panel]:
    """Return one plot per axis and column: the measured values of the finished variants. A single x is no plot."""
    variants = {variant.name: variant for variant in experiment.variants}
    made = []
    for axis in experiment.axes:
        for title in experiment.plotted or result["columns"]:
            points = []
            for finished in result["variants"]:
                scores = tuple(value for value in finished["measured"].get(title, ()) if value is not None)
                variant = variants.get(finished["name"])
                if not scores or variant is None:
                    continue
                at = variant.point(axis)
                if at is None and any(variant.point(other) for other in experiment.axes):
                    continue  # it belongs to another plot
                paper = leading_number(finished["paper"].get(title, "")) if at and at.printed else None
                name, x = (at.series, at.x) if at else (variant.name, None)
                points.append(Point(name, variant.config.core_name, x, scores, paper))
            if len({point.x for point in points} - {None}) >= MIN_POINTS:
                made.append(Panel(axis, title, tuple(points)))
    return made


def leading_number(printed: str) -> float | None:
    """Return the number that a cell of a paper's table starts with: 0.2 of `0.2 ± 0.1`."""
    match = re.match(r"-?\d+(\.\d+)?(?=,?\s|$)", printed)
    return float(match[0]) if match else None


def write_report(experiment: Experiment, out: Path, result: dict[str, Any]) -> Path:
    """Write the report and its plots. Return the report's path."""
    runs = [
        report.gather(run_of(out, variant, seed).path, name=variant.name, provenance=finished["provenance"])
        for variant, seed in experiment.runs()
        if (finished := read_result(out, variant, seed)) is not None
    ]
    page = out / "report.html"
    notes = [text[:1].upper() + text[1:] for text in remarks(result)]
    if experiment.claim:
        notes.append(f"The paper concludes, which is not a result of these runs: {experiment.claim}.")
    unchanged = "The experiment without the changes: " if result["changed"] else ""
    notes += [unchanged + note for note in experiment.notes]
    title = f"{experiment.title} ({experiment.scale} scale)"
    report.write_png(out / "curves.png", runs, title=title)
    report.write_extra_pngs(page, runs)
    sweep = panels(experiment, result)
    report.write_sweep_png(out / "sweep.png", sweep, title)
    report.write_html(page, title, runs, [table(result)], notes, sweep=sweep)
    return page


def plan_table(experiment: Experiment, out: Path, device: str, only: Sequence[str] = ()) -> Table:
    """Return what would be trained and about how long it takes on this machine."""
    rate = machine_rate(device)
    to_train, lines, total, unknown = missing(experiment, out, only), [], 0.0, ""
    for variant in experiment.variants:
        if only and variant.name not in only:
            continue
        left = sum(other is variant for other, _ in to_train)
        steps = variant.config.train.total_steps
        try:
            seconds = estimate(variant.config, rate)
        except MissingPackage as missing_package:
            time, unknown = "no estimate", f"; {missing_package}"
        else:
            time = format_duration(seconds)
            done = sum(run_of(out, *run).newest_step for run in to_train if run[0] is variant)
            total += seconds * (left - done / max(steps, 1))
        lines.append(
            [
                variant.name,
                context_of(variant.config),
                f"{steps:,}",
                f"{total_tokens(variant.config):,}",
                f"{left} of {experiment.seeds_for(variant)}",
                time,
            ]
        )
    columns = ["model", "context", "steps", "tokens", "runs left", "time per run"]
    caption = f"about {format_duration(total)} left on this machine if it is idle, one run after another"
    trains = [variant.config.train for variant in experiment.variants]
    if any(train.patience or train.stopping_threshold is not None for train in trains):
        caption += "; early stopping may end runs sooner"
    caption += f"; to {out}{unknown}"
    return Table(f"{experiment.title} ({experiment.scale} scale)", columns, lines, caption)


def describe(say: Say) -> None:
    """Print every experiment: the paper, the models, the time at both scales, the paper's numbers."""
    for name, make in CATALOG.items():
        at_scales = [made for scale in SCALES if (made := make(scale)) is not None]
        paper = at_scales[-1]
        times = [f"{experiment.scale} scale {total_time(experiment)}" for experiment in at_scales]
        times += [f"not at {scale} scale: {NOT_AT_SCALE[name, scale]}" for scale in SCALES if make(scale) is None]
        say(f"{name}\n  {paper.title} ({paper.paper})\n  {', '.join(times)}")
        for i, column in enumerate(paper.columns):
            numbers = {
                f"{variant.paper_name or variant.name} {variant.paper[i]}": None  # each published model once
                for variant in paper.variants
                if any(variant.paper[i : i + 1])
            }
            if numbers:
                say(f"  published, {column.title}: {'; '.join(numbers)}")
        if paper.data:
            say(f"  reads {paper.data} (--task.path)")
        say("")
    say("Tables and figures of the papers that are not experiments:\n")
    for name, why in NO_EXPERIMENTS.items():
        say(f"{name}\n  {why}\n")


def total_time(experiment: Experiment) -> str:
    """Return how long all runs take on the type of machine that the scale is made for. An agent's estimate needs the
    package of its environment."""
    rate, machine = TYPICAL[experiment.scale]
    try:
        seconds = sum(experiment.seeds_for(variant) * estimate(variant.config, rate) for variant in experiment.variants)
    except MissingPackage as missing_package:
        return f"no estimate without a package ({missing_package.install})"
    return f"about {format_duration(seconds)} on {machine}"
