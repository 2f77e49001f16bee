"""Read a run folder into a `RunReport`: curves, scores, learned parameters, predictions.

A `RunReport` holds plain numbers and text only, so a page needs neither the model nor the data.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stairwell.cores import entry
from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.models import LanguageModel
from stairwell.report.attention import AttentionAverage, average_attention
from stairwell.report.episode import RecordedEpisode, read_episode
from stairwell.report.memory_analysis import MemoryAnalysis, read_analysis
from stairwell.report.samples import DecodedSample, read_samples
from stairwell.rl.task import RLTask
from stairwell.runs.config import SECTIONS, RunConfig
from stairwell.runs.load import TEST_FILE, config_of, find_result, load, open_run
from stairwell.runs.long_streams import Horizon
from stairwell.runs.long_streams import read as read_horizon
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from stairwell.state import State
from stairwell.tasks import Split, Task
from stairwell.tasks.pair_task import PairBatch, PairTask
from stairwell.tasks.random_walk import ACTIONS, RandomWalk, trajectory
from stairwell.train.streams import model_metrics
from stairwell.train.translator import SEARCH

MAX_POINTS = 400  # of a curve, more than a screen shows
RL_METRICS = ("return", "length", "entropy")  # training metrics of agents besides the loss
MAX_COLUMNS = 128  # of a plot of attention; more distances are binned
BATCH, LEAD_IN, AVERAGED = 4, 128, 64  # streams, tokens before and tokens that attention is averaged over


@dataclass(frozen=True)
class Curves:
    """Training metrics of a run; None where a metric is missing."""

    tokens: list[int]
    seconds: list[float]
    loss: list[float | None]
    accuracy: list[float | None]
    stage: list[float | None]
    "Stage of the curriculum: the value of its only option, or else the number of the stage."
    stage_name: str = ""
    "Name of that option, such as `length`."
    rl_metrics: dict[str, list[float | None]] = field(default_factory=dict)

    def of(self, metric: str) -> list[float | None]:
        """Return the curve of a metric; all None if it was not recorded."""
        missing: list[float | None] = [None] * len(self.tokens)
        return {"loss": self.loss, "accuracy": self.accuracy, **self.rl_metrics}.get(metric, missing)


@dataclass(frozen=True)
class ValidationPoint:
    tokens: int
    seconds: float
    scores: dict[str, float | None]


@dataclass(frozen=True)
class WalkPrediction:
    """One test episode of the random walk and the model's predictions."""

    grid: int
    actions: list[str]
    cells: list[int]
    headings: list[int]
    "Indices into `stairwell.tasks.random_walk.HEADINGS`."
    probabilities: list[list[int]]
    "Probability of each cell after each action, in thousandths."
    answers: list[int]
    "Most probable cell after each action."


@dataclass(frozen=True)
class RunReport:
    name: str
    "Name of the model. Runs with the same name are seeds of one model and share its color."
    folder: str
    task: str
    core: str
    about: str
    "Description of the data in one line."
    metric: str
    "Primary metric."
    higher_is_better: bool
    seed: int
    parameters: int | None
    config: dict[str, Any]
    curves: Curves
    validations: list[ValidationPoint]
    scores: dict[str, float | None]
    "Scores by split and metric, such as valid_loss and test_accuracy."
    layer_weights: list[list[float]] = field(default_factory=list)
    "Share of each layer, embedding first, in each memory."
    spans: list[list[float]] = field(default_factory=list)
    "Learned attention spans in tokens, by layer and head."
    attention: AttentionAverage | None = None
    walks: list[WalkPrediction] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
    samples: list[DecodedSample] = field(default_factory=list)
    "Outputs of a sequence-to-sequence model."
    horizon: Horizon | None = None
    "Long-stream evaluation."
    memory_analysis: MemoryAnalysis | None = None
    episode: RecordedEpisode | None = None
    "Episode of an agent."
    outdated: list[str] = field(default_factory=list)
    "What was measured with earlier parameters and is therefore left out, and how to measure it again."

    @property
    def unit(self) -> str:
        """What `tokens` counts."""
        return "frames" if self.task == "rl" else "tokens"

    @property
    def title(self) -> str:
        """The environment of an agent, the name of the user's data, or the task."""
        if self.task == "rl":
            return str(self.config["task"]["env"])
        path = str(self.config["task"].get("path") or "")
        return Path(path).stem if path else self.task

    @property
    def tokens(self) -> int:
        return max([*self.curves.tokens[-1:], *(point.tokens for point in self.validations[-1:])], default=0)

    @property
    def seconds(self) -> float:
        return max([*self.curves.seconds[-1:], *(point.seconds for point in self.validations[-1:])], default=0.0)

    @property
    def score(self) -> tuple[str, float] | None:
        """The primary metric and its split: test if it was evaluated, else validation."""
        for split in ("test", "valid"):
            value = self.scores.get(f"{split}_{self.metric}")
            if value is not None:
                return split, value
        return None


def gather(
    folder: str | Path,
    episodes: int = 1,
    name: str | None = None,
    scores: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> RunReport:
    """Read a run folder. A run without a saved model has curves only.

    `episodes` is the number of random-walk episodes to show; `name` defaults to the name of the core. `scores` and
    `provenance` are added to those of the folder. Scores whose names do not start with valid_ or test_ belong to the
    split named by their key `split`, as `evaluate_run` returns them, or else to the test split."""
    run = open_run(folder)
    config_json, config = run.read_config(), config_of(run)
    model, metadata = None, {}
    if (run.path / "model.safetensors").exists():
        model, task = load(run.path, "cpu")
        metadata = run.load_model()[1]
    else:
        task = config.make_tasks(run.path)[-1]
    records, result = run.metrics(), read_result(run)
    step = metadata.get("step")
    if step is not None and result.get("best_step", step) != step:
        result = {}  # of a training that was resumed since
    horizon, analysis = read_horizon(run.path), read_analysis(run.path)
    outdated = []
    if horizon is not None and is_outdated(horizon.step, step):
        repeat = f"eval {{}} --horizon {horizon.tokens}"
        outdated.append(outdated_text("long streams were", horizon.step, repeat, run))
        horizon = None
    if analysis is not None and is_outdated(analysis.step, step):
        outdated.append(outdated_text("the memory was", analysis.step, "report {} --inside", run))
        analysis = None
    report = RunReport(
        name=name or entry(config.core_name).title,
        folder=display_path(run.path),
        task=config.task_name,
        core=config.core_name,
        about=task.describe(),
        metric=task.primary_metric,
        higher_is_better=task.higher_is_better,
        seed=config.train.seed,
        parameters=None,
        config=config_json,
        curves=read_curves(records, config),
        validations=[
            ValidationPoint(record["tokens"], record["seconds"], replace_nonfinite(record["valid"]))
            for record in records
            if "valid" in record
        ],
        scores={**of_split(read_test_scores(run, step), "test"), **read_scores(result, metadata, scores or {})},
        provenance=read_provenance(
            run.path, config_json, config, metadata, {**result.get("provenance", {}), **(provenance or {})}
        ),
        horizon=horizon,
        memory_analysis=analysis,
        outdated=outdated,
    )
    if model is None:
        return report
    return replace(report, **inspect_model(model, task, find_result(run.path, SEARCH).parent, episodes))


def is_outdated(measured: int | None, saved: int | None) -> bool:
    """Return whether a result belongs to other parameters than those saved. Old files do not name their step."""
    return measured is not None and saved is not None and measured != saved


def outdated_text(what: str, step: int | None, arguments: str, run: Run) -> str:
    """Return why a result is left out of a report, and the command that measures it again."""
    command = f"stairwell {arguments.format(shlex.quote(str(run.path)))}"
    return f"{what} measured at step {step:,}, before training continued; run again: {command}"


def inspect_model(model: Any, task: Task, folder: Path, episodes: int) -> dict[str, Any]:
    """Return the fields of `RunReport` that require the model."""
    learned = model_metrics(model)
    inputs = example_inputs(model, task)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layer_weights": learned.get("layer_weights", []),
        "spans": learned.get("spans", []),
        "attention": average_attention(model, inputs, AVERAGED, MAX_COLUMNS) if inputs is not None else None,
        "walks": predict_walks(model, task, episodes) if isinstance(task, RandomWalk) else [],
        "samples": read_samples(model, task, folder) if isinstance(task, PairTask) else [],
        "episode": read_episode(model, task) if isinstance(task, RLTask) else None,
    }


def replace_nonfinite(value: Any) -> Any:
    """Return a JSON value with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return value


def read_curves(records: list[dict[str, Any]], config: RunConfig) -> Curves:
    """Return the training metrics, averaged so that a curve has at most about MAX_POINTS points."""
    lines = [record for record in records if "loss" in record]
    size = 1 + len(lines) // MAX_POINTS
    groups = [lines[i : i + size] for i in range(0, len(lines), size)]
    stage_name, stages = read_stages(config, groups)
    return Curves(
        tokens=[group[-1]["tokens"] for group in groups],
        seconds=[group[-1]["seconds"] for group in groups],
        loss=[mean([line["loss"] for line in group]) for group in groups],
        accuracy=[mean([line.get("accuracy") for line in group]) for group in groups],
        stage=stages,
        stage_name=stage_name,
        rl_metrics={
            name: [mean([line.get(name) for line in group]) for group in groups]
            for name in RL_METRICS
            if any(name in line for line in lines)
        },
    )


def mean(values: list[float | None]) -> float | None:
    """Return the mean of the finite values to six digits; None if there are none."""
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return float(f"{sum(numbers) / len(numbers):.6g}") if numbers else None


def read_stages(config: RunConfig, groups: list[list[dict[str, Any]]]) -> tuple[str, list[float | None]]:
    """Return the name of the curriculum's variable and its value at each point of the curves."""
    stages = config.train.make_curriculum().stages
    options = {name for stage in stages for name in stage}
    if len(options) == 1:
        (name,) = options
        return name, [group[-1].get("stage", {}).get(name) for group in groups]
    reached = [group[-1].get("stage") for group in groups]
    return ("stage" if stages else ""), [stages.index(stage) + 1.0 if stage in stages else None for stage in reached]


def read_scores(result: dict[str, Any], metadata: dict[str, Any], given: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the scores of a finished run, of the saved model, and those passed in."""
    scores = of_split(result, "") | of_split(result.get("test", {}), "test")
    # The result has the last validation, but the saved model is that of the best one.
    scores |= of_split(metadata.get("valid", {}), "valid") | of_split(given, str(given.get("split", "test")))
    return replace_nonfinite(scores)


def of_split(scores: Mapping[str, Any], split: str) -> dict[str, float]:
    """Return the numbers in `scores` with the split before their names; without a split, only those that have one."""
    numbers = {name: value for name, value in scores.items() if type(value) in (int, float)}
    named = {name: value for name, value in numbers.items() if name.startswith(("valid_", "test_"))}
    return named | {f"{split}_{name}": value for name, value in numbers.items() if split and name not in named}


def read_result(run: Run) -> dict[str, Any]:
    return read_object(run.path / "result.json")


def read_test_scores(run: Run, step: int | None) -> dict[str, Any]:
    """Return the scores of the test split that `eval` saved, unless training continued since."""
    saved = read_object(find_result(run.path, TEST_FILE))
    if saved.get("split") != "test" or saved.get("step") != step:
        return {}
    return {name: value for name, value in saved.items() if name not in ("split", "step")}


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if there is none."""
    try:
        content = parse_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_provenance(
    folder: Path, config_json: dict[str, Any], config: RunConfig, metadata: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, str]:
    """Return how this run was made."""
    own_command = command(config, folder)
    facts = {"command": own_command, "folder": display_path(folder), "seed": str(config.train.seed)}
    if "stairwell" in config_json:
        facts["stairwell"] = str(config_json["stairwell"])
    if "step" in metadata:
        facts["saved parameters"] = f"of step {metadata['step']:,}, the best by validation"
    facts |= {name: str(value) for name, value in given.items()}
    # The command passed in may have made many runs.
    if facts["command"] != own_command:
        return {"command": facts["command"], "command for this run": own_command} | facts
    return facts


def command(config: RunConfig, folder: Path) -> str:
    """Return the command that makes the same run: the name of the preset and every option that differs from it."""
    ours, defaults = config.to_json(), preset(config.name).to_json()
    words = ["stairwell", "train", config.name, "--out", display_path(folder)]
    for section in SECTIONS:
        for option, value in ours[section].items():
            if value == defaults[section][option]:
                continue
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{section}.{option}", text.lower() if isinstance(value, bool) else text]
    return shlex.join(words)


def display_path(folder: Path) -> str:
    """Return the path relative to the working directory; outside it only the name, since a page may be shared."""
    try:
        return folder.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return folder.resolve().name


def example_inputs(model: Any, task: Any) -> tuple[Any, State, Tensor | None] | None:
    """Return inputs of the model from the start of the test split, or of the validation split if there is no test
    split. None if the data or the environment is not available."""
    splits: tuple[Split, ...] = ("test", "valid")
    for split in splits:
        try:
            if task.family == "rl":
                inputs, start = task.example(model, split, BATCH, LEAD_IN + AVERAGED)
                return inputs, model.init_state(BATCH), start
            batch = next(iter(task.batches(split, BATCH, LEAD_IN + AVERAGED)), None)
            if isinstance(batch, PairBatch):
                state = model.init_state(batch.tokens.shape[0], batch.source, batch.source_mask)
                return batch.tokens, state, None
            if batch is not None:
                return batch.tokens, model.init_state(BATCH), batch.start
        except (UserError, OSError):
            continue
    return None


@torch.no_grad()
def predict_walks(model: LanguageModel, task: RandomWalk, episodes: int) -> list[WalkPrediction]:
    """Return the predictions for the first test episodes. If there is more than one episode, the model reads another
    one before, because in training streams rarely start with an empty memory."""
    size, grid = task.config.length + 1, task.config.grid
    if episodes < 1:
        return []
    lead_in = min(1, task.config.test_episodes - 1)
    batch = next(task.batches("test", 1, (lead_in + episodes) * size))
    logits, _ = model(batch.tokens, model.init_state(1))
    walks = []
    for first in range(lead_in * size, batch.tokens.shape[1], size):
        tokens = batch.tokens[0, first : first + size].tolist()
        cells, headings = trajectory(tokens, grid)
        probabilities = logits[0, first : first + size].softmax(-1)
        thousandths, answers = (probabilities * 1000).round().int().tolist(), probabilities.argmax(-1).tolist()
        walks.append(WalkPrediction(grid, [ACTIONS[token] for token in tokens], cells, headings, thousandths, answers))
    return walks
