"""Draw docs/pictures/scaling.png and sb3.png from the newest results of `python -m bench scaling` and `rl-memory`."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from bench.records import ROOT, newest_by_case
from stairwell.errors import UserError

FIGURE, SB3_FIGURE = (ROOT / "docs" / "pictures" / name for name in ("scaling.png", "sb3.png"))
PANELS = {
    "stream": "tokens since the stream's start",
    "memory": "memory positions",
    "rows": "batch size",
    "threads": "threads",
}
STYLES: dict[str, dict[str, Any]] = {
    "feedback": {"label": "Feedback", "color": "#0b6e99", "marker": "o"},
    "transformer-xl": {"label": "Transformer-XL", "color": "#d9730d", "marker": "s", "linestyle": "--"},
}
# RecurrentPPO's policies in `python -m bench rl-memory`, and the chance level of its environment.
SB3_STYLES: dict[str, dict[str, Any]] = {
    "feedback": {"label": "MlpMemoryPolicy (Feedback)", "color": "#0b6e99"},
    "lstm": {"label": "MlpLstmPolicy, width 64", "color": "#d9730d", "linestyle": "--"},
    "lstm-256": {"label": "MlpLstmPolicy, width 256", "color": "#777777", "linestyle": "-."},
}
CHANCE = -0.5


def write() -> None:
    write_scaling()
    write_sb3()


def write_scaling(path: Path = FIGURE) -> None:
    records = newest_by_case("scaling")
    if not records:
        raise UserError("no results to plot; run `python -m bench scaling` first")
    figure, axes = subplots(2, 2, figsize=(7.5, 5))
    for panel, (case, label) in zip(axes.flat, PANELS.items(), strict=True):
        draw_panel(panel, [record for record in records if record["case"] == case], label, log_scale=case != "stream")
    axes[0, 0].legend(frameon=False)
    save(figure, path)


def write_sb3(path: Path = SB3_FIGURE) -> None:
    """Draw the training returns of RecurrentPPO's policies, one line per seed."""
    records = [record for record in newest_by_case("rl-memory") if record["case"] in SB3_STYLES]
    if not records:
        raise UserError("no results to plot; run `python -m bench rl-memory` first")
    figure, panel = subplots(figsize=(6, 3.2))
    for case, style in SB3_STYLES.items():
        runs = [record for record in records if record["case"] == case]
        for number, run in enumerate(runs):
            panel.plot(*zip(*run["curve"]), **{**style, "label": style["label"] if number == 0 else None})
    panel.axhline(CHANCE, color="#999999", linewidth=0.8, linestyle=":")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xlabel("frames")
    panel.set_ylabel("return, last 100 episodes")
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", alpha=0.3)
    save(figure, path)


def subplots(*arguments: Any, **options: Any) -> Any:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot.subplots(*arguments, layout="constrained", **options)


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot
    from PIL import Image

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
