"""Figures of matplotlib as files, and as part of a page whose colors they take on."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from stairwell.report.picture import INK, PALETTE, RULE

DARK = "#1c2026"  # text that matters
# The page's own names for the colors, so that a figure changes with its theme.
NAMES = {**{color: f"c{i}" for i, color in enumerate(PALETTE)}, INK: "soft", RULE: "rule", DARK: "ink"}
NAMES["#ffffff"] = "card"


def as_svg(figure: Any, words: str) -> str:
    """The figure as an element of a page; `words` say what it shows to those who cannot see it."""
    from matplotlib import rc_context

    written = io.StringIO()
    # The salt makes the names of its parts, which must differ from those of other figures on the page.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": words, "font.family": "sans-serif"}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    for color, name in NAMES.items():
        text = text.replace(color, f"var(--{name})")
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|(<svg )', r"\1\2", text, count=1)
    return text.replace("<svg ", f'<svg class="figure" role="img" aria-label="{escape(words)}" ', 1)


def dress_log(plot: Any, label: str) -> None:
    """An axis over places of a stream, which are powers of ten apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    plot.set_xscale("log")
    plot.xaxis.set_major_locator(LogLocator(10, numticks=12))
    plot.xaxis.set_major_formatter(FuncFormatter(lambda place, _: short(place)))
    plot.xaxis.set_minor_locator(LogLocator(10, subs=()))
    plot.set_xlabel(label, color=INK)


def short(number: float) -> str:
    """10,000 as 10k, for an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"
