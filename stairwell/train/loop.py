"""The one loop that trains everything: an objective, the phases of a training, a config, a run folder.

    for every update:  batch = feed.read();  loss = objective(batch);  loss.backward();  optimizer.step()

It knows steps, schedules, accumulation, phases, curricula, processes, signals and checkpoints, and nothing of what is
learned. A seed fixes a training bit for bit, and a training that was stopped goes on as if it never had been. This file
prints nothing: it tells a `watch` function what happens.
"""

from __future__ import annotations

import gc
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stairwell.errors import UserError
from stairwell.train import checkpoint, optimizers
from stairwell.train.checkpoint import Progress, Tally
from stairwell.train.config import TrainConfig
from stairwell.train.curriculum import Curriculum
from stairwell.train.distributed import Distributed
from stairwell.train.objective import Batch, BrokenSource, Objective, Outcome, Phase
from stairwell.train.run import Run, load_tensors
from stairwell.train.signals import left_alone, on_signals
from stairwell.train.size_schedule import SizeSchedule


class Interrupted(Exception):
    """Someone asked to stop; everything is saved."""


class NotSaved(Exception):
    """Someone asked to stop at once, or before anything had begun; what was done since the last checkpoint is lost."""


class Diverged(Exception):
    """The loss is not a number, or far worse than guessing; the last good checkpoint is kept."""


Watch = Callable[[dict[str, Any]], None]


class Trainer:
    """A training under way: the objective, its optimizer, the feed and how far they have come."""

    def __init__(
        self,
        objective: Objective,
        phases: Sequence[Phase],
        config: TrainConfig,
        run: Run,
        world: Distributed | None = None,
    ) -> None:
        """`phases`: one for training and, if the last phase reads other data, one for that. The model is on its device
        already; `torch.manual_seed(config.seed)` before it is made fixes its parameters."""
        self.objective, self.phases, self.config, self.folder = objective, phases, config, run
        self.model = objective.model
        self.world = world or Distributed()
        self.watch: Watch = lambda event: None
        self.device = next(objective.parameters()).device
        self.optimizer = optimizers.make(objective, config)
        self.call: nn.Module = objective
        if self.world.size > 1:
            self.call = DistributedDataParallel(objective, find_unused_parameters=objective.skips_parameters)
        self.rows = self.world.rows(config.batch)
        if len(self.rows) % config.accumulate:
            raise UserError(
                f"train.accumulate {config.accumulate} does not divide the {len(self.rows)} rows of a process"
            )
        self.check_precision()
        self.curriculum = Curriculum.parse(config.curriculum, config.curriculum_accuracy)
        self.size_schedule, self.sizes = SizeSchedule.parse(config.size_schedule), dict[str, int]()
        if self.size_schedule.stages:
            self.size_schedule.check(self.model.core.config, config.steps)  # type: ignore[union-attr]
        self.progress = Progress()
        self.stop_asked = False
        self.writes = False  # metrics and checkpoints: the first process, once it runs
        self.begin_phase(0)
        for stage in reversed(self.curriculum.stages):  # all are tried, so that a wrong one is found out now
            self.batch_source.change(**stage)
        torch.manual_seed(config.seed + 1 + self.world.rank)  # dropout: different on every process

    def begin_phase(self, number: int) -> None:
        """A fresh feed and states: at the start, and where the last phase reads other data."""
        self.progress.phase, self.progress.unimproved = number, 0
        phase = self.phases[self.data_phase]
        self.validation = phase.validation
        self.batch_source = phase.batch_source(self.rows, self.config.batch, self.config.seed)
        self.objective.begin(len(self.rows), self.config.accumulate)

    @property
    def data_phase(self) -> int:
        """The phase whose data is read; fine-tuning on the same data is not a phase of its own. Scores of two such
        phases cannot be compared."""
        return min(self.progress.phase, len(self.phases) - 1)

    def resize(self, sizes: dict[str, int]) -> None:
        """The core as large as it is now to be trained; what was carried does not fit another size."""
        if sizes != self.sizes:
            self.sizes = sizes
            self.objective.resize(sizes)
            self.objective.begin(len(self.rows), self.config.accumulate)
            self.tell({"event": "size_schedule", "step": self.progress.step, "sizes": sizes})

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The core as it is used later, for a while; what is carried stays."""
        if self.sizes:
            self.objective.resize({})
        try:
            yield
        finally:
            if self.sizes:
                self.objective.resize(self.sizes)

    def tell(self, event: dict[str, Any]) -> None:
        self.watch(event)

    def run(self, watch: Watch | None = None) -> dict[str, Any]:
        """Train to the end; the scores of the last validation (those of the best model are kept with it in the folder).
        Raises Interrupted, NotSaved, Diverged or BrokenSource, which leave a folder to go on from."""
        self.watch = watch or self.watch
        self.writes = self.world.first
        if self.writes:
            self.folder.begin_metrics(self.progress.step)
        try:
            with on_signals(self.asked_to_stop):
                return self.run_to_the_end()
        except KeyboardInterrupt:
            raise NotSaved(self.what_is_lost()) from None
        except BrokenSource as error:
            if self.world.size > 1:  # the others know nothing of it, and saving needs all
                raise
            self.save()
            saved = f"stopped and saved at update {self.progress.step:,} of {self.config.total:,}"
            raise BrokenSource(f"{error}; {saved}") from error

    def run_to_the_end(self) -> dict[str, Any]:
        config, progress = self.config, self.progress
        if not progress.step:
            self.save()  # a folder with results always has a checkpoint, unless someone removed it
        while progress.step < config.total:
            if self.done_early:
                if progress.phase or not config.finetune_steps:
                    break
                progress.step = config.steps  # on to the last phase
            if progress.step >= config.steps and progress.phase == 0:
                self.finetune()
            self.update()
            step, more = progress.step, progress.step < config.total
            if step % config.log_every == 0 or not more:
                self.log()
            if config.validate_every and step % config.validate_every == 0 and more:
                self.validate()
            if self.world.any(self.stop_asked or left_alone()):
                self.save()
                raise Interrupted(f"stopped and saved at update {step:,} of {config.total:,}")
            if config.checkpoint_every and step % config.checkpoint_every == 0 and more:
                self.save()
        final = progress.valid or self.validate()
        self.save()
        if config.average:
            self.average()
        return final

    def close(self) -> None:
        """Let go of DistributedDataParallel before the processes part. If it held the last reference to their group, it
        would join the group's threads with Python's lock in hand, and one of them may be waiting for that lock."""
        if self.world.size > 1:
            self.call = self.objective
            gc.collect()

    def finetune(self) -> None:
        """The last phase: the same feed goes on, unless there is another. Scores on that cannot be compared with those
        before, so the best model is looked for anew."""
        self.progress.phase, self.progress.unimproved = 1, 0
        if len(self.phases) > 1:
            self.begin_phase(1)
            self.progress.best = None

    @property
    def done_early(self) -> bool:
        """Whether nothing more is to be gained: the goal is reached, no validation was better for long, or the
        curriculum is mastered. Fine-tuning on the same data takes all its steps: a goal reached before it would end it
        at once."""
        config, best = self.config, self.progress.best
        if config.stop_when_mastered and self.curriculum.finished and self.progress.phase == 0:
            return True
        if config.goal is not None and best is not None and self.progress.phase < len(self.phases):
            sign = 1 if self.validation.higher_is_better else -1
            if sign * best >= sign * config.goal:
                return True
        return bool(config.patience) and self.progress.unimproved >= config.patience

    def update(self) -> None:
        """One update from the next batch."""
        config, progress, tally, began = self.config, self.progress, self.progress.tally, time.perf_counter()
        self.resize(self.size_schedule.sizes(progress.step))
        self.objective.train()
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(progress.step)
        batch = self.batch_source.read(config.length(progress.step))
        terms, tokens = (int(number) for number in self.world.sum(batch.terms, batch.size))
        self.optimizer.zero_grad(set_to_none=True)
        parts, right = batch.parts(config.accumulate), []
        for place, part in enumerate(parts, start=1):
            outcome = self.backward(part.to(self.device), terms, last=place == len(parts))
            tally.add({"loss": outcome.loss.detach(), **outcome.metrics})
            right.append(outcome.metrics.get("right"))
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), config.max_grad_norm or math.inf)
        self.optimizer.step()
        self.objective.after_update()
        progress.step, progress.valid = progress.step + 1, None
        self.grow(right, terms)
        seconds = time.perf_counter() - began
        progress.tokens, progress.seconds = progress.tokens + tokens, progress.seconds + seconds
        tally.updates, tally.tokens, tally.seconds = tally.updates + 1, tally.tokens + tokens, tally.seconds + seconds
        tally.terms, tally.gradient_norm = tally.terms + terms, tally.gradient_norm + norm
        self.tell({"event": "update", "step": progress.step, "tokens": progress.tokens, "seconds": progress.seconds})

    def backward(self, part: Batch, terms: int, last: bool) -> Outcome:
        """Loss and gradients of one part of the rows; `terms` counts those of all parts of all processes."""
        # While parts are still to come, processes need not exchange gradients.
        waits = not last and isinstance(self.call, DistributedDataParallel)
        with self.call.no_sync() if waits else nullcontext(), self.autocast():  # type: ignore[operator]
            outcome: Outcome = self.call(part)
            # Processes average their gradients, but the loss is a mean over the terms of all of them.
            loss = outcome.loss * (self.world.size / max(terms, 1))
            if outcome.penalty is not None:
                loss = loss + outcome.penalty
            loss.backward()
        return outcome

    def check_precision(self) -> None:
        """Not every device has every operation in bf16: find out before anything is trained."""
        if self.config.precision == "float32":
            return
        try:
            with torch.random.fork_rng(devices=[]), self.autocast():
                self.objective.rehearse()
        except RuntimeError as error:
            raise UserError(
                f"this {self.device.type} cannot run the model in bf16 ({str(error).splitlines()[0]}); "
                "leave --train.precision at float32"
            ) from None

    def autocast(self) -> Any:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def grow(self, right: list[Tensor | None], terms: int) -> None:
        """Begin the curriculum's next stage once this one is mastered; `right`: how many terms of each part are."""
        if not self.curriculum.stages or self.progress.phase:
            return
        counts = [int(part) for part in right if part is not None]
        if not counts:
            raise UserError(
                "a curriculum needs an objective that counts what is `right`; leave --train.curriculum empty"
            )
        (all_right,) = self.world.sum(sum(counts))
        if self.curriculum.mastered(int(all_right), terms):
            self.batch_source.change(**self.curriculum.options)
            self.tell({"event": "stage", "step": self.progress.step, "stage": self.curriculum.options})

    def log(self) -> None:
        """Write a line of training metrics and look whether all is well."""
        tally, self.progress.tally = self.progress.tally, Tally()
        sums = tally.totals(self.world)
        loss = sums.pop("loss") / max(tally.terms, 1)
        record = {**self.when(), "loss": loss, **self.objective.summary(sums, tally.terms)}
        record["learning_rate"] = self.config.rate(self.progress.step - 1)
        record["gradient_norm"] = float(tally.gradient_norm) / tally.updates
        record["tokens_per_second"] = round(tally.tokens / tally.seconds, 1)
        record["peak_memory"] = peak_memory(self.device)
        if self.curriculum.stages:
            record["stage"] = self.curriculum.options
        if self.sizes:
            record["sizes"] = self.sizes
        record.update(self.objective.inside())
        self.write(record)
        self.check_loss(loss)

    def when(self) -> dict[str, Any]:
        progress = self.progress
        return {"step": progress.step, "tokens": progress.tokens, "seconds": round(progress.seconds, 3)}

    def check_loss(self, loss: float) -> None:
        """Stop if the loss is not a number, or for long three times that of guessing."""
        before = self.progress.smooth_loss
        self.progress.smooth_loss = loss if before is None else 0.8 * before + 0.2 * loss
        if not math.isfinite(loss) or self.progress.smooth_loss > 3 * self.objective.chance + 1:
            raise self.diverged(loss)

    def diverged(self, loss: float) -> Diverged:
        kept = self.folder.checkpoints()
        where = f"{kept[-1].name} and the models before it are kept" if kept else "no checkpoint had been written yet"
        return Diverged(
            f"the training has diverged: the loss is {loss:.4g} at update {self.progress.step:,}; {where}. "
            "Try a smaller --train.learning_rate or more --train.warmup"
        )

    def validate(self) -> dict[str, Any]:
        """Score the validation split; keep the model if it is the best so far."""
        progress = self.progress
        with self.whole():
            scores: dict[str, float] = self.validation(self.model, "valid") if self.world.first else {}
        scores = self.world.share_json(scores)
        loss = scores.get("loss", math.inf)
        if "loss" in scores and scores.get("scored", 1) and not math.isfinite(loss):
            raise self.diverged(loss)
        value = scores[self.validation.primary_metric]
        sign = 1 if self.validation.higher_is_better else -1
        # Among equal scores the lower loss is the better model: accuracy is at its ceiling long before the loss is.
        tied = value == progress.best and loss < progress.best_loss
        better = progress.best is None or sign * value > sign * progress.best or tied
        progress.unimproved = 0 if better else progress.unimproved + 1
        if better:
            progress.best, progress.best_loss, progress.best_step = value, loss, progress.step
            if self.writes:
                self.save_model(scores)
        if self.config.average and self.writes:
            rank = progress.step if self.config.average_of == "last" else [sign * value, -loss]
            note = {"phase": self.data_phase, "rank": rank}
            self.folder.save_snapshot(progress.step, dict(self.model.state_dict()), note, self.config.average)
        self.write({**self.when(), "valid": scores, "best": better})
        progress.valid = scores
        return scores

    def average(self) -> None:
        """Average the parameters of several validations, and keep that model if it is the best."""
        if not self.writes:
            return
        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        snapshots = [load_tensors(path) for path in self.folder.snapshots()]
        # Fine-tuning on other data may have fewer validations than are averaged.
        found = [parameters for parameters, note in snapshots if note.get("phase", 0) == self.data_phase]
        if not found:  # of a run that did not note phases yet
            return
        mean = {name: torch.stack([one[name] for one in found]).mean(0).to(own[name]) for name in own}
        self.model.load_state_dict(mean)
        try:
            scores = self.validation(self.model, "valid")
            value, sign = scores[self.validation.primary_metric], 1 if self.validation.higher_is_better else -1
            better = self.progress.best is None or sign * value > sign * self.progress.best
            if better:
                self.save_model(scores)
            self.write({**self.when(), "valid": scores, "best": better, "averaged": len(found)})
        finally:
            self.model.load_state_dict(own)

    def write(self, record: dict[str, Any]) -> None:
        if self.writes:
            self.folder.add_metrics(record)
        self.tell({"event": "metrics", **record})

    def save_model(self, scores: dict[str, float]) -> None:
        self.folder.check_there()
        note = {"step": self.progress.step, "tokens": self.progress.tokens, "valid": scores}
        self.folder.save_model(dict(self.model.state_dict()), note)

    def save(self) -> None:
        """Write a checkpoint with everything that is needed to go on."""
        self.progress.curriculum = self.curriculum.position()
        tensors, note = checkpoint.pack(self.progress, self.objective, self.optimizer, self.batch_source, self.world)
        # Never replace a training that can go on by one that cannot.
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self.diverged(math.nan)
        if self.writes:
            self.folder.check_there()
            self.folder.save_checkpoint(self.progress.step, tensors, note)
            self.tell({"event": "saved", "step": self.progress.step})
        self.world.wait()

    def resume(self) -> list[str]:
        """Go on from the newest checkpoint that is whole; a word on each one that is not, and on a feed that cannot go
        on exactly. A training that ended before its first checkpoint begins anew, which comes to the same."""
        if not self.folder.checkpoints():
            if self.folder.began:
                raise UserError(
                    f"{self.folder.path} has no checkpoint to resume from, but a model or metrics that a new training "
                    "would replace; restore its checkpoints folder, or train in another --out"
                )
            return [f"{self.folder.path} holds no checkpoint yet; beginning from the start"]
        tensors, note, damaged = self.folder.load_checkpoint()
        checkpoint.check_rows(note, self.config.batch)
        saved = Progress.from_json(note["progress"], self.world)
        self.begin_phase(saved.phase)
        self.progress = saved
        # What is carried has the sizes of the last update.
        self.resize(self.size_schedule.sizes(max(saved.step - 1, 0)))
        if self.curriculum.stages:
            self.curriculum.seek(saved.curriculum)
        parts = (self.objective, self.optimizer, self.batch_source, self.world)
        return damaged + checkpoint.unpack(tensors, note, *parts, self.rows, self.config.seed)

    def what_is_lost(self) -> str:
        kept = self.folder.newest_step
        since = f"since the checkpoint of update {kept:,}" if kept else "so far"
        return f"stopped at once at update {self.progress.step:,}; what was learned {since} is not saved"

    def asked_to_stop(self, number: int) -> None:
        """Finish the update, save, stop. A second Ctrl-C stops at once; other signals may come twice when a terminal is
        closed, and mean the same."""
        if self.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stop_asked:
            self.stop_asked = True
            self.tell({"event": "stopping"})


def peak_memory(device: torch.device) -> int:
    """The most memory used so far, in bytes: of the device, or of this process; 0 where nobody can tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes
