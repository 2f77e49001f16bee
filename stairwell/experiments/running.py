"""From an experiment to a run folder and back: train, go on, several seeds, evaluate."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import stairwell
from stairwell import fast
from stairwell.experiments.experiment import Experiment
from stairwell.experiments.presets import preset
from stairwell.files import write_text
from stairwell.models import LanguageModel
from stairwell.runs import Run, read_config
from stairwell.tasks import Split, Task
from stairwell.train import Interrupted, Trainer, Watch, evaluate
from stairwell.world import World

# Opens whatever shows a training's progress: a title, updates in all, updates done before.
Show = Callable[[str, int, int], AbstractContextManager[Watch]]


@dataclass(frozen=True)
class Plan:
    """A training that has been checked but not begun."""

    experiment: Experiment
    run: Run
    resume: bool


def plan(name: str | None, config: Path | None, out: Path | None, resume: bool, options: dict[str, str]) -> Plan:
    """What is to be trained, and where. Nothing is written."""
    if resume:
        return plan_resume(name, config, out, options)
    if (name is None) == (config is None):
        raise ValueError("name an experiment, such as random-walk/feedback, or give --config a run's config.json")
    if config is not None:
        experiment = Experiment.from_json(without_format(read_config(config)), str(config))
    else:
        experiment = preset(str(name))
    experiment = experiment.with_options(options)
    run = Run(out or default_folder(experiment))
    if run.exists:
        raise holds_a_training(run)
    return Plan(experiment, run, resume=False)


def plan_resume(name: str | None, config: Path | None, out: Path | None, options: dict[str, str]) -> Plan:
    if config is not None:
        raise ValueError("--resume goes on with the config in --out; leave out --config")
    if out is None and name is None:
        raise ValueError("--resume needs --out, the folder of the training to go on with")
    run = Run(out or default_folder(preset(str(name))))
    kept = Experiment.from_json(without_format(run.read_config()), str(run.path / "config.json"))
    experiment = kept.with_options({key: value for key, value in options.items() if key == "train.steps"})
    changed = sorted(set(options) - {"train.steps"})
    if changed and kept.with_options(options) != experiment:
        raise ValueError(f"a resumed training keeps its config: only --steps may change, not --{changed[0]}")
    if name is not None and name != kept.name:
        raise ValueError(f"{run.path} is a training of {kept.name}, not of {name}")
    return Plan(experiment, run, resume=True)


def holds_a_training(run: Run) -> ValueError:
    return ValueError(f"{run.path} holds a training already; go on with it (--resume) or choose another --out")


def default_folder(experiment: Experiment) -> Path:
    return Path("runs") / experiment.name.replace("/", "-")


def without_format(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("format", "stairwell")}


def train(plan: Plan, device: str, engine: str, show: Show) -> dict[str, Any] | None:
    """Train to the end; the result, or nothing on all processes but the first."""
    chosen = choose_device(device)
    try:
        with World.together(chosen) as world:
            if not world.first:
                return _train(plan, chosen, engine, show, world)
            with plan.run.locked():
                if plan.run.exists and not plan.resume:
                    raise holds_a_training(plan.run)
                return _train(plan, chosen, engine, show, world)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; go on with: stairwell train --resume --out {plan.run.path}") from None


def _train(plan: Plan, device: torch.device, engine: str, show: Show, world: World) -> dict[str, Any] | None:
    experiment, run = plan.experiment, plan.run
    tasks = experiment.make_tasks(run.path / "vocabulary.json" if plan.resume else None)
    model = experiment.make_model(tasks[0], device, engine)
    weights = sum(parameter.numel() for parameter in model.parameters())
    title = (
        f"{experiment.name}: {weights:,} weights on {device}, engine: {model.core.engine_name}\n{tasks[0].describe()}"
    )
    trainer = Trainer(model, tasks, experiment.train, run, world)
    damaged = trainer.resume() if plan.resume else []
    if world.first:
        prepare_folder(plan, tasks[0])
    with show(title, experiment.train.total, trainer.step) as watch:
        for word in damaged:
            watch({"event": "warning", "text": word})
        trainer.watch = with_tensorboard(watch, run) if world.first else watch
        try:
            trainer.run()
        finally:
            trainer.part()
    if not world.first:
        return None
    scores = run.load_model()[1]["valid"]  # of the weights that are kept: the best, not always the last
    result = {
        "run": str(run.path),
        "updates": trainer.step,
        "tokens": trainer.tokens,
        "seconds": round(trainer.seconds, 1),
    }
    result |= {"data": trainer.task.describe(), "weights": weights, "best_update": trainer.best_step}
    return result | {f"valid_{name}": value for name, value in scores.items()}


def fit(
    experiment: Experiment, out: str | os.PathLike[str], device: str = "auto", engine: str = "auto"
) -> dict[str, Any]:
    """Train an experiment into a new folder, or go on with the training there, without showing anything."""
    run = Run(out)
    result = train(Plan(experiment, run, resume=run.exists), device, engine, lambda *_: nullcontext(lambda event: None))
    assert result is not None, "fit is for a single process"
    return result


def prepare_folder(plan: Plan, task: Task) -> None:
    plan.run.write_config({"stairwell": stairwell.__version__, **plan.experiment.to_json()})
    vocabulary = getattr(task, "vocabulary", None)
    if vocabulary is not None:
        vocabulary.save(plan.run.path / "vocabulary.json")


def with_tensorboard(watch: Watch, run: Run) -> Watch:
    """Metrics to TensorBoard too, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return watch
    writer = SummaryWriter(str(run.path / "tensorboard"))

    def both(event: dict[str, Any]) -> None:
        if event["event"] == "metrics":
            for section, numbers in (("train", event), ("valid", event.get("valid", {}))):
                for name, value in numbers.items():
                    if isinstance(value, int | float) and name != "step":
                        writer.add_scalar(f"{section}/{name}", value, event["step"])
            writer.flush()
        watch(event)

    return both


def train_seeds(plan: Plan, seeds: int, device: str, engine: str, show: Show) -> dict[str, Any] | None:
    """The same training with several seeds, each in a folder of its own; those that are done are not done again."""
    first = plan.experiment.train.seed
    with World.together(choose_device(device)) as world:
        results = [train_seed(plan, seed, device, engine, show, world) for seed in range(first, first + seeds)]
    if not world.first:
        return None
    summary = sum_up(results, headline(plan.experiment))
    write_text(plan.run.path / "seeds.json", json.dumps({**summary, "runs": results}, indent=2) + "\n")
    return summary


def train_seed(plan: Plan, seed: int, device: str, engine: str, show: Show, world: World) -> dict[str, Any]:
    train_config = dataclasses.replace(plan.experiment.train, seed=seed)
    experiment = dataclasses.replace(plan.experiment, train=train_config)
    run = Run(plan.run.path / f"seed-{seed}")
    result = run.path / "result.json"
    # What the first process finds holds for all: a slower one might find what the first has begun to write.
    begun, done = world.share_json([run.exists, result.exists()])
    if begun and without_format(run.read_config()) != experiment.to_json():
        raise ValueError(f"{run.path} holds a training with another config; choose another --out")
    if not done:
        trained = train(Plan(experiment, run, resume=begun), device, engine, show)
        if world.first:
            write_text(result, json.dumps(trained) + "\n")
    return json.loads(result.read_text(encoding="utf-8")) if world.first else {}


def headline(experiment: Experiment) -> tuple[str, bool]:
    """The metric that decides, and whether more of it is better."""
    task = experiment.make_tasks()[0]
    return f"valid_{task.headline}", task.higher_is_better


def sum_up(results: list[dict[str, Any]], headline: tuple[str, bool]) -> dict[str, Any]:
    """Mean, deviation and best by validation of several results."""
    name, higher_is_better = headline
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


def load(path: str | os.PathLike[str], device: str = "auto", engine: str = "auto") -> tuple[LanguageModel, Task]:
    """The trained model of a run folder and its task."""
    run = Run(path)
    experiment = Experiment.from_json(without_format(run.read_config()), str(run.path / "config.json"))
    weights, _ = run.load_model()
    task = experiment.make_tasks(run.path / "vocabulary.json")[-1]
    model = experiment.make_model(task, choose_device(device), engine)
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise ValueError(
            f"{run.path}: model.safetensors does not fit config.json or vocabulary.json; one of them was changed"
        ) from None
    return model.eval(), task


def evaluate_run(
    path: Path, split: Split, data: str | None, rows: int, segment: int, device: str, engine: str, watch: Watch | None
) -> dict[str, Any]:
    model, task = load(path, device, engine)
    if data is not None:
        if not hasattr(task, "on"):
            raise ValueError("--data is for tasks that read files; this one makes its own")
        task = task.on(data)
    _, note = Run(path).load_model()
    return {
        "run": str(path),
        "data": task.describe(),
        "split": split,
        "update": note["step"],
        **evaluate(model, task, split, rows, segment, watch),
    }


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device '{name}' cannot be used: {str(error).splitlines()[0]}") from None
    return device


def information() -> dict[str, str]:
    """Versions, device, engine and threads."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "stairwell": stairwell.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": f"{device} ({name})",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "engine": fast.describe(),
    }
