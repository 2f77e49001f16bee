"""Publishing a study: from its folder to results/NAME-SCALE.json, its pictures and docs/reproduction.md.

    python -m tools.publish runs/NAME-laptop --verdict "Agrees in sign and size: ..."
    python -m tools.publish runs/NAME-laptop --add --verdict "..."   keeps what is published of other rows and seeds
    python -m tools.publish                                writes the page and draws sweeps anew from results/
    python -m tools.publish --demo runs/demo               takes the demo's result and picture over

What was not run is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from stairwell.experiments import demo
from stairwell.experiments.cost import in_words
from stairwell.experiments.experiment import SCALES, Scale
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE
from stairwell.experiments.reproduce import best_by_validation, panels, table, takes
from stairwell.files import write_text
from stairwell.report import Panel, write_sweep_png
from stairwell.report.sweep import in_words as told
from stairwell.runs import RunConfig
from stairwell.runs.launch import primary_metric

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES, PAGE = ROOT / "results", ROOT / "docs" / "pictures", ROOT / "docs" / "reproduction.md"

TOP = """# Reproduction

What came of running the papers' experiments with stairwell. This page is made from the files in `results/` by
`python -m tools.publish`; each of them has the configs, the numbers of every seed, the commit and
the machine. Laptop scale means two CPU cores and minutes: smaller models, shorter sequences, fewer tokens than in the
papers, and one recipe for all the models of a table. A number is only comparable with the others of its table.

`stairwell list experiments` lists every name, `stairwell reproduce NAME --dry-run` estimates its time. Tables and
figures of the first paper are numbered as in arXiv version 3: the ICLR version's tables 5 to 8 are version 3's 6 to 9,
and it has no table of speed.

## Again, on a laptop

Three of the strongest results, under an hour together on two cores:

```
stairwell reproduce demo
stairwell reproduce extra.parity --jobs 2 --only LSTM --only Transformer-XL --only Feedback --only Staircase
stairwell reproduce extra.s5 --jobs 2 --only Transformer-XL --only Feedback --only "Cached Staircase"
```

The first sets Feedback beside a Transformer of its size on a walk that only a state can follow; the others tell who
keeps a state far beyond the training length.
"""

NOT_RUN = """Not run yet. The times are estimated from a model's operations, without environments and evaluations.
Corpora that are not public are not available to us.
"""


def publish(folder: Path, verdict: str, add: bool = False) -> Path:
    """Take a study's result and picture over into the project; `add`: beside the rows and seeds published before."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    name = f"{result['study']}-{result['scale']}"
    if add:
        result = joined(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")), result)
    result["verdict"] = verdict
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1) + "\n")
    if (folder / "curves.png").exists():
        save_picture(folder / "curves.png", f"{name}.png")
    return RESULTS / f"{name}.json"


PER_SEED = ("seeds", "commits", "valid", "seconds", "stages")


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A result with the rows and seeds of an earlier one that were not trained again. Those must be of the same
    trainings and measured in the same way."""
    commit = before["provenance"]["commit"]
    earlier = {row["model"]: {"commits": [commit] * len(row["seeds"]), **row} for row in before["rows"] if row["seeds"]}
    if before["columns"] != now["columns"]:
        sys.exit(f"what is published of {now['study']} was measured in another way; publish without --add")
    rows = [joined_row(earlier[row["model"]], row) if row["model"] in earlier else row for row in now["rows"]]
    commits = sorted({commit for row in rows for commit in row["commits"]})
    return {**now, "rows": rows, "provenance": {**now["provenance"], "commit": ", ".join(commits)}}


def joined_row(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    if without_path(before["config"]) != without_path(now["config"]):
        sys.exit(f"'{now['model']}' is published with another config; publish without --add")
    if not now["seeds"]:
        return {**now, **before}
    if len(before.get("valid", ())) < len(before["seeds"]):
        sys.exit(f"'{now['model']}' is published without its validation scores; publish without --add")
    by_seed = {**trainings_of(before), **trainings_of(now)}
    done = [by_seed[seed] for seed in sorted(by_seed)]
    primary = primary_metric(RunConfig.from_json(now["config"], now["model"]))
    return {
        **now,
        **{name: [training[name] for training in done] for name in PER_SEED},
        "measured": {title: [training["measured"][title] for training in done] for title in now["measured"]},
        "best": best_by_validation([{**training, **training["valid"]} for training in done], primary)["measured"],
        "threads": sorted({*before["threads"], *now["threads"]}),
        **{name: now[name] or before[name] for name in ("weights", "tokens")},
    }


def trainings_of(row: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What a row says of each of its trainings, by their seeds."""
    return {
        seed: {
            **{name: row[name][i] for name in PER_SEED},
            "measured": {title: values[i] for title, values in row["measured"].items()},
        }
        for i, seed in enumerate(row["seeds"])
    }


def without_path(config: dict[str, Any]) -> dict[str, Any]:
    """A corpus may lie anywhere."""
    return {**config, "task": {name: value for name, value in config["task"].items() if name != "path"}}


def publish_demo(folder: Path) -> Path:
    """Take the demo's results and its picture over; the README's numbers are written by hand."""
    results = {core: json.loads((folder / core / "result.json").read_text(encoding="utf-8")) for core in demo.NAMES}
    about = {
        "experiment": f"demo: random walk, episodes of {demo.LENGTH} actions",
        "scale": "laptop",
        "seeds": 1,
        "paper": {**demo.PAPER, "where": "Fan et al., table 1, episodes of 100 actions; Ju et al., table 1, of 400"},
    }
    write_text(RESULTS / "demo.json", json.dumps({**about, **results}, indent=2) + "\n")
    save_picture(folder / "curves.png", "demo-curves.png")
    return RESULTS / "demo.json"


def save_picture(path: Path, name: str) -> None:
    small = Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    small.save(PICTURES / name, optimize=True)


def sweep(result: dict[str, Any]) -> list[Panel]:
    """What of a result is drawn against what its rows vary."""
    study = CATALOG[result["study"]](result["scale"])
    return panels(study, result) if study is not None else []


def draw_sweeps() -> None:
    """The pictures of all results whose rows vary a number."""
    for (name, scale), result in published().items():
        if drawn := sweep(result):
            with TemporaryDirectory() as folder:
                write_sweep_png(Path(folder) / "sweep.png", drawn)
                save_picture(Path(folder) / "sweep.png", f"{name}-{scale}.sweep.png")


def published() -> dict[tuple[str, str], dict[str, Any]]:
    """The results there are, by study and scale."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return {(result["study"], result["scale"]): result for result in results if "study" in result}


def page() -> str:
    results = published()
    parts = [TOP, "## What was run\n", overview(results)]
    parts += [section(results[name, scale]) for name in CATALOG for scale in SCALES if (name, scale) in results]
    parts += ["## Not run\n", NOT_RUN, "| study | scale | why not |", "|---|---|---|"]
    absent = [(name, scale) for name in CATALOG for scale in SCALES if (name, scale) not in results]
    parts += [f"| {name} | {scale} | {why_not(name, scale)} |" for name, scale in absent]
    parts += ["\n## No experiments\n", "The papers' other tables and figures:\n"]
    parts += [f"- {name}: {why}" for name, why in NO_EXPERIMENTS.items()]
    return "\n".join([*parts, ""])


def why_not(name: str, scale: Scale) -> str:
    """What a study that was not run would take: time, and perhaps a text that is not there."""
    study = CATALOG[name](scale)
    if study is None:
        return NOT_AT_SCALE[name, scale]
    reads = f"; reads {study.data}" if study.data else ""
    return f"{takes(study)}{reads}"


def overview(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    lines = ["| study | scale | outcome |", "|---|---|---|"]
    for name in CATALOG:
        for scale in SCALES:
            if (result := results.get((name, scale))) is not None:
                anchor = f"{name}-{scale}".replace(".", "")
                lines.append(f"| [{name}](#{anchor}) | {scale} | {result['verdict']} |")
    return "\n".join([*lines, ""])


def section(result: dict[str, Any]) -> str:
    """One study: what, by which command, the table, the verdict, the pictures."""
    name = f"{result['study']}-{result['scale']}"
    about = result["provenance"]
    seconds = sum(sum(row["seconds"]) for row in result["rows"])
    shown = table(result)
    columns = [title.replace("|", "/") for title in shown.columns]
    lines = [f"## {name}\n", f"{result['title']}; {result['paper']}. {result['data']}.\n"]
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in shown.rows]
    if drawn := sweep(result):
        lines.append(f"\n![{told(drawn)}](pictures/{name}.sweep.png)")
    if result["claim"]:
        lines.append(f"\nThe paper's conclusion: {result['claim']}.")
    lines.append(f"\n**Ours:** {result['verdict']}\n")
    if ends := [f"{row['model']} {ended(row)}" for row in result["rows"] if any(row.get("stages") or ())]:
        lines.append(f"Where the curriculum ended: {'; '.join(ends)}.\n")
    lines += [f"- {note}" for note in result["notes"]]
    threads = sorted({threads for row in result["rows"] for threads in row["threads"]})
    seeds = sorted({seed for row in result["rows"] for seed in row["seeds"]})
    lines.append(
        f"\n`{about['command']}`, commit {about['commit']}, seeds {', '.join(map(str, seeds))}; stairwell "
        f"{about['stairwell']}, torch {about['torch']}, {about['cpu']}, {' or '.join(map(str, threads))} thread(s) a "
        f"training, {in_words(seconds)} of training in all."
    )
    if (PICTURES / f"{name}.png").exists():
        curves = f"\n![{result['title']}](pictures/{name}.png)"
        # Beside a sweep, curves of many models are for those who ask.
        lines.append(f"\n<details><summary>How they learned</summary>\n{curves}\n\n</details>" if drawn else curves)
    return "\n".join([*lines, ""])


def ended(row: dict[str, Any]) -> str:
    """The last stage of each seed, in words."""
    stages = [" ".join(f"{name} {value}" for name, value in (stage or {}).items()) for stage in row["stages"]]
    return ", ".join(stages) if len(set(stages)) > 1 else stages[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="publish a study's result and write docs/reproduction.md")
    parser.add_argument("folder", type=Path, nargs="?", help="the folder of a study that was reproduced")
    parser.add_argument("--verdict", help="how it compares with the paper's claim: in sign, in size, or not")
    parser.add_argument("--add", action="store_true", help="keep the rows and seeds that were published before")
    parser.add_argument("--demo", type=Path, help="the folder of the demo")
    arguments = parser.parse_args()
    if arguments.demo is not None:
        print(publish_demo(arguments.demo))
        return
    if arguments.folder is not None:
        if not arguments.verdict:
            parser.error("a result needs a --verdict")
        print(publish(arguments.folder, arguments.verdict, arguments.add))
    draw_sweeps()
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
