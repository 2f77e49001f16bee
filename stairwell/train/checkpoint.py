"""A training as named tensors and a note, and back. A checkpoint is the progress and the tensors of model, objective,
optimizer and feed; it knows no trainer.

    model.*  objective.*      parameters and buffers           state.*    what the objective carries from call to call
    optimizer.KEY.*           what the optimizer remembers     feed.*     tensors of the feed's position
    rng.DEVICE.RANK           random generators

States and positions of all processes are gathered in the order of the rows, so that any number of processes that
divides them can go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stairwell.errors import UserError
from stairwell.train import optimizers
from stairwell.train.distributed import Distributed
from stairwell.train.objective import BatchSource, Objective


@dataclass
class Tally:
    """What happened since the last line of metrics. Sums are this process's own and stay on the device, so that nothing
    has to wait for them."""

    updates: int = 0
    tokens: int = 0
    seconds: float = 0.0
    terms: int = 0
    gradient_norm: Tensor | float = 0.0
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    "of the loss and of the objective's metrics"

    def add(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def totals(self, world: Distributed) -> dict[str, float]:
        """The sums over all processes."""
        return dict(zip(self.sums, world.sum(*(float(value) for value in self.sums.values()))))


@dataclass
class Progress:
    """How far a training has come."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    phase: int = 0
    best: float | None = None
    best_loss: float = math.inf
    best_step: int = 0
    unimproved: int = 0
    "validations since the best one"
    smooth_loss: float | None = None
    valid: dict[str, Any] | None = None
    "the scores of a validation since the last update"
    tally: Tally = field(default_factory=Tally)
    curriculum: list[int] = field(default_factory=list)

    def to_json(self, world: Distributed) -> dict[str, Any]:
        """All processes take part; sums are those of all."""
        tally = {"gradient_norm": float(self.tally.gradient_norm), "sums": self.tally.totals(world)}
        return {**vars(self), "tally": {**vars(self.tally), **tally}}

    @staticmethod
    def from_json(data: dict[str, Any], world: Distributed) -> Progress:
        tally = Tally(**data["tally"])
        if not world.first:  # one process takes up the sums of all
            tally.sums = dict.fromkeys(tally.sums, 0.0)
        return Progress(**{**data, "tally": tally})


def pack(
    progress: Progress, objective: Objective, optimizer: Optimizer, batch_source: BatchSource, world: Distributed
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that is needed to go on. All processes take part; the first one's result is whole."""
    own = objective.state_dict().items()
    tensors = {name if name.startswith("model.") else f"objective.{name}": tensor for name, tensor in own}
    tensors |= prefixed("optimizer", optimizers.tensors(optimizer, objective))
    state = objective.carried()
    if state is not None:
        tensors |= prefixed("state", world.gather_state(state))
    for device, generator in generators(objective).items():
        tensors |= {f"rng.{device}.{rank}": part for rank, part in enumerate(world.gather(generator))}
    position = dict(batch_source.position())
    carried = position.pop("tensors", {})
    tensors |= prefixed("batch_source", {name: torch.cat(world.gather(tensor)) for name, tensor in carried.items()})
    positions = world.gather_json(position)
    rows = [row for part in positions for row in part["rows"]]
    return tensors, {"progress": progress.to_json(world), "position": {**positions[0], "rows": rows}}


def unpack(
    tensors: dict[str, Tensor],
    note: dict[str, Any],
    objective: Objective,
    optimizer: Optimizer,
    batch_source: BatchSource,
    world: Distributed,
    rows: range,
    seed: int,
) -> list[str]:
    """Bring all of them to where `pack` was called; `rows` are those of this process. What the feed has to say."""
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(("model.", "objective."))}
    try:
        objective.load_state_dict({name.removeprefix("objective."): tensor for name, tensor in own.items()})
    except RuntimeError:
        raise UserError("the checkpoint does not fit config.json: it is of another model; one was changed") from None
    optimizers.load(optimizer, objective, part_of(tensors, "optimizer"))
    if state := part_of(tensors, "state"):
        objective.carry(state, rows)
    position = dict(note["position"])
    if carried := part_of(tensors, "batch_source"):
        position["tensors"] = {name: tensor[rows.start : rows.stop] for name, tensor in carried.items()}
    word = batch_source.seek({**position, "rows": position["rows"][rows.start : rows.stop]})
    restore_generators(objective, tensors, world, seed + 1 + world.rank + 1_000_003 * note["progress"]["step"])
    return [word] if word else []


def check_rows(note: dict[str, Any], batch: int) -> None:
    rows = note["position"]["rows"]
    if len(rows) != batch:
        raise UserError(f"the checkpoint has {len(rows)} rows, the config {batch}")


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def generators(objective: Objective) -> dict[str, Tensor]:
    """The state of every random generator that a training draws from."""
    device = next(objective.parameters()).device
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_generators(objective: Objective, tensors: dict[str, Tensor], world: Distributed, seed: int) -> None:
    """Dropout goes on as it would have; with another number of processes it begins anew from a seed."""
    if sum(name.startswith("rng.cpu.") for name in tensors) != world.size:
        torch.manual_seed(seed)
        return
    torch.set_rng_state(tensors[f"rng.cpu.{world.rank}"])
    device = next(objective.parameters()).device
    if device.type == "cuda" and f"rng.cuda.{world.rank}" in tensors:
        torch.cuda.set_rng_state(tensors[f"rng.cuda.{world.rank}"], device)
