"""A RunConfig: everything that determines one run, in the sections `core`, `model`, `task` and `train`."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stairwell import configs
from stairwell.configs import Config
from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.layers import CoreConfig
from stairwell.models import LanguageModelConfig, Seq2SeqConfig
from stairwell.rl.agent import AgentConfig
from stairwell.rl.train_config import AgentTrainConfig
from stairwell.runs.families import AnyFamily, family_of
from stairwell.tasks import Task, load_tasks, make_task, task_type
from stairwell.train.config import PairTrainConfig, StreamTrainConfig
from stairwell.train.curriculum import Curriculum

ModelConfig = LanguageModelConfig | Seq2SeqConfig | AgentConfig
AnyTrainConfig = StreamTrainConfig | PairTrainConfig | AgentTrainConfig
SECTIONS = ("core", "model", "task", "train")
# Fields that follow from the other sections, besides those that the family derives.
DERIVED = {"core": ("cross",)}
MAX_VALUE = 40  # characters of an option's value in a message


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The names determine the types of the sections: `config_type(core_name)`, `task_type(task_name)` and the configs
    of the task's family."""

    task_name: str
    core_name: str
    core: CoreConfig
    task: Config
    model: ModelConfig
    train: AnyTrainConfig

    def __post_init__(self) -> None:
        dataclasses.replace(self.model, core=self.core)  # raises if no model can have these options

    @property
    def name(self) -> str:
        return f"{self.task_name}/{self.core_name}"

    @property
    def family(self) -> AnyFamily:
        return family_of(self.task_name)

    def option(self, name: str) -> Any:
        """Return the value of a field by the name of its option, such as `core.passes`."""
        section, _, field = name.partition(".")
        return getattr(getattr(self, section), field)

    def differences(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Return the options that differ, with our value and the other's: {"core.memory": (16, 4)}. An option that one
        of them does not have is None there."""
        ours, theirs = ({"run": config.name, **flat_options(config.to_json())} for config in (self, other))
        return {
            name: (ours.get(name), theirs.get(name))
            for name in dict.fromkeys([*ours, *theirs])
            if ours.get(name) != theirs.get(name)
        }

    def replace(
        self,
        core: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        task: dict[str, Any] | None = None,
        train: dict[str, Any] | None = None,
    ) -> RunConfig:
        """Return a config with some fields of its sections replaced."""
        changes = {"core": core, "model": model, "task": task, "train": train}
        sections = {
            name: dataclasses.replace(getattr(self, name), **fields) for name, fields in changes.items() if fields
        }
        return dataclasses.replace(self, **sections)

    def with_seed(self, seed: int) -> RunConfig:
        return self.replace(train={"seed": seed})

    @property
    def unit(self) -> str:
        """What the model reads: tokens, or frames of an environment."""
        return "frames" if self.family.name == "rl" else "tokens"

    def with_options(self, options: dict[str, str]) -> RunConfig:
        """Return a config with fields set from text, such as {"core.memory": "64"}. An error names the option."""
        try:
            return self._with_options(options)
        except UserError as error:
            message = str(error)
            raise UserError(message if message.startswith("--") else self._named(message, options)) from None

    def _named(self, message: str, options: dict[str, str]) -> str:
        """Return the message about wrong options with the name of the first one that makes it appear."""
        for count, (name, text) in enumerate(options.items(), start=1):
            try:
                self._with_options(dict(itertools.islice(options.items(), count)))
            except UserError as error:
                if str(error) == message:
                    return name_option(message, name, text)
        return message

    def _with_options(self, options: dict[str, str]) -> RunConfig:
        changed: dict[str, Any] = {}
        for name, text in options.items():
            if name.partition(".")[0] not in SECTIONS:
                raise UserError(f"unknown option {name!r}; options are SECTION.FIELD, of {', '.join(SECTIONS)}")
            if not isinstance(text, str):
                raise UserError(f"{name}: {text!r} is not text; write '{text}'")
        for section in SECTIONS:
            values = {name.partition(".")[2]: text for name, text in options.items() if name.startswith(section + ".")}
            fixed = self.family.derived if section == "model" else DERIVED.get(section, ())
            if derived := sorted(set(values) & set(fixed)):
                raise UserError(f"--{section}.{derived[0]} cannot be set: it follows from the task and the core")
            if values:
                before = self.train.without_dependents(values) if section == "train" else getattr(self, section)
                changed[section] = configs.set_fields(before, values, section)
        if "task" in changed:
            make_task(self.task_name, changed["task"])  # raises if no task can have these options
        if "task.max_target_length" in options and not {"core.memory", "core.chunk", "core.passes"} & set(options):
            length = changed["task"].max_target_length  # of pairs, the only tasks with this option
            changed["core"] = with_context(changed.get("core", self.core), length)
        train = changed.get("train", self.train)
        if "task" in changed and "train.curriculum" not in options and isinstance(train, StreamTrainConfig):
            # The preset's curriculum ends at the preset's difficulty; let it end at the requested one.
            names = (name.removeprefix("task.") for name in options if name.startswith("task."))
            goals = {name: value for name in names if type(value := getattr(changed["task"], name)) is int}
            changed["train"] = dataclasses.replace(train, curriculum=Curriculum.ending_at(train.curriculum, goals))
        return dataclasses.replace(self, **changed)

    def to_json(self) -> dict[str, Any]:
        derived = self.family.derived
        model = {name: value for name, value in configs.to_json(self.model).items() if name not in derived}
        return {
            "name": self.name,
            "core": configs.to_json(self.core),
            "model": model,
            "task": configs.to_json(self.task),
            "train": configs.to_json(self.train),
        }

    @staticmethod
    def from_json(data: dict[str, Any], where: str) -> RunConfig:
        """Return the config that `to_json` wrote. A config file also has a format and the version that wrote it."""
        if unknown := sorted(set(data) - {"format", "stairwell", "name", *SECTIONS}):
            raise UserError(f"{where}: unknown section '{unknown[0]}'; there are: {', '.join(SECTIONS)}")
        if not isinstance(data.get("name"), str):
            raise UserError(f"{where}: 'name' must be a task and a core, such as 'random-walk/feedback'")
        task_name, _, core_name = data["name"].partition("/")
        family = family_of(task_name)
        types = {
            "core": config_type(core_name),
            "model": family.model_config,
            "task": task_type(task_name)[0],
            "train": family.train_config,
        }
        sections = {
            name: configs.from_json(config, data.get(name, {}), f"{where}: section '{name}'")
            for name, config in types.items()
        }
        return RunConfig(task_name=task_name, core_name=core_name, **sections)

    def make_tasks(self, run: Path | None = None) -> list[Task]:
        """Return the task and, if the last phase reads other data, the task of that phase with the same vocabulary.
        With a run folder, the tasks come from there."""
        later = self._finetune_config()
        if run is not None:
            return load_tasks(self.task_name, [self.task, *later], run)
        first = make_task(self.task_name, self.task)
        return [first, *(first.with_config(config) for config in later)]

    def _finetune_config(self) -> list[Config]:
        """Return the task's config in the last phase, if it changes there."""
        if not isinstance(self.train, StreamTrainConfig | PairTrainConfig) or not self.train.finetune_task:
            return []
        pairs = [option.partition("=") for option in self.train.finetune_task.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise UserError(f"train.finetune_task must be name=value, not '{self.train.finetune_task}'")
        options = {name.strip(): value for name, _, value in pairs}
        return [configs.set_fields(self.task, options, "task")]

    def make_model(self, task: Task, device: torch.device | str = "cpu", engine: str = "auto") -> Any:
        """Return a new model. The seed alone determines its parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.train.seed)
            return self.family.make_model(self.model, self.core, task, engine).to(device)


def flat_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a config in JSON, such as `train.steps`, and their values."""
    sections = ((section, config.get(section, {})) for section in SECTIONS)
    return {f"{section}.{name}": value for section, fields in sections for name, value in fields.items()}


def format_option(value: Any) -> str:
    """Return a short text of an option's value: 4,000, 0.001, true, none."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def with_context(core: CoreConfig, length: int) -> CoreConfig:
    """Return the config of a core that attends to `length` tokens, if its context is an option."""
    fields = {field.name: getattr(core, field.name) for field in dataclasses.fields(core) if field.init}
    changed: dict[str, Any] = {}
    if "memory" in fields:
        changed = {"memory": length}
    elif "chunk" in fields and "passes" in fields:
        changed = {"chunk": -(-length // fields["passes"])}
    elif "passes" in fields:
        changed = {"passes": length + 1}
    return dataclasses.replace(core, **changed)


def name_option(message: str, option: str, text: str) -> str:
    """Return a message about a field, such as "width must be at least 1", with the option that was given."""
    for name in (option, option.partition(".")[2]):
        if message.startswith((f"{name} ", f"{name}:")):
            return f"--{option}{message[len(name) :]}"
    return f"--{option} {text}: {message}"
