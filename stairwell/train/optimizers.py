"""Adam, AdamW and RMSprop as the config asks for them, and what they remember as named tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stairwell.train.config import TrainConfig


def make(module: nn.Module, config: TrainConfig) -> Optimizer:
    """For all parameters of a module, in their order."""
    shared: dict[str, Any] = {"lr": config.learning_rate, "eps": config.eps, "weight_decay": config.weight_decay}
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(module.parameters(), **shared, alpha=config.alpha, momentum=config.momentum)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(module.parameters(), **shared, betas=(config.beta1, config.beta2))


def tensors(optimizer: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """`KEY.PARAMETER`, whatever the optimizer calls what it remembers of a parameter."""
    names = [name for name, _ in module.named_parameters()]
    return {
        f"{key}.{names[place]}": torch.as_tensor(value)
        for place, remembered in optimizer.state_dict()["state"].items()
        for key, value in remembered.items()
    }


def load(optimizer: Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `tensors`. Torch itself knows what belongs on which device: counts of steps stay on the CPU."""
    places = {name: place for place, (name, _) in enumerate(module.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition(".")
        state.setdefault(places[parameter], {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
