"""Scores of texts by the field's own tools: BLEU and chrF++ by sacrebleu, ROUGE by rouge-score. All in percent."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from stairwell.errors import UserError


def tool(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{name} is not installed; pip install 'stairwell[seq2seq]' brings it") from None


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def bleu(said: Sequence[str], wanted: Sequence[str], lowercase: bool = False) -> tuple[float, str]:
    """BLEU with the tokenisation 13a, and its signature."""
    metric = tool("sacrebleu").BLEU(lowercase=lowercase)
    return float(metric.corpus_score(list(said), [list(wanted)]).score), str(metric.get_signature())


def chrf(said: Sequence[str], wanted: Sequence[str]) -> tuple[float, str]:
    """chrF++ (characters and words up to two), and its signature."""
    metric = tool("sacrebleu").CHRF(word_order=2)
    return float(metric.corpus_score(list(said), [list(wanted)]).score), str(metric.get_signature())


def rouge(said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: the mean F-measure, with stemming."""
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = tool("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    totals = dict.fromkeys(kinds, 0.0)
    for one, reference in zip(said, wanted, strict=True):
        for kind, score in scorer.score(reference, one).items():
            totals[kind] += score.fmeasure
    return {kind: 100 * total / max(1, len(said)) for kind, total in totals.items()}
