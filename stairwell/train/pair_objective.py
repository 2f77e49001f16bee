"""Training on pairs of texts: cross-entropy of the targets, and scores of splits by loss and by decoded text.

    state = model.init_state(B, source, mask);  losses = model.losses(tokens, targets, state, smoothing)

Letters: B pairs, T target tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from stairwell.models import IGNORE_INDEX, Seq2Seq
from stairwell.tasks import text_scores
from stairwell.tasks.base import Split
from stairwell.tasks.pair_task import PairBatch, PairTask
from stairwell.train.config import PairTrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Callback, Trainer
from stairwell.train.objective import Objective, Outcome, Phase
from stairwell.train.streams import model_metrics
from stairwell.train.training_folder import TrainingFolder
from stairwell.train.translator import Search, Translator

GREEDY = Search(beam=1, break_loops=False)
# Batch of a validation.
MAX_PAIRS = 128
MAX_TOKENS = 8192


class PairCrossEntropy(Objective):
    """Cross-entropy of the targets with label smoothing. No state is kept between steps."""

    model: Seq2Seq

    def __init__(self, model: Seq2Seq, smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.smoothing = smoothing
        self.chance_loss = math.log(model.config.V + 1)
        self.skips_parameters = model.core.skips_layers or model.config.encoder_layer_drop > 0

    def forward(self, batch: PairBatch) -> Outcome:
        state = self.model.init_state(batch.source.shape[0], batch.source, batch.source_mask)
        losses, nll, predictions, _ = self.model.losses(batch.tokens, batch.targets, state, self.smoothing)
        correct = (predictions == batch.targets) & (batch.targets != IGNORE_INDEX)
        metrics = {"correct": correct.sum(), "nll": nll.sum()}
        return Outcome(losses.sum(), metrics, self.model.core.span_loss() if batch.part == 0 else None)

    def dry_run(self) -> None:
        token = torch.zeros(1, 1, dtype=torch.int64, device=next(self.model.parameters()).device)
        self.model.train()(token, self.model.init_state(1, token))

    def after_step(self) -> None:
        self.model.core.clamp_spans()

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        return {"accuracy": 100 * sums["correct"] / terms, "nll": sums["nll"] / terms} if terms else {}

    def extra_metrics(self) -> dict[str, Any]:
        return model_metrics(self.model)


class PairValidation:
    """The loss of a split and, if `task.decode_examples` is set, the score of its first targets by greedy decoding."""

    def __init__(self, task: PairTask, callback: Callback | None = None) -> None:
        self.task, self.callback = task, callback
        self.primary_metric, self.higher_is_better = task.primary_metric, task.higher_is_better
        scorer = "sacrebleu" if task.metric == "bleu" else "rouge_score"
        if task.primary_metric != "loss":
            text_scores.import_scorer(scorer)  # raises before training if it is not installed
        self.examples = task.config.decode_examples if text_scores.installed(scorer) else 0

    def __call__(self, model: Seq2Seq, split: Split) -> dict[str, float]:
        scores = pair_loss(model, self.task, split, self.callback)
        if self.examples:
            sources, references = self.task.sources_and_targets(split, self.examples)
            outputs = [best[0].text for best in Translator(model, self.task, GREEDY).translate(sources)]
            scores |= self.task.text_metrics(outputs, references)
        return scores


@torch.no_grad()
def pair_loss(model: Seq2Seq, task: PairTask, split: Split, callback: Callback | None = None) -> dict[str, float]:
    """Return the loss per target token of a split, end tokens included, without label smoothing."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    score, done = task.score(), 0
    try:
        for batch in task.batches(split, MAX_PAIRS, MAX_TOKENS // MAX_PAIRS):
            moved = batch.to(device)
            state = model.init_state(moved.source.shape[0], moved.source, moved.source_mask)
            _, nll, predictions, _ = model.losses(moved.tokens, moved.targets, state)
            score.add(batch, nll, predictions)  # type: ignore[arg-type]
            done += batch.size
            if callback is not None:
                callback({"event": "evaluating", "split": split, "tokens": done})
    finally:
        model.train(was_training)
    scores = score.result()
    loss = scores["loss"]
    return {**scores, "perplexity": math.inf if loss > 700 else math.exp(loss)}


def pair_trainer(
    model: Seq2Seq,
    tasks: Sequence[PairTask],
    config: PairTrainConfig,
    folder: TrainingFolder,
    world: Distributed | None = None,
) -> Trainer:
    """Return a trainer on the pairs of a task, and on those of a second task if the final phase reads other data."""
    validations = [PairValidation(task) for task in tasks]
    phases = [
        Phase(partial(task.batch_source, tokens=config.batch_tokens), validation)
        for task, validation in zip(tasks, validations)
    ]
    trainer = Trainer(PairCrossEntropy(model, config.label_smoothing), phases, config, folder, world)
    for validation in validations:
        validation.callback = trainer.emit
    return trainer


def evaluate_pairs(
    model: Seq2Seq, task: PairTask, split: Split, search: Search | None = None, callback: Callback | None = None
) -> dict[str, Any]:
    """Return the loss of a split and the text metrics of the decoded targets of all its sources."""
    search = search or Search()
    sources, references = task.sources_and_targets(split)
    translator = Translator(model, task, search)
    outputs = [best[0].text for best in translator.translate(sources)]
    return {
        **pair_loss(model, task, split, callback),
        **task.detailed_text_metrics(outputs, references),
        "sentences": len(outputs),
        "beam": search.beam,
        "length_penalty": search.length_penalty,
        "sources_cut": translator.cut,
        "targets_not_ended": translator.unended,
        "targets_looped": translator.looped,
    }
