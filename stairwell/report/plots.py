"""Plots with matplotlib: the learning curves, and what all plots share. Written as PNG files or as SVG into a page."""

from __future__ import annotations

import io
import os
import re
from typing import Any

from markupsafe import Markup, escape

from stairwell.outputs import OutputType, contains_bytes, write_output
from stairwell.report.collect import RunReport
from stairwell.report.colors import BACKGROUND, MUTED, PALETTE, RULE, TEXT
from stairwell.report.compare import Model, format_metric, group_models, is_percent, unit_of

FIGURE = OutputType("a figure of stairwell", contains_bytes(b"Software\0stairwell"))
LEGEND_CHARACTERS = 125  # that fit beside each other above a figure, 8 per line and gap
TITLE_HEIGHT = 0.3  # inches
UNITS = {"loss": "nats per token", "return": "rewards per episode"}  # that the name of a metric does not state
CSS_NAMES = {TEXT: "ink", MUTED: "soft", RULE: "rule", BACKGROUND: "card"}
CSS_NAMES |= {color.light: f"c{i}" for i, color in enumerate(PALETTE)}


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, facecolor="white", layout="constrained")


def legend_title(title: str | None) -> dict[str, Any]:
    """Return the arguments of a legend above a figure that also has the figure's title, if there is one."""
    return {"title": title, "title_fontsize": 12, "alignment": "left"} if title else {}


def save_png(path: str | os.PathLike[str], figure: Any) -> bool:
    """Write a figure, or nothing if it is None. Return whether it was written."""
    if figure is None:
        return False
    write_output(
        path, FIGURE, lambda temporary: figure.savefig(temporary, format="png", metadata={"Software": "stairwell"})
    )
    return True


def to_svg(figure: Any, description: str) -> Markup:
    """Return a figure as an SVG element in the colors of the page's theme. Screen readers read the description."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    # Element ids are derived from the salt and must differ between the figures of a page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": description, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*</defs>", "", svg, flags=re.DOTALL)
    for color, name in CSS_NAMES.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|(<svg )', r"\1\2", svg, count=1)
    return Markup(svg.replace("<svg ", f'<svg class="figure" role="img" aria-label="{escape(description)}" ', 1))


def line_style(color: int) -> dict[str, Any]:
    """Return the color and the dashes of a model's lines."""
    dashes = PALETTE[color].dashes
    return {"color": PALETTE[color].light, "linestyle": (0, dashes) if dashes else "-"}


def style_axes(plot: Any) -> None:
    plot.grid(axis="y", color=RULE)
    plot.set_axisbelow(True)
    plot.tick_params(colors=MUTED, length=3)
    for side, spine in plot.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)


def set_log_x(plot: Any, label: str) -> None:
    """Make the x axis, of positions in a stream, logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    plot.set_xscale("log")
    plot.xaxis.set_major_locator(LogLocator(10, numticks=12))
    plot.xaxis.set_major_formatter(FuncFormatter(lambda position, _: format_tick(position)))
    plot.xaxis.set_minor_locator(LogLocator(10, subs=()))
    plot.set_xlabel(label, color=MUTED)


def format_tick(number: float) -> str:
    """Return a number as text for an axis: 10,000 as 10k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def write_png(
    path: str | os.PathLike[str], runs: list[RunReport], metric: str | None = None, title: str | None = None
) -> None:
    """Plot a metric, by default the primary metric, against tokens and against time."""
    models = group_models(runs)
    metric = metric or (runs[0].metric if runs else "loss")
    longest = max([len(model.name) for model in models], default=0)
    legend_columns = max(1, min(4, LEGEND_CHARACTERS // (longest + 8)))
    figure = new_figure(10, 3.6 + 0.2 * -(-len(models) // legend_columns) + (TITLE_HEIGHT if title else 0))
    axes = figure.subplots(1, 2, sharey=True)
    scale, unit = time_unit(max([run.seconds for run in runs], default=0.0))
    for plot, x_name, x_scale, label in ((axes[0], "tokens", 1e6, f"million {unit_of(runs)} trained on"),
                                         (axes[1], "seconds", scale, f"training time, {unit}")):  # fmt: skip
        for model in models:
            plot_model(plot, model, metric, x_name, x_scale)
        plot.set_xlabel(label, color=MUTED)
        plot.set_xlim(left=0)
        style_axes(plot)
    metric_unit = "%" if is_percent(metric) else UNITS.get(metric)
    axes[0].set_ylabel(format_metric(metric) + (f", {metric_unit}" if metric_unit else ""), color=MUTED)
    if is_percent(metric):
        axes[0].set_ylim(0, 102)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside upper left", ncols=min(len(labels), legend_columns), frameon=False,
            **legend_title(title),
        )  # fmt: skip
    save_png(path, figure)


def plot_model(plot: Any, model: Model, metric: str, x_name: str, x_scale: float) -> None:
    """Plot training as a thin line and validation as a thick one with circles; several seeds are fainter than one."""
    style = line_style(model.color)
    opacity = 0.6 if len(model.runs) > 1 else 1.0
    for i, run in enumerate(model.runs):
        # With a single validation, the training curve is all that shows the progress.
        width, training_opacity = (1.0, 0.45) if len(run.validations) > 1 else (1.8, 0.85)
        plot_curve(plot, getattr(run.curves, x_name), run.curves.of(metric), x_scale, linewidth=width,
                   alpha=training_opacity * opacity, **style)  # fmt: skip
        xs = [getattr(validation, x_name) for validation in run.validations]
        scores = [validation.scores.get(metric) for validation in run.validations]
        label = model.name if i == 0 else None
        plot_curve(plot, xs, scores, x_scale, marker="o", markersize=4.5, markerfacecolor="white", linewidth=1.9,
                   alpha=opacity, label=label, **style)  # fmt: skip


def plot_curve(plot: Any, xs: list[Any], values: list[float | None], x_scale: float, **style: Any) -> None:
    numbers = [float("nan") if value is None else value for value in values]
    plot.plot([x / x_scale for x in xs], numbers, **style)


def time_unit(seconds: float) -> tuple[float, str]:
    return (1, "seconds") if seconds < 180 else (60, "minutes") if seconds < 3 * 3600 else (3600, "hours")
