"""One training in four sections, `core`, `model`, `task` and `train`, and the way to a model and its data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stairwell import configs
from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.runs.families import ModelKind, kind_of
from stairwell.tasks import Spec, Task, kept_tasks, make_task, task_type
from stairwell.train.config import TrainConfig
from stairwell.train.curriculum import Curriculum

SECTIONS = ("core", "model", "task", "train")
# Fields that follow from the other sections, besides those of the model's kind.
DERIVED = {"core": ("cross",)}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    task_name: str
    core_name: str
    core: Any
    task: Any
    model: Any
    train: TrainConfig

    def __post_init__(self) -> None:
        # What no model can have is told here, before anything is written.
        dataclasses.replace(self.model, core=self.core)

    @property
    def name(self) -> str:
        return f"{self.task_name}/{self.core_name}"

    @property
    def kind(self) -> ModelKind:
        """The kind of model that the task takes."""
        return kind_of(self.task_name)

    def with_options(self, options: dict[str, str]) -> RunConfig:
        """The experiment with fields set from text, such as {"core.memory": "64"}."""
        changed: dict[str, Any] = {}
        for name, text in options.items():
            if name.partition(".")[0] not in SECTIONS:
                raise UserError(f"unknown option {name!r}; options are SECTION.FIELD, of {', '.join(SECTIONS)}")
            if not isinstance(text, str):
                raise UserError(f"{name}: {text!r} is not text; write '{text}'")
        for section in SECTIONS:
            values = {name.partition(".")[2]: text for name, text in options.items() if name.startswith(section + ".")}
            fixed = self.kind.derived if section == "model" else DERIVED.get(section, ())
            if derived := sorted(set(values) & set(fixed)):
                raise UserError(f"--{section}.{derived[0]} is no option: it follows from the task and the core")
            if values:
                changed[section] = configs.set_fields(getattr(self, section), values, section)
        if "task" in changed:
            make_task(self.task_name, changed["task"])  # options that no task can have are told before all else
        if "task.max_target_length" in options and not {"core.memory", "core.chunk", "core.passes"} & set(options):
            changed["core"] = kind_of(self.task_name).fit_core(changed.get("core", self.core), changed["task"])
        if "task" in changed and "train.curriculum" not in options:
            # Who asks for a length wants to be trained to that length, not to the preset's.
            asked = (name.removeprefix("task.") for name in options if name.startswith("task."))
            goals = {name: value for name in asked if type(value := getattr(changed["task"], name)) is int}
            train = changed.get("train", self.train)
            changed["train"] = dataclasses.replace(train, curriculum=Curriculum.reaching(train.curriculum, goals))
        return dataclasses.replace(self, **changed)

    def to_json(self) -> dict[str, Any]:
        derived = self.kind.derived
        model = {name: value for name, value in configs.to_json(self.model).items() if name not in derived}
        return {
            "experiment": self.name,
            "core": configs.to_json(self.core),
            "model": model,
            "task": configs.to_json(self.task),
            "train": configs.to_json(self.train),
        }

    @staticmethod
    def from_json(data: dict[str, Any], where: str) -> RunConfig:
        """What `to_json` made; a config file also says which format it has, and which stairwell wrote it."""
        if unknown := sorted(set(data) - {"format", "stairwell", "experiment", *SECTIONS}):
            raise UserError(f"{where}: unknown section '{unknown[0]}'; there are: {', '.join(SECTIONS)}")
        if not isinstance(data.get("experiment"), str):
            raise UserError(f"{where}: 'experiment' must be a task and a core, such as 'random-walk/feedback'")
        task_name, _, core_name = data["experiment"].partition("/")
        task_config, kind = task_type(task_name)[0], kind_of(task_name)
        kinds = {"core": config_type(core_name), "model": kind.config, "task": task_config, "train": kind.train}
        sections = {name: data.get(name, {}) for name in kinds}
        if isinstance(sections["model"], dict):
            # Models that were configured before there was a vector for a row's first token do not have one.
            sections["model"] = {"start_embedding": False, **sections["model"]}
        made = {
            name: configs.from_json(kind, sections[name], f"{where}: section '{name}'") for name, kind in kinds.items()
        }
        return RunConfig(task_name=task_name, core_name=core_name, **made)

    def make_tasks(self, run: Path | None = None) -> list[Task]:
        """The task and, where the last phase reads other data, that one too, with the same symbols; those of a run
        folder as it has kept them."""
        later = self._finetune_config()
        if run is not None:
            return kept_tasks(self.task_name, [self.task, *later], run)
        first = make_task(self.task_name, self.task)
        return [first, *(first.with_config(config) for config in later)]

    def _finetune_config(self) -> list[Any]:
        """The task's options in the last phase, if they change there."""
        if not self.train.finetune_task:
            return []
        pairs = [option.partition("=") for option in self.train.finetune_task.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise UserError(f"train.finetune_task must be name=value, not '{self.train.finetune_task}'")
        options = {name.strip(): value for name, _, value in pairs}
        return [configs.set_fields(self.task, options, "task")]

    def make_model(self, task: Spec, device: torch.device | str = "cpu", engine: str = "auto") -> Any:
        """The model, its weights fixed by the seed whatever was drawn before."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.train.seed)
            return self.kind.make_model(self.model, self.core, task, engine).to(device)
