"""The kinds of model that can be trained, by the `kind` of their task's Spec: how an experiment becomes a model, a
trainer and scores. A new kind is one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from stairwell import configs
from stairwell.errors import UserError
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.rl.agent import Agent, AgentConfig
from stairwell.rl.config import AgentTrainConfig
from stairwell.rl.task import agent_trainer, evaluate_agent
from stairwell.tasks import task_type
from stairwell.train import TrainConfig, Trainer, evaluate, stream_trainer


@dataclass(frozen=True)
class Kind:
    model: type[Any]
    "the config of the section `model`"
    train: type[Any]
    "the config of the section `train`"
    derived: Callable[[Any], dict[str, Any]]
    "fields of the model's config that follow from the task's Spec"
    derived_names: tuple[str, ...]
    make: Callable[[Any, str], nn.Module]
    "from the model's config and the engine's name"
    make_trainer: Callable[..., Trainer]
    "from the model, the tasks of all phases, the train config, the run folder and the processes"
    evaluate: Callable[..., dict[str, float]]
    "scores of a split: from the model, the task, the split, rows, segment and a watch"

    def make_model(self, config: Any, core: Any, spec: Any, engine: str) -> nn.Module:
        return self.make(configs.changed(config, core=core, **self.derived(spec)), engine)


def symbols(spec: Any) -> dict[str, Any]:
    return {"inputs": spec.inputs, "outputs": spec.outputs}


def spaces(spec: Any) -> dict[str, Any]:
    return {"observation": spec.observation, "action": spec.action}


KINDS: dict[str, Kind] = {
    "language": Kind(
        LanguageModelConfig,
        TrainConfig,
        symbols,
        ("core", "inputs", "outputs"),
        LanguageModel,
        stream_trainer,
        evaluate,
    ),
    "agent": Kind(
        AgentConfig,
        AgentTrainConfig,
        spaces,
        ("core", "observation", "action"),
        Agent,
        agent_trainer,
        evaluate_agent,
    ),
}


def kind_of(task_name: str) -> Kind:
    """The kind of model that a task takes."""
    return KINDS[task_type(task_name)[1].kind]


def check_kind(kind: str, wanted: str, what: str) -> None:
    """Commands that take one kind of run only say so."""
    if kind != wanted:
        raise UserError(f"{what} takes the run of a model of the kind '{wanted}'; this one is of the kind '{kind}'")
