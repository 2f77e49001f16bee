"""Pictures as PNG, and one of the learning curves, for a README."""

from __future__ import annotations

import os
from typing import Any

from stairwell.outputs import Kind, marked, write_output
from stairwell.report.collect import RunReport
from stairwell.report.compare import Model, is_percent, metric_text, models, unit_of

# The page's colors on light ground, and its dashes.
PALETTE = ("#0072b2", "#d55e00", "#00875f", "#a8467f", "#a87400", "#3793c4", "#4d5259", "#7b5b3a")
DASHES = ("-", "-", "-", (0, (6, 3)), (0, (1.5, 2.5)), (0, (7, 2, 2, 2)), (0, (4, 3)), (0, (1, 3)))
FIGURE = Kind("a figure of stairwell", marked(b"Software\0stairwell"))
INK, RULE = "#59626e", "#e2e0db"


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, facecolor="white", layout="constrained")


def save_png(path: str | os.PathLike[str], figure: Any) -> bool:
    """Write the picture where there is one."""
    if figure is None:
        return False
    write_output(
        path, FIGURE, lambda temporary: figure.savefig(temporary, format="png", metadata={"Software": "stairwell"})
    )
    return True


def write_png(path: str | os.PathLike[str], runs: list[RunReport], metric: str | None = None) -> None:
    """Curves against tokens and against time; `metric` is the one that decides if not given."""
    found = models(runs)
    metric = metric or (runs[0].metric if runs else "loss")
    figure = new_figure(10, 3.9)
    axes = figure.subplots(1, 2, sharey=True)
    scale, unit = time_unit(max([run.seconds for run in runs], default=0.0))
    for plot, along, per, label in ((axes[0], "tokens", 1e6, f"million {unit_of(runs)} trained on"),
                                    (axes[1], "seconds", scale, f"training time, {unit}")):  # fmt: skip
        for model in found:
            draw_model(plot, model, metric, along, per)
        plot.set_xlabel(label, color=INK)
        plot.set_xlim(left=0)
        dress(plot)
    axes[0].set_ylabel(metric_text(metric) + (", %" if is_percent(metric) else ""), color=INK)
    if is_percent(metric):
        axes[0].set_ylim(0, 102)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 4), frameon=False)
    save_png(path, figure)


def draw_model(plot: Any, model: Model, metric: str, along: str, per: float) -> None:
    """A thin line for training, a strong one with circles for validation; seeds fainter than a single run."""
    style = {"color": PALETTE[model.color], "linestyle": DASHES[model.color]}
    strength = 0.6 if len(model.runs) > 1 else 1.0
    for i, run in enumerate(model.runs):
        training = run.curves.of(metric)
        # A model that was validated only at the end has but its training curve to tell how it got there.
        width, fade = (1.0, 0.45) if len(run.validations) > 1 else (1.8, 0.85)
        draw(plot, getattr(run.curves, along), training, per, linewidth=width, alpha=fade * strength, **style)
        places = [getattr(validation, along) for validation in run.validations]
        scores = [validation.scores.get(metric) for validation in run.validations]
        label = model.name if i == 0 else None
        draw(plot, places, scores, per, marker="o", markersize=4.5, markerfacecolor="white", linewidth=1.9,
             alpha=strength, label=label, **style)  # fmt: skip


def draw(plot: Any, places: list[Any], values: list[float | None], per: float, **style: Any) -> None:
    numbers = [float("nan") if value is None else value for value in values]
    plot.plot([place / per for place in places], numbers, **style)


def dress(plot: Any) -> None:
    plot.grid(axis="y", color=RULE)
    plot.set_axisbelow(True)
    plot.tick_params(colors=INK, length=3)
    for side, spine in plot.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)


def time_unit(seconds: float) -> tuple[float, str]:
    return (1, "seconds") if seconds < 180 else (60, "minutes") if seconds < 3 * 3600 else (3600, "hours")
