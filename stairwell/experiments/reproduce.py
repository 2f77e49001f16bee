"""Carrying a study out: train what is missing, go on with what was cut, measure, set our numbers beside the paper's.

A study's folder holds one run folder a row and seed, each with its `result.json` once it is done, and then
`result.json`, `report.html`, `curves.png` and, where its rows vary a number, `sweep.png` of the whole.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Any

import torch

from stairwell import report
from stairwell.errors import UserError
from stairwell.experiments import beside
from stairwell.experiments.cost import estimate, in_words, machine_rate, tokens_an_update
from stairwell.experiments.experiment import SCALES, Experiment, Training, memory_in_words, spread_in_words
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE
from stairwell.files import write_folder, write_text
from stairwell.outputs import Kind, check, has_keys
from stairwell.provenance import provenance
from stairwell.report import Panel, Point, Table
from stairwell.report.picture import FIGURE
from stairwell.runs import sizes
from stairwell.runs.launch import Job, Show, choose_device, experiment_of, primary_metric, train
from stairwell.tasks import Task
from stairwell.train import Interrupted, NotSaved, Run

USUAL = {"laptop": (150e9, "two CPU cores"), "paper": (15e12, "one GPU of 15 TFLOP/s")}  # such rates, for each scale

VALID = ("valid_accuracy", "valid_return", "valid_loss")  # kept of every validation, beside the primary metric

RESULT = Kind("a result of stairwell reproduce", has_keys("study", "rows"))

Say = Callable[[str], None]


def trainings_of(study: Experiment, only: Sequence[str] = ()) -> list[Training]:
    """Return the trainings of all models, or of `only` some."""
    return [training for training in study.trainings() if not only or training.row.model in only]


def missing(study: Experiment, out: Path, only: Sequence[str] = ()) -> list[Training]:
    """The trainings that are still to be done; a folder with another config is refused."""
    wanted = []
    for training in trainings_of(study, only):
        run = Run(out / training.folder)
        if run.exists and experiment_of(run) != training.experiment:
            raise UserError(f"{run.path} holds a training with another config; choose another --out")
        if not (run.path / "result.json").exists():
            wanted.append(training)
    return wanted


def reproduce(
    study: Experiment, out: Path, device: str, engine: str, jobs: int, show: Show, say: Say, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Train and measure what is missing, of all rows or `only` some; the result, which is also written to `out`."""
    check_data(study)
    check(out / "result.json", RESULT, "--out")
    report.check_report(out / "report.html", out / "curves.png", "--out")
    check(out / "sweep.png", FIGURE, "--out")
    wanted = missing(study, out, only)
    if not wanted:
        done = [found for training in trainings_of(study, only) if (found := read(study, out, training))]
        check_trained_with(out, done, device, engine)
    wanted = [training for training in wanted if not taken_over(study, training, out, device, engine)]
    check_sizes(wanted, device)
    if jobs > 1:
        train_beside(study, wanted, out, device, engine, jobs, say)
    else:
        for number, training in enumerate(wanted, start=1):
            say(f"{study.name}, training {number} of {len(wanted)}: {training.name}")
            finish(study, training, out, train_here(training, out, device, engine, show), device, engine)
    result = sum_up(study, out)
    write_text(out / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def check_trained_with(out: Path, results: Sequence[dict[str, Any]], device: str, engine: str) -> None:
    """Refuse a device or an engine that a finished folder was not trained with: nothing there is trained again."""
    wanted = {"device": "auto" if device == "auto" else str(choose_device(device)), "engine": engine}
    for name, value in wanted.items():
        used = {result.get(name, "not recorded") for result in results} - {value}
        if value != "auto" and used:
            was = f"--{name} {value}: everything in {out} is trained already ({name}: {', '.join(sorted(used))})"
            raise UserError(f"{was}; leave out --{name}, or choose another --out")


def taken_over(study: Experiment, training: Training, out: Path, device: str, engine: str) -> bool:
    """Whether another study beside this one has done the very same training; if so it is copied and measured anew."""
    run = Run(out / training.folder)
    if run.exists and (run.checkpoints() or not run.began):
        return False
    for done in sorted(out.parent.glob("*/*/seed-*/result.json")):
        other = Run(done.parent)
        if not is_of(other, training):
            continue
        if not run.exists:
            write_folder(run.path, lambda place, whole=other.path: copy_run(whole, place))  # type: ignore[misc]
        result = json.loads(done.read_text(encoding="utf-8"))
        finish(study, training, out, {**result, "run": str(run.path)}, device, engine)
        return True
    return False


def copy_run(run: Path, place: Path) -> None:
    left = shutil.ignore_patterns("checkpoints", ".lock", "result.json")
    shutil.copytree(run, place, ignore=left, dirs_exist_ok=True)


def is_of(run: Run, training: Training) -> bool:
    """Whether a folder holds this training; one that cannot be read, as of another version, does not."""
    try:
        return run.exists and experiment_of(run) == training.experiment
    except UserError:
        return False


def check_data(study: Experiment) -> None:
    """Text that is not there is found out before anything is trained."""
    for path in {getattr(row.experiment.task, "path", "stdlib") for row in study.rows}:
        if not path or (path != "stdlib" and not Path(path).exists()):
            wrong = f"there is no file or folder {path}; " if path else ""
            raise UserError(f"{wrong}{study.name} reads {study.data or 'a corpus'}: --task.path must name it")


def check_sizes(wanted: list[Training], device: str) -> None:
    """A model that does not fit into the memory is found out before any other is trained."""
    made: dict[Any, Task] = {}
    for experiment in (training.row.experiment for training in wanted):
        kind = (experiment.task_name, experiment.task)
        if kind not in made:
            made[kind] = experiment.make_tasks()[0]
        sizes.check_training(experiment, made[kind], choose_device(device))


def train_here(training: Training, out: Path, device: str, engine: str, show: Show) -> dict[str, Any]:
    run = Run(out / training.folder)
    try:
        result = train(Job(training.experiment, run, resume=run.exists), device, engine, show)
    except (Interrupted, NotSaved) as stopped:
        what = str(stopped).partition(";")[0]
        raise type(stopped)(f"{training.name}: {what}; the same command again goes on from there") from None
    assert result is not None, "studies are run by a single process"
    return result


def train_beside(
    study: Experiment, wanted: list[Training], out: Path, device: str, engine: str, jobs: int, say: Say
) -> None:
    """Several trainings at a time, each in a process of its own with its share of the threads."""
    threads = max(1, torch.get_num_threads() // jobs)
    stopping = Event()

    def work(training: Training) -> None:
        if stopping.is_set():
            return
        run = Run(out / training.folder)
        asked = beside.command(training.experiment, run, device, engine)
        done = subprocess.run(asked, env=beside.environment(threads), capture_output=True, text=True)
        if done.returncode:
            stopping.set()  # nobody begins anything new
        if done.returncode == 130:
            raise Interrupted("stopped and saved; the same command again goes on from there")
        if done.returncode:
            raise UserError(f"{training.name}: {(done.stderr.strip() or 'it failed').splitlines()[-1]}")
        result = {**json.loads(done.stdout), "threads": threads}
        torch.set_num_threads(threads)  # others are still training
        finish(study, training, out, result, device, engine)

    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, training): training for training in wanted}
        try:
            for count, future in enumerate(as_completed(futures), start=1):
                future.result()
                left = (time.monotonic() - began) / count * (len(wanted) - count)
                say(f"{study.name}, {count} of {len(wanted)} done: {futures[future].name}; {in_words(left)} to go")
        except BaseException:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def finish(study: Experiment, training: Training, out: Path, result: dict[str, Any], device: str, engine: str) -> None:
    """Measure a finished training and write it down, which is what makes it done."""
    run = Run(out / training.folder)
    stages = [record["stage"] for record in run.metrics() if "stage" in record]
    result["stage"] = stages[-1] if stages else None  # how far the curriculum came
    result.setdefault("device", str(choose_device(device)))
    result.setdefault("engine", engine)
    result["measured"] = {column.title: column.measure(run, device, engine) for column in study.columns}
    result.setdefault("provenance", provenance())
    write_text(run.path / "result.json", json.dumps(result) + "\n")


def read(study: Experiment, out: Path, training: Training) -> dict[str, Any] | None:
    path = out / training.folder / "result.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def sum_up(study: Experiment, out: Path) -> dict[str, Any]:
    """Ours and the paper's, row by row, as plain JSON; rows that are not done have no seeds."""
    rows = []
    for row in study.rows:
        done = [(t.seed, found) for t in study.trainings() if t.row is row and (found := read(study, out, t))]
        results = [found for _, found in done]
        primary = primary_metric(row.experiment)
        best = best_by_validation(results, primary) if results else None
        rows.append(
            {
                "model": row.model,
                "looks_back": memory_in_words(row.experiment),
                "weights": results[0]["weights"] if results else None,
                "updates": row.experiment.train.total,
                "tokens": results[0]["tokens"] if results else None,
                "seconds": [result["seconds"] for result in results],
                "threads": sorted({result.get("threads", result["provenance"]["threads"]) for result in results}),
                "seeds": [seed for seed, _ in done],
                "commits": [result["provenance"]["commit"] for result in results],
                "valid": [
                    {name: result[name] for name in sorted({primary[0], *VALID} & {*result})} for result in results
                ],
                "stages": [result.get("stage") for result in results],
                "measured": {c.title: [result["measured"][c.title] for result in results] for c in study.columns},
                "best": best["measured"] if best else {},
                "paper": dict(zip((column.title for column in study.columns), row.paper)) if row.paper else {},
                "config": row.experiment.to_json(),
            }
        )
    finished = [result for training in study.trainings() if (result := read(study, out, training))]
    about = provenance()
    commits = sorted({result["provenance"]["commit"] for result in finished})
    return {
        "study": study.name,
        "title": study.title,
        "paper": study.paper,
        "scale": study.scale,
        "claim": study.claim,
        "notes": list(study.notes),
        "data": finished[0]["data"] if finished else "",
        "columns": [column.title for column in study.columns],
        "rows": rows,
        "provenance": {**about, "commit": ", ".join(commits) or about["commit"]},
    }


def best_by_validation(results: list[dict[str, Any]], primary: tuple[str, bool]) -> dict[str, Any]:
    """The best seed by the task's primary metric, as `primary_metric` names it. Results that were published without it have
    the loss, which the metrics of language models follow."""
    name, higher_is_better = primary if all(primary[0] in result for result in results) else ("valid_loss", False)
    return (max if higher_is_better else min)(results, key=lambda result: result[name])


def table(result: dict[str, Any]) -> Table:
    """Our numbers beside the paper's, to print and for the report."""
    several = any(len(row["seeds"]) > 1 for row in result["rows"])
    columns = ["model", "looks back", "weights", "tokens"]
    printed = {title for row in result["rows"] for title, number in row["paper"].items() if number}
    for title in result["columns"]:
        columns += [title, *(["best seed"] if several else []), *(["paper"] if title in printed else [])]
    rows = []
    for row in result["rows"]:
        cells = [row["model"], row["looks_back"]]
        cells += [f"{row[name]:,}" if row[name] is not None else "" for name in ("weights", "tokens")]
        for title in result["columns"]:
            values = [value for value in row["measured"][title] if value is not None]
            cells.append(spread_in_words(values) or "not run")
            if several:
                best = row["best"].get(title)
                cells.append(f"{best:.4g}" if best is not None else "")
            if title in printed:
                cells.append(row["paper"].get(title, ""))
        rows.append(cells)
    seeds = sorted({len(row["seeds"]) for row in result["rows"] if row["seeds"]})
    caption = f"{result['scale']} scale; {' or '.join(map(str, seeds)) or 'no'} seed{'s' if seeds != [1] else ''} a row"
    return Table(result["title"], columns, rows, f"{caption}; {result['paper']}")


def panels(study: Experiment, result: dict[str, Any]) -> list[Panel]:
    """What was measured against what the rows vary, of the rows that are done: a plot for every axis and column."""
    rows = {row.model: row for row in study.rows}
    found = []
    for axis in study.axes:
        for title in study.drawn or result["columns"]:
            points = []
            for done in result["rows"]:
                scores = tuple(value for value in done["measured"].get(title, ()) if value is not None)
                row = rows.get(done["model"])
                if not scores or row is None:
                    continue
                place = row.place(axis)
                if place is None and any(row.place(other) for other in study.axes):
                    continue  # it is of another plot
                paper = number_in(done["paper"].get(title, "")) if place and place.printed else None
                name, x = (place.series, place.x) if place else (row.model, None)
                points.append(Point(name, row.experiment.core_name, x, scores, paper))
            if any(point.x is not None for point in points):
                found.append(Panel(axis, title, tuple(points)))
    return found


def number_in(printed: str) -> float | None:
    """The number that a cell of a paper's table begins with: 0.2 of `0.2 ± 0.1`."""
    found = re.match(r"-?\d+(\.\d+)?(?=,?\s|$)", printed)
    return float(found[0]) if found else None


def write_report(study: Experiment, out: Path, result: dict[str, Any]) -> Path:
    """The page, and the pictures beside it."""
    runs = [
        report.gather(out / training.folder, name=training.row.model, provenance=found["provenance"])
        for training in study.trainings()
        if (found := read(study, out, training)) is not None
    ]
    page = out / "report.html"
    notes = [*([f"The paper's conclusion: {study.claim}"] if study.claim else []), *study.notes]
    report.write_png(out / "curves.png", runs)
    report.write_stream_pngs(page, runs)
    drawn = panels(study, result)
    report.write_sweep_png(out / "sweep.png", drawn)
    report.write_html(page, f"{study.title} ({study.scale} scale)", runs, [table(result)], notes, sweep=drawn)
    return page


def plan_table(study: Experiment, out: Path, device: str, only: Sequence[str] = ()) -> Table:
    """What would be trained and about how long that takes on this machine."""
    rate = machine_rate(device)
    still, rows, total = {training.folder for training in missing(study, out, only)}, [], 0.0
    for row in (row for row in study.rows if not only or row.model in only):
        trainings = [training for training in study.trainings() if training.row is row]
        left = sum(training.folder in still for training in trainings)
        seconds = estimate(row.experiment, rate)
        train = row.experiment.train
        total += seconds * left
        rows.append(
            [
                row.model,
                memory_in_words(row.experiment),
                f"{train.total:,}",
                f"{train.total * tokens_an_update(row.experiment):,}",
                f"{left} of {len(trainings)}",
                in_words(seconds),
            ]
        )
    columns = ["model", "looks back", "updates", "tokens", "trainings left", "each takes about"]
    caption = f"{in_words(total)} in all on this machine, one after the other, by a count of operations; to {out}"
    return Table(f"{study.title} ({study.scale} scale)", columns, rows, caption)


def describe(say: Say) -> None:
    """Every study: the paper, the models, how long on both scales, the paper's numbers."""
    for name, make in CATALOG.items():
        at_scales = [made for scale in SCALES if (made := make(scale)) is not None]
        paper = at_scales[-1]
        times = [f"{study.scale} scale {takes(study)}" for study in at_scales]
        times += [f"not at {scale} scale: {NOT_AT_SCALE[name, scale]}" for scale in SCALES if make(scale) is None]
        say(f"{name}\n  {paper.title} ({paper.paper})\n  {', '.join(times)}")
        for title, place in ((column.title, i) for i, column in enumerate(paper.columns)):
            numbers = [f"{row.model} {row.paper[place]}" for row in paper.rows if row.paper and row.paper[place]]
            if numbers:
                say(f"  paper, {title}: {'; '.join(numbers)}")
        if paper.data:
            say(f"  reads {paper.data} (--task.path)")
        say("")
    say("Tables and figures of the papers that are no experiments:\n")
    for name, why in NO_EXPERIMENTS.items():
        say(f"{name}\n  {why}\n")


def takes(study: Experiment) -> str:
    """How long all trainings of a study take, on the kind of machine that its scale is made for."""
    rate, machine = USUAL[study.scale]
    seconds = sum(study.seeds_for(row) * estimate(row.experiment, rate) for row in study.rows)
    return f"about {in_words(seconds)} on {machine}"
