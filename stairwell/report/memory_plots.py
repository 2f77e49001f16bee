"""Plots of a memory analysis: attention, vectors, distances to the states' means, and recovery from noise."""

from __future__ import annotations

import os
from typing import Any

from stairwell.report.colors import MUTED, PALETTE, RULE, TEXT
from stairwell.report.memory_analysis import MemoryAnalysis
from stairwell.report.plots import format_tick, new_figure, save_png, set_log_x, style_axes
from stairwell.report.table import Table

MAX_NUMBERED = 10  # distances up to which the plot of attention shows numbers
MAX_NAMED = 16  # heads up to which it shows their names


def memory_figure(analysis: MemoryAnalysis, name: str, color: int) -> Any:
    figure = new_figure(10, 7.8)
    (attention, vectors), (distances, noise) = figure.subplots(2, 2)
    plot_attention(attention, analysis, PALETTE[color].light)
    plot_vectors(vectors, analysis)
    plot_distances(distances, analysis, PALETTE[color].light)
    plot_noise(noise, analysis, PALETTE[color].light)
    figure.suptitle(f"Memory of {name}:\n{format_analysis(analysis)}", x=0.01, ha="left", color=TEXT, fontsize=12)
    return figure


def write_memory_png(path: str | os.PathLike[str], analysis: MemoryAnalysis, name: str, color: int) -> None:
    save_png(path, memory_figure(analysis, name, color))


def format_analysis(analysis: MemoryAnalysis) -> str:
    return (
        f"a linear probe fitted at {analysis.positions[0]:,} tokens predicts the right one of {analysis.states} states "
        f"in {analysis.probe_accuracy[-1]:.4g}% of cases at {analysis.positions[-1]:,}"
    )


def set_titles(plot: Any, title: str, subtitle: str) -> None:
    plot.set_title(title, loc="left", color=TEXT, fontsize=11, fontweight="bold", pad=34)
    text = plot.text(0, 1.02, subtitle, transform=plot.transAxes, color=MUTED, fontsize=9, va="bottom", linespacing=1.3)
    text.set_in_layout(False)  # a long subtitle must not make the plot narrower


def plot_attention(plot: Any, analysis: MemoryAnalysis, color: str) -> None:
    """Plot a matrix with one row per head and one column per distance."""
    attention = analysis.attention
    if attention is None:
        set_titles(plot, "Attention", "This model has no attention.")
        plot.axis("off")
        return
    from matplotlib.patches import Rectangle

    heads = [head for layer in attention.weights for head in layer]
    columns, highest = max(map(len, heads)), max(map(max, heads))
    for y, head in enumerate(heads):
        for x, weight in enumerate(head, start=attention.first):
            opacity = weight / (highest or 1)
            plot.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, alpha=opacity, linewidth=0))
            if columns <= MAX_NUMBERED:
                text_color = "white" if opacity > 0.6 else TEXT
                plot.text(x, y, f"{100 * weight:.0f}", ha="center", va="center", color=text_color, fontsize=8)
    plot.set_xlim(attention.first - 0.5, attention.first + columns - 0.5)
    plot.set_ylim(len(heads) - 0.5, -0.5)
    names = [f"{layer}, head {h + 1}" if len(weights) > 1 else layer
             for layer, weights in zip(attention.layers, attention.weights) for h in range(len(weights))]  # fmt: skip
    named = len(heads) <= MAX_NAMED
    plot.set_yticks(range(len(heads)) if named else [], names if named else [], fontsize=8)
    plot.set_xlabel("distance, tokens", color=MUTED)
    plot.xaxis.get_major_locator().set_params(integer=True)
    plot.tick_params(colors=MUTED, length=0)
    for spine in plot.spines.values():
        spine.set_color(RULE)
    nearest = sum(head[0] for head in heads) / len(heads)
    subtitle = f"{100 * nearest:.0f}% of all attention goes to the nearest position"
    set_titles(plot, "Attention", f"{subtitle};\nnumbers in percent" if columns <= MAX_NUMBERED else subtitle)


def plot_vectors(plot: Any, analysis: MemoryAnalysis) -> None:
    """Plot the vectors of a few predicted states at the first and the last position, in one plane."""
    early, late = analysis.plotted_vectors
    for i, (first, last) in enumerate(zip(early, late)):
        for points, style in ((first, {"marker": "o", "s": 26, "alpha": 0.35, "linewidths": 0}),
                              (last, {"marker": "x", "s": 16, "alpha": 0.9, "linewidths": 1.1})):  # fmt: skip
            if points:
                plot.scatter(*zip(*points), color=PALETTE[i % len(PALETTE)].light, **style)
    plot.set_xticks([])
    plot.set_yticks([])
    for spine in plot.spines.values():
        spine.set_color(RULE)
    count = len(analysis.plotted_states)
    states = f"{count} of {analysis.states}" if analysis.states > count else "all"
    markers = f"discs: at {analysis.positions[0]:,} tokens, crosses: at {analysis.positions[-1]:,}"
    set_titles(plot, "Memory vectors", f"newest vector, colored by the predicted state ({states} states);\n{markers}")


def plot_distances(plot: Any, analysis: MemoryAnalysis, color: str) -> None:
    """Plot the distances to the means of states along the stream."""
    positions = analysis.positions
    for bands, line_color, label, line in (
        (analysis.other_distance, MUTED, "nearest other state", "-"),
        (analysis.own_distance, color, "true state", "-"),
        (analysis.predicted_distance, color, "predicted state", (0, (2, 2))),
    ):
        low, median, high = zip(*bands)
        if bands is not analysis.predicted_distance:
            plot.fill_between(positions, low, high, color=line_color, alpha=0.16, linewidth=0)
        plot.plot(positions, median, color=line_color, marker="o", markersize=4, linewidth=2, linestyle=line,
                  label=label)  # fmt: skip
    style_axes(plot)
    set_log_x(plot, "position in the stream, tokens")
    plot.set_xticks(positions, [format_tick(position) for position in positions])
    plot.minorticks_off()
    # Leave space for the legend above the lines.
    plot.set_ylim(0, 1.35 * max(band[2] for band in (*analysis.own_distance, *analysis.other_distance)))
    plot.set_ylabel("distance of the memory to the mean of", color=MUTED)
    legend = plot.legend(frameon=False, fontsize=8.5, labelcolor=TEXT, loc="upper left", ncols=3, columnspacing=1,
                         handlelength=1.4)  # fmt: skip
    legend.set_in_layout(False)
    closer = " · ".join(f"{share:.3g}%" for share in analysis.closer_to_other)
    set_titles(plot, "Distance to states", f"line: median, band: 5% to 95%;\ncloser to a wrong state: {closer}")


def plot_noise(plot: Any, analysis: MemoryAnalysis, color: str) -> None:
    """Plot the distance between disturbed and undisturbed streams after each token."""
    lowest = 1e-6
    for i, (level, distances, changed) in enumerate(
        zip(analysis.noise_levels, analysis.noise_distance, analysis.changed_predictions)
    ):
        label = f"noise of {100 * level:.0f}%: {changed:.3g}% of predictions change"
        clamped = [max(distance, lowest) for distance in distances]
        plot.plot(range(1, len(clamped) + 1), clamped, color=color, alpha=1 - 0.3 * i, linewidth=1.2 + 0.9 * i,
                  label=label)  # fmt: skip
    style_axes(plot)
    plot.set_yscale("log")
    plot.axhline(1, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    smallest = analysis.noise_distance[0]
    plot.text(len(smallest), 1.15, "the nearest other state", color=MUTED, fontsize=8.5, ha="right", va="bottom")
    # Leave space for the legend below the lines.
    plot.set_ylim(min(max(distance, lowest) for line in analysis.noise_distance for distance in line) / 60, 6)
    plot.minorticks_off()
    plot.set_xlabel("tokens after the noise", color=MUTED)
    plot.set_ylabel("distance to the undisturbed stream", color=MUTED)
    plot.legend(frameon=False, fontsize=8.5, labelcolor=TEXT, loc="lower left")
    remaining = smallest[-1] / max(smallest[0], 1e-12)
    subtitle = f"{100 * remaining:.2g}% of the smallest disturbance is left after {len(smallest)} tokens"
    set_titles(plot, "Recovery from noise", f"{subtitle};\nnoise is added to all memory vectors")


def analysis_table(analysis: MemoryAnalysis) -> Table:
    """Return the numbers of the plots, one column per position."""
    rows = [
        ["accuracy, %", *(f"{value:.5g}" for value in analysis.accuracy)],
        ["accuracy of the probe, %", *(f"{value:.5g}" for value in analysis.probe_accuracy)],
        ["probe agrees with the model, %", *(f"{value:.5g}" for value in analysis.probe_agreement)],
        ["distance to the true state, median", *(f"{band[1]:.3f}" for band in analysis.own_distance)],
        ["distance to the nearest other state, median", *(f"{band[1]:.3f}" for band in analysis.other_distance)],
        ["distance to the predicted state, median", *(f"{band[1]:.3f}" for band in analysis.predicted_distance)],
        ["closer to another state, %", *(f"{value:.4g}" for value in analysis.closer_to_other)],
    ]
    caption = (
        f"{analysis.streams} streams, {analysis.window} tokens before each position, vectors of {analysis.dimensions} "
        f"dimensions. The means and the probe come from half of the streams at {analysis.positions[0]:,} tokens; the "
        "numbers are of the other half."
    )
    return Table("", ["tokens read", *(f"{position:,}" for position in analysis.positions)], rows, caption)
