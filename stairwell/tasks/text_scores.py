"""Scores of texts by the field's own tools: BLEU and chrF++ by sacrebleu, ROUGE by rouge-score. All in percent."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stairwell.errors import UserError

Counts: TypeAlias = NDArray[np.int64]
BOOTSTRAP, TRIALS, SEED = 1000, 10_000, 12345


def tool(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{name} is not installed; pip install 'stairwell[seq2seq]' brings it") from None


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def bleu(said: Sequence[str], wanted: Sequence[str], lowercase: bool = False) -> tuple[float, str]:
    """BLEU with the tokenization 13a, and its signature."""
    metric = tool("sacrebleu").BLEU(lowercase=lowercase)
    return float(metric.corpus_score(list(said), [list(wanted)]).score), str(metric.get_signature())


def chrf(said: Sequence[str], wanted: Sequence[str]) -> tuple[float, str]:
    """chrF++ (characters and words up to two), and its signature."""
    metric = tool("sacrebleu").CHRF(word_order=2)
    return float(metric.corpus_score(list(said), [list(wanted)]).score), str(metric.get_signature())


def compound_bleu(said: Sequence[str], wanted: Sequence[str], lowercase: bool = False) -> float:
    """BLEU of tokenized text with compounds split at their hyphens, as the paper reports it (`high-speed` is three
    tokens). The tokens are those of 13a; the paper's own tokenizer was Moses's."""
    tokenize = tool("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()

    def split(line: str) -> str:
        return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", tokenize(line))

    metric = tool("sacrebleu").BLEU(lowercase=lowercase, tokenize="none", force=True)
    return float(metric.corpus_score([split(line) for line in said], [[split(line) for line in wanted]]).score)


def paired_test(
    first: Sequence[str], second: Sequence[str], wanted: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """Compare the BLEU of two systems on the same sentences.

    `p_value` is the two-sided probability of a difference at least as large if the systems were interchangeable, by
    approximate randomization (Riezler and Maxwell, 2005): every trial swaps the two outputs of each sentence with
    probability 1/2. Identical outputs have p = 1. The intervals are half of a 95% bootstrap interval (Koehn, 2004).
    """
    # sacrebleu's own paired tests count only larger differences, so identical outputs come out as p = 0.001.
    statistics = [bleu_statistics(said, wanted, lowercase) for said in (first, second)]
    scores = [bleu_of(found.sum(0)) for found in statistics]
    generator = np.random.default_rng(SEED)
    resamples = generator.multinomial(len(wanted), [1 / len(wanted)] * len(wanted), BOOTSTRAP)
    intervals = [half_interval([bleu_of(sums) for sums in resamples @ found]) for found in statistics]
    total, change = statistics[0].sum(0) + statistics[1].sum(0), statistics[1] - statistics[0]
    difference, as_large = abs(scores[0] - scores[1]), 1  # the outputs as they are count as a trial
    for _ in range(TRIALS):
        sums = statistics[0].sum(0) + generator.integers(2, size=len(wanted)) @ change
        as_large += abs(bleu_of(sums) - bleu_of(total - sums)) >= difference
    return {
        "first": scores[0],
        "second": scores[1],
        "first_interval": intervals[0],
        "second_interval": intervals[1],
        "p_value": as_large / (TRIALS + 1),
        "test": "paired approximate randomization",
    }


def bleu_statistics(said: Sequence[str], wanted: Sequence[str], lowercase: bool) -> Counts:
    """Each sentence's n-gram matches, n-grams and lengths, whose sums determine BLEU. (sentences, 10)"""
    metric = tool("sacrebleu").BLEU(lowercase=lowercase)
    found = [metric.corpus_score([one], [[reference]]) for one, reference in zip(said, wanted, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in found], dtype=np.int64)


def bleu_of(sums: Counts) -> float:
    matches, ngrams, (length, reference) = sums[:4].tolist(), sums[4:8].tolist(), sums[8:].tolist()
    return float(tool("sacrebleu").BLEU.compute_bleu(matches, ngrams, length, reference, smooth_method="exp").score)


def half_interval(scores: Sequence[float]) -> float:
    """Half the width of the range that 95% of the scores are in."""
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(high - low) / 2


def rouge(said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2 and -L: the mean F-measure, with stemming."""
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = tool("rouge_score.rouge_scorer").RougeScorer(kinds, use_stemmer=True)
    totals = dict.fromkeys(kinds, 0.0)
    for one, reference in zip(said, wanted, strict=True):
        for kind, score in scorer.score(reference, one).items():
            totals[kind] += score.fmeasure
    return {kind: 100 * total / max(1, len(said)) for kind, total in totals.items()}
