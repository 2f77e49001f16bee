"""Every kind of model that a task can ask for: its config, how it is made, trained and evaluated. One entry each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from stairwell import configs
from stairwell.errors import UserError
from stairwell.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from stairwell.rl.agent import Agent, AgentConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.rl.task import agent_trainer, evaluate_agent
from stairwell.tasks import Spec, Split, task_type
from stairwell.tasks.base import Kind
from stairwell.train import Run, Trainer, Watch
from stairwell.train.config import PairTrainConfig, TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.pair_objective import evaluate_pairs, pair_trainer
from stairwell.train.streams import evaluate, stream_trainer
from stairwell.train.translator import search_of


@dataclass(frozen=True)
class ModelKind:
    config: type[Any]
    "of the section `model`"
    derived: tuple[str, ...]
    "fields of that config which follow from the task and the core"
    make_model: Callable[[Any, Any, Any, str], nn.Module]
    "from the model's config, the core's, the task and the engine"
    make_trainer: Callable[[Any, Any, Any, Run, Distributed | None], Trainer]
    "from the model, the tasks of all phases, the train config, the run folder and the processes"
    evaluate: Callable[[Any, Any, Split, int, int, Watch | None, Path], dict[str, Any]]
    "from a model, a task, a split, rows, a segment, who watches, and the run's folder"
    train: type[Any] = TrainConfig
    "of the section `train`"
    fit_core: Callable[[Any, Any], Any] = lambda core, task: core
    "the core's config as the task's config needs it, where nobody asked for something else"


def make_language(config: LanguageModelConfig, core: Any, task: Spec, engine: str) -> LanguageModel:
    return LanguageModel(configs.changed(config, core=core, inputs=task.inputs, outputs=task.outputs), engine)


def evaluate_language(
    model: LanguageModel, task: Any, split: Split, rows: int, segment: int, watch: Watch | None, folder: Path
) -> dict[str, Any]:
    return evaluate(model, task, split, rows, segment, watch)


def make_seq2seq(config: Seq2SeqConfig, core: Any, task: Any, engine: str) -> Seq2Seq:
    sizes = {"sources": task.inputs, "targets": task.outputs, "joint": task.joint}
    return Seq2Seq(configs.changed(config, core=core, **sizes), engine)


def evaluate_seq2seq(
    model: Seq2Seq, task: Any, split: Split, rows: int, segment: int, watch: Watch | None, folder: Path
) -> dict[str, Any]:
    """Rows and segments belong to streams: pairs are taken by their lengths. The search is the one the run has kept."""
    if rows != 1:
        raise UserError("--rows is for streams of tokens; pairs are batched by their lengths")
    return evaluate_pairs(model, task, split, search_of(folder, task), watch)


def see_target(core: Any, task: Any) -> Any:
    """A core that sees a whole target, however long it may be."""
    longest = task.max_target_length
    names = {field.name for field in dataclasses.fields(core) if field.init}
    if "memory" in names:
        return dataclasses.replace(core, memory=longest)
    if "chunk" in names and "passes" in names:
        return dataclasses.replace(core, chunk=-(-longest // core.passes))
    if "passes" in names:
        return dataclasses.replace(core, passes=longest + 1)
    return core


def make_agent(config: AgentConfig, core: Any, task: Any, engine: str) -> Agent:
    return Agent(configs.changed(config, core=core, observation=task.observation, action=task.action), engine)


def evaluate_policy(
    model: Agent, task: Any, split: Split, rows: int, segment: int, watch: Watch | None, folder: Path
) -> dict[str, Any]:
    return evaluate_agent(model, task, split, rows, segment, watch)


KINDS: dict[Kind, ModelKind] = {
    "language": ModelKind(
        LanguageModelConfig, ("core", "inputs", "outputs"), make_language, stream_trainer, evaluate_language
    ),
    "seq2seq": ModelKind(
        Seq2SeqConfig,
        ("core", "sources", "targets", "joint"),
        make_seq2seq,
        pair_trainer,
        evaluate_seq2seq,
        train=PairTrainConfig,
        fit_core=see_target,
    ),
    "agent": ModelKind(
        AgentConfig,
        ("core", "observation", "action"),
        make_agent,
        agent_trainer,
        evaluate_policy,
        train=AgentTrainConfig,
    ),
}


def kind_of(task_name: str) -> ModelKind:
    """The kind of model that a task asks for."""
    return KINDS[task_type(task_name)[1].kind]


def check_kind(kind: str, wanted: str, what: str) -> None:
    """Commands that take one kind of run only say so."""
    if kind != wanted:
        raise UserError(f"{what} takes the run of a model of the kind '{wanted}'; this one is of the kind '{kind}'")
