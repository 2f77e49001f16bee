"""Metrics of generated texts, in percent: BLEU and chrF++ (sacrebleu), ROUGE (rouge-score)."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stairwell.errors import MissingPackage

Counts: TypeAlias = NDArray[np.int64]
BOOTSTRAP_SAMPLES, TRIALS, SEED = 1000, 10_000, 12345


SCORERS = {"sacrebleu": "sacrebleu>=2.4", "rouge_score": "rouge-score>=0.1.2"}  # modules and their requirements


def import_scorer(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage(f"{name} is not installed", SCORERS[name.partition(".")[0]]) from None


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> tuple[float, str]:
    """Return BLEU with the tokenization 13a, and its signature."""
    metric = import_scorer("sacrebleu").BLEU(lowercase=lowercase)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score), str(metric.get_signature())


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return chrF++ (characters and up to two words), and its signature."""
    metric = import_scorer("sacrebleu").CHRF(word_order=2)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score), str(metric.get_signature())


def compound_bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> float:
    """Return BLEU of tokenized text with compounds split at their hyphens, as in the paper (`high-speed` is three
    tokens). The tokenizer is 13a; the paper used that of Moses."""
    tokenize = import_scorer("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()

    def split_compounds(line: str) -> str:
        return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", tokenize(line))

    metric = import_scorer("sacrebleu").BLEU(lowercase=lowercase, tokenize="none", force=True)
    return float(
        metric.corpus_score(
            [split_compounds(line) for line in hypotheses], [[split_compounds(line) for line in references]]
        ).score
    )


def paired_test(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """Compare the BLEU of two systems on the same sentences.

    `p_value` is the two-sided probability of a difference at least as large if the systems were interchangeable, by
    approximate randomization (Riezler and Maxwell, 2005): every trial swaps the two outputs of each sentence with
    probability 1/2. Identical outputs have p = 1. The intervals are half of a 95% bootstrap interval (Koehn, 2004).
    """
    # sacrebleu's own paired tests count only larger differences, so identical outputs get p = 0.001.
    statistics = [bleu_statistics(hypotheses, references, lowercase) for hypotheses in (first, second)]
    scores = [bleu_from_statistics(own.sum(0)) for own in statistics]
    rng = np.random.default_rng(SEED)
    n = len(references)
    resamples = rng.multinomial(n, [1 / n] * n, BOOTSTRAP_SAMPLES)
    intervals = [half_interval([bleu_from_statistics(sums) for sums in resamples @ own]) for own in statistics]
    total, change = statistics[0].sum(0) + statistics[1].sum(0), statistics[1] - statistics[0]
    difference, as_large = abs(scores[0] - scores[1]), 1  # the actual outputs count as a trial
    for _ in range(TRIALS):
        sums = statistics[0].sum(0) + rng.integers(2, size=n) @ change
        as_large += abs(bleu_from_statistics(sums) - bleu_from_statistics(total - sums)) >= difference
    return {
        "first": scores[0],
        "second": scores[1],
        "first_interval": intervals[0],
        "second_interval": intervals[1],
        "p_value": as_large / (TRIALS + 1),
        "test": "paired approximate randomization",
    }


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> Counts:
    """Return the n-gram matches, n-grams and lengths of each sentence, whose sums determine BLEU: (sentences, 10)."""
    metric = import_scorer("sacrebleu").BLEU(lowercase=lowercase)
    pairs = zip(hypotheses, references, strict=True)
    scores = [metric.corpus_score([hypothesis], [[reference]]) for hypothesis, reference in pairs]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], dtype=np.int64)


def bleu_from_statistics(sums: Counts) -> float:
    matches, ngrams, (length, reference) = sums[:4].tolist(), sums[4:8].tolist(), sums[8:].tolist()
    bleu = import_scorer("sacrebleu").BLEU
    return float(bleu.compute_bleu(matches, ngrams, length, reference, smooth_method="exp").score)


def half_interval(scores: Sequence[float]) -> float:
    """Return half the width of the range of the middle 95% of the scores."""
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(high - low) / 2


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return ROUGE-1, -2 and -L: the mean F-measure, with stemming."""
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = import_scorer("rouge_score.rouge_scorer").RougeScorer(names, use_stemmer=True)
    totals = dict.fromkeys(names, 0.0)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for name, score in scorer.score(reference, hypothesis).items():
            totals[name] += score.fmeasure
    return {name: 100 * total / max(1, len(hypotheses)) for name, total in totals.items()}
