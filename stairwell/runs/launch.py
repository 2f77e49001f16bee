"""Train runs: from a RunConfig to a run folder, new or resumed, one or many."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.outputs import RUN_FILES, OutputType, check, check_location, has_keys
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs import sizes
from stairwell.runs.config import RunConfig, format_option
from stairwell.runs.device import choose_device
from stairwell.runs.load import config_of
from stairwell.runs.pool import SAME_COMMAND, Finish, Pool
from stairwell.runs.presets import preset
from stairwell.runs.run import LOCK, Run, read_config
from stairwell.runs.tensorboard import with_tensorboard
from stairwell.tasks import Task, make_task, saved_task
from stairwell.tasks.labeled import Labeled
from stairwell.train import Callback, Interrupted, NotSaved
from stairwell.train.config import TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.version import __version__

SEEDS = OutputType("a summary of seeds", has_keys("metric", "seeds", "runs"))
ALL_CORRECT = 99.95  # percent accuracy that is printed as 100.0
MAX_DIFFERENCES = 4  # options named in an error
RESULT_FILE = "result.json"  # of a finished run among several
# Opens a display of progress; called with a title, the number of steps and the step to start from.
Show = Callable[[str, int, int], AbstractContextManager[Callback]]


def ignore(event: dict[str, Any]) -> None:
    """Display nothing."""


def no_display(title: str, total: int, done: int) -> AbstractContextManager[Callback]:
    return nullcontext(ignore)


def new_run(name: str | None, config: Path | None, out: Path | None, options: dict[str, str]) -> tuple[RunConfig, Run]:
    """Return the config of a preset, or of a config.json, with options set from text, and its folder. Write nothing."""
    if (name is None) == (config is None):
        raise UserError("give a TASK/CORE, such as random-walk/feedback, or a run's config.json with --config")
    if config is not None:
        made = RunConfig.from_json(read_config(config), str(config))
    else:
        made = preset(str(name))
    made = made.with_options(options)
    run = Run(out or default_folder(made))
    check_new(run)
    return made, run


def run_to_resume(
    name: str | None, config: Path | None, out: Path | None, options: dict[str, str]
) -> tuple[RunConfig, Run]:
    """Return the config and the folder of a run to resume. Only the number of steps may change."""
    if config is not None:
        raise UserError("--resume uses the config in --out; leave out --config")
    if out is None and name is None:
        raise UserError("--resume needs --out, the folder of the run to resume")
    run = Run(out or default_folder(preset(str(name))))
    saved = config_of(run)
    resumed = saved.with_options({key: value for key, value in options.items() if key == "train.steps"})
    changed = sorted(set(options) - {"train.steps"})
    if changed and saved.with_options(options) != resumed:
        raise UserError(f"a resumed run keeps its config: only --steps may change, not --{changed[0]}")
    if name is not None and name != saved.name:
        raise UserError(f"{run.path} is a run of {saved.name}, not of {name}")
    if resumed.train.total_steps < min(run.newest_step, saved.train.total_steps):
        raise UserError(
            f"{run.path} is at step {run.newest_step:,} already, beyond --steps {resumed.train.steps:,}; "
            "leave out --steps, or raise it"
        )
    return resumed, run


def steps_of_frames(config: RunConfig, frames: int) -> int:
    """Return the optimizer steps in which an agent reads at least `frames` frames of its environments."""
    if not isinstance(config.train, AgentTrainConfig):
        raise UserError(f"--frames is for agents, whose environments have frames; give --steps for {config.name}")
    return config.train.steps_of_frames(frames)


def check_new(run: Run) -> None:
    """Reject a folder in which a new run would overwrite files."""
    if run.exists:
        raise UserError(f"{run.path} is a run already; resume it (--resume) or choose another --out")
    if check_location(run.path, "--out").is_file():
        raise UserError(f"the folder {run.path} cannot be created ({run.path} is a file); choose another --out")
    existing = [name for name in RUN_FILES if name != LOCK and (run.path / name).exists()]
    # A run that was killed as it started leaves its task.json.
    if existing == [saved_task.FILE] and saved_task.is_intact(run.path):
        return
    if existing:
        raise UserError(
            f"{run.path} has no config.json, so it is not a run, but it has {' and '.join(existing)}, which a run "
            "would overwrite; choose another --out"
        )


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / config.name.replace("/", "-")


def train(
    config: RunConfig, run: Run, *, resume: bool, device: str = "auto", engine: str = "auto", show: Show = no_display
) -> dict[str, Any] | None:
    """Train a run to its end. Return its result; return None on all processes but the first."""
    how_to_resume = f"resume with: stairwell train --resume --out {run.path}"
    try:
        chosen = choose_device(device)
        with Distributed.connect(chosen) as world:
            if not world.is_main:
                return _train(config, run, resume, chosen, engine, show, world)
            with run.locked():
                if not resume:
                    check_new(run)
                return _train(config, run, resume, chosen, engine, show, world)
    except (Interrupted, NotSaved) as stopped:
        raise type(stopped)(f"{stopped}; {how_to_resume}") from None
    except KeyboardInterrupt:
        step = run.newest_step
        saved = f"the checkpoint of step {step:,} is kept; {how_to_resume}" if step else "nothing is saved"
        raise NotSaved(f"interrupted before the first step; {saved}") from None


def _train(
    config: RunConfig, run: Run, resume: bool, device: torch.device, engine: str, show: Show, world: Distributed
) -> dict[str, Any] | None:
    run.config_hash = config_hash(config)
    tasks = config.make_tasks(run.path if resume else None)
    sizes.check_training(config, tasks[0], device, world.size)
    model = config.make_model(tasks[0], device, engine)
    trainer = config.family.make_trainer(model, tasks, config.train, run, world)
    with trainer.autocast():
        engine_name = model.core.engine_name
    parameters = sum(parameter.numel() for parameter in model.parameters())
    title = f"{config.name}: {parameters:,} parameters on {device}, engine: {engine_name}\n{tasks[0].describe()}"
    warnings = trainer.resume() if resume else []
    progress = trainer.progress
    if world.is_main:
        prepare_folder(config, run, tasks)
    title += warmup_warning(config.train) + small_split_warning(tasks[0])
    with show(title, config.train.total_steps, progress.step) as callback:
        for text in warnings:
            callback({"event": "warning", "text": text})
        try:
            trainer.run(with_tensorboard(callback, run) if world.is_main else callback)
        finally:
            trainer.close()
    if not world.is_main:
        return None
    scores = run.load_model()[1]["valid"]  # of the saved parameters: the best, not always the last
    return {
        "run": str(run.path),
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "data": tasks[min(progress.phase, len(tasks) - 1)].describe(),
        "parameters": parameters,
        "best_step": progress.best_step,
        **{f"valid_{name}": value for name, value in scores.items()},
    }


def small_split_warning(task: Task) -> str:
    """Return a line that warns of a validation split of one sequence, or nothing."""
    if not isinstance(task, Labeled) or len(task.stream_lengths("valid")) > 1:
        return ""
    return "\nthe validation split has only one sequence, so its scores mean little: train on more sequences"


def last_improvement(config: RunConfig, run: Run) -> tuple[float, float] | None:
    """Return the last two validation accuracies of a finished run if more steps would probably help: the last
    validation removed at least a tenth of the errors of the one before. None for other metrics, and if the learning
    rate decays to the end of the run."""
    if config.train.decay != "none" or config.train.finetune_steps:
        return None
    values = [record["valid"].get("accuracy") for record in run.metrics() if "valid" in record]
    if len(values) < 2 or None in values[-2:]:
        return None
    before, last = values[-2:]
    return (before, last) if last < ALL_CORRECT and 100 - last <= 0.9 * (100 - before) else None


def warmup_warning(config: TrainConfig) -> str:
    """Return a line that warns of a warm-up longer than the training, or nothing."""
    if config.warmup < max(config.steps, 1):
        return ""
    return (
        f"\nthe learning rate warms up for {config.warmup:,} steps but training has only {config.steps:,}: "
        "the model will hardly learn; lower --train.warmup"
    )


def train_many(
    runs: Mapping[str, tuple[RunConfig, Run]],
    finish: Finish,
    *,
    jobs: int = 1,
    device: str = "auto",
    engine: str = "auto",
    show: Show = no_display,
    callback: Callback = ignore,
) -> None:
    """Train or resume named runs: one after another here, or `jobs` at a time in processes of their own.

    `finish` gets the name and the result of each. Seeds, the variants of an experiment and the demo all come through
    here.
    """
    if jobs > 1:
        check_sizes([config for config, _ in runs.values()], device)
        Pool(jobs, device, engine, callback, finish).train(runs)
        return
    with Distributed.connect(choose_device(device)) as world:
        check_sizes([config for config, _ in runs.values()], device, world.size)
        for number, (name, (config, run)) in enumerate(runs.items(), start=1):
            callback({"event": "begin", "model": name, "number": number, "of": len(runs)})
            # The first process decides for all: a slower one could see what the first has begun to write.
            (resume,) = world.broadcast_json([run.exists])
            try:
                result = train(config, run, resume=resume, device=device, engine=engine, show=show)
            except (Interrupted, NotSaved) as stopped:
                raise type(stopped)(f"{name}: {str(stopped).partition(';')[0]}; {SAME_COMMAND}") from None
            if result is not None:
                finish(name, result)


def check_sizes(run_configs: Sequence[RunConfig], device: str, processes: int = 1) -> None:
    """Reject a model that does not fit into memory before any other is trained."""
    tasks: dict[Any, Task] = {}
    for config in run_configs:
        key = (config.task_name, config.task)
        if key not in tasks:
            tasks[key] = config.make_tasks()[0]
        sizes.check_training(config, tasks[key], choose_device(device), processes)


def train_seeds(
    config: RunConfig, folder: Path, seeds: int, *, jobs: int, device: str, engine: str, show: Show, callback: Callback
) -> dict[str, Any] | None:
    """Train a config with several seeds, each in a folder of its own, and summarize them. Finished seeds are kept."""
    check(folder / "seeds.json", SEEDS)
    runs = {
        f"seed-{seed}": Run(folder / f"seed-{seed}") for seed in range(config.train.seed, config.train.seed + seeds)
    }
    configs = {name: config.with_seed(seed) for seed, name in enumerate(runs, start=config.train.seed)}
    with Distributed.connect(choose_device(device)) as world:
        for name, run in runs.items():
            check_same_config(run, configs[name])
        missing = world.broadcast_json([name for name, run in runs.items() if not (run.path / RESULT_FILE).exists()])
        train_many(
            {name: (configs[name], runs[name]) for name in missing},
            lambda name, result: write_text(runs[name].path / RESULT_FILE, json.dumps(result) + "\n"),
            jobs=jobs, device=device, engine=engine, show=show, callback=callback,
        )  # fmt: skip
    if not world.is_main:
        return None
    results = [json.loads((run.path / RESULT_FILE).read_text(encoding="utf-8")) for run in runs.values()]
    summary = summarize(results, *primary_metric(config))
    write_text(folder / "seeds.json", json.dumps({**summary, "runs": results}, indent=2) + "\n")
    return summary


def check_same_config(run: Run, config: RunConfig) -> None:
    """Reject a run folder with another config, and name the options that differ."""
    if not run.exists or (saved := config_of(run)) == config:
        return
    differences = [
        f"{name}: {format_option(there)} there, {format_option(here)} here"
        for name, (there, here) in saved.differences(config).items()
    ]
    listed = differences[:MAX_DIFFERENCES]
    if more := len(differences) - len(listed):
        listed.append(f"and {more} more")
    raise UserError(f"{run.path} is a run with another config ({'; '.join(listed)}); choose another --out")


def fit(config: RunConfig, out: str | os.PathLike[str], device: str = "auto", engine: str = "auto") -> dict[str, Any]:
    """Train a config into a new folder, or resume the run there, without any display."""
    run = Run(out)
    result = train(config, run, resume=run.exists, device=device, engine=engine)
    assert result is not None, "fit is for a single process"
    return result


def config_hash(config: RunConfig) -> str:
    """Return a hash of everything except the number of steps, which may be raised."""
    content = config.to_json()
    del content["train"]["steps"]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def prepare_folder(config: RunConfig, run: Run, tasks: list[Task]) -> None:
    """Write task.json, then config.json: a folder with a config is a run, and a run has all it needs."""
    saved_task.write(run.path, config.task_name, tasks)
    run.write_config({"stairwell": __version__, **config.to_json()})


def primary_metric(config: RunConfig) -> tuple[str, bool]:
    """Return the task's primary metric as results name it, and whether higher is better. Open no file."""
    task = make_task(config.task_name, config.task)
    return f"valid_{task.primary_metric}", task.higher_is_better


def summarize(results: list[dict[str, Any]], name: str, higher_is_better: bool) -> dict[str, Any]:
    """Return mean, standard deviation and best result by the validation metric `name`."""
    values = [result[name] for result in results]
    best = (max if higher_is_better else min)(results, key=lambda result: result[name])
    return {
        "metric": name,
        "seeds": len(values),
        "mean": statistics.mean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "best": best[name],
        "best_run": best["run"],
    }
