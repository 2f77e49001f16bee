"""Publish an experiment: from its folder to results/NAME-SCALE.json, its figures and the pages of results.

Results keep the learning curves of every run, so runs of several commands and commits share one figure.

    python -m tools.publish runs/NAME-laptop --outcome agrees --verdict "Feedback ..."
    python -m tools.publish runs/NAME-laptop --add ...      keep published variants and seeds that were not run again
    python -m tools.publish runs/NAME-laptop --note "..."   add what was tried, or "Most likely reason: ..."
    python -m tools.publish                                 write the pages and the sweep figures again from results/

docs/reproduction.md has one line per table and figure of the papers, also of those that were not run; docs/results/
has one page per published experiment.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from stairwell.experiments.cost import format_duration
from stairwell.experiments.experiment import SCALES, Scale, folder_name
from stairwell.experiments.papers import CATALOG, NO_EXPERIMENTS, NOT_AT_SCALE
from stairwell.experiments.reproduce import best_by_validation, panels, table, total_time
from stairwell.files import write_text
from stairwell.report import Panel, write_sweep_png
from stairwell.report.sweep import format_sweep
from stairwell.runs import RunConfig
from stairwell.runs.launch import primary_metric
from stairwell.runs.run import Run
from tools import claims, learning_curves

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PICTURES = ROOT / "results", ROOT / "docs" / "pictures"
PAGE, PAGES = ROOT / "docs" / "reproduction.md", ROOT / "docs" / "results"
Results = dict[tuple[str, str], dict[str, Any]]  # by experiment and scale
OUTCOMES = ("agrees", "partly", "does not agree", "inconclusive", "our own")

TOP = """# Results

Every table and figure of both papers, with one line on what came out. A row leads to the experiment's page: its table
beside the paper's numbers, its curves, every seed, the command, the commit and the machine. Laptop scale means two CPU
cores and minutes to hours: smaller models, shorter sequences and fewer tokens than in the papers. A number can only be
compared with the others of its table.

| outcome | |
|---|---|
| agrees | the paper's claim holds at laptop scale |
| partly | a part of it holds |
| does not | our numbers contradict the claim |
| inconclusive | the runs do not decide it |
| not run | the experiment exists; the cost is an estimate for two cores |
| measured | an experiment of our own, without a claim to compare with |

{counts}

Repeat an experiment with `stairwell reproduce NAME`; a [tutorial](tutorials/reproduce.md) explains the output. Tables
and figures of the first paper are numbered as in arXiv version 3: the ICLR version's tables 5 to 8 are version 3's 6 to
9, and it has no table of speed.
"""

GROUPS = {
    "feedback": "The Feedback Transformer (Fan et al., 2020)",
    "staircase": "Staircase attention (Ju et al., 2021)",
    "extra": "Our own experiments",
}
# Their curves show nothing: constant accuracy, or a benchmark of speed; or the sweep shows the same, and more clearly.
WITHOUT_CURVES = (
    "extra.long-streams.parity", "feedback.table1.counting-50", "feedback.table1.counting-long",
    "feedback.table5.agents", "extra.chunk-passes", "feedback.figure8",
)  # fmt: skip
ORDER = ("agrees", "partly", "does not", "inconclusive", "not run")
SHORT_OUTCOMES = {"does not agree": "does not", "our own": "measured"}
REASON = "Most likely reason"  # starts the note that a result against the paper's claim must have
OUTCOME_AT_START = r"^(Agrees|Partly|Does not agree|Inconclusive)\b( agrees)?:? "

CURVES = "Thick lines with circles: validation. Thin lines: training."
WITHOUT_STORED_CURVES = """If runs were added to this result later, the figure shows the models of the last command
only."""

CLAIMS = """## Claims in the text

The quantitative claims in the running text of both papers, in our words, beyond the tables and figures above. Numbers
in parentheses are the paper's. Ours are in the order of the claim and on the linked page, with command, commit and
machine.
"""

PAPER_SCALE = """## At paper scale

No experiment was run at paper scale. The times are estimates from the number of operations, without environments and
evaluation. Corpora that are not public are not available to us.
"""


def publish(folder: Path, outcome: str, verdict: str, add: bool = False, notes: Iterable[str] = ()) -> Path:
    """Copy an experiment's result into the project, with notes on what was tried; `add`: keep published variants and
    seeds."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    name = f"{result['experiment']}-{result['scale']}"
    if result.get("changed"):
        sys.exit(f"{folder} is not the experiment {name}; changed: {', '.join(result['changed'])}")
    result["variants"] = [with_curves(folder, variant) for variant in result["variants"]]
    if add:
        result = joined(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")), result)
    result |= {"outcome": outcome, "verdict": verdict, "notes": [*result["notes"], *notes]}
    if outcome == "does not agree" and not any(note.startswith(REASON) for note in result["notes"]):
        sys.exit(f'a result that does not agree needs --note "{REASON}: ... EXPERIMENT tests it."')
    for note in earlier_notes(name, result):
        print(f"not kept, --note adds it again: {note}")
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", learning_curves.compact(json.dumps(result, indent=1)) + "\n")
    return RESULTS / f"{name}.json"


def earlier_notes(name: str, result: dict[str, Any]) -> list[str]:
    """Return the notes of the published result that the new one does not have."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["notes"] if path.exists() else []
    return [note for note in before if note not in result["notes"]]


def with_curves(folder: Path, variant: dict[str, Any]) -> dict[str, Any]:
    """Return a variant under its present name and with the learning curves of its run folders."""
    if not variant["seeds"]:
        return {**variant, "name": present_name(variant["name"]), "curves": []}
    metric = primary_metric(RunConfig.from_json(variant["config"], variant["name"]))[0].removeprefix("valid_")
    runs = [Run(folder / folder_name(variant["name"]) / f"seed-{seed}") for seed in variant["seeds"]]
    curves = [learning_curves.read(run, metric) if run.exists else None for run in runs]
    return {**variant, "name": present_name(variant["name"]), "curves": curves}


def present_name(name: str) -> str:
    """Return the present name of a Staircase variant that was measured under an earlier one."""
    return re.sub(r"Staircase, N = (\d+), C = (\d+)", r"Staircase (C=\2, N=\1)", name)


PER_SEED = ("seeds", "commits", "valid", "seconds", "stages", "curves")


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the published variants and seeds that were not run again. The columns must be the same, and
    the config of a variant that has new seeds."""
    commit = before["provenance"]["commit"]
    published = {v["name"]: {"commits": [commit] * len(v["seeds"]), **v} for v in before["variants"] if v["seeds"]}
    if before["columns"] != now["columns"]:
        sys.exit(f"{now['experiment']} is published with other columns; publish without --add")
    if removed := published.keys() - {variant["name"] for variant in now["variants"]}:
        print(f"removed, because {now['experiment']} does not have them any more: {', '.join(sorted(removed))}")
    variants = [joined_variant(published[v["name"]], v) if v["name"] in published else v for v in now["variants"]]
    commits = sorted({commit for variant in variants for commit in variant["commits"]})
    return {**now, "variants": variants, "provenance": {**now["provenance"], "commit": ", ".join(commits)}}


def joined_variant(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    if not now["seeds"]:
        return {**now, **before}
    if changes := changed_options(before["config"], now["config"], now["name"]):
        sys.exit(f"'{now['name']}' is published with another config ({', '.join(changes)}); publish without --add")
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
    variant = {**variant, "curves": learning_curves.of_seeds(variant)}
    return {
        seed: {
            **{name: variant[name][i] for name in PER_SEED},
            "measured": {title: values[i] for title, values in variant["measured"].items()},
        }
        for i, seed in enumerate(variant["seeds"])
    }


def changed_options(before: dict[str, Any], now: dict[str, Any], name: str) -> dict[str, tuple[Any, Any]]:
    """Return the options of a config that changed, with both values: {"train.max_grad_norm": (1.0, 0.1)}. An option
    younger than the first config counts as changed if it does not have its default now. The path of a corpus, which
    differs between machines, is ignored."""
    filled = [flat(RunConfig.from_json(config, name).to_json()) for config in (before, now)]
    old, new = flat(before), filled[1]
    names = sorted((filled[0].keys() | new.keys()) - {"stairwell", "task.path"})
    return {name: (old.get(name), new.get(name)) for name in names if filled[0].get(name) != new.get(name)}


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config as options such as `train.steps`."""
    options: dict[str, Any] = {}
    for section, value in config.items():
        options |= (
            {f"{section}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {section: value}
        )
    return options


def changed_since(result: dict[str, Any]) -> list[str]:
    """Return how the experiment differs today from what was measured, one sentence per group of models."""
    experiment = CATALOG[result["experiment"]](result["scale"])
    present = {variant.name: variant.config.to_json() for variant in experiment.variants} if experiment else {}
    groups: dict[str, list[str]] = {}
    for variant in result["variants"]:
        if not variant["seeds"]:
            continue
        if variant["name"] not in present:
            change = "not in the experiment any more"
        else:
            # An option younger than the result is left out: its default then is not known.
            changes = changed_options(variant["config"], present[variant["name"]], variant["name"])
            listed = [f"`{name}` is {new}, was {old}" for name, (old, new) in changes.items() if old is not None]
            change = ", ".join(listed)
        if change:
            groups.setdefault(change, []).append(variant["name"])
    trained = {variant["name"] for variant in result["variants"] if variant["seeds"]}
    return [
        f"The experiment has changed since. {'All models' if {*names} == trained else '; '.join(names)}: {change}."
        for change, names in groups.items()
    ]


def save_picture(path: Path, name: str) -> None:
    small = Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    small.save(PICTURES / name, optimize=True)


def sweep(result: dict[str, Any]) -> list[Panel]:
    """Return the plots of a result against the numbers that its variants differ in."""
    experiment = CATALOG[result["experiment"]](result["scale"])
    return panels(experiment, result) if experiment is not None else []


def draw_pictures() -> None:
    """Draw the learning curves and the plots of all published results."""
    with TemporaryDirectory() as folder:
        drawn = Path(folder) / "drawn.png"
        for (name, scale), result in published().items():
            if plots := sweep(result):
                write_sweep_png(drawn, plots, title_of(result))
                save_picture(drawn, f"{name}-{scale}.sweep.png")
            if has_drawn_curves(result):
                learning_curves.draw(drawn, result, title_of(result))
                save_picture(drawn, f"{name}-{scale}.png")


def has_drawn_curves(result: dict[str, Any]) -> bool:
    """Return whether the figure of learning curves is drawn from curves in the result."""
    return result["experiment"] not in WITHOUT_CURVES and learning_curves.stored(result)


def title_of(result: dict[str, Any]) -> str:
    return f"{result['title']} ({result['scale']} scale)"


def curves_note(result: dict[str, Any]) -> str:
    """Return the explanation of the figure of learning curves."""
    if not has_drawn_curves(result):
        return f"{CURVES} {WITHOUT_STORED_CURVES}"
    names = learning_curves.missing(result)
    return f"{CURVES} Without recorded curves: {'; '.join(names)}." if names else CURVES


def published() -> Results:
    """Return all results by experiment and scale."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    return {(result["experiment"], result["scale"]): result for result in results if "variants" in result}


def pages() -> dict[Path, str]:
    """Return the text of every generated page: the matrix, and one page per published experiment."""
    results = published()
    return {
        PAGE: matrix(results),
        **{PAGES / f"{name}-{scale}.md": experiment_page(result) for (name, scale), result in results.items()},
    }


def matrix(results: Results) -> str:
    """Return the status of every table and figure, one line each."""
    parts = [TOP.format(counts=counts(results))]
    for group, title in GROUPS.items():
        parts += [f"## {title}\n", "| experiment | what | outcome | finding, or cost |", "|---|---|---|---|"]
        parts += [matrix_row(name, results) for name in CATALOG if name.startswith(f"{group}.")]
        parts.append("")
    parts.append(CLAIMS)
    for title, listed in ((GROUPS["feedback"], claims.FEEDBACK), (GROUPS["staircase"], claims.STAIRCASES)):
        parts += [f"### {title}\n", "| section | claim | outcome | ours |", "|---|---|---|---|"]
        parts += [claim_row(claim, results) for claim in listed]
        parts.append("")
    parts += [PAPER_SCALE, "| experiment | cost |", "|---|---|"]
    missing = [name for name in CATALOG if (name, "paper") not in results and not name.startswith("extra.")]
    parts += [f"| {name} | {cost(name, 'paper')} |" for name in missing]
    parts += ["\n## No experiments\n", "The papers' other tables and figures:\n"]
    parts += [f"- {name}: {why}" for name, why in NO_EXPERIMENTS.items()]
    return "\n".join([*parts, ""])


def counts(results: Results) -> str:
    """Return how many tables and figures of the papers, and how many claims in their texts, have which outcome."""
    rows = [matrix_row(name, results) for name in CATALOG if name.startswith(("feedback.", "staircase."))]
    claimed = [claim_row(claim, results) for claim in (*claims.FEEDBACK, *claims.STAIRCASES)]
    texts = []
    for what, lines in (("tables and figures with an experiment", rows), ("quantitative claims in the text", claimed)):
        outcomes = Counter(line.split(" | ")[2] for line in lines)
        listed = ", ".join(f"{name}: {outcomes[name]}" for name in ORDER if outcomes[name])
        texts.append(f"{len(lines)} {what} ({listed})")
    return "\n".join(textwrap.wrap(f"The papers have {' and '.join(texts)}.", 120))


def matrix_row(name: str, results: Results) -> str:
    """Return the line of an experiment, at laptop scale where it was run."""
    scale = next((scale for scale in SCALES if (name, scale) in results), None)
    if scale is not None:
        result = results[name, scale]
        outcome = SHORT_OUTCOMES.get(result["outcome"], result["outcome"])
        return f"| [{name}](results/{name}-{scale}.md) | {result['title']} | {outcome} | {first_sentence(result)} |"
    exists = next(scale for scale in SCALES if CATALOG[name](scale) is not None)
    experiment = CATALOG[name](exists)
    assert experiment is not None
    return f"| {name} | {experiment.title} | not run | {cost(name, exists)}{' (paper scale)' * (exists == 'paper')} |"


def claim_row(claim: claims.Claim, results: Results) -> str:
    """Return the line of a claim in the text of a paper."""
    outcome, ours = claim.outcome, claim.ours
    if not outcome and (claim.experiment, "laptop") in results:
        result = results[claim.experiment, "laptop"]
        outcome = SHORT_OUTCOMES.get(result["outcome"], result["outcome"])
        ours = f"{first_sentence(result).rstrip('.')} ({claims.page(claim.experiment)})"
    elif not outcome:
        outcome, ours = "not run", f"{claim.experiment}: {cost(claim.experiment, 'laptop')}"
    return f"| {claim.where} | {claim.claim} | {outcome} | {ours} |"


def finding(result: dict[str, Any]) -> str:
    """Return the verdict without the outcome, which is stated once, before it."""
    text = re.sub(OUTCOME_AT_START, "", result["verdict"])
    return str(text[:1].upper() + text[1:])


def first_sentence(result: dict[str, Any]) -> str:
    return re.split(r"(?<=[.])\s+(?=[A-Z])", finding(result))[0].replace("|", "\\|")


def cost(name: str, scale: Scale) -> str:
    """Return what an experiment that was not run would need: time, and perhaps a corpus."""
    experiment = CATALOG[name](scale)
    if experiment is None:
        return NOT_AT_SCALE[name, scale]
    reads = f"; reads {experiment.data}" if experiment.data else ""
    return f"{total_time(experiment)}{reads}"


def experiment_page(result: dict[str, Any]) -> str:
    """Return the page of one experiment: outcome, table, figures, provenance, and in an appendix notes and runs."""
    name, about = f"{result['experiment']}-{result['scale']}", result["provenance"]
    lines = [f"# {result['title']}\n", f"`{result['experiment']}` · {result['scale']} scale · {result['paper']}\n"]
    if result["claim"]:
        claim = result["claim"][:1].upper() + result["claim"][1:]
        lines.append(f"**The paper's claim:** {claim.rstrip('.')}.\n")
    outcome = "Outcome:" if result["outcome"] == "our own" else f"Outcome: {result['outcome']}."
    lines.append(f"**{outcome}** {finding(result)}\n")
    lines += [f"Data: {result['data']}.\n", *markdown_table(table(result).columns, table(result).rows)]
    plots = sweep(result)
    if plots:
        lines.append(f"\n![{format_sweep(plots)}](../pictures/{name}.sweep.png)")
    if ends := [f"{v['name']} {last_stage(v)}" for v in result["variants"] if any(v.get("stages") or ())]:
        lines.append(f"\nLast stage of the curriculum: {'; '.join(ends)}.")
    if (PICTURES / f"{name}.png").exists():
        lines += ["\n## Learning curves\n", f"![Learning curves: {result['title']}](../pictures/{name}.png)\n"]
        lines.append(curves_note(result))
    threads = sorted({threads for variant in result["variants"] for threads in variant["threads"]})
    seconds = sum(sum(variant["seconds"]) for variant in result["variants"])
    lines += [
        "\n## Provenance\n",
        "| | |",
        "|---|---|",
        f"| command | `{about['command']}` |",
        f"| commit | {about['commit']} |",
        f"| versions | stairwell {about['stairwell']}, torch {about['torch']} |",
        f"| machine | {about['cpu']}, {' or '.join(map(str, threads))} thread(s) per run |",
        f"| training | {format_duration(seconds)} in all |",
        f"| file | [`results/{name}.json`](../../results/{name}.json): configs and all numbers |",
        "\n## Appendix: setup and what was tried\n",
        *(f"- {note}" for note in [*result["notes"], *changed_since(result)]),
        "\n## Appendix: every run\n",
        *runs_table(result),
    ]
    return "\n".join([*lines, ""])


def runs_table(result: dict[str, Any]) -> list[str]:
    """Return a table with one row per seed and variant."""
    titles = list(dict.fromkeys(title for variant in result["variants"] for title in variant["measured"]))
    rows = []
    for variant in result["variants"]:
        commits = variant.get("commits") or [result["provenance"]["commit"]] * len(variant["seeds"])
        for i, seed in enumerate(variant["seeds"]):
            values = [number(variant["measured"].get(title, [None] * (i + 1))[i]) for title in titles]
            rows.append([variant["name"], seed, *values, format_duration(variant["seconds"][i]), commits[i]])
    return markdown_table(["model", "seed", *titles, "training", "commit"], rows)


def number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def markdown_table(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    columns = [str(column).replace("|", "/") for column in columns]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]


def last_stage(variant: dict[str, Any]) -> str:
    stages = [" ".join(f"{name} {value}" for name, value in (stage or {}).items()) for stage in variant["stages"]]
    return ", ".join(stages) if len(set(stages)) > 1 else stages[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish an experiment's result and write the pages of results.")
    parser.add_argument("folder", type=Path, nargs="?", help="Folder of a reproduced experiment.")
    parser.add_argument("--outcome", choices=OUTCOMES, help="How it compares with the paper's claim.")
    parser.add_argument("--verdict", help="What was measured, in a few sentences.")
    parser.add_argument("--add", action="store_true", help="Keep the published variants and seeds.")
    parser.add_argument("--note", action="append", default=[], help="A note on what was tried; may be repeated.")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        if not arguments.verdict or not arguments.outcome:
            parser.error("a result needs an --outcome and a --verdict")
        print(publish(arguments.folder, arguments.outcome, arguments.verdict, arguments.add, arguments.note))
    draw_pictures()
    written = pages()
    PAGES.mkdir(exist_ok=True)
    for old in set(PAGES.glob("*.md")) - set(written):
        old.unlink()
    for path, text in written.items():
        write_text(path, text)
    print(f"{PAGE} and {len(written) - 1} pages in {PAGES}")


if __name__ == "__main__":
    main()
