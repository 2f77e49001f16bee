"""Draw docs/pictures/scaling.png from the newest results of `python -m bench scaling`."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from bench.records import ROOT, newest_by_case
from stairwell.errors import UserError

FIGURE = ROOT / "docs" / "pictures" / "scaling.png"
PANELS = {
    "stream": "tokens since the stream's start",
    "memory": "memory slots",
    "rows": "batch size",
    "threads": "threads",
}
STYLES: dict[str, dict[str, Any]] = {
    "feedback": {"label": "Feedback", "color": "#0b6e99", "marker": "o"},
    "transformer-xl": {"label": "Transformer-XL", "color": "#d9730d", "marker": "s", "linestyle": "--"},
}


def write(path: Path = FIGURE, records: list[dict[str, Any]] | None = None) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from PIL import Image

    if records is None:
        records = newest_by_case("scaling")
    if not records:
        raise UserError("no results to plot; run `python -m bench scaling` first")
    figure, axes = pyplot.subplots(2, 2, figsize=(7.5, 5), layout="constrained")
    for panel, (case, label) in zip(axes.flat, PANELS.items(), strict=True):
        draw_panel(panel, [record for record in records if record["case"] == case], label, log_scale=case != "stream")
    axes[0, 0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    png = BytesIO()
    figure.savefig(png, dpi=110)
    pyplot.close(figure)
    # 64 colors are enough and make the file a third of the size.
    Image.open(png).convert("RGB").quantize(64).save(path, optimize=True)


def draw_panel(panel: Any, records: list[dict[str, Any]], label: str, log_scale: bool) -> None:
    """Draw one panel. Its y axis starts at 0, so that heights can be compared."""
    for what, style in STYLES.items():
        points = [(record["at"], record["microseconds_per_token"]) for record in records if record["what"] == what]
        if points:
            panel.plot(*zip(*sorted(points)), markersize=4, **style)
    if log_scale:
        ticks = sorted({record["at"] for record in records})
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
    else:
        panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(label)
    panel.set_ylabel("microseconds / token")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", alpha=0.3)
