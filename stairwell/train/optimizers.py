"""Adam, AdamW and RMSprop from a config, and their state as named tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stairwell.errors import UserError
from stairwell.train.config import TrainConfig


def make(module: nn.Module, config: TrainConfig) -> Optimizer:
    """Return the optimizer of all parameters of a module."""
    shared: dict[str, Any] = {"lr": config.learning_rate, "eps": config.eps, "weight_decay": config.weight_decay}
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(module.parameters(), **shared, alpha=config.alpha, momentum=config.momentum)
    optimizer_type = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return optimizer_type(module.parameters(), **shared, betas=(config.beta1, config.beta2))


def tensors(optimizer: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `KEY.PARAMETER`, with the optimizer's own keys."""
    names = [name for name, _ in module.named_parameters()]
    return {
        f"{key}.{names[index]}": torch.as_tensor(value)
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }


def load(optimizer: Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load what `tensors` returned. Torch chooses the devices: step counts stay on the CPU."""
    indices = {name: index for index, (name, _) in enumerate(module.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition(".")
        state.setdefault(indices[parameter], {})[key] = tensor
    keys = {key for entries in state.values() for key in entries}
    if keys and keys != state_keys(optimizer):
        raise UserError(
            "the checkpoint was made with another optimizer or momentum than config.json has; restore train.optimizer "
            "and train.momentum in config.json"
        )
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def state_keys(optimizer: Optimizer) -> set[str]:
    """Return the names of what an optimizer stores per parameter."""
    if isinstance(optimizer, torch.optim.RMSprop):
        return {"step", "square_avg"} | ({"momentum_buffer"} if optimizer.defaults["momentum"] else set())
    return {"step", "exp_avg", "exp_avg_sq"}
