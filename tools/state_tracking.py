"""Draw the figures of the state-tracking benchmark from the files in results/ alone.

    python -m tools.state_tracking table                  state-tracking.png, from extra.state-tracking.*.json
    python -m tools.state_tracking horizon NAME=RUN ...   write long-stream results to horizon.json (--add: append)
    python -m tools.state_tracking horizon                horizon.png, from horizon.json; --name: another name
    python -m tools.state_tracking headline               million-tokens.png of the README, from horizon.json
    python -m tools.state_tracking inside NAME=RUN        inside.png, of a run with `report --inside`

Figures are written to docs/pictures. What was not run is a cell without a number.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from stairwell.errors import UserError
from stairwell.experiments.papers.state_tracking import GROUPS, MODELS, TASKS
from stairwell.files import write_text
from stairwell.report import gather
from stairwell.report.colors import MUTED, PALETTE, RULE, TEXT
from stairwell.report.compare import Model, group_models
from stairwell.report.memory_plots import write_memory_png
from stairwell.report.plots import line_style, new_figure, save_png, set_log_x, style_axes
from stairwell.report.stream_plots import group_by_length, survival, write_stream_png
from stairwell.runs import long_streams

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "results", ROOT / "docs" / "pictures"
# Models of the README's picture, by their names in horizon.json: line width, label, and where the label ends.
HEADLINE = {
    "Feedback, S5": (6.0, "Feedback and Staircase", (1e6, 107)),
    "Staircase, S5": (2.2, "", (1, 0)),
    "LSTM, S5": (3.0, "LSTM", (1e6, 79)),
    "DeltaNet, S5": (3.0, "DeltaNet", (1500, 50)),
}
OURS = (
    "Feedback", "Staircase (C=1, N=2)", "Cached Staircase (C=1, N=3)", "Global Cached Staircase", "DeltaNet", "LSTM",
    "Transformer-XL",
)  # fmt: skip
Cells = dict[tuple[str, str], float]  # by model and task


def columns() -> dict[str, str]:
    """Return the heading of each column by the last part of its experiment's name."""
    tasks = {name: name.replace("-", "\n").replace("parity\ncheck", "parity") for name in TASKS}
    return {**tasks, **{f"{group.lower()}-{n}": f"{group}, {n}\ngenerators" for group, n in GROUPS}}


def published() -> Cells:
    cells = {(model, name): float(number) for name, row in TASKS.items() for model, number in row.items()}
    for (group, n), row in GROUPS.items():
        cells |= {(model, f"{group.lower()}-{n}"): float(number) for model, number in row.items()}
    return cells


def ours(scale: str = "laptop") -> Cells:
    """Return the mean over the seeds of every model and task that was run. Of several variants of a model, the one with
    the best validation is used."""
    cells: Cells = {}
    for name in columns():
        path = RESULTS / f"extra.state-tracking.{name}-{scale}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        (title,) = result["columns"]
        for model in OURS:
            variants = [
                variant
                for variant in result["variants"]
                if f"{variant['name']}, ".startswith(f"{model}, ") and variant["valid"]
            ]
            if variants:
                best = max(variants, key=mean_validation)
                cells[model, name] = statistics.mean(best["measured"][title])
    return cells


def mean_validation(variant: dict[str, Any]) -> float:
    return statistics.mean(seed["valid_accuracy"] for seed in variant["valid"])


def with_mean(cells: Cells) -> Cells:
    """Return the cells and the mean over the four tasks of each model that has all of them."""
    result = dict(cells)
    for model in {model for model, _ in cells}:
        numbers = [cells[model, name] for name in TASKS if (model, name) in cells]
        if len(numbers) == len(TASKS):
            result[model, "mean"] = statistics.mean(numbers)
    return result


def draw_table(path: Path) -> None:
    """Draw our models above the published ones. The bar in a cell is the accuracy."""
    names = columns()
    order = [*TASKS, "mean", *(name for name in names if name not in TASKS)]
    figure = new_figure(10, 0.36 * (len(OURS) + len(MODELS)) + 1.5)
    plot = figure.subplots()
    lines = [(model, with_mean(ours())) for model in OURS] + [(model, with_mean(published())) for model in MODELS]
    for i, (model, cells) in enumerate(lines):
        y = i + (0.9 if i >= len(OURS) else 0)
        is_ours = i < len(OURS)
        plot.text(
            -0.62, y, model, ha="right", va="center", color=TEXT, fontsize=9.5, fontweight="bold" if is_ours else None
        )
        for x, name in enumerate(order):
            value = cells.get((model, name))
            box = (x - 0.46 + (0.35 if x > len(TASKS) else 0), y - 0.42)
            draw_cell(plot, box, value, PALETTE[0].light if is_ours else MUTED)
    for x, name in enumerate(order):
        position = x + (0.35 if x > len(TASKS) else 0)
        plot.text(position, -0.75, names.get(name, name), ha="center", va="bottom", color=MUTED, fontsize=8)
    plot.text(-0.62, -0.75, "ours, laptop scale", ha="right", va="bottom", color=MUTED, fontsize=9, style="italic")
    plot.text(-0.62, len(OURS) + 0.2, "published", ha="right", va="bottom", color=MUTED, fontsize=9, style="italic")
    plot.set_xlim(-3.4, len(order) + 0.1)
    plot.set_ylim(len(lines) + 0.6, -1.9)
    plot.axis("off")
    title = "State tracking: trained on 3 to 40 tokens, tested on 40 to 256; accuracy at the last token, %"
    figure.suptitle(title, x=0.01, ha="left", color=TEXT, fontsize=11.5)
    save_png(path, figure)


def draw_cell(plot: Any, corner: tuple[float, float], value: float | None, color: str) -> None:
    from matplotlib.patches import Rectangle

    width, height = 0.92, 0.84
    plot.add_patch(Rectangle(corner, width, height, facecolor=RULE, alpha=0.35, linewidth=0))
    middle = (corner[0] + width / 2, corner[1] + height / 2)
    if value is None:
        plot.text(*middle, "·", ha="center", va="center", color=MUTED, fontsize=9)
        return
    plot.add_patch(Rectangle(corner, width * value / 100, height, facecolor=color, alpha=0.38, linewidth=0))
    text = "100" if value >= 99.95 else f"{value:.1f}"
    plot.text(*middle, text, ha="center", va="center", color=TEXT, fontsize=9)


def collect(named: list[tuple[str, Path]], add: bool = False, stem: str = "horizon") -> None:
    """Copy long-stream results of run folders to results/ with their provenance. `add`: keep those already there."""
    file = RESULTS / f"{stem}.json"
    entries = json.loads(file.read_text(encoding="utf-8"))["runs"] if add and file.exists() else []
    for name, run in named:
        data = json.loads((run / long_streams.FILE).read_text(encoding="utf-8"))
        provenance = data["provenance"]
        provenance["command"] = provenance["command"].replace(str(run), run.name)  # without the local path
        entries.append({"name": name, "core": gather(run).core, **data})
    write_text(file, json.dumps({"runs": entries}, indent=1) + "\n")


def draw_horizon(path: Path) -> None:
    file = RESULTS / f"{path.stem}.json"
    if not file.exists():
        raise UserError(
            f"results/{file.name} does not exist; create it: python -m tools.state_tracking horizon NAME=RUN"
        )
    write_stream_png(path, stream_models(json.loads(file.read_text(encoding="utf-8"))["runs"]))


def draw_headline(path: Path) -> None:
    """Draw the share of streams without a mistake of a few models, with labels beside the curves."""
    entries = json.loads((RESULTS / "horizon.json").read_text(encoding="utf-8"))["runs"]
    models = {model.name: model for model in stream_models(entries)}
    figure = new_figure(9, 4)
    plot = figure.subplots()
    for name, (width, label, end) in HEADLINE.items():
        model = models[name]
        largest = group_by_length([run.horizon for run in model.runs if run.horizon is not None])[0]
        color = line_style(model.color)["color"]
        plot.step(*survival(largest), where="post", color=color, linewidth=width, solid_capstyle="butt")
        plot.text(*end, label, color=color, fontsize=13, fontweight="bold", ha="right", va="center")
    plot.axvspan(1, 40, color=RULE, alpha=0.6, linewidth=0)
    plot.text(6.3, 50, "training:\nup to 40 tokens", color=MUTED, fontsize=11, ha="center", va="center")
    style_axes(plot)
    set_log_x(plot, "tokens read")
    plot.set_xlim(1, 1e6)
    plot.set_ylim(-2, 113)
    plot.set_yticks(range(0, 101, 25))
    plot.set_ylabel("streams without a mistake, %", color=MUTED)
    title = "Trained on 40 tokens of the S5 word problem, no mistake in a million"
    figure.suptitle(title, x=0.01, ha="left", color=TEXT, fontsize=15)
    save_png(path, figure)


def stream_models(entries: list[dict[str, Any]]) -> list[Model]:
    """Return the models of a report from their long-stream results. Entries with the same name are seeds of a model."""
    from stairwell.report.collect import Curves, RunReport

    no_curves = Curves([], [], [], [], [])
    runs = [
        RunReport(
            name=entry["name"], folder=f"{entry['name']} {i}", task="", core=entry["core"], about=entry["task"],
            metric="accuracy", higher_is_better=True, seed=i, parameters=None, config={}, curves=no_curves,
            validations=[],
            scores={}, horizon=long_streams.from_json(entry),
        )
        for i, entry in enumerate(entries)
    ]  # fmt: skip
    return group_models(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the figures of the state-tracking benchmark from results/.")
    parser.add_argument("what", choices=("table", "horizon", "headline", "inside"))
    parser.add_argument("runs", nargs="*", help="NAME=RUN: name of a run in the figure, and its folder.")
    parser.add_argument("--add", action="store_true", help="Keep the long-stream results that are already in results/.")
    parser.add_argument("--name", default="horizon", help="Name of the file in results/ and of the figure.")
    arguments = parser.parse_intermixed_args()
    named = [(name, Path(run)) for name, _, run in (text.partition("=") for text in arguments.runs)]
    stems = {"table": "state-tracking", "headline": "million-tokens", "horizon": arguments.name, "inside": "inside"}
    path = PICTURES / f"{stems[arguments.what]}.png"
    if arguments.what == "table":
        draw_table(path)
    elif arguments.what == "headline":
        draw_headline(path)
    elif arguments.what == "horizon":
        if named:
            collect(named, arguments.add, arguments.name)
        draw_horizon(path)
    else:
        ((name, run),) = named
        (model,) = group_models([gather(run, name=name)])
        analysis = model.runs[0].memory_analysis
        if analysis is None:
            parser.error(f"{run} has no memory analysis; run: stairwell report {run} --inside")
        write_memory_png(path, analysis, name, model.color)
    print(path)


if __name__ == "__main__":
    main()
