"""Publish an experiment: from its folder to results/NAME-SCALE.json, its figures and docs/reproduction.md.

    python -m tools.publish runs/NAME-laptop --outcome agrees --verdict "Feedback ..."
    python -m tools.publish runs/NAME-laptop --add ...      keep published variants and seeds that were not run again
    python -m tools.publish                                 write the page and the sweep figures again from results/

The page lists what was not run, with its cost.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from stairwell.experiments.cost import format_duration
from stairwell.experiments.experiment import SCALES, Scale
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE
from stairwell.experiments.reproduce import best_by_validation, panels, table, total_time
from stairwell.files import write_text
from stairwell.report import Panel, write_sweep_png
from stairwell.report.sweep import format_sweep
from stairwell.runs import RunConfig
from stairwell.runs.launch import primary_metric

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES, PAGE = ROOT / "results", ROOT / "docs" / "pictures", ROOT / "docs" / "reproduction.md"
OUTCOMES = ("agrees", "partly", "does not agree", "inconclusive", "our own")

TOP = """# Results

The results of running the papers' experiments with stairwell. `python -m tools.publish` generates this page from the
files in `results/`, which have the configs, the numbers of every seed, the commit and the machine. Laptop scale means
two CPU cores and minutes: smaller models, shorter sequences and fewer tokens than in the papers. A number can only be
compared with the others of its table.

`stairwell list experiments` lists every name, `stairwell reproduce NAME --dry-run` estimates its time. Tables and
figures of the first paper are numbered as in arXiv version 3: the ICLR version's tables 5 to 8 are version 3's 6 to 9,
and it has no table of speed.

## Reproduce the strongest results

Under an hour together on two cores:

```
stairwell reproduce demo
stairwell reproduce extra.parity --jobs 2 --only LSTM --only Transformer-XL --only Feedback
stairwell reproduce extra.s5 --jobs 2 --only Transformer-XL --only Feedback
```

The first compares Feedback with a Transformer of its size on a task that needs a state. The others test models at up to
ten times the training length.
"""

NOT_RUN = """The times are estimated from the number of operations, without environments and evaluation. Corpora that
are not public are not available to us.
"""


def publish(folder: Path, outcome: str, verdict: str, add: bool = False) -> Path:
    """Copy an experiment's result and figure into the project; `add`: keep published variants and seeds."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    name = f"{result['experiment']}-{result['scale']}"
    if add:
        result = joined(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")), result)
    result |= {"outcome": outcome, "verdict": verdict}
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1) + "\n")
    if (folder / "curves.png").exists():
        save_picture(folder / "curves.png", f"{name}.png")
    return RESULTS / f"{name}.json"


PER_SEED = ("seeds", "commits", "valid", "seconds", "stages")


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the published variants and seeds that were not run again. Their configs and columns must be
    the same."""
    commit = before["provenance"]["commit"]
    published = {v["name"]: {"commits": [commit] * len(v["seeds"]), **v} for v in before["variants"] if v["seeds"]}
    if before["columns"] != now["columns"]:
        sys.exit(f"{now['experiment']} is published with other columns; publish without --add")
    variants = [joined_variant(published[v["name"]], v) if v["name"] in published else v for v in now["variants"]]
    commits = sorted({commit for variant in variants for commit in variant["commits"]})
    return {**now, "variants": variants, "provenance": {**now["provenance"], "commit": ", ".join(commits)}}


def joined_variant(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    if without_path(before["config"]) != without_path(now["config"]):
        sys.exit(f"'{now['name']}' is published with another config; publish without --add")
    if not now["seeds"]:
        return {**now, **before}
    if len(before.get("valid", ())) < len(before["seeds"]):
        sys.exit(f"'{now['name']}' is published without its validation scores; publish without --add")
    by_seed = {**results_by_seed(before), **results_by_seed(now)}
    results = [by_seed[seed] for seed in sorted(by_seed)]
    primary = primary_metric(RunConfig.from_json(now["config"], now["name"]))
    return {
        **now,
        **{name: [result[name] for result in results] for name in PER_SEED},
        "measured": {title: [result["measured"][title] for result in results] for title in now["measured"]},
        "best": best_by_validation([{**result, **result["valid"]} for result in results], primary)["measured"],
        "threads": sorted({*before["threads"], *now["threads"]}),
        **{name: now[name] or before[name] for name in ("parameters", "tokens")},
    }


def results_by_seed(variant: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        seed: {
            **{name: variant[name][i] for name in PER_SEED},
            "measured": {title: values[i] for title, values in variant["measured"].items()},
        }
        for i, seed in enumerate(variant["seeds"])
    }


def without_path(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the path of its corpus, which differs between machines."""
    return {**config, "task": {name: value for name, value in config["task"].items() if name != "path"}}


def save_picture(path: Path, name: str) -> None:
    small = Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    small.save(PICTURES / name, optimize=True)


def sweep(result: dict[str, Any]) -> list[Panel]:
    """Return the plots of a result against the numbers that its variants differ in."""
    experiment = CATALOG[result["experiment"]](result["scale"])
    return panels(experiment, result) if experiment is not None else []


def draw_sweeps() -> None:
    for (name, scale), result in published().items():
        if plots := sweep(result):
            with TemporaryDirectory() as folder:
                write_sweep_png(Path(folder) / "sweep.png", plots)
                save_picture(Path(folder) / "sweep.png", f"{name}-{scale}.sweep.png")


def published() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all results by experiment and scale."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return {(result["experiment"], result["scale"]): result for result in results if "variants" in result}


def page() -> str:
    results = published()
    parts = [TOP, "## Status\n", status(results)]
    parts += [section(results[name, scale]) for name in CATALOG for scale in SCALES if (name, scale) in results]
    parts += ["## Not run\n", NOT_RUN, "| experiment | scale | cost |", "|---|---|---|"]
    missing = [(name, scale) for name in CATALOG for scale in SCALES if (name, scale) not in results]
    parts += [f"| {name} | {scale} | {cost(name, scale)} |" for name, scale in missing]
    parts += ["\n## No experiments\n", "The papers' other tables and figures:\n"]
    parts += [f"- {name}: {why}" for name, why in NO_EXPERIMENTS.items()]
    return "\n".join([*parts, ""])


def cost(name: str, scale: Scale) -> str:
    """Return what an experiment that was not run would need: time, and perhaps a corpus."""
    experiment = CATALOG[name](scale)
    if experiment is None:
        return NOT_AT_SCALE[name, scale]
    reads = f"; reads {experiment.data}" if experiment.data else ""
    return f"{total_time(experiment)}{reads}"


def status(results: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return the status matrix: one line per table and figure, at laptop scale where it was run."""
    lines = ["| experiment | what | outcome |", "|---|---|---|"]
    for name in CATALOG:
        found = next((results[name, scale] for scale in SCALES if (name, scale) in results), None)
        if found is None:
            made = next(made for scale in SCALES if (made := CATALOG[name](scale)) is not None)
            lines.append(f"| {name} | {made.title} | not run |")
        else:
            anchor = f"{name}-{found['scale']}".replace(".", "")
            lines.append(f"| [{name}](#{anchor}) | {found['title']} | {found['outcome']} |")
    return "\n".join([*lines, ""])


def section(result: dict[str, Any]) -> str:
    """Return the section of one experiment: the table, the verdict, the notes, the command, the figures."""
    name = f"{result['experiment']}-{result['scale']}"
    about = result["provenance"]
    seconds = sum(sum(variant["seconds"]) for variant in result["variants"])
    shown = table(result)
    columns = [title.replace("|", "/") for title in shown.columns]
    lines = [f"## {name}\n", f"{result['title']}; {result['paper']}. {result['data']}.\n"]
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in shown.rows]
    if plots := sweep(result):
        lines.append(f"\n![{format_sweep(plots)}](pictures/{name}.sweep.png)")
    if result["claim"]:
        lines.append(f"\nThe paper's conclusion: {result['claim']}.")
    lines.append(f"\n**Ours:** {result['verdict']}\n")
    if ends := [f"{v['name']} {last_stage(v)}" for v in result["variants"] if any(v.get("stages") or ())]:
        lines.append(f"Last stage of the curriculum: {'; '.join(ends)}.\n")
    lines += [f"- {note}" for note in result["notes"]]
    threads = sorted({threads for variant in result["variants"] for threads in variant["threads"]})
    seeds = sorted({seed for variant in result["variants"] for seed in variant["seeds"]})
    lines.append(
        f"\n`{about['command']}`, commit {about['commit']}, seeds {', '.join(map(str, seeds))}; stairwell "
        f"{about['stairwell']}, torch {about['torch']}, {about['cpu']}, {' or '.join(map(str, threads))} thread(s) per "
        f"run, {format_duration(seconds)} of training in all."
    )
    if (PICTURES / f"{name}.png").exists():
        curves = f"\n![{result['title']}](pictures/{name}.png)"
        # Learning curves of many models are folded away below a sweep.
        lines.append(f"\n<details><summary>Learning curves</summary>\n{curves}\n\n</details>" if plots else curves)
    return "\n".join([*lines, ""])


def last_stage(variant: dict[str, Any]) -> str:
    stages = [" ".join(f"{name} {value}" for name, value in (stage or {}).items()) for stage in variant["stages"]]
    return ", ".join(stages) if len(set(stages)) > 1 else stages[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish an experiment's result and write docs/reproduction.md.")
    parser.add_argument("folder", type=Path, nargs="?", help="Folder of a reproduced experiment.")
    parser.add_argument("--outcome", choices=OUTCOMES, help="How it compares with the paper's claim.")
    parser.add_argument("--verdict", help="What was measured, in a few sentences.")
    parser.add_argument("--add", action="store_true", help="Keep the published variants and seeds.")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        if not arguments.verdict or not arguments.outcome:
            parser.error("a result needs an --outcome and a --verdict")
        print(publish(arguments.folder, arguments.outcome, arguments.verdict, arguments.add))
    draw_sweeps()
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
