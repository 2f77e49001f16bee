"""Training and evaluation: truncated backpropagation over parallel streams, with the state carried along.

    for segment in stream:
        loss, state = model(segment, state);  loss.backward();  optimizer.step();  state = state.detach()

A seed fixes a training bit for bit, and a training that was stopped goes on as if it never had been. This file prints
nothing: it tells a `watch` function what happens.
Letters: B rows, T tokens of a segment.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stairwell.models import IGNORE, LOGITS_AT_ONCE, LanguageModel
from stairwell.state import State
from stairwell.tasks.base import Batch, Split, Stream, Task
from stairwell.train import checkpoint
from stairwell.train.config import TrainConfig
from stairwell.train.curriculum import Curriculum
from stairwell.train.processes import World
from stairwell.train.run import Run


class Interrupted(Exception):
    """Someone asked to stop; everything is saved."""


class Diverged(Exception):
    """The loss is not a number, or far worse than guessing; the last good checkpoint is kept."""


Watch = Callable[[dict[str, Any]], None]


class Step(nn.Module):
    """One call as the trainer needs it: losses, and the likeliest labels where the logits are small enough to look at.
    A module of its own so that DistributedDataParallel sees the call."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, state: State) -> tuple[Tensor, Tensor | None, State]:
        """-> losses (B, T), predictions (B, T) or none, the state after"""
        model, targets = self.model, batch.targets
        if targets.numel() * model.config.V > LOGITS_AT_ONCE or model.config.adaptive:
            nll, state = model.nll(batch.tokens, targets, state, batch.start)
            return nll, None, state
        model.check_symbols(targets, "target", model.config.V, ignore=IGNORE)
        logits, state = model(batch.tokens, state, batch.start)
        nll = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
        return nll, logits.argmax(-1), state


def on(batch: Batch, device: torch.device) -> Batch:
    return Batch(
        batch.tokens.to(device), batch.targets.to(device), None if batch.start is None else batch.start.to(device)
    )


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
    step, score, state, done = Step(model), task.score(), model.init_state(rows), 0
    try:
        for batch in task.batches(split, rows, segment):
            nll, predictions, state = step(on(batch, device), state)
            # Scores that look at predictions come with few labels; the others never look.
            score.add(batch, nll, predictions if predictions is not None else batch.targets.new_zeros(()))
            done += batch.tokens.numel()
            if watch is not None:
                watch({"event": "evaluating", "split": split, "tokens": done})
            if tokens and done >= tokens:
                break
    finally:
        model.train(was_training)
    return {**score.result(), "rows": rows}


class Window:
    """What happened between two lines of metrics, kept on the device so that nothing has to wait for it."""

    def __init__(self) -> None:
        self.updates, self.tokens, self.seconds, self.scored, self.predicted = 0, 0, 0.0, 0, 0
        self.loss: Tensor | float = 0.0
        self.right: Tensor | int = 0
        self.norm: Tensor | float = 0.0


class Trainer:
    """A training under way: the model, its optimizer, the streams and where they stand."""

    def __init__(
        self,
        model: LanguageModel,
        tasks: list[Task],
        config: TrainConfig,
        run: Run,
        world: World | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`tasks`: one for training and, if the last phase reads other data, one for that. The model is on its device
        already; `torch.manual_seed(config.seed)` before it is made fixes its weights."""
        self.model, self.tasks, self.config, self.folder = model, tasks, config, run
        self.world = world or World()
        self.watch: Watch = watch or (lambda event: None)
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
        self.call: nn.Module = Step(model)
        if self.world.size > 1:
            # LayerDrop and adaptive softmax leave some weights without a gradient in some updates.
            skips = bool(getattr(model.config.core, "layer_drop", 0) or model.config.adaptive)
            self.call = DistributedDataParallel(self.call, find_unused_parameters=skips)
        self.rows = self.world.rows(config.batch)
        if len(self.rows) % config.accumulate:
            raise ValueError(
                f"train.accumulate {config.accumulate} does not divide the {len(self.rows)} rows of a process"
            )
        self.check_precision()
        self.curriculum = Curriculum.parse(config.curriculum, config.curriculum_accuracy)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.best: float | None = None
        self.best_loss = math.inf
        self.best_step, self.unimproved = 0, 0
        self.smooth_loss: float | None = None
        self.valid_now: dict[str, Any] | None = None  # the scores of a validation since the last update
        self.stop_asked = False
        self.window = Window()
        self.begin_phase(0)
        for stage in reversed(self.curriculum.stages):  # all are tried, so that a wrong one is found out now
            self.stream.change(**stage)
        torch.manual_seed(config.seed + 1 + self.world.rank)  # dropout: different on every process

    def begin_phase(self, phase: int) -> None:
        """Fresh streams and states: at the start, and where the last phase reads other data."""
        self.phase, self.unimproved = phase, 0
        self.task = self.tasks[min(phase, len(self.tasks) - 1)]
        self.stream: Stream = self.task.stream(self.rows, self.config.batch, self.config.seed)
        parts = self.config.accumulate
        self.states = [self.model.init_state(len(self.rows) // parts) for _ in range(parts)]

    def run(self) -> dict[str, Any]:
        """Train to the end; the last validation. Raises Interrupted or Diverged, which leave a folder to go on from."""
        config = self.config
        self.metrics = self.folder.open_metrics(self.step) if self.world.first else None
        with self.stopping_on_signals():
            while self.step < config.total:
                if self.done_early:
                    if self.phase or not config.finetune_steps:
                        break
                    self.step = config.steps  # on to the last phase
                if self.step >= config.steps and self.phase == 0:
                    self.finetune()
                self.update()
                if self.step % config.log_every == 0 or self.step == config.total:
                    self.log()
                if config.validate_every and self.step % config.validate_every == 0 and self.step < config.total:
                    self.validate()
                if self.world.any(self.stop_asked):
                    self.save()
                    raise Interrupted(f"stopped and saved at update {self.step:,} of {config.total:,}")
                if config.checkpoint_every and self.step % config.checkpoint_every == 0 and self.step < config.total:
                    self.save()
            final = self.valid_now or self.validate()
            self.save()
        return final

    def part(self) -> None:
        """Let go of DistributedDataParallel before the processes part. If it held the last reference to their group, it
        would join the group's threads with Python's lock in hand, and one of them may be waiting for that lock."""
        if self.world.size > 1:
            self.call = Step(self.model)
            gc.collect()

    def finetune(self) -> None:
        """The last phase: the same streams go on, unless it reads other data. Scores on that cannot be compared with
        those before, so the best model is looked for anew."""
        self.phase, self.unimproved = 1, 0
        if len(self.tasks) > 1:
            self.begin_phase(1)
            self.best = None

    @property
    def done_early(self) -> bool:
        """Whether nothing more is to be gained: no validation was better for long, or the curriculum is mastered."""
        if self.config.stop_when_mastered and self.curriculum.finished and self.phase == 0:
            return True
        return bool(self.config.patience) and self.unimproved >= self.config.patience

    def update(self) -> None:
        """One update from the next segment of every row."""
        config, began = self.config, time.perf_counter()
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(self.step)
        segment = self.stream.read(config.length(self.step))
        (scored,) = self.world.sum(int((segment.targets != IGNORE).sum()))
        self.optimizer.zero_grad(set_to_none=True)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        rows = len(self.rows) // config.accumulate
        for part in range(config.accumulate):
            batch = on(rows_of(segment, part * rows, (part + 1) * rows), self.device)
            nll, predictions = self.backward(batch, part, scored)
            self.window.loss += nll.detach().sum()
            if predictions is not None:
                right += (predictions == batch.targets).sum()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        self.optimizer.step()
        self.model.core.clamp_spans()
        self.step, self.valid_now = self.step + 1, None
        self.grow(right, scored)
        tokens, seconds = segment.tokens.numel() * self.world.size, time.perf_counter() - began
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds
        window = self.window
        window.updates, window.tokens, window.seconds = (
            window.updates + 1,
            window.tokens + tokens,
            window.seconds + seconds,
        )
        window.scored, window.right, window.norm = window.scored + int(scored), window.right + right, window.norm + norm
        window.predicted += int(scored) if predictions is not None else 0
        self.watch({"event": "update", "step": self.step, "tokens": self.tokens, "seconds": self.seconds})

    def backward(self, batch: Batch, part: int, scored: float) -> tuple[Tensor, Tensor | None]:
        """Losses and gradients of one part of the rows; `scored` counts the tokens of all rows of all processes."""
        last = part == self.config.accumulate - 1
        # While parts are still to come, processes need not exchange gradients.
        waits = not last and isinstance(self.call, DistributedDataParallel)
        with self.call.no_sync() if waits else nullcontext(), self.autocast():  # type: ignore[operator]
            nll, predictions, state = self.call(batch, self.states[part])
            self.states[part] = state.detach()
            # Processes average their gradients, but the loss is a mean over the scored tokens of all of them.
            loss = nll.sum() * (self.world.size / max(scored, 1))
            if last:
                loss = loss + self.model.core.span_loss()
            loss.backward()
        return nll, predictions

    def check_precision(self) -> None:
        """Not every device has every operation in bf16: find out before anything is trained."""
        if self.config.precision == "float32":
            return
        try:
            with torch.random.fork_rng(devices=[]), self.autocast():
                self.model.train()(torch.zeros(1, 1, dtype=torch.int64, device=self.device), self.model.init_state(1))
        except RuntimeError as error:
            raise ValueError(
                f"this {self.device.type} cannot run the model in bf16 ({str(error).splitlines()[0]}); "
                "leave --train.precision at float32"
            ) from None

    def autocast(self) -> Any:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def grow(self, right: Tensor, scored: float) -> None:
        """Begin the curriculum's next stage once this one is mastered."""
        if not self.curriculum.stages or self.phase:
            return
        (all_right,) = self.world.sum(int(right))
        if self.curriculum.mastered(int(all_right), int(scored)):
            self.stream.change(**self.curriculum.options)
            self.watch({"event": "stage", "step": self.step, "stage": self.curriculum.options})

    def log(self) -> None:
        """Write a line of training metrics and look whether all is well."""
        window, self.window = self.window, Window()
        loss, right = self.world.sum(float(window.loss), float(window.right))
        mean = loss / max(window.scored, 1)
        record: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "loss": mean,
        }
        if window.predicted:
            record["accuracy"] = 100 * right / window.predicted
        record["learning_rate"] = self.config.rate(self.step - 1)
        record["gradient_norm"] = float(window.norm) / window.updates
        record["tokens_per_second"] = round(window.tokens / window.seconds, 1)
        record["peak_memory"] = peak_memory(self.device)
        if self.curriculum.stages:
            record["stage"] = self.curriculum.options
        record.update(inside(self.model))
        self.write(record)
        self.check_loss(mean)

    def check_loss(self, loss: float) -> None:
        """Stop if the loss is not a number, or for long three times that of guessing among all labels."""
        self.smooth_loss = loss if self.smooth_loss is None else 0.8 * self.smooth_loss + 0.2 * loss
        guessing = math.log(self.model.config.V + 1)
        if not math.isfinite(loss) or self.smooth_loss > 3 * guessing + 1:
            raise self.diverged(loss)

    def diverged(self, loss: float) -> Diverged:
        kept = self.folder.checkpoints()
        where = f"{kept[-1].name} and the models before it are kept" if kept else "no checkpoint had been written yet"
        return Diverged(
            f"the training has diverged: the loss is {loss:.4g} at update {self.step:,}; {where}. "
            "Try a smaller --train.learning_rate or more --train.warmup"
        )

    def validate(self) -> dict[str, Any]:
        """Score the validation split; keep the model if it is the best so far."""
        scores: dict[str, float] = {}
        if self.world.first:
            rows, length = self.config.valid_rows, self.config.segment
            scores = evaluate(self.model, self.task, "valid", rows, length, self.watch, self.config.valid_tokens)
        scores = self.world.share_json(scores)
        if scores["scored"] and not math.isfinite(scores["loss"]):
            raise self.diverged(scores["loss"])
        value = scores[self.task.headline]
        sign = 1 if self.task.higher_is_better else -1
        # Among equal scores the lower loss is the better model: accuracy is at its ceiling long before the loss is.
        tied = value == self.best and scores["loss"] < self.best_loss
        better = self.best is None or sign * value > sign * self.best or tied
        self.unimproved = 0 if better else self.unimproved + 1
        if better:
            self.best, self.best_loss, self.best_step = value, scores["loss"], self.step
            if self.world.first:
                self.save_model(scores)
        self.write(
            {
                "step": self.step,
                "tokens": self.tokens,
                "seconds": round(self.seconds, 3),
                "valid": scores,
                "best": better,
            }
        )
        self.valid_now = scores
        return scores

    def write(self, record: dict[str, Any]) -> None:
        if self.metrics is not None:
            try:
                self.metrics.write(json.dumps(record) + "\n")
                self.metrics.flush()
            except OSError as error:
                raise OSError(f"{self.metrics.name} could not be written ({error.strerror})") from None
        self.watch({"event": "metrics", **record})

    def save_model(self, scores: dict[str, float]) -> None:
        note = {"step": self.step, "tokens": self.tokens, "valid": scores}
        self.folder.save_model(dict(self.model.state_dict()), note)

    def save(self) -> None:
        """Write a checkpoint with everything that is needed to go on."""
        tensors, note = checkpoint.pack(self)
        # Never replace a training that can go on by one that cannot.
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self.diverged(math.nan)
        if self.world.first:
            self.folder.save_checkpoint(self.step, tensors, note)
            self.watch({"event": "saved", "step": self.step})
        self.world.wait()

    def resume(self) -> list[str]:
        """Go on from the newest checkpoint that is whole; a word on each one that is not. A training that ended before
        its first checkpoint begins anew, which comes to the same."""
        if not self.folder.checkpoints():
            return [f"{self.folder.path} holds no checkpoint yet; beginning from the start"]
        tensors, note, damaged = self.folder.load_checkpoint()
        checkpoint.unpack(self, tensors, note)
        return damaged

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM: finish the update, save, stop. A second one stops at once."""

        def ask(number: int, frame: Any) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.watch({"event": "stopping"})

        if threading.current_thread() is not threading.main_thread():
            yield  # signals belong to the main thread
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def rows_of(batch: Batch, first: int, last: int) -> Batch:
    start = None if batch.start is None else batch.start[first:last]
    return Batch(batch.tokens[first:last], batch.targets[first:last], start)


def inside(model: LanguageModel) -> dict[str, Any]:
    """What a model has learned about itself: what its memory is made of, how far its heads look."""
    found: dict[str, Any] = {}
    mix = getattr(model.core, "mix", None)
    if mix is not None and mix.weights is not None:
        with torch.no_grad():
            found["layer_weights"] = [[round(weight, 4) for weight in row] for row in mix(mix.weights).tolist()]
    spans: list[Any] = getattr(model.core, "spans", list)()
    if spans:
        found["spans"] = [[round(z, 1) for z in span.z.tolist()] for span in spans]
    return found


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of the device, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes
