"""Samples of a sequence-to-sequence model: generated text, references and the attention to the source.

Letters: T target tokens, J source tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.models import Seq2Seq, inspect
from stairwell.tasks import Split
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Translator, load_search

SAMPLES = 4
CANDIDATES = 200  # pairs that the samples are chosen from
MAX_TOKENS = 24  # of a source; longer plots of attention are not readable


@dataclass(frozen=True)
class DecodedSample:
    source: str
    reference: str
    generated: str
    source_tokens: list[str]
    generated_tokens: list[str]
    attention: list[list[float]]
    "Attention (T, J), averaged over heads and layers; empty if there are too many tokens to plot."


def read_samples(model: Seq2Seq, task: PairTask, folder: Path) -> list[DecodedSample]:
    """Return the first pairs of the test split, or of the validation split if there is no test split, that are short
    enough to plot; the first pairs if none is. Empty if the data is not available."""
    splits: tuple[Split, ...] = ("test", "valid")
    for split in splits:
        try:
            pairs = list(islice(task.texts(split), CANDIDATES))
        except (UserError, OSError):
            continue
        if pairs:
            break
    else:
        return []
    lengths = [len(ids) for ids in task.encode_sources([source for source, _ in pairs])[0]]
    short = [pair for pair, length in zip(pairs, lengths) if 2 < length <= MAX_TOKENS]
    chosen = (short or pairs)[:SAMPLES]
    generated = Translator(model, task, load_search(folder, task)).translate([source for source, _ in chosen])
    return [make_sample(model, task, *pair, nbest[0].text) for pair, nbest in zip(chosen, generated)]


@torch.no_grad()
def make_sample(model: Seq2Seq, task: PairTask, source: str, reference: str, generated: str) -> DecodedSample:
    source_ids = task.encode_sources([source])[0][0]
    target_ids = task.vocabulary.target.encode(task.normalize(generated)).tolist()
    without_attention = DecodedSample(source, reference, generated, [], [], [])
    if len(source_ids) > MAX_TOKENS or not target_ids or len(target_ids) > 2 * MAX_TOKENS:
        return without_attention
    device = next(model.parameters()).device
    sources = torch.as_tensor(source_ids, dtype=torch.int64, device=device)[None]
    tokens = torch.tensor([[task.end, *target_ids]], device=device)
    with inspect(model) as recorder:
        model(tokens, model.init_state(1, sources))
    if not recorder.source_attention:
        return without_attention
    weights = torch.stack([layer[0].mean(0) for layer in recorder.source_attention]).mean(0)  # (T, J)
    source_tokens = [*token_texts(task.vocabulary.source, source_ids[:-1].tolist()), "(end)"]
    target_tokens = [*token_texts(task.vocabulary.target, target_ids), "(end)"]
    attention = [[round(weight, 3) for weight in row] for row in weights.tolist()]
    return DecodedSample(source, reference, generated, source_tokens, target_tokens, attention)


def token_texts(vocabulary: Any, ids: list[int]) -> list[str]:
    """Return the text of each token, with a symbol for a space."""
    return [vocabulary.decode([token]).strip() or "\u2423" for token in ids]
