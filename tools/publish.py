"""Publishing a study: from its folder to results/NAME-SCALE.json, a picture and docs/reproduction.md.

    python -m tools.publish runs/NAME-laptop --verdict "Agrees in sign and size: ..."
    python -m tools.publish                                writes docs/reproduction.md anew from results/

What was not run is listed as not run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from PIL import Image

from stairwell.experiments.cost import in_words
from stairwell.experiments.papers import CATALOGUE
from stairwell.experiments.reproduce import table
from stairwell.experiments.study import SCALES
from stairwell.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES, PAGE = ROOT / "results", ROOT / "docs" / "pictures", ROOT / "docs" / "reproduction.md"

TOP = """# Reproduction

What came of running the papers' experiments with stairwell. This page is made from the files in `results/` by
`python -m tools.publish`; each of them has the configs, the numbers of every seed, the commit and
the machine. Laptop scale means two CPU cores and minutes: smaller models, shorter sequences, fewer tokens than in the
papers, and one recipe for all the models of a table. A number is only comparable with the others of its table.

`stairwell list experiments` tells every name, `stairwell reproduce NAME --dry-run` what it would take.
"""


def publish(folder: Path, verdict: str) -> Path:
    """Take a study's result and picture over into the project."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    result["verdict"] = verdict
    name = f"{result['study']}-{result['scale']}"
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1) + "\n")
    if (folder / "curves.png").exists():
        small = Image.open(folder / "curves.png").convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
        small.save(PICTURES / f"{name}.png", optimize=True)
    return RESULTS / f"{name}.json"


def published() -> dict[tuple[str, str], dict[str, Any]]:
    """The results there are, by study and scale."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return {(result["study"], result["scale"]): result for result in results if "study" in result}


def page() -> str:
    results = published()
    parts = [TOP, "## What was run\n", overview(results)]
    parts += [section(results[name, scale]) for name in CATALOGUE for scale in SCALES if (name, scale) in results]
    absent = [
        f"{name} ({scale})"
        for name, make in CATALOGUE.items()
        for scale in SCALES
        if (name, scale) not in results and make(scale) is not None
    ]
    parts.append("## Not run\n\n" + "".join(f"- {name}\n" for name in absent))
    return "\n".join(parts)


def overview(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    lines = ["| study | scale | outcome |", "|---|---|---|"]
    for name in CATALOGUE:
        for scale in SCALES:
            if (result := results.get((name, scale))) is not None:
                anchor = f"{name}-{scale}".replace(".", "")
                lines.append(f"| [{name}](#{anchor}) | {scale} | {result['verdict']} |")
    return "\n".join([*lines, ""])


def section(result: dict[str, Any]) -> str:
    """One study: what, by which command, the table, the verdict, the picture."""
    name = f"{result['study']}-{result['scale']}"
    about = result["provenance"]
    seconds = sum(sum(row["seconds"]) for row in result["rows"])
    shown = table(result)
    columns = [title.replace("|", "/") for title in shown.columns]
    lines = [f"## {name}\n", f"{result['title']}; {result['paper']}. {result['data']}.\n"]
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in shown.rows]
    if result["claim"]:
        lines.append(f"\nThe paper's conclusion: {result['claim']}.")
    lines.append(f"\n**Ours:** {result['verdict']}\n")
    lines += [f"- {note}" for note in result["notes"]]
    threads = sorted({threads for row in result["rows"] for threads in row["threads"]})
    seeds = sorted({seed for row in result["rows"] for seed in row["seeds"]})
    lines.append(
        f"\n`{about['command']}`, commit {about['commit']}, seeds {', '.join(map(str, seeds))}; stairwell "
        f"{about['stairwell']}, torch {about['torch']}, {about['cpu']}, {' or '.join(map(str, threads))} thread(s) a "
        f"training, {in_words(seconds)} of training in all."
    )
    if (PICTURES / f"{name}.png").exists():
        lines.append(f"\n![{result['title']}](pictures/{name}.png)")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="publish a study's result and write docs/reproduction.md")
    parser.add_argument("folder", type=Path, nargs="?", help="the folder of a study that was reproduced")
    parser.add_argument("--verdict", help="how it compares with the paper's claim: in sign, in size, or not")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        if not arguments.verdict:
            parser.error("a result needs a --verdict")
        print(publish(arguments.folder, arguments.verdict))
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
