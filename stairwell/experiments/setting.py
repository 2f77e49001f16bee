"""What all the models of a table share: the task, the sizes, the training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from stairwell.cores import config_type
from stairwell.models import LanguageModelConfig
from stairwell.runs.config import RunConfig
from stairwell.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Setting:
    task_name: str
    task: Any
    train: TrainConfig
    layers: int
    width: int
    heads: int
    dropout: float = 0.0
    "on attention weights and on the feed-forward's ReLU; between the layers of an LSTM"
    core: dict[str, Any] = dataclasses.field(default_factory=dict)
    "further options of all transformer cores, such as inner or norm"
    model: LanguageModelConfig = dataclasses.field(default_factory=LanguageModelConfig)

    def experiment(
        self, core_name: str, task: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **own: Any
    ) -> RunConfig:
        """The training of one model; `own` are options of its core, `task` and `train` what else it has of its own."""
        core = self.lstm(**own) if core_name == "lstm" else self.transformer(core_name, **own)
        return RunConfig(
            task_name=self.task_name,
            core_name=core_name,
            core=core,
            task=dataclasses.replace(self.task, **(task or {})),
            model=self.model,
            train=dataclasses.replace(self.train, **(train or {})),
        )

    def transformer(self, core_name: str, **own: Any) -> Any:
        """A core without these dropouts trains without."""
        kind = config_type(core_name)
        shared = {"layers": self.layers, "width": self.width, "heads": self.heads, **self.core}
        dropout = {"attention_dropout": self.dropout, "relu_dropout": self.dropout}
        known = {name: rate for name, rate in dropout.items() if name in kind.__dataclass_fields__}
        return kind(**{**shared, **known, **own})

    def lstm(self, **own: Any) -> Any:
        """A layer of an LSTM has 8 D^2 weights where one of a transformer has about 12 D^2: it gets more width."""
        width = round(self.width * 1.225 / 8) * 8
        return config_type("lstm")(**{"layers": self.layers, "width": width, "dropout": self.dropout, **own})
