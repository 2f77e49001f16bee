"""Training on streams of tokens: cross-entropy with truncated backpropagation through time, and scores of splits.

    for segment in stream:
        losses, _, state = model.losses(segment, state);  losses.mean().backward();  state = state.detach()

Letters: B streams, T tokens of a segment.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stairwell.layers import CoreConfig
from stairwell.models import LanguageModel
from stairwell.state import State
from stairwell.tasks.base import Split, StreamTask, TokenBatch
from stairwell.train.config import StreamTrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Callback, Trainer
from stairwell.train.objective import Objective, Outcome, Phase
from stairwell.train.training_folder import TrainingFolder


class CrossEntropy(Objective):
    """Cross-entropy of the targets of a stream. The state is kept from segment to segment; gradients stop between them.

    With `noise`, the memory is perturbed in training, at the start of a segment and after every `noise_every` tokens.
    This trains the model to correct small errors of its memory, so that they do not accumulate."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, noise: float = 0.0, noise_every: int = 8) -> None:
        super().__init__(model)
        self.noise, self.noise_every = noise, noise_every
        self.chance_loss = math.log(model.config.V + 1)
        self.skips_parameters = model.core.skips_layers or bool(model.config.adaptive)
        self.states: list[State] = []  # one per part
        self.full_config: CoreConfig | None = None  # config of the full core, once it was resized

    def init_states(self, batch: int, parts: int) -> None:
        self.states = [self.model.init_state(batch // parts) for _ in range(parts)]

    def resize(self, sizes: dict[str, int]) -> None:
        core = self.model.core
        self.full_config = self.full_config or core.config
        changed: dict[str, Any] = dict(sizes)
        core.config = dataclasses.replace(self.full_config, **changed)

    def forward(self, batch: TokenBatch) -> Outcome:
        if not self.states:
            self.init_states(batch.tokens.shape[0], 1)
        losses, predictions, state = self.losses(batch, self.states[batch.part])
        self.states[batch.part] = state.detach()
        last = batch.part == len(self.states) - 1
        penalty = self.model.core.span_loss() if last else None
        return Outcome(losses.sum(), {"correct": (predictions == batch.targets).sum()}, penalty)

    def losses(self, batch: TokenBatch, state: State) -> tuple[Tensor, Tensor, State]:
        """Return losses, predictions and the state after the batch, with noise every few tokens in training."""
        if not self.noise or not self.training:
            return self.model.losses(batch.tokens, batch.targets, state, batch.start)
        losses, predictions = [], []
        for first in range(0, batch.tokens.shape[1], self.noise_every):
            part = slice(first, first + self.noise_every)
            start = None if batch.start is None else batch.start[:, part]
            state = add_noise(state, self.noise)
            loss, predicted, state = self.model.losses(batch.tokens[:, part], batch.targets[:, part], state, start)
            losses.append(loss)
            predictions.append(predicted)
        return torch.cat(losses, 1), torch.cat(predictions, 1), state

    def dry_run(self) -> None:
        device = next(self.model.parameters()).device
        self.model.train()(torch.zeros(1, 1, dtype=torch.int64, device=device), self.model.init_state(1))

    def after_step(self) -> None:
        self.model.core.clamp_spans()

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        return {"accuracy": 100 * sums["correct"] / terms} if terms else {}

    def extra_metrics(self) -> dict[str, Any]:
        return model_metrics(self.model)

    def stream_state(self) -> State:
        return type(self.states[0]).join(self.states)

    def load_stream_state(self, tensors: dict[str, Tensor], indices: range) -> None:
        state = type(self.states[0]).from_tensors(tensors, self.states[0].spec())
        state = state.to(next(self.model.parameters()).device)
        size = len(indices) // len(self.states)
        self.states = [state.select(range(first, first + size)) for first in indices[::size]]


def add_noise(state: State, noise: float) -> State:
    """Add Gaussian noise to every vector of the memory; its standard deviation is `noise` times the vector's root mean
    square. Empty positions, which are zero, stay zero."""

    def perturb(memory: Tensor) -> Tensor:
        if not memory.is_floating_point():
            return memory
        size = memory.detach().square().mean(-1, keepdim=True).sqrt()
        return memory + noise * size * torch.randn_like(memory)

    return state.map(perturb)


class StreamValidation:
    """Validation on a whole split, or on about `tokens` tokens of it."""

    def __init__(
        self, task: StreamTask, streams: int, segment: int, tokens: int = 0, callback: Callback | None = None
    ) -> None:
        self.task, self.streams, self.segment, self.tokens, self.callback = task, streams, segment, tokens, callback
        self.primary_metric, self.higher_is_better = task.primary_metric, task.higher_is_better

    def __call__(self, model: LanguageModel, split: Split) -> dict[str, float]:
        return evaluate(model, self.task, split, self.streams, self.segment, self.callback, self.tokens)


def stream_trainer(
    model: LanguageModel,
    tasks: Sequence[StreamTask],
    config: StreamTrainConfig,
    folder: TrainingFolder,
    world: Distributed | None = None,
    objective: Callable[[LanguageModel], Objective] | None = None,
) -> Trainer:
    """Return a trainer on the streams of a task, and on those of a second task if the final phase reads other data.
    `objective` makes another objective than cross-entropy."""
    validations = [StreamValidation(task, config.valid_batch, config.segment, config.valid_tokens) for task in tasks]
    phases = [Phase(task.batch_source, validation) for task, validation in zip(tasks, validations)]
    minimized = objective(model) if objective else CrossEntropy(model, config.state_noise, config.noise_every)
    trainer = Trainer(minimized, phases, config, folder, world)
    for validation in validations:
        validation.callback = trainer.emit
    return trainer


@torch.no_grad()
def evaluate(
    model: LanguageModel,
    task: StreamTask,
    split: Split,
    streams: int = 1,
    segment: int = 128,
    callback: Callback | None = None,
    tokens: int = 0,
) -> dict[str, float]:
    """Return the scores of a split, read as `streams` parallel streams; with `tokens`, of about that many tokens.

    The result does not depend on `segment`."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    score, state, done = task.score(), model.init_state(streams), 0
    try:
        for batch in task.batches(split, streams, segment):
            moved = batch.to(device)
            losses, predictions, state = model.losses(moved.tokens, moved.targets, state, moved.start)
            score.add(batch, losses, predictions)
            done += batch.size
            if callback is not None:
                callback({"event": "evaluating", "split": split, "tokens": done})
            if tokens and done >= tokens:
                break
    finally:
        model.train(was_training)
    return {**score.result(), "streams": streams}


def model_metrics(model: nn.Module) -> dict[str, Any]:
    """Return the learned layer weights of the memory and the learned attention spans, if the core has them."""
    core: Any = model.core
    metrics: dict[str, Any] = {}
    with torch.no_grad():
        layer_weights = core.layer_weights()
    if layer_weights is not None:
        metrics["layer_weights"] = [[round(weight, 4) for weight in weights] for weights in layer_weights.tolist()]
    if spans := core.spans():
        metrics["spans"] = [[round(z, 1) for z in span.z.tolist()] for span in spans]
    return metrics
