"""Checkpoints: the state of a run as named tensors and JSON metadata, and back.

    model.*  objective.*      parameters and buffers       state.*           the objective's stream state
    optimizer.KEY.*           state of the optimizer       batch_source.*    tensors of the batch source's position
    rng.DEVICE.RANK           random generators

States and positions are those of the whole batch, so that any number of processes that divides it can resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stairwell.errors import UserError
from stairwell.tasks.base import Batch, BatchSource
from stairwell.train import optimizers
from stairwell.train.distributed import Distributed
from stairwell.train.objective import Objective


@dataclass
class MetricAccumulator:
    """Metrics since the last line of metrics. The sums are those of this process and stay on its device, so that no
    step waits for them."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    terms: int = 0
    gradient_norm: Tensor | float = 0.0
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    "Sums of the loss and of the objective's metrics."

    def add(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def totals(self, world: Distributed) -> dict[str, float]:
        """Return the sums over all processes."""
        return dict(zip(self.sums, world.sum(*(float(value) for value in self.sums.values()))))


@dataclass
class Progress:
    """Progress of a run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    phase: int = 0
    best: float | None = None
    best_loss: float = math.inf
    best_step: int = 0
    unimproved: int = 0
    "Validations since the best one."
    smooth_loss: float | None = None
    valid: dict[str, Any] | None = None
    "Scores of a validation since the last step."
    metrics: MetricAccumulator = field(default_factory=MetricAccumulator)
    curriculum: list[int] = field(default_factory=list)

    def to_json(self, world: Distributed) -> dict[str, Any]:
        """Return the progress with the sums of all processes. All processes must call this."""
        metrics = {"gradient_norm": float(self.metrics.gradient_norm), "sums": self.metrics.totals(world)}
        return {**vars(self), "metrics": {**vars(self.metrics), **metrics}}

    @staticmethod
    def from_json(data: dict[str, Any], world: Distributed) -> Progress:
        metrics = MetricAccumulator(**data["metrics"])
        if not world.is_main:  # the main process continues the sums of all
            metrics.sums = dict.fromkeys(metrics.sums, 0.0)
        return Progress(**{**data, "metrics": metrics})


def pack(
    progress: Progress, objective: Objective, optimizer: Optimizer, batch_source: BatchSource[Batch], world: Distributed
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return everything that is needed to resume. All processes must call this; the main process gets the whole."""
    parameters = objective.state_dict().items()
    tensors = {name if name.startswith("model.") else f"objective.{name}": tensor for name, tensor in parameters}
    tensors |= add_prefix("optimizer", optimizers.tensors(optimizer, objective))
    state = objective.stream_state()
    if state is not None:
        tensors |= add_prefix("state", world.gather_state(state))
    for device, generator in generator_states(objective).items():
        tensors |= {f"rng.{device}.{rank}": part for rank, part in enumerate(world.gather(generator))}
    position = dict(batch_source.position())
    source_tensors = position.pop("tensors", {})
    gathered = {name: torch.cat(world.gather(tensor)) for name, tensor in source_tensors.items()}
    tensors |= add_prefix("batch_source", gathered)
    positions = world.gather_json(position)
    streams = [stream for part in positions for stream in part["streams"]]
    return tensors, {"progress": progress.to_json(world), "position": {**positions[0], "streams": streams}}


def unpack(
    tensors: dict[str, Tensor],
    metadata: dict[str, Any],
    objective: Objective,
    optimizer: Optimizer,
    batch_source: BatchSource[Batch],
    world: Distributed,
    indices: range,
    seed: int,
) -> list[str]:
    """Load what `pack` returned; `indices` are the batch elements of this process. Return warnings."""
    parameters = {name: tensor for name, tensor in tensors.items() if name.startswith(("model.", "objective."))}
    try:
        objective.load_state_dict({name.removeprefix("objective."): tensor for name, tensor in parameters.items()})
    except RuntimeError:
        raise UserError(
            "the checkpoint does not fit the model of config.json; one of them was changed, restore it"
        ) from None
    optimizers.load(optimizer, objective, select_prefix(tensors, "optimizer"))
    if state := select_prefix(tensors, "state"):
        objective.load_stream_state(state, indices)
    position = dict(metadata["position"])
    if source_tensors := select_prefix(tensors, "batch_source"):
        position["tensors"] = {name: tensor[indices.start : indices.stop] for name, tensor in source_tensors.items()}
    position["streams"] = position["streams"][indices.start : indices.stop]
    warning = batch_source.seek(position)
    load_generator_states(objective, tensors, world, seed + 1 + world.rank + 1_000_003 * metadata["progress"]["step"])
    return [warning] if warning else []


def check_batch_size(metadata: dict[str, Any], batch: int) -> None:
    saved = len(metadata["position"]["streams"])
    if saved != batch:
        raise UserError(f"the checkpoint has a batch of {saved}, the config one of {batch}; set --train.batch {saved}")


def add_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors that `add_prefix` named."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def generator_states(objective: Objective) -> dict[str, Tensor]:
    """Return the state of every random generator that a run uses."""
    device = next(objective.parameters()).device
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_generator_states(objective: Objective, tensors: dict[str, Tensor], world: Distributed, seed: int) -> None:
    """Restore the random generators. With another number of processes they are seeded instead."""
    if sum(name.startswith("rng.cpu.") for name in tensors) != world.size:
        torch.manual_seed(seed)
        return
    torch.set_rng_state(tensors[f"rng.cpu.{world.rank}"])
    device = next(objective.parameters()).device
    if device.type == "cuda" and f"rng.cuda.{world.rank}" in tensors:
        torch.cuda.set_rng_state(tensors[f"rng.cuda.{world.rank}"], device)
