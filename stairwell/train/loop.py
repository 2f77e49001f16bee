"""The training loop of all families: an objective, the phases of a run, a config and a run folder.

    for each step:  batch = source.read();  loss = objective(batch);  loss.backward();  optimizer.step()

It handles steps, schedules, gradient accumulation, phases, curricula, processes, signals and checkpoints, and does not
depend on what is learned. A seed determines a run bit for bit, and so does a run that was interrupted and resumed. This
file prints nothing; it reports events to a callback.
"""

from __future__ import annotations

import gc
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stairwell.errors import UserError
from stairwell.tasks.base import Batch
from stairwell.tensor_files import load_tensors
from stairwell.train import checkpoint, optimizers
from stairwell.train.checkpoint import MetricAccumulator, Progress
from stairwell.train.config import TrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.objective import BrokenSource, Objective, Outcome, Phase
from stairwell.train.signals import handle_signals, parent_exited
from stairwell.train.training_folder import TrainingFolder


class Interrupted(Exception):
    """The run was interrupted and is saved."""


class NotSaved(Exception):
    """The run was interrupted at once, or before it started. Everything since the last checkpoint is lost."""


class Diverged(Exception):
    """The loss is NaN or far above chance level. The last good checkpoint is kept."""


Callback = Callable[[dict[str, Any]], None]


class Trainer:
    """A run in progress: the objective, its optimizer, the batch source and the progress."""

    def __init__(
        self,
        objective: Objective,
        phases: Sequence[Phase],
        config: TrainConfig,
        folder: TrainingFolder,
        world: Distributed | None = None,
    ) -> None:
        """`phases`: one for training and, if the final phase reads other data, one for that. The model must be on its
        device. Call `torch.manual_seed(config.seed)` before making it to determine its parameters."""
        self.objective, self.phases, self.config, self.folder = objective, phases, config, folder
        self.model = objective.model
        self.world = world or Distributed()
        self.callback: Callback = lambda event: None
        self.device = next(objective.parameters()).device
        self.optimizer = optimizers.make(objective, config)
        self.wrapped: nn.Module = objective
        if self.world.size > 1:
            self.wrapped = DistributedDataParallel(objective, find_unused_parameters=objective.skips_parameters)
        self.indices = self.world.batch_indices(config.batch)  # the batch elements of this process
        if len(self.indices) % config.accumulate:
            raise UserError(
                f"train.accumulate {config.accumulate} does not divide the batch of {len(self.indices)} per process"
            )
        self.check_precision()
        self.set_kv_precision()
        self.curriculum = config.make_curriculum()
        self.size_schedule, self.sizes = config.make_size_schedule(), dict[str, int]()
        if self.size_schedule.stages:
            core: Any = self.model.core
            self.size_schedule.check(core.config, config.steps)
        self.progress = Progress()
        self.stop_requested = False
        self.writes = False  # whether this process writes metrics and checkpoints: the main one, while it runs
        self.start_phase(0)
        for stage in reversed(self.curriculum.stages):  # an invalid stage raises now, not hours later
            self.batch_source.change(**stage)
        torch.manual_seed(config.seed + 1 + self.world.rank)  # different dropout on every process

    def start_phase(self, number: int) -> None:
        """Start a phase with a new batch source and initial states."""
        self.progress.phase, self.progress.unimproved = number, 0
        phase = self.phases[self.data_phase]
        self.validation = phase.validation
        self.batch_source = phase.batch_source(self.indices, self.config.batch, self.config.seed)
        self.objective.init_states(len(self.indices), self.config.accumulate)

    @property
    def data_phase(self) -> int:
        """The phase whose data is read; fine-tuning on the same data does not count. Scores of two data phases cannot
        be compared."""
        return min(self.progress.phase, len(self.phases) - 1)

    def resize(self, sizes: dict[str, int]) -> None:
        """Resize the core for training. States are reset, because they do not fit another size."""
        if sizes != self.sizes:
            self.sizes = sizes
            self.objective.resize(sizes)
            self.objective.init_states(len(self.indices), self.config.accumulate)
            self.emit({"event": "size_schedule", "step": self.progress.step, "sizes": sizes})

    @contextmanager
    def full_size(self) -> Iterator[None]:
        """Give the core its full size within a block. States are not changed."""
        if self.sizes:
            self.objective.resize({})
        try:
            yield
        finally:
            if self.sizes:
                self.objective.resize(self.sizes)

    def emit(self, event: dict[str, Any]) -> None:
        self.callback(event)

    def run(self, callback: Callback | None = None) -> dict[str, Any]:
        """Train to the end and return the scores of the last validation. Those of the best model are saved with it.

        Raises Interrupted, NotSaved, Diverged or BrokenSource. The run can be resumed afterwards."""
        self.callback = callback or self.callback
        self.writes = self.world.is_main
        if self.writes:
            self.folder.truncate_metrics(self.progress.step)
        try:
            with handle_signals(self.request_stop):
                return self.train()
        except KeyboardInterrupt:
            saved = self.folder.newest_step
            since = f"since the checkpoint of step {saved:,}" if saved else "so far"
            raise NotSaved(
                f"stopped at once at step {self.progress.step:,}; what was learned {since} is not saved"
            ) from None
        except BrokenSource as error:
            if self.world.size > 1:  # saving needs all processes, and the others continue
                raise
            self.save()
            raise BrokenSource(f"{error}; {self.saved_message}") from error

    @property
    def saved_message(self) -> str:
        return f"stopped and saved at step {self.progress.step:,} of {self.config.total_steps:,}"

    def train(self) -> dict[str, Any]:
        config, progress = self.config, self.progress
        if not progress.step:
            self.save()  # so that a folder with results always has a checkpoint
        while progress.step < config.total_steps:
            if self.done_early:
                if progress.phase or not config.finetune_steps:
                    break
                progress.step = config.steps  # skip to the final phase
            if progress.step >= config.steps and progress.phase == 0:
                self.start_finetuning()
            self.train_step()
            step, more = progress.step, progress.step < config.total_steps
            if step % config.log_every == 0 or not more:
                self.log()
            if config.validate_every and step % config.validate_every == 0 and more:
                self.validate()
            if self.world.any(self.stop_requested or parent_exited()):
                self.save()
                raise Interrupted(self.saved_message)
            if config.checkpoint_every and step % config.checkpoint_every == 0 and more:
                self.save()
        final = progress.valid or self.validate()
        self.save()
        if config.average:
            self.average()
        return final

    def close(self) -> None:
        """Release DistributedDataParallel before the process group is destroyed.

        If it held the last reference to the group, it would join the group's threads while holding the GIL, and one of
        them may be waiting for it."""
        if self.world.size > 1:
            self.wrapped = self.objective
            gc.collect()

    def start_finetuning(self) -> None:
        """Start the final phase. The batch source continues unless the phase has its own. In that case scores cannot be
        compared with those before, so the search for the best model starts again."""
        self.progress.phase, self.progress.unimproved = 1, 0
        if len(self.phases) > 1:
            self.start_phase(1)
            self.progress.best = None

    @property
    def done_early(self) -> bool:
        """Whether to stop early: the threshold is reached, patience has run out, or the curriculum is mastered.
        Fine-tuning on the same data takes all its steps; a threshold reached before would end it at once."""
        config, best = self.config, self.progress.best
        if self.curriculum.stop_when_mastered and self.curriculum.mastered and self.progress.phase == 0:
            return True
        threshold = config.stopping_threshold if self.progress.phase < len(self.phases) else None
        if threshold is not None and best is not None and self.sign * best >= self.sign * threshold:
            return True
        return bool(config.patience) and self.progress.unimproved >= config.patience

    @property
    def sign(self) -> int:
        """1 if a higher primary metric is better, otherwise -1."""
        return 1 if self.validation.higher_is_better else -1

    def train_step(self) -> None:
        """Take one optimizer step on the next batch."""
        config, progress, metrics, start = self.config, self.progress, self.progress.metrics, time.perf_counter()
        self.resize(self.size_schedule.sizes(progress.step))
        self.objective.train()
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate_at(progress.step)
        batch = self.batch_source.read(config.segment_at(progress.step))
        terms, tokens = (int(number) for number in self.world.sum(batch.terms, batch.size))
        self.optimizer.zero_grad(set_to_none=True)
        parts, correct = batch.parts(config.accumulate), []
        for number, part in enumerate(parts, start=1):
            outcome = self.backward(part.to(self.device), terms, last=number == len(parts))
            metrics.add({"loss": outcome.loss.detach(), **outcome.metrics})
            correct.append(outcome.metrics.get("correct"))
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), config.max_grad_norm or math.inf)
        self.optimizer.step()
        self.objective.after_step()
        progress.step, progress.valid = progress.step + 1, None
        self.advance_curriculum(correct, terms)
        seconds = time.perf_counter() - start
        progress.tokens, progress.seconds = progress.tokens + tokens, progress.seconds + seconds
        metrics.steps, metrics.tokens = metrics.steps + 1, metrics.tokens + tokens
        metrics.seconds, metrics.terms = metrics.seconds + seconds, metrics.terms + terms
        metrics.gradient_norm = metrics.gradient_norm + norm
        self.emit({"event": "step", "step": progress.step, "tokens": progress.tokens, "seconds": progress.seconds})

    def backward(self, part: Batch, terms: int, last: bool) -> Outcome:
        """Compute the loss and gradients of one part; `terms` counts those of all parts and processes."""
        # Processes exchange gradients once per step, after the last part.
        no_sync: AbstractContextManager[Any] = nullcontext()
        if not last and isinstance(self.wrapped, DistributedDataParallel):
            no_sync = self.wrapped.no_sync()
        with no_sync, self.autocast():
            outcome: Outcome = self.wrapped(part)
            # DistributedDataParallel averages gradients, but the loss is a mean over the terms of all processes.
            loss = outcome.loss * (self.world.size / max(terms, 1))
            if outcome.penalty is not None:
                loss = loss + outcome.penalty
            loss.backward()  # type: ignore[no-untyped-call]
        return outcome

    def check_precision(self) -> None:
        """Reject bf16 before training if the device lacks an operation."""
        if self.config.precision == "float32":
            return
        try:
            with torch.random.fork_rng(devices=[]), self.autocast():
                self.objective.dry_run()
        except RuntimeError as error:
            raise UserError(
                f"the device {self.device.type} cannot run the model in bf16 ({str(error).splitlines()[0]}); "
                "leave --train.precision at float32"
            ) from None

    def set_kv_precision(self) -> None:
        core: Any = getattr(self.model, "core", None)
        precision = self.config.kv_precision
        if hasattr(core, "kv_precision"):
            core.kv_precision = precision
        elif precision != "float32":
            raise UserError(
                f"--train.kv_precision {precision} requires a Feedback core, not {type(core).__name__}; use float32"
            )

    def autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def advance_curriculum(self, correct: list[Tensor | None], terms: int) -> None:
        """Start the next stage once this one is mastered; `correct`: the number of correct terms of each part."""
        if not self.curriculum.stages or self.progress.phase:
            return
        counts = [int(part) for part in correct if part is not None]
        if not counts:
            raise UserError("a curriculum needs an objective with the metric `correct`; leave --train.curriculum empty")
        (all_correct,) = self.world.sum(sum(counts))
        if self.curriculum.update(int(all_correct), terms):
            self.batch_source.change(**self.curriculum.options)
            self.emit({"event": "stage", "step": self.progress.step, "stage": self.curriculum.options})

    def log(self) -> None:
        """Write a line of training metrics and check the loss."""
        metrics, self.progress.metrics = self.progress.metrics, MetricAccumulator()
        sums = metrics.totals(self.world)
        loss = sums.pop("loss") / max(metrics.terms, 1)
        record = {**self.counts(), "loss": loss, **self.objective.summary(sums, metrics.terms)}
        record["learning_rate"] = self.config.learning_rate_at(self.progress.step - 1)
        record["gradient_norm"] = float(metrics.gradient_norm) / metrics.steps
        record["tokens_per_second"] = round(metrics.tokens / metrics.seconds, 1)
        record["peak_memory"] = peak_memory(self.device)
        if self.curriculum.stages:
            record["stage"] = self.curriculum.options
        if self.sizes:
            record["sizes"] = self.sizes
        record.update(self.objective.extra_metrics())
        self.write_metrics(record)
        self.check_loss(loss)

    def counts(self) -> dict[str, Any]:
        """Return what every line of metrics starts with."""
        progress = self.progress
        return {"step": progress.step, "tokens": progress.tokens, "seconds": round(progress.seconds, 3)}

    def check_loss(self, loss: float) -> None:
        """Stop if the loss is not finite, or its running average is far above chance level."""
        before = self.progress.smooth_loss
        self.progress.smooth_loss = loss if before is None else 0.8 * before + 0.2 * loss
        if not math.isfinite(loss) or self.progress.smooth_loss > 3 * self.objective.chance_loss + 1:
            raise self.diverged(loss)

    def diverged(self, loss: float) -> Diverged:
        checkpoints = self.folder.checkpoints()
        saved = (
            f"{checkpoints[-1].name} and the best model are kept" if checkpoints else "no checkpoint was written yet"
        )
        return Diverged(
            f"the run has diverged: the loss is {loss:.4g} at step {self.progress.step:,}; {saved}. "
            "Try a smaller --train.learning_rate or more --train.warmup"
        )

    def validate(self) -> dict[str, Any]:
        """Score the validation split and save the model if it is the best so far."""
        progress = self.progress
        with self.full_size():
            scores: dict[str, float] = self.validation(self.model, "valid") if self.world.is_main else {}
        scores = self.world.broadcast_json(scores)
        loss = scores.get("loss", math.inf)
        if "loss" in scores and scores.get("scored", 1) and not math.isfinite(loss):
            raise self.diverged(loss)
        value = scores[self.validation.primary_metric]
        # Accuracy is at its maximum long before the loss is at its minimum, so the loss decides between equal scores.
        tied = value == progress.best and loss < progress.best_loss
        better = progress.best is None or self.sign * value > self.sign * progress.best or tied
        progress.unimproved = 0 if better else progress.unimproved + 1
        if better:
            progress.best, progress.best_loss, progress.best_step = value, loss, progress.step
            if self.writes:
                self.save_model(scores)
        if self.config.average and self.writes:
            rank = progress.step if self.config.average_of == "last" else [self.sign * value, -loss]
            metadata = {"phase": self.data_phase, "rank": rank}
            self.folder.save_snapshot(progress.step, dict(self.model.state_dict()), metadata, self.config.average)
        self.write_metrics({**self.counts(), "valid": scores, "best": better})
        progress.valid = scores
        return scores

    def average(self) -> None:
        """Average the parameters of several validations, and save that model if it is the best."""
        if not self.writes:
            return
        original = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        snapshots = [load_tensors(path) for path in self.folder.snapshots()]
        # Fine-tuning on other data may have fewer validations than are averaged.
        chosen = [parameters for parameters, metadata in snapshots if metadata["phase"] == self.data_phase]
        if not chosen:
            return
        mean = {
            name: torch.stack([parameters[name] for parameters in chosen]).mean(0).to(tensor)
            for name, tensor in original.items()
        }
        self.model.load_state_dict(mean)
        try:
            scores = self.validation(self.model, "valid")
            value, best = scores[self.validation.primary_metric], self.progress.best
            better = best is None or self.sign * value > self.sign * best
            if better:
                self.save_model(scores)
            self.folder.remove_average(self.progress.step)  # of a finished run that was resumed
            self.write_metrics({**self.counts(), "valid": scores, "best": better, "averaged": len(chosen)})
        finally:
            self.model.load_state_dict(original)

    def write_metrics(self, record: dict[str, Any]) -> None:
        if self.writes:
            self.folder.add_metrics(record)
        self.emit({"event": "metrics", **record})

    def save_model(self, scores: dict[str, float]) -> None:
        self.folder.check_not_deleted()
        metadata = {"step": self.progress.step, "tokens": self.progress.tokens, "valid": scores}
        self.folder.save_model(dict(self.model.state_dict()), metadata)

    def save(self) -> None:
        """Write a checkpoint with everything that is needed to resume."""
        self.progress.curriculum = self.curriculum.position()
        tensors, metadata = checkpoint.pack(
            self.progress, self.objective, self.optimizer, self.batch_source, self.world
        )
        # A diverged run must not replace the last checkpoint that can be resumed.
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self.diverged(math.nan)
        if self.writes:
            self.folder.check_not_deleted()
            self.folder.save_checkpoint(self.progress.step, tensors, metadata)
            self.emit({"event": "saved", "step": self.progress.step})
        self.world.barrier()

    def resume(self) -> list[str]:
        """Continue from the newest readable checkpoint. Return warnings: checkpoints that cannot be read, and a batch
        source that cannot continue exactly. A run without a checkpoint starts again, with the same result."""
        if not self.folder.checkpoints():
            if self.folder.has_results:
                raise UserError(
                    f"{self.folder.path} has no checkpoint to resume from, but a model or metrics that a new run "
                    "would replace; restore its checkpoints folder, or choose another --out"
                )
            return [f"{self.folder.path} has no checkpoint yet; starting from step 0"]
        tensors, metadata, warnings = self.folder.load_checkpoint()
        checkpoint.check_batch_size(metadata, self.config.batch)
        saved = Progress.from_json(metadata["progress"], self.world)
        self.start_phase(saved.phase)
        self.progress = saved
        # The saved stream state has the sizes of the last step.
        self.resize(self.size_schedule.sizes(max(saved.step - 1, 0)))
        if self.curriculum.stages:
            self.curriculum.seek(saved.curriculum)
        parts = (self.objective, self.optimizer, self.batch_source, self.world)
        return warnings + checkpoint.unpack(tensors, metadata, *parts, self.indices, self.config.seed)

    def request_stop(self, number: int) -> None:
        """Finish the step, save and stop. A second Ctrl-C stops at once. Other signals can arrive twice when a terminal
        is closed, so a second one has no effect."""
        if self.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stop_requested:
            self.stop_requested = True
            self.emit({"event": "stopping"})


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of the device or of this process in bytes; 0 if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes
