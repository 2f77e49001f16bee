"""Scores of texts by the field's own tools: BLEU and chrF++ by sacrebleu, ROUGE by rouge-score. All in percent."""

from __future__ import annotations

import importlib
import importlib.util
import re
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


def compound_bleu(said: Sequence[str], wanted: Sequence[str], lowercase: bool = False) -> float:
    """BLEU of tokenised text with compounds split at their hyphens, as the paper reports it (`high-speed` is three
    tokens). The tokens are those of 13a; the paper's own tokeniser was Moses's."""
    tokenize = tool("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()

    def split(line: str) -> str:
        return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", tokenize(line))

    metric = tool("sacrebleu").BLEU(lowercase=lowercase, tokenize="none", force=True)
    return float(metric.corpus_score([split(line) for line in said], [[split(line) for line in wanted]]).score)


def paired_bootstrap(
    first: Sequence[str], second: Sequence[str], wanted: Sequence[str], lowercase: bool = False
) -> dict[str, float]:
    """BLEU of two systems on the same sentences, and how probable a difference as large as theirs is by chance (Koehn,
    2004): 1,000 samples by sacrebleu, whose seed is fixed."""
    tool("sacrebleu")
    metrics = {"BLEU": tool("sacrebleu").BLEU(lowercase=lowercase, references=[list(wanted)])}
    systems = [("first", list(first)), ("second", list(second))]
    test = tool("sacrebleu.significance").PairedTest(systems, metrics, None, test_type="bs", n_samples=1000)
    one, other = test()[1]["BLEU"]
    return {
        "first": float(one.score),
        "second": float(other.score),
        "first_interval": float(one.ci),
        "second_interval": float(other.ci),
        "p_value": float(other.p_value),
    }


def rouge(said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: the mean F-measure, with stemming."""
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = tool("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    totals = dict.fromkeys(kinds, 0.0)
    for one, reference in zip(said, wanted, strict=True):
        for kind, score in scorer.score(reference, one).items():
            totals[kind] += score.fmeasure
    return {kind: 100 * total / max(1, len(said)) for kind, total in totals.items()}
