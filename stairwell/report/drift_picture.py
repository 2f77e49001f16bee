"""Why a memory drifts or does not, in four pictures: where it looks, what it keeps, whether that wanders off, and
whether it comes back when pushed aside."""

from __future__ import annotations

import os
from html import escape
from typing import Any

from stairwell.report.compare import Model, one_run_each
from stairwell.report.drift import Drift
from stairwell.report.figures import DARK, as_svg, dress_log, short
from stairwell.report.parts import section
from stairwell.report.picture import INK, PALETTE, RULE, dress, new_figure, save_png

NUMBERED = 10  # distances whose shares are written into the picture


def drift_figure(drift: Drift, name: str, color: int) -> Any:
    figure = new_figure(10, 7.8)
    (looks, keeps), (stays, returns) = figure.subplots(2, 2)
    draw_attention(looks, drift, color)
    draw_states(keeps, drift)
    draw_distances(stays, drift, color)
    draw_pushes(returns, drift, color)
    figure.suptitle(f"Inside {name}:\n{in_words(drift)}", x=0.01, ha="left", color=DARK, fontsize=12)
    return figure


def in_words(drift: Drift) -> str:
    return (
        f"a linear probe fitted at {drift.places[0]:,} tokens reads the right one of {drift.states} states in "
        f"{drift.probe[-1]:.4g}% of cases at {drift.places[-1]:,}"
    )


def title(plot: Any, question: str, answer: str) -> None:
    plot.set_title(question, loc="left", color=DARK, fontsize=11, fontweight="bold", pad=34)
    words = plot.text(0, 1.02, answer, transform=plot.transAxes, color=INK, fontsize=9, va="bottom", linespacing=1.3)
    words.set_in_layout(False)  # long words must not make the plot narrow


def draw_attention(plot: Any, drift: Drift, color: int) -> None:
    """A row for each head, a column for each distance; the darker, the more it looks there."""
    seen = drift.attention
    if seen is None:
        title(plot, "Where does it look?", "Nowhere: it has no attention, all is handed on in its state.")
        plot.axis("off")
        return
    from matplotlib.patches import Rectangle

    rows = [head for layer in seen.weights for head in layer]
    widest, most = max(map(len, rows)), max(map(max, rows))
    for y, head in enumerate(rows):
        for x, share in enumerate(head, start=seen.first):
            strength = share / (most or 1)
            plot.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=PALETTE[color], alpha=strength, linewidth=0))
            if widest <= NUMBERED:
                ink = "white" if strength > 0.6 else DARK
                plot.text(x, y, f"{100 * share:.0f}", ha="center", va="center", color=ink, fontsize=8)
    plot.set_xlim(seen.first - 0.5, seen.first + widest - 0.5)
    plot.set_ylim(len(rows) - 0.5, -0.5)
    names = [f"{layer}, head {h + 1}" if len(heads) > 1 else layer
             for layer, heads in zip(seen.layers, seen.weights) for h in range(len(heads))]  # fmt: skip
    plot.set_yticks(range(len(rows)) if len(rows) <= 16 else [], names if len(rows) <= 16 else [], fontsize=8)
    plot.set_xlabel("tokens back", color=INK)
    plot.xaxis.get_major_locator().set_params(integer=True)
    plot.tick_params(colors=INK, length=0)
    for spine in plot.spines.values():
        spine.set_color(RULE)
    nearest = sum(head[0] for head in rows) / len(rows)
    answer = f"{100 * nearest:.0f}% of all attention goes to the nearest slot"
    title(plot, "Where does it look?", f"{answer};\nthe numbers are percent" if widest <= NUMBERED else answer)


def draw_states(plot: Any, drift: Drift) -> None:
    """Vectors of a few answers, early and late, in one plane."""
    early, late = drift.dots
    for i, (first, last) in enumerate(zip(early, late)):
        for points, look in ((first, {"marker": "o", "s": 26, "alpha": 0.35, "linewidths": 0}),
                             (last, {"marker": "x", "s": 16, "alpha": 0.9, "linewidths": 1.1})):  # fmt: skip
            if points:
                plot.scatter(*zip(*points), color=PALETTE[i % len(PALETTE)], **look)
    plot.set_xticks([])
    plot.set_yticks([])
    for spine in plot.spines.values():
        spine.set_color(RULE)
    which = f"{len(drift.shown)} of {drift.states}" if drift.states > len(drift.shown) else "all"
    ends = f"discs: at {drift.places[0]:,} tokens, crosses: at {drift.places[-1]:,}"
    title(plot, "What does it keep?", f"its newest vector, colored by what it answers ({which} states);\n{ends}")


def draw_distances(plot: Any, drift: Drift, color: int) -> None:
    """To the own state's mean and to the nearest other, along the stream."""
    places = drift.places
    for bands, shade, label, line in (
        (drift.other, INK, "nearest other state", "-"),
        (drift.own, PALETTE[color], "its own state", "-"),
        (drift.said, PALETTE[color], "the one it answers", (0, (2, 2))),
    ):
        low, middle, high = zip(*bands)
        if bands is not drift.said:
            plot.fill_between(places, low, high, color=shade, alpha=0.16, linewidth=0)
        plot.plot(places, middle, color=shade, marker="o", markersize=4, linewidth=2, linestyle=line, label=label)
    dress(plot)
    dress_log(plot, "tokens read")
    plot.set_xticks(places, [short(place) for place in places])
    plot.minorticks_off()
    # Room for the legend above the lines.
    plot.set_ylim(0, 1.35 * max(band[2] for band in (*drift.own, *drift.other)))
    plot.set_ylabel("distance of the memory to", color=INK)
    legend = plot.legend(frameon=False, fontsize=8.5, labelcolor=DARK, loc="upper left", ncols=3, columnspacing=1,
                         handlelength=1.4)  # fmt: skip
    legend.set_in_layout(False)
    nearer = " · ".join(f"{share:.3g}%" for share in drift.astray)
    title(plot, "Does it wander off?", f"line: median, band: 5% to 95%;\nnearer to a wrong state: {nearer}")


def draw_pushes(plot: Any, drift: Drift, color: int) -> None:
    """How far a stream that was pushed aside is from itself, token by token."""
    lowest = 1e-6
    for i, (size, line, lost) in enumerate(zip(drift.pushes, drift.pushed, drift.lost)):
        label = f"by {100 * size:.0f}% of its size: {lost:.3g}% end in another state"
        shown = [max(value, lowest) for value in line]
        plot.plot(range(1, len(shown) + 1), shown, color=PALETTE[color], alpha=1 - 0.3 * i, linewidth=1.2 + 0.9 * i,
                  label=label)  # fmt: skip
    dress(plot)
    plot.set_yscale("log")
    plot.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    plot.text(len(drift.pushed[0]), 1.15, "the nearest other state", color=INK, fontsize=8.5, ha="right", va="bottom")
    # Room for the legend below the lines.
    least = min(lowest if value < lowest else value for line in drift.pushed for value in line)
    plot.set_ylim(least / 60, 6)
    plot.minorticks_off()
    plot.set_xlabel("tokens after the push", color=INK)
    plot.set_ylabel("distance from where it was going", color=INK)
    plot.legend(frameon=False, fontsize=8.5, labelcolor=DARK, loc="lower left")
    fall = drift.pushed[0][-1] / max(drift.pushed[0][0], 1e-12)
    answer = f"of the smallest push {100 * fall:.2g}% is left after {len(drift.pushed[0])} tokens"
    title(plot, "Pushed aside, does it come back?", f"{answer};\nall vectors of the memory are pushed, at random")


def write_drift_png(path: str | os.PathLike[str], drift: Drift, name: str, color: int) -> None:
    save_png(path, drift_figure(drift, name, color))


def looked_into(found: list[Model]) -> list[tuple[Model, Drift]]:
    """One run of each model that was looked into."""
    return [(model, drift) for model, _, drift in one_run_each(found, lambda run: run.drift)]


def drift_section(found: list[Model]) -> str:
    boxes = []
    for model, drift in looked_into(found):
        words = f"Inside {model.name}: {in_words(drift)}"
        boxes.append(
            f'<div class="card">{as_svg(drift_figure(drift, model.name, model.color), words)}{facts(drift)}</div>'
        )
    note = (
        "The label of a token is the state of the world that a model must keep. Here the newest vector "
        "of its memory is held against that state, along streams without end. A model does not drift if each state has "
        "its own place in the memory, if the memory stays nearer to its own place than to any other, and if it comes "
        "back there by itself when something pushes it aside. Where the model is wrong and yet as near as ever to the "
        "state that it answers, the memory has not become blurred: it has slipped into another state. "
        "Distances are in units of the distance between neighboring states."
    )
    return section("Why it drifts, or does not", note, boxes, "tables")


def facts(drift: Drift) -> str:
    """The same in numbers, a column for each place."""
    lines = (
        ("right answers, %", [f"{value:.5g}" for value in drift.right]),
        ("states that the probe reads, %", [f"{value:.5g}" for value in drift.probe]),
        ("probe and model say the same, %", [f"{value:.5g}" for value in drift.probe_said]),
        ("distance to its own state, median", [f"{band[1]:.3f}" for band in drift.own]),
        ("distance to the nearest other, median", [f"{band[1]:.3f}" for band in drift.other]),
        ("distance to the state that it answers, median", [f"{band[1]:.3f}" for band in drift.said]),
        ("nearer to another state, %", [f"{value:.4g}" for value in drift.astray]),
    )
    head = "".join(f'<th scope="col" class="number">{place:,}</th>' for place in drift.places)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td class=number>{value}</td>" for value in values)}</tr>'
        for name, values in lines
    )
    about = (
        f"{drift.streams} streams, {drift.window} tokens before each place, vectors of {drift.numbers} numbers. "
        f"Means and probe are those of half the streams at {drift.places[0]:,} tokens, measured is the other half."
    )
    table = f'<table><thead><tr><th scope="col">tokens read</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll">{table}</div><p class="caption">{escape(about)}</p>'
