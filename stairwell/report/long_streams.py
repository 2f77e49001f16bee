"""How far models hold: where the first mistake came in streams without end, and accuracy along them."""

from __future__ import annotations

import os
import statistics
from typing import Any

import numpy as np

from stairwell.report.compare import Model
from stairwell.report.figures import DARK, as_svg, dress_log
from stairwell.report.parts import section, swatches, table
from stairwell.report.picture import DASHES, INK, PALETTE, RULE, dress, new_figure, save_png
from stairwell.report.table import Table
from stairwell.runs.long_streams import Horizon

PLACE = "place in the stream, tokens"


def followed(found: list[Model]) -> list[tuple[Model, list[Horizon]]]:
    """The models whose horizon was measured, with those of their runs."""
    pairs = [(model, [run.horizon for run in model.runs if run.horizon is not None]) for model in found]
    return [(model, horizons) for model, horizons in pairs if horizons]


def standing(horizons: list[Horizon]) -> tuple[list[int], list[float]]:
    """The share in percent of streams without a mistake, as steps: places and the share from there on. A stream counts
    as far as it was followed."""
    streams = [(one.first_mistake, one.tokens or horizon.tokens) for horizon in horizons for one in horizon.streams]
    lengths = {tokens for _, tokens in streams}
    # Behind the end of some streams the share is of those that go on.
    behind = {tokens + 1 for tokens in lengths if tokens < max(lengths)}
    places = sorted({1, *(first for first, _ in streams if first), *lengths, *behind})
    shares = []
    for place in places:
        there = [first for first, tokens in streams if tokens >= place]
        shares.append(100 * sum(first is None or first > place for first in there) / len(there))
    return places, shares


def accuracy(horizons: list[Horizon]) -> tuple[list[float], list[float]]:
    """Accuracy in percent in each bin of places, at the bin's middle."""
    sums: dict[int, tuple[int, int, int]] = {}
    for horizon in horizons:
        ends = [*(place - 1 for place in horizon.places[1:]), horizon.tokens]
        for place, end, asked, wrong in zip(horizon.places, ends, horizon.asked, horizon.wrong, strict=True):
            known = sums.get(place, (0, 0, 0))
            sums[place] = (max(known[0], end), known[1] + asked, known[2] + wrong)
    places = sorted(sums)
    # A last bin that the streams have only just begun says little; it belongs to the one before.
    if len(places) > 1 and sums[places[-1]][1] < sums[places[-2]][1] / 4:
        (_, *before), (end, *last) = sums[places[-2]], sums.pop(places[-1])
        sums[places[-2]] = (end, before[0] + last[0], before[1] + last[1])
    bins = [((place * end) ** 0.5, 100 - 100 * wrong / asked) for place, (end, asked, wrong) in sums.items() if asked]
    middles, values = zip(*sorted(bins)) if bins else ((), ())
    return list(middles), list(values)


def in_words(horizons: list[Horizon]) -> str:
    """53 of 64 streams without a mistake in 160,000 tokens, 2 of 4 in 1,000,000"""
    parts: list[str] = []
    for tokens in sorted({horizon.tokens for horizon in horizons}):
        there = [horizon for horizon in horizons if horizon.tokens == tokens]
        faultless, streams = sum(each.faultless for each in there), sum(len(each.streams) for each in there)
        words = (" streams without a mistake", " tokens") if not parts else ("", "")
        most = f"{tokens:,}" if all(each.equal for each in there) else f"up to {tokens:,}"
        parts.append(f"{faultless} of {streams}{words[0]} in {most}{words[1]}")
    return ", ".join(parts)


def horizon_figure(found: list[Model]) -> Any:
    """Streams without a mistake, and accuracy, by place; none where nothing was measured."""
    measured = followed(found)
    if not measured:
        return None
    height = 3.7 + 0.21 * len(measured)
    figure = new_figure(10, height)
    left, right = figure.subplots(1, 2, sharex=True)
    for i, (model, horizons) in enumerate(measured):
        # Where lines lie on each other, the earlier one shows on both sides of the later.
        look = {"color": PALETTE[model.color], "linewidth": 2 + 1.6 * (len(measured) - 1 - i), "zorder": 2 + i}
        places, shares = standing(horizons)
        left.step(
            places, shares, where="post", solid_capstyle="butt", label=f"{model.name}: {in_words(horizons)}", **look
        )
        left.plot(places[-1:], shares[-1:], marker="o", markersize=6, markerfacecolor="white", clip_on=False, **look)
        right.plot(*accuracy(horizons), **look, linestyle=DASHES[model.color] if len(measured) < 3 else "-")
    longest = max(horizon.tokens for _, horizons in measured for horizon in horizons)
    lengths = {horizon.trained_on for _, horizons in measured for horizon in horizons} - {0}
    for plot, label in ((left, "streams without a mistake so far, %"), (right, "right answers, %")):
        dress(plot)
        dress_log(plot, PLACE)
        plot.set_xlim(1, longest)
        plot.set_ylim(-2, 104)
        plot.set_ylabel(label, color=INK)
        if len(lengths) == 1:
            (length,) = lengths
            plot.axvspan(1, length, color=RULE, alpha=0.45, linewidth=0, zorder=0)
            plot.text(length**0.5, 3, f"trained on\nup to {length}", ha="center", color=INK, fontsize=8.5)
    figure.legend(loc="outside upper left", frameon=False, labelcolor=DARK, fontsize=9.5)
    return figure


def write_horizon_png(path: str | os.PathLike[str], found: list[Model]) -> bool:
    """Draw the picture where there is something to draw."""
    return save_png(path, horizon_figure(found))


def tokens_of_each(horizons: list[Horizon]) -> list[str]:
    """Tokens of the streams; where they end by themselves, of the longest."""
    lengths = sorted({(horizon.tokens, horizon.equal) for horizon in horizons})
    return [f"{tokens:,}" if equal else f"up to {tokens:,}" for tokens, equal in lengths]


def horizon_table(found: list[Model]) -> Table | None:
    rows: list[list[Any]] = []
    for model, horizons in followed(found):
        streams = [stream for horizon in horizons for stream in horizon.streams]
        firsts = sorted(first for horizon in horizons for first in horizon.first_mistakes)
        # A stream without a mistake has its first one farther away than was looked.
        half = statistics.median_low([stream.first_mistake or np.inf for stream in streams])
        rows.append(
            [
                model.name,
                len(horizons),
                len(streams),
                " or ".join(tokens_of_each(horizons)),
                sum(horizon.faultless for horizon in horizons),
                firsts[0] if firsts else "none",
                "beyond" if half == np.inf else int(half),
                sum(stream.mistakes for stream in streams),
            ]
        )
    if not rows:
        return None
    columns = ["model", "runs", "streams", "tokens of each", "without a mistake", "earliest mistake at",
               "half had one by", "mistakes in all"]  # fmt: skip
    caption = "Places are counted from 1; a stream begins with an empty memory and never begins anew."
    return Table("First mistakes", columns, rows, caption)


def horizon_section(found: list[Model]) -> str:
    figure, mistakes = horizon_figure(found), horizon_table(found)
    if figure is None or mistakes is None:
        return ""
    words = "; ".join(f"{model.name}: {in_words(horizons)}" for model, horizons in followed(found))
    note = (
        "Every model is followed along streams that never end, with its state handed on. Left: how "
        "many streams have not had a single mistake up to a place. Right: the share of right answers around a place; "
        "it may stay high long after the first mistake, or fall to chance."
    )
    boxes = [f'<div class="card">{as_svg(figure, words)}</div>', table(mistakes, swatches(found))]
    return section("How far they hold", note, boxes, "tables")
