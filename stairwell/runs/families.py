"""The three families of tasks. Each has a model, a train config, a trainer and an evaluation.

streams   tokens in, a prediction per token out: language models and state tracking
pairs     a source and a target sequence: translation and summarization
rl        an environment: agents
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from torch import nn

from stairwell import configs
from stairwell.configs import Config
from stairwell.errors import UserError
from stairwell.layers import CoreConfig
from stairwell.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from stairwell.rl.agent import Agent, AgentConfig
from stairwell.rl.task import RLTask, agent_trainer, evaluate_agent
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs.run import Run
from stairwell.tasks import Split, StreamTask, task_type
from stairwell.tasks.base import FamilyName
from stairwell.tasks.pair_task import PairTask
from stairwell.train import Callback, Trainer
from stairwell.train.config import PairTrainConfig, StreamTrainConfig, TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.pair_objective import evaluate_pairs, pair_trainer
from stairwell.train.streams import evaluate, stream_trainer
from stairwell.train.translator import load_search

DEFAULT_SEGMENT = 256
ModelT = TypeVar("ModelT", bound=nn.Module)
TaskT = TypeVar("TaskT")
ModelConfigT = TypeVar("ModelConfigT", bound=Config)
TrainConfigT = TypeVar("TrainConfigT", bound=TrainConfig)


@dataclass(frozen=True)
class EvalOptions:
    """Options of an evaluation. None: not given. A family rejects the options that it does not read."""

    streams: int | None = None
    segment: int | None = None
    deterministic: bool = False


def check_not_deterministic(options: EvalOptions) -> None:
    if options.deterministic:
        raise UserError("--deterministic is for agents, which otherwise sample their actions; leave it out")


class Family(ABC, Generic[ModelT, TaskT, ModelConfigT, TrainConfigT]):
    """What tasks of one family share."""

    name: ClassVar[FamilyName]
    model_config: type[ModelConfigT]
    train_config: type[TrainConfigT]
    derived: ClassVar[tuple[str, ...]]
    "Fields of the model's config that follow from the task and the core."

    @abstractmethod
    def make_model(self, config: ModelConfigT, core: CoreConfig, task: TaskT, engine: str) -> ModelT: ...

    @abstractmethod
    def make_trainer(
        self, model: ModelT, tasks: Sequence[TaskT], config: TrainConfigT, run: Run, world: Distributed | None
    ) -> Trainer:
        """Return the trainer of a model; `tasks` has one task per phase."""

    @abstractmethod
    def evaluate(
        self,
        model: ModelT,
        task: TaskT,
        split: Split,
        folder: Path,
        options: EvalOptions,
        callback: Callback | None = None,
    ) -> dict[str, Any]:
        """Return the scores of a split."""


class StreamFamily(Family[LanguageModel, StreamTask, LanguageModelConfig, StreamTrainConfig]):
    name = "streams"
    model_config = LanguageModelConfig
    train_config = StreamTrainConfig
    derived = ("core", "inputs", "outputs")

    def make_model(self, config: LanguageModelConfig, core: CoreConfig, task: StreamTask, engine: str) -> LanguageModel:
        return LanguageModel(configs.replace(config, core=core, inputs=task.inputs, outputs=task.outputs), engine)

    def make_trainer(
        self,
        model: LanguageModel,
        tasks: Sequence[StreamTask],
        config: StreamTrainConfig,
        run: Run,
        world: Distributed | None,
    ) -> Trainer:
        return stream_trainer(model, tasks, config, run, world)

    def evaluate(
        self, model: LanguageModel, task: StreamTask, split: Split, folder: Path, options: EvalOptions,
        callback: Callback | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        check_not_deterministic(options)
        return evaluate(model, task, split, options.streams or 1, options.segment or DEFAULT_SEGMENT, callback)


class PairFamily(Family[Seq2Seq, PairTask, Seq2SeqConfig, PairTrainConfig]):
    name = "pairs"
    model_config = Seq2SeqConfig
    train_config = PairTrainConfig
    derived = ("core", "sources", "targets", "joint")

    def make_model(self, config: Seq2SeqConfig, core: CoreConfig, task: PairTask, engine: str) -> Seq2Seq:
        sizes = {"sources": task.inputs, "targets": task.outputs, "joint": task.joint}
        return Seq2Seq(configs.replace(config, core=core, **sizes), engine)

    def make_trainer(
        self, model: Seq2Seq, tasks: Sequence[PairTask], config: PairTrainConfig, run: Run, world: Distributed | None
    ) -> Trainer:
        return pair_trainer(model, tasks, config, run, world)

    def evaluate(
        self, model: Seq2Seq, task: PairTask, split: Split, folder: Path, options: EvalOptions,
        callback: Callback | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        check_not_deterministic(options)
        for name in ("streams", "segment"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} is for streams of tokens; pairs are batched by their lengths")
        return evaluate_pairs(model, task, split, load_search(folder, task), callback)


class RLFamily(Family[Agent, RLTask, AgentConfig, AgentTrainConfig]):
    name = "rl"
    model_config = AgentConfig
    train_config = AgentTrainConfig
    derived = ("core", "observation_space", "action_space")

    def make_model(self, config: AgentConfig, core: CoreConfig, task: RLTask, engine: str) -> Agent:
        spaces = {"observation_space": task.observation_space, "action_space": task.action_space}
        return Agent(configs.replace(config, core=core, **spaces), engine)

    def make_trainer(
        self, model: Agent, tasks: Sequence[RLTask], config: AgentTrainConfig, run: Run,
        world: Distributed | None,
    ) -> Trainer:  # fmt: skip
        return agent_trainer(model, tasks[0], config, run, world)

    def evaluate(
        self, model: Agent, task: RLTask, split: Split, folder: Path, options: EvalOptions,
        callback: Callback | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        if options.segment is not None:
            raise UserError("--segment is for streams of tokens; an environment takes one step at a time")
        return evaluate_agent(model, task, split, options.streams, callback, options.deterministic)


AnyFamily = Family[Any, Any, Any, Any]
FAMILIES: dict[FamilyName, AnyFamily] = {family.name: family for family in (StreamFamily(), PairFamily(), RLFamily())}


def family_of(task_name: str) -> AnyFamily:
    """Return the family of a task."""
    return FAMILIES[task_type(task_name)[1].family]


def check_family(name: FamilyName, expected: FamilyName, command: str) -> None:
    """Reject a run of another family than a command expects."""
    if name != expected:
        raise UserError(f"{command} expects a run of the family '{expected}'; this run is of the family '{name}'")
