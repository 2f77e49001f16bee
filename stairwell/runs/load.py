"""Find a run folder, load its model and evaluate it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from stairwell import checkpoints
from stairwell.decode.weights import Weights, quantize
from stairwell.errors import UserError, similar_name
from stairwell.files import write_text
from stairwell.runs import sizes
from stairwell.runs.config import RunConfig
from stairwell.runs.device import choose_device
from stairwell.runs.families import FAMILIES, EvalOptions
from stairwell.runs.run import Run
from stairwell.tasks import Split, Task
from stairwell.tasks.file_task import FileTask
from stairwell.train import Callback
from stairwell.train.translator import SEARCH

NO_OPTIONS = EvalOptions()
TEST_FILE = "test_scores.json"  # scores of the test split


def config_of(run: Run) -> RunConfig:
    """Return the config of a run folder."""
    return RunConfig.from_json(run.read_config(), str(run.path / "config.json"))


def open_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a folder, or of the name of a pretrained model, for reading. A local folder outranks a name."""
    name = os.fspath(path)
    shipped = None if os.path.isdir(path) else checkpoints.folder_of(name)
    run = Run(path if shipped is None else shipped)
    if shipped or os.path.exists(path) or os.path.basename(name) != name or not name:
        return run
    similar = similar_name(name, checkpoints.names())
    hint = f"did you mean '{similar}'?" if similar else "`stairwell list models` lists the models that have a name"
    raise UserError(f"{name} is not a run folder: it has no config.json; {hint}")


def results_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder for results about a run: the run folder, or runs/shipped/NAME for a pretrained model, whose own
    folder is never written to."""
    folder = open_run(path).path
    return Path("runs/shipped", folder.name) if folder.parent == checkpoints.FOLDER else folder


def find_result(path: str | os.PathLike[str], file: str) -> Path:
    """Return the path of a file of results about a run. The user's own outranks that of a pretrained model."""
    own = results_folder(path) / file
    return own if own.exists() else open_run(path).path / file


def check_results_writable(path: str | os.PathLike[str]) -> None:
    """Check before a long measurement whether its results can be written."""
    if (folder := results_folder(path)).exists():
        Run(folder).check_writable()


def load(
    path: str | os.PathLike[str], device: str = "auto", engine: str = "auto", weights: Weights = "float32"
) -> tuple[Any, Task]:
    """Return the trained model of a run, in evaluation mode, and its task.

    `path` is a run folder or the name of a pretrained model, such as "s5-feedback" (`stairwell list models`). The
    folder is enough: the data is opened on first use. `device`: auto, cpu, cuda or mps. `engine`: auto, fast or
    reference. `weights`: round the matrices of the decoder to fewer bits (`stairwell.decode.weights`).
    """
    run = open_run(path)
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
    quantize(model.eval(), weights)
    return model, task


def check_finite(parameters: dict[str, torch.Tensor], run: Run) -> None:
    for name, tensor in parameters.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{run.path}/model.safetensors: the parameters contain NaN or infinity (in '{name}'). Restore the file "
                "or retrain."
            )


def save_test_scores(path: str | os.PathLike[str], result: dict[str, Any]) -> None:
    """Save the scores of a run's own test split for its report. A folder without write access stays as it is, and so
    does that of a pretrained model."""
    folder = results_folder(path)
    if folder.is_dir():
        with contextlib.suppress(OSError):
            write_text(folder / TEST_FILE, json.dumps(result, indent=2) + "\n")


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
        if not isinstance(task, FileTask):
            source = "runs an environment" if task.family == "rl" else "generates its data"
            raise UserError(f"--data is for tasks that read files; this task {source}")
        task = task.with_data(data)
    if task.family == "streams":
        streams = options.streams or 1
        sizes.check_streams(model, streams, 1, f"--streams (now {streams:,})")
    _, metadata = open_run(path).load_model()
    return {
        "run": str(path),
        "data": task.describe(),
        "split": split,
        "step": metadata["step"],
        **FAMILIES[task.family].evaluate(model, task, split, find_result(path, SEARCH).parent, options, callback),
    }
