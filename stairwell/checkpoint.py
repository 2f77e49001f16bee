"""A training as one set of tensors and a note, and back: weights, optimizer, states, positions, generators.

States and positions of all processes are gathered in the order of the stream, so that any number of processes that
divides the rows can go on from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from stairwell.train import Trainer

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam remembers of each weight


def pack(trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that is needed to go on. All processes take part; the first one's result is whole."""
    world, state = trainer.world, type(trainer.states[0]).join(trainer.states)
    tensors = {f"state.{name}": tensor for name, tensor in world.gather_state(state).items()}
    tensors |= {f"model.{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    for name, parameter in trainer.model.named_parameters():
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    for device, generator in generators(trainer).items():
        tensors |= {f"rng.{device}.{rank}": part for rank, part in enumerate(world.gather(generator))}
    positions = world.gather_json(trainer.stream.position())
    window = trainer.window
    loss, right = world.sum(float(window.loss), float(window.right))
    note = {
        "step": trainer.step,
        "tokens": trainer.tokens,
        "seconds": trainer.seconds,
        "phase": trainer.phase,
        "best": trainer.best,
        "best_loss": trainer.best_loss,
        "best_step": trainer.best_step,
        "unimproved": trainer.unimproved,
        "smooth_loss": trainer.smooth_loss,
        "valid_now": trainer.valid_now,
        "curriculum": trainer.curriculum.position(),
        "window": {
            "updates": window.updates,
            "tokens": window.tokens,
            "seconds": window.seconds,
            "scored": window.scored,
            "predicted": window.predicted,
            "norm": float(window.norm),
            "loss": loss,
            "right": right,
        },
        "position": {**positions[0], "rows": [row for position in positions for row in position["rows"]]},
    }
    return tensors, note


def unpack(trainer: Trainer, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    """Bring a fresh trainer to where `pack` was called."""
    rows = note["position"]["rows"]
    if len(rows) != trainer.config.batch:
        raise ValueError(f"the checkpoint has {len(rows)} rows, the config {trainer.config.batch}")
    trainer.begin_phase(note["phase"])
    kept = ("step", "tokens", "seconds", "best", "best_loss", "best_step", "unimproved", "smooth_loss", "valid_now")
    for name in kept:
        setattr(trainer, name, note[name])
    if trainer.curriculum.stages:
        trainer.curriculum.seek(note["curriculum"])
    for name, value in note["window"].items():
        setattr(trainer.window, name, value)
    if not trainer.world.first:  # sums over all processes: one of them takes them up
        trainer.window.loss, trainer.window.right = 0.0, 0
    trainer.stream.seek({**note["position"], "rows": rows[trainer.rows.start : trainer.rows.stop]})
    trainer.model.load_state_dict(_part(tensors, "model."))
    _restore_states(trainer, _part(tensors, "state."))
    _restore_optimizer(trainer, tensors)
    _restore_generators(trainer, tensors)


def generators(trainer: Trainer) -> dict[str, Tensor]:
    """The state of every random generator that a training draws from."""
    found = {"cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(trainer.device)
    return found


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_states(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    whole = type(trainer.states[0]).from_tensors(tensors, trainer.states[0].form()).to(trainer.device)
    size = len(trainer.rows) // trainer.config.accumulate
    trainer.states = [whole.select(range(first, first + size)) for first in trainer.rows[::size]]


def _restore_optimizer(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in trainer.model.named_parameters():
        names = {key: f"optimizer.{key}.{name}" for key in MOMENTS}
        if names["step"] in tensors:
            # Adam counts its steps on the CPU, whatever device the weights are on.
            trainer.optimizer.state[parameter] = {
                key: tensors[saved] if key == "step" else tensors[saved].to(parameter.device)
                for key, saved in names.items()
            }


def _restore_generators(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    """Dropout goes on as it would have; with another number of processes it begins anew from seed and update."""
    rank, size = trainer.world.rank, trainer.world.size
    if sum(name.startswith("rng.cpu.") for name in tensors) != size:
        torch.manual_seed(trainer.config.seed + 1 + rank + 1_000_003 * trainer.step)
        return
    torch.set_rng_state(tensors[f"rng.cpu.{rank}"])
    if trainer.device.type == "cuda" and f"rng.cuda.{rank}" in tensors:
        torch.cuda.set_rng_state(tensors[f"rng.cuda.{rank}"], trainer.device)
