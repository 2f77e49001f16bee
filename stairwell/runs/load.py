"""Load and evaluate the model of a run folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from stairwell.decode.weights import Weights, use_weights
from stairwell.errors import UserError
from stairwell.runs import sizes
from stairwell.runs.config import RunConfig
from stairwell.runs.device import choose_device
from stairwell.runs.families import FAMILIES, EvalOptions
from stairwell.tasks import Split, Task
from stairwell.train import Callback, Run

NO_OPTIONS = EvalOptions()


def config_of(run: Run) -> RunConfig:
    """Return the config of a run folder."""
    return RunConfig.from_json(run.read_config(), str(run.path / "config.json"))


def load(
    path: str | os.PathLike[str], device: str = "auto", engine: str = "auto", weights: Weights = "float32"
) -> tuple[Any, Task]:
    """Return the trained model of a run folder and its task, from the folder alone. The data is opened on first use.

    `weights`: round the matrices of the decoder to fewer bits (`stairwell.decode.weights`)."""
    run = Run(path)
    config = config_of(run)
    task = config.make_tasks(run.path)[-1]  # before the model: it reports a damaged task.json
    parameters, _ = run.load_model()
    check_finite(parameters, run)
    sizes.check_model(config, task, chosen := choose_device(device))
    model = config.make_model(task, chosen, engine)
    try:
        model.load_state_dict(parameters)
    except RuntimeError:
        raise UserError(f"{run.path}: model.safetensors does not fit config.json; one of them was changed") from None
    use_weights(model.eval(), weights)
    return model, task


def check_finite(parameters: dict[str, torch.Tensor], run: Run) -> None:
    for name, tensor in parameters.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{run.path}/model.safetensors: the parameters contain NaN or infinity (in '{name}'). Restore the file "
                "or retrain."
            )


def evaluate_run(
    path: Path,
    split: Split,
    data: str | None = None,
    options: EvalOptions = NO_OPTIONS,
    device: str = "auto",
    engine: str = "auto",
    callback: Callback | None = None,
    weights: Weights = "float32",
) -> dict[str, Any]:
    """Return the scores of a split of the run's data, or of other data with the run's vocabulary."""
    model, task = load(path, device, engine, weights)
    if data is not None:
        task = task.with_data(data)
    if task.family == "streams":
        streams = options.streams or 1
        sizes.check_streams(model, streams, 1, f"--streams (now {streams:,})")
    _, note = Run(path).load_model()
    return {
        "run": str(path),
        "data": task.describe(),
        "split": split,
        "step": note["step"],
        **FAMILIES[task.family].evaluate(model, task, split, Path(path), options, callback),
    }
