"""Convert runs and results written before version 0.2, which have other names for fields, parameters and keys.

    python -m tools.convert_run OLD_RUN NEW_RUN             a run folder, or a folder of runs
    python -m tools.convert_run --results OLD.json NEW.json    a published result

Nothing is changed in place. Checkpoints are not converted: finish a run with the version that started it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open

from stairwell.files import write_text
from stairwell.runs.run import FORMAT
from stairwell.tasks import saved_task
from stairwell.tensor_files import save_tensors

TASKS = {"labelled": "labeled"}
FAMILIES = {"language": "streams", "seq2seq": "pairs", "agent": "rl"}
# Fields of config.json by section.
FIELDS: dict[str, dict[str, str]] = {
    "core": {
        "make_up": "memory_composition", "sees_itself": "attend_to_current", "position_vectors": "position_embeddings",
    },
    "model": {"first_token": "start_embedding", "standardise": "normalize_observations"},
    "task": {
        "colours": "colors", "longest_source": "max_source_length", "longest_target": "max_target_length",
        "headline": "primary_metric", "fresh": "reset", "sample": "decode_examples", "longest": "max_episode_steps",
        "places": "positions",
    },
    "train": {
        "clip": "max_grad_norm", "valid_rows": "valid_batch", "growth": "size_schedule", "discount": "gamma",
        "gae": "gae_lambda", "entropy_cost": "ent_coef", "value_cost": "vf_coef", "clip_ratio": "clip_range",
        "normalise_advantages": "normalize_advantage", "normalise_rewards": "normalize_rewards",
        "learner": "algorithm", "window": "bptt_length", "window_memory": "bptt_state", "goal": "stopping_threshold",
        "finetune_rate": "finetune_lr_factor",
    },
}  # fmt: skip
STREAMS_ONLY = (
    "curriculum", "curriculum_accuracy", "stop_when_mastered", "size_schedule", "segment_warmup", "state_noise",
    "noise_every", "valid_tokens",
)  # fmt: skip
# Train fields that a family no longer has, because it never read them.
REMOVED = {"pairs": (*STREAMS_ONLY, "segment", "valid_batch"), "rl": (*STREAMS_ONLY, "finetune_task")}
SEARCH = {
    "block": "no_repeat_ngram_size", "longest": "max_length", "longest_ratio": "max_length_ratio",
    "shortest": "min_length", "shortest_ratio": "min_length_ratio",
}  # fmt: skip
RESULT = {"updates": "steps", "weights": "parameters", "best_update": "best_step", "looks_back": "context"}
SCORES = {
    "return_deviation": "return_std", "return_interval": "return_ci95", "clipped": "clip_fraction",
    "divergence": "approx_kl", "rows": "streams",
}  # fmt: skip
# Names of parameters, by regular expression.
PARAMETERS = {
    r"^first_token\.": "start_embedding.",
    r"^actions\.log_deviation$": "action_dist.log_std",
    r"^actions\.": "action_dist.",
    r"^encoders\.(\d+)\.places\.vectors$": r"encoders.\1.weight",
    r"^encoders\.(\d+)\.places\.": r"encoders.\1.",
    r"^last_action\.vectors$": "last_action.weight",
    r"^enter\.": "input_projection.",
}
EXPERIMENTS = {"extra.league.": "extra.state-tracking.", "extra.horizon.": "extra.long-streams."}
# Parts of variants' names; the names of variants by prefix of their experiment; titles of columns.
VARIANTS = {", rate ": ", learning rate ", "25,000 updates": "25,000 steps", "one slot": "memory 1"}
STAIRCASES = {
    "extra.state-tracking.": {"Staircase": "C=1, N=2", "Cached Staircase": "C=1, N=3"},
    "extra.long-streams.": {"Staircase": "C=1, N=2"},
    "extra.parity": {"Staircase": "C=2, N=4", "Cached Staircase": "C=1, N=9"},
    "extra.s5": {"Staircase": "C=2, N=4", "Cached Staircase": "C=1, N=9"},
}
COLUMNS = {
    "longest walks at 90%, actions": "longest episodes at 90% accuracy (actions)",
    "longest programs at 90%": "longest programs at 90% accuracy (statements)",
    "64 streams of 1,000,000: without a mistake (%)": "64 streams of 1,000,000 tokens: without a mistake (%)",
    "right answers in the last nine tenths (%)": "accuracy in the last nine tenths (%)",
}


def convert(source: Path, target: Path) -> None:
    """Convert a run folder, or every run below a folder."""
    if target.exists():
        sys.exit(f"{target} exists already; name a new folder")
    runs = sorted(path.parent for path in source.rglob("config.json"))
    if not runs:
        sys.exit(f"there is no run in {source}: no config.json")
    for run in runs:
        convert_run(run, target / run.relative_to(source))
        print(target / run.relative_to(source))


def convert_run(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    config = convert_config(json.loads((source / "config.json").read_text(encoding="utf-8")))
    if (source / saved_task.FILE).exists():
        task = convert_task(json.loads((source / saved_task.FILE).read_text(encoding="utf-8")))
        write_text(target / saved_task.FILE, json.dumps(task, ensure_ascii=False) + "\n")
    if (source / "model.safetensors").exists():
        convert_model(source / "model.safetensors", target / "model.safetensors")
    for name in ("result.json", "search.json"):
        if (source / name).exists():
            data = json.loads((source / name).read_text(encoding="utf-8"))
            data = renamed(data, SEARCH) if name == "search.json" else convert_result_keys(data)
            write_text(target / name, json.dumps(data) + "\n")
    if (source / "metrics.jsonl").exists():
        lines = (source / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        converted = [json.dumps(convert_scores(json.loads(line))) for line in lines]
        write_text(target / "metrics.jsonl", "".join(f"{line}\n" for line in converted))
    if (source / "horizon.json").exists():
        data = json.loads((source / "horizon.json").read_text(encoding="utf-8"))
        write_text(target / "horizon.json", json.dumps(convert_horizon(data), indent=1) + "\n")
    write_text(target / "config.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")


def convert_config(old: dict[str, Any]) -> dict[str, Any]:
    """Convert the content of a config.json, or the config of a published result."""
    task_name, _, core_name = old["experiment"].partition("/")
    name = TASKS.get(task_name, task_name)
    sections = {section: renamed(old.get(section, {}), fields) for section, fields in FIELDS.items()}
    # Models that were configured before there was a start embedding do not have one.
    sections["model"].setdefault("start_embedding", False)
    if task_name == "rl":
        limits = [sections["task"].pop(key, None) for key in ("limit", "steps")]
        sections["task"]["max_steps"] = next((limit for limit in limits if limit is not None), None)
    for field in REMOVED.get(family_of(name), ()):
        sections["train"].pop(field, None)
    if not sections["train"].get("curriculum"):
        sections["train"].pop(
            "curriculum_accuracy", None
        )  # it has no effect, and the default is the only value allowed
    kept = {"stairwell": old["stairwell"]} if "stairwell" in old else {}
    return {**kept, "name": f"{name}/{core_name}", **sections}


def family_of(task_name: str) -> str:
    return {"translation": "pairs", "summarization": "pairs", "rl": "rl"}.get(task_name, "streams")


def convert_task(old: dict[str, Any]) -> dict[str, Any]:
    """Convert the content of a task.json and compute its hash again."""
    phases = []
    for phase in old["phases"]:
        phase = renamed(phase, {"about": "description", "kind": "family", "headline": "primary_metric"})
        phase["family"] = FAMILIES[phase["family"]]
        phase["facts"] = convert_facts(phase.get("facts", {}))
        phases.append(phase)
    vocabularies = {
        {"symbols": "tokens"}.get(name, name): convert_vocabulary(data) for name, data in old["vocabularies"].items()
    }
    name = TASKS.get(old["task"], old["task"])
    content = {"format": saved_task.FORMAT, "task": name, "phases": phases, "vocabularies": vocabularies}
    text = json.dumps(content, sort_keys=True)
    return {**content, "hash": hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}


def convert_facts(facts: dict[str, Any]) -> dict[str, Any]:
    names = {"observation": "observation_space", "action": "action_space", "left_out": "ignored_observations"}
    facts = renamed(facts, names)
    for key in ("observation_space", "action_space"):
        if key in facts:
            facts[key] = convert_space(facts[key])
    if "options" in facts:
        facts["options"] = renamed(facts["options"], {"limit": "max_steps", "steps": "max_steps", "colours": "colors"})
    return facts


def convert_space(space: dict[str, Any]) -> dict[str, Any]:
    space = renamed(space, {"kind": "type", "sizes": "nvec", "parts": "spaces"})
    parts = space.get("spaces")
    if isinstance(parts, dict):
        space["spaces"] = {name: convert_space(part) for name, part in parts.items()}
    elif isinstance(parts, list):
        space["spaces"] = [convert_space(part) for part in parts]
    return space


def convert_vocabulary(vocabulary: dict[str, Any]) -> dict[str, Any]:
    vocabulary = renamed(vocabulary, {"kind": "type", "symbols": "tokens", "words": "tokens"})
    vocabulary["format"] = "stairwell.vocabulary.2"
    vocabulary["type"] = {"labelled": "labeled"}.get(vocabulary["type"], vocabulary["type"])
    return vocabulary


def convert_model(source: Path, target: Path) -> None:
    """Convert the names of parameters. The old file is checked by the hash that it has."""
    with safe_open(source, framework="pt") as file:
        metadata = json.loads((file.metadata() or {})["stairwell"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    note = json.loads(metadata["note"])
    note["valid"] = renamed(note.get("valid", {}), SCORES)
    save_tensors(target, {convert_parameter(name): tensor for name, tensor in tensors.items()}, note)


def convert_parameter(name: str) -> str:
    for pattern, replacement in PARAMETERS.items():
        new, count = re.subn(pattern, replacement, name)
        if count:
            return new
    return name


def convert_scores(record: dict[str, Any]) -> dict[str, Any]:
    record = renamed(record, SCORES)
    if isinstance(record.get("valid"), dict):
        record["valid"] = renamed(record["valid"], SCORES)
    return record


def convert_result_keys(result: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of one run."""
    scores = {f"valid_{old}": f"valid_{new}" for old, new in SCORES.items()}
    return renamed(result, {**RESULT, **scores})


def convert_horizon(old: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of a long-stream evaluation."""
    result = renamed(old, {"wanted": "requested_tokens", "update": "step"})
    result["curve"] = renamed(old["curve"], {"places": "positions", "asked": "scored"})
    result["streams"] = [renamed(stream, {"row": "stream"}) for stream in old["streams"]]
    return result


def convert_experiment(old: dict[str, Any]) -> dict[str, Any]:
    """Convert the published result of an experiment."""
    result = renamed(old, {"study": "experiment", "rows": "variants"})
    for prefix, new in EXPERIMENTS.items():
        if result["experiment"].startswith(prefix):
            result["experiment"] = new + result["experiment"].removeprefix(prefix)
    variants = []
    for row in result["variants"]:
        variant = renamed(row, {**RESULT, "model": "name"})
        variant["config"] = convert_config(row["config"])
        scores = {f"valid_{name}": f"valid_{new}" for name, new in SCORES.items()}
        variant["valid"] = [renamed(scored, scores) for scored in row.get("valid", ())]
        variant["name"] = convert_variant(result["experiment"], variant["name"])
        for key in ("measured", "best", "paper"):
            if key in variant:
                variant[key] = renamed(variant[key], COLUMNS)
        variants.append(variant)
    columns = [COLUMNS.get(title, title) for title in result["columns"]]
    return {**result, "columns": columns, "variants": variants}


def convert_variant(experiment: str, name: str) -> str:
    """Convert the name of a variant of an experiment."""
    for prefix, sizes in STAIRCASES.items():
        if experiment.startswith(prefix) and name in sizes:
            return f"{name} ({sizes[name]})"
    for old, new in VARIANTS.items():
        name = name.replace(old, new)
    return name


def renamed(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a dict with some keys renamed, in the same order."""
    return {names.get(key, key): value for key, value in data.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert runs and results written before version 0.2.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--results", action="store_true", help="Convert a published result instead of a run.")
    arguments = parser.parse_args()
    if arguments.results:
        result = convert_experiment(json.loads(arguments.source.read_text(encoding="utf-8")))
        if arguments.target.exists():
            sys.exit(f"{arguments.target} exists already; name a new file")
        write_text(arguments.target, json.dumps(result, indent=1) + "\n")
    else:
        convert(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
