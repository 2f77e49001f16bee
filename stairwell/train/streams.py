"""Streams of tokens: cross-entropy with truncated backpropagation, and scores of whole splits.

    for segment in stream:
        losses, _, state = model.losses(segment, state);  losses.mean().backward();  state = state.detach()

Letters: B rows, T tokens of a segment.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stairwell.models import LanguageModel
from stairwell.state import State
from stairwell.tasks.base import Batch, Split, Task
from stairwell.train.config import TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Trainer, Watch
from stairwell.train.objective import Objective, Outcome, Phase
from stairwell.train.run import Run


class CrossEntropy(Objective):
    """Of the targets of a stream. The state goes on from segment to segment, gradients stop at a segment's edge.

    With `noise` the memory is disturbed while it is trained, at a segment's beginning and after every `noise_every`
    tokens of it: a model that is right in spite of that brings its memory back to where it was, and does not drift."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, noise: float = 0.0, noise_every: int = 8) -> None:
        super().__init__(model)
        self.noise, self.noise_every = noise, noise_every
        self.chance = math.log(model.config.V + 1)
        self.skips_parameters = model.core.skips_layers or bool(model.config.adaptive)
        self.states: list[State] = []  # one a part
        self.whole: Any = None  # the config of the whole core, once it is trained at another size

    def begin(self, rows: int, parts: int) -> None:
        self.states = [self.model.init_state(rows // parts) for _ in range(parts)]

    def resize(self, sizes: dict[str, int]) -> None:
        core: Any = self.model.core
        self.whole = self.whole or core.config
        core.config = dataclasses.replace(self.whole, **sizes)

    def forward(self, batch: Batch) -> Outcome:
        if not self.states:
            self.begin(batch.tokens.shape[0], 1)
        state = self.states[batch.part]
        losses, likeliest, state = self.read(batch, state)
        self.states[batch.part] = state.detach()
        last = batch.part == len(self.states) - 1
        penalty = self.model.core.span_loss() if last else None
        return Outcome(losses.sum(), {"right": (likeliest == batch.targets).sum()}, penalty)

    def read(self, batch: Batch, state: State) -> tuple[Tensor, Tensor, State]:
        """Losses, the likeliest symbols and the state after, by one call; by several where noise comes in between."""
        if not self.noise or not self.training:
            return self.model.losses(batch.tokens, batch.targets, state, batch.start)
        losses, likeliest = [], []
        for first in range(0, batch.tokens.shape[1], self.noise_every):
            part = slice(first, first + self.noise_every)
            start = None if batch.start is None else batch.start[:, part]
            state = disturbed(state, self.noise)
            loss, symbols, state = self.model.losses(batch.tokens[:, part], batch.targets[:, part], state, start)
            losses.append(loss)
            likeliest.append(symbols)
        return torch.cat(losses, 1), torch.cat(likeliest, 1), state

    def rehearse(self) -> None:
        device = next(self.model.parameters()).device
        self.model.train()(torch.zeros(1, 1, dtype=torch.int64, device=device), self.model.init_state(1))

    def after_update(self) -> None:
        self.model.core.clamp_spans()

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        return {"accuracy": 100 * sums["right"] / terms} if terms else {}

    def inside(self) -> dict[str, Any]:
        return inside(self.model)

    def carried(self) -> State:
        return type(self.states[0]).join(self.states)

    def carry(self, tensors: dict[str, Tensor], rows: range) -> None:
        whole = (
            type(self.states[0]).from_tensors(tensors, self.states[0].form()).to(next(self.model.parameters()).device)
        )
        size = len(rows) // len(self.states)
        self.states = [whole.select(range(first, first + size)) for first in rows[::size]]


def disturbed(state: State, noise: float) -> State:
    """The state with normal noise on every vector of its memory, `noise` times as large as the vector is. Empty slots,
    which are zero, stay so."""

    def disturb(memory: Tensor) -> Tensor:
        if not memory.is_floating_point():
            return memory
        size = memory.detach().square().mean(-1, keepdim=True).sqrt()
        return memory + noise * size * torch.randn_like(memory)

    return state.map(disturb)


class SplitScores:
    """The task's scores of a whole split, or of about so many tokens of it."""

    def __init__(self, task: Task, rows: int, segment: int, tokens: int = 0, watch: Watch | None = None) -> None:
        self.task, self.rows, self.segment, self.tokens, self.watch = task, rows, segment, tokens, watch
        self.primary_metric, self.higher_is_better = task.primary_metric, task.higher_is_better

    def __call__(self, model: LanguageModel, split: Split) -> dict[str, float]:
        return evaluate(model, self.task, split, self.rows, self.segment, self.watch, self.tokens)


def stream_trainer(
    model: LanguageModel,
    tasks: Sequence[Task],
    config: TrainConfig,
    run: Run,
    world: Distributed | None = None,
    objective: Callable[[LanguageModel], Objective] | None = None,
) -> Trainer:
    """A trainer of a model on a task's streams, and on those of a second task if the last phase reads other data; of
    cross-entropy if `objective` makes nothing else."""
    scores = [SplitScores(task, config.valid_batch, config.segment, config.valid_tokens) for task in tasks]
    phases = [Phase(task.batch_source, validation) for task, validation in zip(tasks, scores)]
    made = objective(model) if objective else CrossEntropy(model, config.state_noise, config.noise_every)
    trainer = Trainer(made, phases, config, run, world)
    for validation in scores:
        validation.watch = trainer.tell
    return trainer


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    task: Task,
    split: Split,
    rows: int = 1,
    segment: int = 128,
    watch: Watch | None = None,
    tokens: int = 0,
) -> dict[str, float]:
    """Stream a whole split through the model once and score it; with `tokens`, no more than about so many of them. The
    result does not depend on `segment`."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    score, state, done = task.score(), model.init_state(rows), 0
    try:
        for batch in task.batches(split, rows, segment):
            moved = batch.to(device)
            losses, likeliest, state = model.losses(moved.tokens, moved.targets, state, moved.start)
            score.add(batch, losses, likeliest)
            done += batch.size
            if watch is not None:
                watch({"event": "evaluating", "split": split, "tokens": done})
            if tokens and done >= tokens:
                break
    finally:
        model.train(was_training)
    return {**score.result(), "rows": rows}


def inside(model: Any) -> dict[str, Any]:
    """What a model has learned about itself: what its memory is made of, how far its heads look."""
    found: dict[str, Any] = {}
    with torch.no_grad():
        layer_weights = model.core.layer_weights()
    if layer_weights is not None:
        found["layer_weights"] = [[round(weight, 4) for weight in row] for row in layer_weights.tolist()]
    if spans := model.core.spans():
        found["spans"] = [[round(z, 1) for z in span.z.tolist()] for span in spans]
    return found
