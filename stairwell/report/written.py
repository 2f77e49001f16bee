"""What a sequence-to-sequence model writes for a few sources, beside what was wanted, and where it looked meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from stairwell.errors import UserError
from stairwell.models import Seq2Seq, inspect
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Translator, search_of

SHOWN = 4  # sentences
AHEAD = 200  # from which they are chosen
LONGEST = 24  # tokens of a source that is drawn; longer pictures cannot be read


@dataclass(frozen=True)
class Sentence:
    source: str
    wanted: str
    said: str
    source_tokens: list[str]
    said_tokens: list[str]
    attention: list[list[float]]
    "of each token that was said to each of the source, averaged over heads and layers; empty where it is too long"


def read_sentences(model: Seq2Seq, task: PairTask, folder: Path) -> list[Sentence]:
    """The first sentences of the test split, or of valid where there is no test, that can be drawn; the first ones at
    all if none can. Nothing where the data is gone."""
    for split in ("test", "valid"):
        try:
            pairs = list(islice(task.texts("test" if split == "test" else "valid"), AHEAD))
        except (UserError, OSError):
            continue
        if pairs:
            break
    else:
        return []
    lengths = [len(ids) for ids in task.read_sources([source for source, _ in pairs])[0]]
    short = [pair for pair, length in zip(pairs, lengths) if 2 < length <= LONGEST]
    chosen = (short or pairs)[:SHOWN]
    said = Translator(model, task, search_of(folder, task)).translate([source for source, _ in chosen])
    return [look(model, task, *pair, best[0].text) for pair, best in zip(chosen, said)]


@torch.no_grad()
def look(model: Seq2Seq, task: PairTask, source: str, wanted: str, said: str) -> Sentence:
    ids = task.read_sources([source])[0][0]
    target = task.vocabulary.target.encode(task.normal(said)).tolist()
    sentence = Sentence(source, wanted, said, [], [], [])
    if len(ids) > LONGEST or not target or len(target) > 2 * LONGEST:
        return sentence
    device = next(model.parameters()).device
    sources = torch.as_tensor(ids, dtype=torch.int64, device=device)[None]
    tokens = torch.tensor([[task.end, *target]], device=device)
    with inspect(model) as seen:
        model(tokens, model.init_state(1, sources))
    if not seen.source_attention:
        return sentence
    weights = torch.stack([layer[0].mean(0) for layer in seen.source_attention]).mean(0)  # (T, J)
    pieces = [pieces_of(task.vocabulary.source, ids[:-1].tolist()), pieces_of(task.vocabulary.target, target)]
    rounded = [[round(weight, 3) for weight in row] for row in weights.tolist()]
    return Sentence(source, wanted, said, [*pieces[0], "(end)"], [*pieces[1], "(end)"], rounded)


def pieces_of(vocabulary: Any, ids: list[int]) -> list[str]:
    """What each token stands for; part of a character is shown as such."""
    return [vocabulary.decode([number]).strip() or "\u2423" for number in ids]
