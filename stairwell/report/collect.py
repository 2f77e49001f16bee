"""From a run folder to what a report shows of it: curves, scores, what the model learned, what it believes.

Everything gathered is plain numbers and text, so that a report can be made, stored and sent without the model.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stairwell.cores import entry
from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.models import LanguageModel, inspect
from stairwell.report.drift import Drift, read_drift
from stairwell.report.played import Episode, layer_names, read_episode
from stairwell.report.written import Sentence, read_sentences
from stairwell.rl.task import Reinforcement
from stairwell.runs.config import SECTIONS, RunConfig
from stairwell.runs.launch import experiment_of, load
from stairwell.runs.long_streams import Horizon
from stairwell.runs.long_streams import read as read_horizon
from stairwell.runs.presets import preset
from stairwell.state import State
from stairwell.tasks import Split, Task
from stairwell.tasks.pair_task import PairBatch, PairTask
from stairwell.tasks.random_walk import ACTIONS, RandomWalk, trajectory
from stairwell.train.curriculum import Curriculum
from stairwell.train.run import Run
from stairwell.train.streams import inside

POINTS = 400  # of a curve: more than a screen shows
MEASURED = ("return", "length", "entropy")  # of agents, beside loss
COLUMNS = 128  # of an attention picture: farther distances are taken together
ROWS, LEAD_IN, LOOKED_AT = 4, 128, 64  # the stream that attention is averaged over: rows, tokens before, tokens of it


@dataclass(frozen=True)
class Curves:
    """Training metrics along a run; none where a line of metrics had no such number."""

    tokens: list[int]
    seconds: list[float]
    loss: list[float | None]
    accuracy: list[float | None]
    stage: list[float | None]
    "where the curriculum stood: the one option it turns, or else the number of the stage"
    stage_name: str = ""
    "what that number is, such as `length`"
    measured: dict[str, list[float | None]] = field(default_factory=dict)
    "what else was measured along the way, by name"

    def of(self, metric: str) -> list[float | None]:
        """One curve by its name; gaps all along where there is none."""
        nothing: list[float | None] = [None] * len(self.tokens)
        return {"loss": self.loss, "accuracy": self.accuracy, **self.measured}.get(metric, nothing)


@dataclass(frozen=True)
class Validation:
    tokens: int
    seconds: float
    scores: dict[str, float | None]


@dataclass(frozen=True)
class Attention:
    """How far each head looks back, on average: weights[layer][head][column], the nearest distance first."""

    layers: list[str]
    first: int
    "the nearest distance"
    bin: int
    "distances that are taken together in a column"
    weights: list[list[list[float]]]


@dataclass(frozen=True)
class Belief:
    """One fresh episode of the random walk: what the agent did, where it was, where the model thinks it is."""

    grid: int
    actions: list[str]
    cells: list[int]
    headings: list[int]
    "numbers in `stairwell.tasks.random_walk.HEADINGS`"
    probabilities: list[list[int]]
    "of each cell after each action, in thousandths"
    answers: list[int]
    "the likeliest cell after each action"


@dataclass(frozen=True)
class RunReport:
    name: str
    "what the model is called; runs of one name are seeds of one model and share its color"
    folder: str
    task: str
    core: str
    about: str
    "one line on the data"
    metric: str
    "the score that decides"
    higher_is_better: bool
    seed: int
    weights: int | None
    config: dict[str, Any]
    curves: Curves
    validations: list[Validation]
    scores: dict[str, float | None]
    "valid_... of the weights that were kept, and whatever else was passed in, such as test_accuracy"
    layer_weights: list[list[float]] = field(default_factory=list)
    "for each memory how much of each layer is in it, the embedding first"
    spans: list[list[float]] = field(default_factory=list)
    "learned attention spans in tokens, layer by head"
    attention: Attention | None = None
    beliefs: list[Belief] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
    sentences: list[Sentence] = field(default_factory=list)
    "what a sequence-to-sequence model writes for a few sources"
    horizon: Horizon | None = None
    drift: Drift | None = None
    episode: Episode | None = None
    "of an agent, to be stepped through"

    @property
    def unit(self) -> str:
        """What `tokens` are."""
        return "frames" if self.task == "rl" else "tokens"

    @property
    def title(self) -> str:
        """What was learned: the task or, of agents, the environment."""
        return str(self.config["task"]["env"]) if self.task == "rl" else self.task

    @property
    def tokens(self) -> int:
        return max([*self.curves.tokens[-1:], *(point.tokens for point in self.validations[-1:])], default=0)

    @property
    def seconds(self) -> float:
        return max([*self.curves.seconds[-1:], *(point.seconds for point in self.validations[-1:])], default=0.0)

    @property
    def score(self) -> tuple[str, float] | None:
        """The number that decides and the split it is of: test where that was scored, else validation."""
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
    """Read a run folder; a training that has saved no model yet shows its curves only.

    `episodes` of the random walk are shown step by step, `name` is the core's if not given. `scores` and `provenance`
    add to what the folder knows; scores without valid_ or test_ before their name are those of the test split, or of
    the `split` among them, as `evaluate_run` returns them."""
    run = Run(folder)
    config, experiment = run.read_config(), experiment_of(run)
    model, task, note = None, None, {}
    if (run.path / "model.safetensors").exists():
        model, task = load(run.path, "cpu")
        note = run.load_model()[1]
    else:
        task = experiment.make_tasks(run.path)[-1]
    records, result = run.metrics(), read_result(run)
    learned = inside(model) if model is not None else {}
    return RunReport(
        name=name or entry(experiment.core_name).title,
        folder=shown_folder(run.path),
        task=experiment.task_name,
        core=experiment.core_name,
        about=task.describe(),
        metric=task.primary_metric,
        higher_is_better=task.higher_is_better,
        seed=experiment.train.seed,
        weights=sum(parameter.numel() for parameter in model.parameters()) if model is not None else None,
        config=config,
        curves=read_curves(records, experiment),
        validations=[
            Validation(record["tokens"], record["seconds"], finite(record["valid"]))
            for record in records
            if "valid" in record
        ],
        scores=read_scores(result, note, scores or {}),
        layer_weights=learned.get("layer_weights", []),
        spans=learned.get("spans", []),
        attention=look(model, task) if model is not None else None,
        beliefs=believe(model, task, episodes) if model is not None and isinstance(task, RandomWalk) else [],
        provenance=read_provenance(
            run, config, experiment, note, {**result.get("provenance", {}), **(provenance or {})}
        ),
        sentences=read_sentences(model, task, run.path) if isinstance(task, PairTask) and model is not None else [],
        horizon=read_horizon(run.path),
        drift=read_drift(run.path),
        episode=read_episode(model, task) if isinstance(task, Reinforcement) and model is not None else None,
    )


def finite(value: Any) -> Any:
    """The same numbers as JSON can hold them: none in place of what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read_curves(records: list[dict[str, Any]], experiment: RunConfig) -> Curves:
    """The lines of training metrics, thinned out to what a screen shows."""
    lines = [record for record in records if "loss" in record]
    groups = [lines[i : i + 1 + len(lines) // POINTS] for i in range(0, len(lines), 1 + len(lines) // POINTS)]
    stage_name, stages = read_stages(experiment, groups)
    return Curves(
        tokens=[group[-1]["tokens"] for group in groups],
        seconds=[group[-1]["seconds"] for group in groups],
        loss=[mean([line["loss"] for line in group]) for group in groups],
        accuracy=[mean([line.get("accuracy") for line in group]) for group in groups],
        stage=stages,
        stage_name=stage_name,
        measured={
            name: [mean([line.get(name) for line in group]) for group in groups]
            for name in MEASURED
            if any(name in line for line in lines)
        },
    )


def mean(values: list[float | None]) -> float | None:
    """Of the numbers that are there and finite, to six digits."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(f"{sum(known) / len(known):.6g}") if known else None


def read_stages(experiment: RunConfig, groups: list[list[dict[str, Any]]]) -> tuple[str, list[float | None]]:
    """What the curriculum's number is called, and its value at each point of the curve."""
    plan = Curriculum.parse(experiment.train.curriculum).stages
    options = {name for stage in plan for name in stage}
    if len(options) == 1:
        (name,) = options
        return name, [group[-1].get("stage", {}).get(name) for group in groups]
    stages = [group[-1].get("stage") for group in groups]
    return ("stage" if plan else ""), [plan.index(stage) + 1.0 if stage in plan else None for stage in stages]


def read_scores(result: dict[str, Any], note: dict[str, Any], given: Mapping[str, Any]) -> dict[str, float | None]:
    """What a finished run wrote down, the validation of the weights that were kept, and what was passed in."""
    scores = of_split(result, "") | of_split(result.get("test", {}), "test")
    # A result holds the last validation, but the weights are those of the best one.
    scores |= of_split(note.get("valid", {}), "valid") | of_split(given, str(given.get("split", "test")))
    return finite(scores)


def of_split(scores: Mapping[str, Any], split: str) -> dict[str, float]:
    """The numbers among `scores` under names that begin with their split; others are left out where none is given."""
    numbers = {name: value for name, value in scores.items() if type(value) in (int, float)}
    named = {name: value for name, value in numbers.items() if name.startswith(("valid_", "test_"))}
    return named | {f"{split}_{name}": value for name, value in numbers.items() if split and name not in named}


def read_result(run: Run) -> dict[str, Any]:
    path = run.path / "result.json"
    try:
        result = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def read_provenance(
    run: Run, config: dict[str, Any], experiment: RunConfig, note: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, str]:
    """How this run was made, in the words of a command line."""
    alone = command(experiment, run.path)
    found = {"command": alone, "seed": str(experiment.train.seed)}
    if "stairwell" in config:
        found["stairwell"] = str(config["stairwell"])
    if "step" in note:
        found["weights kept"] = f"of update {note['step']:,}, the best by validation"
    found |= {name: str(words) for name, words in given.items()}
    # What was typed may have made many runs; this one alone can be made again too.
    return found if found["command"] == alone else {"command": found["command"], "command for this run": alone} | found


def command(experiment: RunConfig, folder: Path) -> str:
    """The command that makes the same run: the preset's name and every option that differs from it."""
    usual = preset(experiment.name)
    words = ["stairwell", "train", experiment.name, "--out", shown_folder(folder)]
    ours, theirs = experiment.to_json(), usual.to_json()
    for section in SECTIONS:
        for option, value in ours[section].items():
            if value == theirs[section][option]:
                continue
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{section}.{option}", text.lower() if isinstance(value, bool) else text]
    return shlex.join(words)


def shown_folder(folder: Path) -> str:
    """The folder as a path from here; only its name where it lies elsewhere, since a page may be handed on."""
    try:
        return folder.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return folder.resolve().name


@torch.no_grad()
def look(model: Any, task: Task) -> Attention | None:
    """Attention by distance, averaged over the end of a short stream of test data; none for models without it."""
    given = example(model, task)
    if given is None:
        return None
    with inspect(model) as seen:
        model(*given)
    pictures = [weights[:, :, -LOOKED_AT:].mean((0, 2)) for weights in seen.attention]  # each (H, distances)
    if not pictures:
        return None
    core: Any = model.config.core
    # Distances that no head ever gave any weight to are not shown.
    reach = max([1, *(int(place) + 1 for picture in pictures for place in picture.sum(0).nonzero().flatten())])
    width = -(-reach // COLUMNS)
    columns = -(-reach // width)
    weights = []
    for picture in pictures:
        fitted = torch.nn.functional.pad(picture[:, :reach], (0, columns * width - min(reach, picture.shape[-1])))
        weights.append(rounded(fitted.unflatten(-1, (columns, width)).sum(-1)))
    return Attention(layer_names(len(pictures), core.layers), core.first, width, weights)


def rounded(table: Tensor) -> list[list[float]]:
    return [[round(number, 4) for number in row] for row in table.tolist()]


def example(model: Any, task: Any) -> tuple[Any, State, Tensor | None] | None:
    """What a model is called with at the beginning of the test data, or of the validation data where there is no test
    split; of an agent, what it sees. None where the data or the environment is gone or has changed."""
    splits: tuple[Split, ...] = ("test", "valid")
    for split in splits:
        try:
            if task.kind == "agent":
                seen, start = task.example(model, split, ROWS, LEAD_IN + LOOKED_AT)
                return seen, model.init_state(ROWS), start
            batch = next(iter(task.batches(split, ROWS, LEAD_IN + LOOKED_AT)), None)
            if isinstance(batch, PairBatch):
                state = model.init_state(batch.tokens.shape[0], batch.source, batch.source_mask)
                return batch.tokens, state, None
            if batch is not None:
                return batch.tokens, model.init_state(ROWS), batch.start
        except (UserError, OSError):
            continue
    return None


@torch.no_grad()
def believe(model: LanguageModel, task: RandomWalk, episodes: int) -> list[Belief]:
    """The first test episodes as the model follows them. One more is read before, as in training, where a stream never
    begins with an empty memory; where there is only one, it is shown from a fresh state."""
    size, grid = task.config.length + 1, task.config.grid
    if episodes < 1:
        return []
    lead_in = min(1, task.config.test_episodes - 1)
    batch = next(task.batches("test", 1, (lead_in + episodes) * size))
    logits, _ = model(batch.tokens, model.init_state(1))
    beliefs = []
    for first in range(lead_in * size, batch.tokens.shape[1], size):
        tokens = batch.tokens[0, first : first + size].tolist()
        cells, headings = trajectory(tokens, grid)
        believed = logits[0, first : first + size].softmax(-1)
        thousandths, answers = (believed * 1000).round().int().tolist(), believed.argmax(-1).tolist()
        beliefs.append(Belief(grid, [ACTIONS[token] for token in tokens], cells, headings, thousandths, answers))
    return beliefs
