"""Label new sequences with a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.runs.load import load
from stairwell.tasks.labeled import Labeled

SEGMENT = 1024  # tokens per call of the model


def label_sequences(
    run: str | Path, tokens: str | Path, device: str = "auto", weights: Weights = "float32"
) -> Iterator[str]:
    """Yield the predicted labels of each line of a file of tokens, separated by spaces. Every line is a sequence that
    starts from the initial state."""
    model, task = load(run, device, weights=weights)
    if not isinstance(task, Labeled):
        raise UserError(f"{run} was not trained on labeled data, so it has no labels to predict")
    sequences = list(task.read_tokens(tokens))  # all are checked before the first is labeled
    for ids in sequences:
        yield " ".join(task.vocabulary.labels[label] for label in predict(model, torch.from_numpy(ids)))


@torch.no_grad()
def predict(model: LanguageModel, ids: torch.Tensor) -> Iterator[int]:
    """Yield the most probable label after each token of a sequence."""
    state = model.init_state(1)
    for segment in torch.split(ids.to(next(model.parameters()).device), SEGMENT) if len(ids) else ():
        logits, state = model(segment[None], state)
        yield from logits[0].argmax(-1).tolist()
