"""Make the sizes and pictures of docs/gallery.md: run its commands, write the sizes of their files, photograph pages.

    python -m tools.gallery                    all of them; needs Chromium, and the extra [onnx]
    python -m tools.gallery corridor.html c    some pictures, and the sizes of all commands

The pictures of pages are screenshots of Chromium; those of graphs and C files are drawn from the files themselves and
from bench/results/c.jsonl.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import typer
from PIL import Image

from bench.records import newest_by_case
from stairwell.cli import main as _commands  # noqa: F401  registers every command
from stairwell.cli.app import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/gallery.md"
PICTURES = ROOT / "docs/pictures"
EXPORT = re.compile(r"^(stairwell (export .*?))(?:  #.*)?$", re.MULTILINE)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PLAY = "document.querySelector('.play').click();"
# Height of the picture and what happens in the page before it is taken.
PAGES = {
    "random-walk.html": (1010, PLAY),
    "s5.html": (1090, f"{PLAY} setTimeout(() => {PLAY[:-1]}, 2050);"),
    "corridor.html": (1010, f"{PLAY} setTimeout(() => {PLAY[:-1]}, 2300);"),
    "memory-s9.html": (1150, "document.querySelector('input[type=range]').dispatchEvent(new Event('input'));"),
    "taxi.html": (
        1150,
        "const slider = document.querySelector('input[type=range]'); slider.value = 6;"
        "slider.dispatchEvent(new Event('input'));",
    ),
    "translator.html": (
        1080,
        "page.input.value = 'eine frau in einem roten kleid tanzt auf der bühne .'; page.run(); setTimeout(() => "
        "document.querySelectorAll('.pairs [data-token]')[5].dispatchEvent("
        "new PointerEvent('pointerover', { bubbles: true })), 6000);",
    ),
    "shakespeare.html": (
        1180,
        "const prompt = document.querySelector('.typing textarea'); prompt.value = 'ROMEO:';"
        "prompt.dispatchEvent(new Event('input')); for (let i = 0; i < 240; i++) page.generate();"
        "page.tokens[210].element.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));",
    ),
}
WIDTH = 1120
GRAPHS = ("s5.onnx", "corridor.onnx", "taxi.onnx", "de-en/encoder.onnx", "de-en/decoder.onnx")


def export_all(folder: Path, text: str) -> str:
    """Run the commands of the page in the folder. Return the text with the sizes of their files."""
    command: Any = typer.main.get_command(app)

    def replaced(match: re.Match[str]) -> str:
        before = set(files_in(folder))
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            command.main(shlex.split(match[2]), prog_name="stairwell", standalone_mode=False)
        sizes = [f"{path.name} {path.stat().st_size:,} bytes" for path in files_in(folder) if path not in before]
        return f"{match[1]}  # {', '.join(sizes)}"

    return EXPORT.sub(replaced, text)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def photograph(page: Path, picture: Path, height: int, script: str) -> None:
    """Take a picture of a page in its light theme after a script ran in it."""
    assert BROWSER, "Chromium is not installed"
    prelude = "document.documentElement.dataset.theme = 'light'; Math.random = (() => { let x = 1; "
    prelude += "return () => (x = (x * 48271) % 2147483647) / 2147483647; })();"
    script = f"<script>{prelude} addEventListener('load', () => setTimeout(() => {{ {script} }}, 200));</script></body>"
    script = "<style>* { transition: none !important; }</style>" + script  # a screenshot does not wait for transitions
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "page.html")
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
        shot = Path(folder, "shot.png")
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}"]
        command += ["--virtual-time-budget=9000", f"--screenshot={shot}", f"file://{copy}"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=True, timeout=300)
        image = Image.open(shot).convert("RGB")
        image.quantize(200, dither=Image.Dither.NONE).save(picture, optimize=True)


def draw_graphs(folder: Path, picture: Path) -> None:
    """Draw each graph as a box with its inputs on the left and its outputs on the right."""
    import onnxruntime
    from matplotlib import pyplot as plt

    sessions = {name: onnxruntime.InferenceSession(folder / name) for name in GRAPHS}
    lines = {name: max(len(one.get_inputs()), len(one.get_outputs())) for name, one in sessions.items()}
    height = sum(lines.values()) + 1.6 * len(lines)
    figure, axes = plt.subplots(figsize=(10, 0.27 * height))
    axes.set(xlim=(0, 10), ylim=(height, 0))
    axes.axis("off")
    y = 0.4
    for name, session in sessions.items():
        middle, half = y + lines[name] / 2, lines[name] / 2 + 0.25
        axes.add_patch(plt.Rectangle((3.9, middle - half), 2.2, 2 * half, facecolor="#e8f1f5", edgecolor="#0b6e99"))
        axes.text(5, middle, name, ha="center", va="center", fontsize=10, weight="bold")
        sides = (
            (session.get_inputs(), 3.4, "right", (3.5, 3.9)), (session.get_outputs(), 6.6, "left", (6.1, 6.5)),
        )  # fmt: skip
        for values, x, align, (start, end) in sides:
            for i, value in enumerate(values):
                at = middle + i + 0.5 - len(values) / 2
                shape = ", ".join(str(size) for size in value.shape)
                axes.text(x, at, f"{value.name} ({shape})", ha=align, va="center", fontsize=9)
                axes.annotate("", (end, at), (start, at), arrowprops={"arrowstyle": "->", "color": "#555555"})
        y += lines[name] + 1.6
    figure.savefig(picture, dpi=110, bbox_inches="tight")
    plt.close(figure)


def draw_c(picture: Path) -> None:
    """Draw what the C file of s5-feedback needs on a Cortex-M4."""
    from matplotlib import pyplot as plt

    records = [record for record in newest_by_case("c") if record["case"] == "cortex-m4"]
    figure, (flash, ram) = plt.subplots(1, 2, figsize=(10, 2.4), width_ratios=(3, 2), layout="constrained")
    parts = {
        flash: ("flash, kB", {"parameters": "#0b6e99", "code": "#d9730d"}),
        ram: ("RAM, kB", {"state": "#0b6e99", "stack": "#d9730d"}),
    }
    names = [record["what"] for record in records]
    for axes, (label, colors) in parts.items():
        left = [0.0] * len(records)
        for part, color in colors.items():
            sizes = [record[f"{part.removesuffix('s')}_bytes"] / 1000 for record in records]
            axes.barh(names, sizes, left=left, color=color, label=part)
            left = [before + size for before, size in zip(left, sizes)]
        for name, total in zip(names, left):
            axes.text(total, name, f" {total:.1f}", va="center", fontsize=9)
        axes.set(xlabel=label, xlim=(0, 1.18 * max(left)))
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    matplotlib.use("agg")
    wanted = sys.argv[1:] or [*PAGES, "graphs", "c"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        PAGE.write_text(export_all(folder, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        for name in wanted:
            picture = PICTURES / f"gallery-{Path(name).stem}.png"
            if name == "graphs":
                draw_graphs(folder, picture)
            elif name == "c":
                draw_c(picture)
            else:
                photograph(folder / name, picture, *PAGES[name])
            print(picture.relative_to(ROOT), f"{picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
