"""Pairs of texts: cross-entropy of the targets, and scores of whole splits by loss and by what the model writes.

    state = model.init_state(B, source, mask);  losses = model.losses(tokens, targets, state, smoothing)

Letters: B pairs, T target tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from stairwell.models import IGNORE, Seq2Seq
from stairwell.tasks import text_scores
from stairwell.tasks.base import Split
from stairwell.tasks.pair_task import PairBatch, PairTask
from stairwell.train.config import PairTrainConfig
from stairwell.train.distributed import Distributed
from stairwell.train.loop import Trainer, Watch
from stairwell.train.objective import Objective, Outcome, Phase
from stairwell.train.run import Run
from stairwell.train.streams import inside
from stairwell.train.translator import Search, Translator

GREEDY = Search(beam=1, break_loops=False)
TOKENS = 8192  # of a batch of a validation


class PairCrossEntropy(Objective):
    """Of the targets of pairs, smoothed. Every batch has states of its own: nothing is carried on."""

    model: Seq2Seq

    def __init__(self, model: Seq2Seq, smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.smoothing = smoothing
        self.chance = math.log(model.config.V + 1)
        self.skips_parameters = model.core.skips_layers or model.config.encoder_layer_drop > 0

    def forward(self, batch: PairBatch) -> Outcome:
        state = self.model.init_state(batch.source.shape[0], batch.source, batch.source_mask)
        losses, nll, likeliest, _ = self.model.losses(batch.tokens, batch.targets, state, self.smoothing)
        right = (likeliest == batch.targets) & (batch.targets != IGNORE)
        metrics = {"right": right.sum(), "nll": nll.sum()}
        return Outcome(losses.sum(), metrics, self.model.core.span_loss() if batch.part == 0 else None)

    def rehearse(self) -> None:
        token = torch.zeros(1, 1, dtype=torch.int64, device=next(self.model.parameters()).device)
        self.model.train()(token, self.model.init_state(1, token))

    def after_update(self) -> None:
        self.model.core.clamp_spans()

    def summary(self, sums: dict[str, float], terms: int) -> dict[str, float]:
        return {"accuracy": 100 * sums["right"] / terms, "nll": sums["nll"] / terms} if terms else {}

    def inside(self) -> dict[str, Any]:
        return inside(self.model)


class PairScores:
    """The loss of a split and, if any are to be written, the score of its first targets, greedily written."""

    def __init__(self, task: PairTask, watch: Watch | None = None) -> None:
        self.task, self.watch = task, watch
        self.primary_metric, self.higher_is_better = task.primary_metric, task.higher_is_better
        tool = "sacrebleu" if task.metric == "bleu" else "rouge_score"
        if task.primary_metric != "loss":
            text_scores.tool(tool)  # whoever asked for it hears now that it is missing, not hours later
        self.sample = task.config.sample if text_scores.installed(tool) else 0

    def __call__(self, model: Seq2Seq, split: Split) -> dict[str, float]:
        scores = pair_loss(model, self.task, split, self.watch)
        if self.sample:
            asked, wanted = self.task.sides(split, self.sample)
            said = [best[0].text for best in Translator(model, self.task, GREEDY).translate(asked)]
            scores |= self.task.rate(said, wanted)
        return scores


@torch.no_grad()
def pair_loss(model: Seq2Seq, task: PairTask, split: Split, watch: Watch | None = None) -> dict[str, float]:
    """The loss a target token of a split, its end included, without smoothing."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    score, done = task.score(), 0
    try:
        for batch in task.batches(split, 128, TOKENS // 128):
            moved = batch.to(device)
            state = model.init_state(moved.source.shape[0], moved.source, moved.source_mask)
            _, nll, likeliest, _ = model.losses(moved.tokens, moved.targets, state)
            score.add(batch, nll, likeliest)  # type: ignore[arg-type]
            done += batch.size
            if watch is not None:
                watch({"event": "evaluating", "split": split, "tokens": done})
    finally:
        model.train(was_training)
    scores = score.result()
    loss = scores["loss"]
    return {**scores, "perplexity": math.inf if loss > 700 else math.exp(loss)}


def pair_trainer(
    model: Seq2Seq, tasks: Sequence[PairTask], config: PairTrainConfig, run: Run, world: Distributed | None = None
) -> Trainer:
    """A trainer of a model on a task's pairs, and on those of a second task if the last phase reads other data."""
    scores = [PairScores(task) for task in tasks]
    phases = [
        Phase(partial(task.batch_source, tokens=config.batch_tokens), validation)
        for task, validation in zip(tasks, scores)
    ]
    trainer = Trainer(PairCrossEntropy(model, config.label_smoothing), phases, config, run, world)
    for validation in scores:
        validation.watch = trainer.tell
    return trainer


def evaluate_pairs(
    model: Seq2Seq, task: PairTask, split: Split, search: Search | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """All scores of a split: the loss of its whole pairs and, by the field's own tools, what the model writes for every
    source."""
    search = search or Search()
    asked, wanted = task.sides(split)
    translator = Translator(model, task, search)
    said = [best[0].text for best in translator.translate(asked)]
    result = {**pair_loss(model, task, split, watch), **task.judge(said, wanted), "sentences": len(said)}
    counted = {
        "sources_cut": translator.cut,
        "targets_not_ended": translator.unended,
        "targets_looped": translator.looped,
    }
    return {**result, "beam": search.beam, "length_penalty": search.length_penalty, **counted}
