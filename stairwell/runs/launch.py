"""From an experiment to a run folder and back: train, go on, several seeds, evaluate."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stairwell import fast
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.outputs import RUN_FILES, Kind, check, check_place, has_keys
from stairwell.runs import sizes
from stairwell.runs.config import RunConfig
from stairwell.runs.families import KINDS
from stairwell.runs.presets import preset
from stairwell.runs.tensorboard import with_tensorboard
from stairwell.tasks import Split, Task, make_task, spec
from stairwell.train import Interrupted, NotSaved, Run, Watch
from stairwell.train.config import TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.run import LOCK, read_config
from stairwell.version import __version__

SEEDS = Kind("a summary of seeds", has_keys("metric", "seeds", "runs"))
REASON = 200  # characters of what PyTorch says of a device
# Opens whatever shows a training's progress: a title, updates in all, updates done before.
Show = Callable[[str, int, int], AbstractContextManager[Watch]]


@dataclass(frozen=True)
class Job:
    """What to train and where: checked, but not begun."""

    experiment: RunConfig
    run: Run
    resume: bool


def new_job(name: str | None, config: Path | None, out: Path | None, options: dict[str, str]) -> Job:
    """A training of a named experiment, or of a run's config, with options set from text. Nothing is written."""
    if (name is None) == (config is None):
        raise UserError("name an experiment, such as random-walk/feedback, or give --config a run's config.json")
    if config is not None:
        experiment = RunConfig.from_json(read_config(config), str(config))
    else:
        experiment = preset(str(name))
    experiment = experiment.with_options(options)
    run = Run(out or default_folder(experiment))
    check_new(run)
    return Job(experiment, run, resume=False)


def job_to_resume(name: str | None, config: Path | None, out: Path | None, options: dict[str, str]) -> Job:
    """The training of a run folder, to go on with; only its number of steps may change."""
    if config is not None:
        raise UserError("--resume goes on with the config in --out; leave out --config")
    if out is None and name is None:
        raise UserError("--resume needs --out, the folder of the training to go on with")
    run = Run(out or default_folder(preset(str(name))))
    kept = experiment_of(run)
    experiment = kept.with_options({key: value for key, value in options.items() if key == "train.steps"})
    changed = sorted(set(options) - {"train.steps"})
    if changed and kept.with_options(options) != experiment:
        raise UserError(f"a resumed training keeps its config: only --steps may change, not --{changed[0]}")
    if name is not None and name != kept.name:
        raise UserError(f"{run.path} is a training of {kept.name}, not of {name}")
    if experiment.train.total < min(run.newest_step, kept.train.total):
        raise UserError(
            f"{run.path} is at update {run.newest_step:,} already, beyond --steps {experiment.train.steps:,}; "
            "leave out --steps, or name more"
        )
    return Job(experiment, run, resume=True)


def experiment_of(run: Run) -> RunConfig:
    """What a run folder was asked to train."""
    return RunConfig.from_json(run.read_config(), str(run.path / "config.json"))


def check_new(run: Run) -> None:
    """Refuse a folder where a new training would replace something."""
    if run.exists:
        raise UserError(f"{run.path} holds a training already; go on with it (--resume) or choose another --out")
    if check_place(run.path, "--out").is_file():
        raise UserError(f"the folder {run.path} cannot be made ({run.path} is a file); choose another --out")
    there = [name for name in RUN_FILES if name != LOCK and (run.path / name).exists()]
    if there == [spec.FILE] and spec.is_whole(run.path):  # what a training leaves that is killed as it begins
        return
    if there:
        raise UserError(
            f"{run.path} has no config.json, so it is not a run, but {' and '.join(there)}, which a training would "
            "replace; choose another --out"
        )


def default_folder(experiment: RunConfig) -> Path:
    return Path("runs") / experiment.name.replace("/", "-")


def train(job: Job, device: str, engine: str, show: Show) -> dict[str, Any] | None:
    """Train to the end; the result, or nothing on all processes but the first."""
    onwards = f"go on with: stairwell train --resume --out {job.run.path}"
    try:
        chosen = choose_device(device)
        with Distributed.together(chosen) as world:
            if not world.first:
                return _train(job, chosen, engine, show, world)
            with job.run.locked():
                if not job.resume:
                    check_new(job.run)
                return _train(job, chosen, engine, show, world)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; {onwards}") from None
    except NotSaved as stopped:
        raise NotSaved(f"{stopped}; {onwards}") from None
    except KeyboardInterrupt:
        kept = job.run.newest_step
        saved = f"the checkpoint of update {kept:,} is kept; {onwards}" if kept else "nothing is saved"
        raise NotSaved(f"interrupted before the first update; {saved}") from None


def _train(job: Job, device: torch.device, engine: str, show: Show, world: Distributed) -> dict[str, Any] | None:
    experiment, run = job.experiment, job.run
    run.asked = fingerprint(experiment)
    tasks = experiment.make_tasks(run.path if job.resume else None)
    sizes.check_training(experiment, tasks[0], device, world.size)
    model = experiment.make_model(tasks[0], device, engine)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer = experiment.kind.make_trainer(model, tasks, experiment.train, run, world)
    with trainer.autocast():
        engine_name = model.core.engine_name
    title = f"{experiment.name}: {parameters:,} parameters on {device}, engine: {engine_name}\n{tasks[0].describe()}"
    title += too_short(experiment.train)
    damaged = trainer.resume() if job.resume else []
    progress = trainer.progress
    if world.first:
        prepare_folder(job, tasks)
    with show(title, experiment.train.total, progress.step) as watch:
        for word in damaged:
            watch({"event": "warning", "text": word})
        try:
            trainer.run(with_tensorboard(watch, run) if world.first else watch)
        finally:
            trainer.close()
    if not world.first:
        return None
    scores = run.load_model()[1]["valid"]  # of the parameters that are kept: the best, not always the last
    result = {
        "run": str(run.path),
        "updates": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
    }
    data = tasks[min(progress.phase, len(tasks) - 1)].describe()
    result |= {"data": data, "weights": parameters, "best_update": progress.best_step}
    return result | {f"valid_{name}": value for name, value in scores.items()}


def too_short(config: TrainConfig) -> str:
    """A line for whoever has shortened a training but not its warm-up; nothing if it has time to learn."""
    if config.warmup < max(config.steps, 1):
        return ""
    return (
        f"\nthe learning rate rises for {config.warmup:,} updates and the training has {config.steps:,}: "
        "it will hardly learn; lower --train.warmup"
    )


def fit(
    experiment: RunConfig, out: str | os.PathLike[str], device: str = "auto", engine: str = "auto"
) -> dict[str, Any]:
    """Train an experiment into a new folder, or go on with the training there, without showing anything."""
    run = Run(out)
    result = train(Job(experiment, run, resume=run.exists), device, engine, lambda *_: nullcontext(lambda event: None))
    assert result is not None, "fit is for a single process"
    return result


def fingerprint(experiment: RunConfig) -> str:
    """A hash of everything but the number of steps, which may be raised."""
    asked = experiment.to_json()
    del asked["train"]["steps"]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()


def prepare_folder(job: Job, tasks: list[Task]) -> None:
    """The config last: with it the folder is a run, and a run has what it needs."""
    spec.write(job.run.path, job.experiment.task_name, tasks)
    job.run.write_config({"stairwell": __version__, **job.experiment.to_json()})


def train_seeds(job: Job, seeds: int, device: str, engine: str, show: Show) -> dict[str, Any] | None:
    """The same training with several seeds, each in a folder of its own; those that are done are not done again."""
    if job.resume:
        raise UserError(
            f"{job.run.path} is one training; to go on with several --seeds, give the command that began them again"
        )
    first = job.experiment.train.seed
    dataclasses.replace(job.experiment.train, seed=first + seeds - 1)  # the last is found out before the first is used
    check(job.run.path / "seeds.json", SEEDS)
    with Distributed.together(choose_device(device)) as world:
        results = [train_seed(job, seed, device, engine, show, world) for seed in range(first, first + seeds)]
    if not world.first:
        return None
    summary = sum_up(results, primary_metric(job.experiment))
    write_text(job.run.path / "seeds.json", json.dumps({**summary, "runs": results}, indent=2) + "\n")
    return summary


def train_seed(job: Job, seed: int, device: str, engine: str, show: Show, world: Distributed) -> dict[str, Any]:
    train_config = dataclasses.replace(job.experiment.train, seed=seed)
    experiment = dataclasses.replace(job.experiment, train=train_config)
    run = Run(job.run.path / f"seed-{seed}")
    result = run.path / "result.json"
    # What the first process finds holds for all: a slower one might find what the first has begun to write.
    begun, done = world.share_json([run.exists, run.exists and result.exists()])
    if begun and experiment_of(run) != experiment:
        raise UserError(f"{run.path} holds a training with another config; choose another --out")
    if not done:
        trained = train(Job(experiment, run, resume=begun), device, engine, show)
        if world.first:
            write_text(result, json.dumps(trained) + "\n")
    return json.loads(result.read_text(encoding="utf-8")) if world.first else {}


def primary_metric(experiment: RunConfig) -> tuple[str, bool]:
    """The task's primary metric as a result names it, and whether more of it is better. No file is opened."""
    task = make_task(experiment.task_name, experiment.task)
    return f"valid_{task.primary_metric}", task.higher_is_better


def sum_up(results: list[dict[str, Any]], primary_metric: tuple[str, bool]) -> dict[str, Any]:
    """Mean, deviation and best by validation of several results."""
    name, higher_is_better = primary_metric
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


def load(path: str | os.PathLike[str], device: str = "auto", engine: str = "auto") -> tuple[Any, Task]:
    """The trained model of a run folder and its task, from the folder alone: whatever has become of the data, it is not
    opened before someone reads it."""
    run = Run(path)
    experiment = experiment_of(run)
    parameters, _ = run.load_model()
    task = experiment.make_tasks(run.path)[-1]
    check_finite(parameters, run)
    sizes.check_model(experiment, task, chosen := choose_device(device))
    model = experiment.make_model(task, chosen, engine)
    try:
        model.load_state_dict(parameters)
    except RuntimeError:
        raise UserError(f"{run.path}: model.safetensors does not fit config.json; one of them was changed") from None
    return model.eval(), task


def check_finite(parameters: dict[str, torch.Tensor], run: Run) -> None:
    """A model that is not a number answers nothing: say so instead of letting it speak."""
    for name, tensor in parameters.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{run.path}/model.safetensors holds numbers that are not finite (NaN or infinity) in '{name}': it "
                "can answer nothing; bring back a good copy, or train anew"
            )


def evaluate_run(
    path: Path, split: Split, data: str | None, rows: int, segment: int, device: str, engine: str, watch: Watch | None
) -> dict[str, Any]:
    """Scores of a split of the run's own data, or of other data with the run's symbols."""
    model, task = load(path, device, engine)
    if data is not None:
        task = task.with_data(data)
    if task.kind == "language":
        sizes.check_streams(model, rows, 1, f"--rows (now {rows:,})")
    _, note = Run(path).load_model()
    return {
        "run": str(path),
        "data": task.describe(),
        "split": split,
        "update": note["step"],
        **KINDS[task.kind].evaluate(model, task, split, rows, segment, watch, Path(path)),
    }


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    known = re.fullmatch(r"cpu|mps|(cuda|xpu)(:\d{1,3})?", name)
    if known is None:
        raise UserError(f"--device {name!r} is not a device; choose auto, cpu, cuda, cuda:0 (or another index) or mps")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # some devices hold shapes only
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = (str(error).splitlines() or [""])[0][:REASON]
        raise UserError(f"--device {name} cannot be used: {reason}") from None
    return device


def information() -> dict[str, str]:
    """Versions, device, engine and threads."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "stairwell": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": f"{device} ({name})",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "engine": fast.describe(),
    }
