"""Baselines of summarization: the first sentence of the article, and the summary of the most similar training article.

Letters: N articles of the training set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

LINE_END = "⏎"  # stands for a line end in functions of tools/docstrings.py
WORD = re.compile(r"\w+|[^\w\s]")
END_OF_SIGNATURE = re.compile(rf"(?:[:]|->[^{LINE_END}]*:) {LINE_END} ")


def lead(article: str) -> str:
    """Return the first sentence; of a function, the first line of its body."""
    if LINE_END in article:
        body = END_OF_SIGNATURE.split(article, maxsplit=1)[-1]
        return body.split(LINE_END, 1)[0].strip()
    return re.split(r"(?<=[.!?])\s+", article.strip(), maxsplit=1)[0]


def count_ngrams(text: str) -> Counter[str]:
    """Return the counts of words and of pairs of words."""
    words = [word.lower() for word in WORD.findall(text)]
    return Counter(words) + Counter(f"{a} {b}" for a, b in pairwise(words))


class NearestSummary:
    """The summary of the training article with the highest cosine similarity of tf-idf vectors of n-grams."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        articles: dict[str, list[int]] = {}
        counts: dict[str, list[int]] = {}
        self.summaries: list[str] = []
        for number, (article, summary) in enumerate(pairs):
            self.summaries.append(summary)
            for ngram, count in count_ngrams(article).items():
                articles.setdefault(ngram, []).append(number)
                counts.setdefault(ngram, []).append(count)
        N = len(self.summaries)
        self.idf = {ngram: float(np.log((1 + N) / len(numbers))) for ngram, numbers in articles.items()}
        self.index = {
            ngram: (np.array(numbers), self.idf[ngram] * np.array(counts[ngram], np.float64))
            for ngram, numbers in articles.items()
        }
        squares = np.zeros(N)
        for numbers, tf_idf in self.index.values():
            squares[numbers] += tf_idf**2
        self.norms = np.sqrt(np.maximum(squares, 1e-12))

    def __call__(self, article: str) -> str:
        products = np.zeros(len(self.summaries))
        for ngram, count in count_ngrams(article).items():
            if ngram in self.index:
                numbers, tf_idf = self.index[ngram]
                products[numbers] += self.idf[ngram] * count * tf_idf
        return self.summaries[int(np.argmax(products / self.norms))]


def baselines(train: Iterable[tuple[str, str]], articles: Sequence[str]) -> dict[str, list[str]]:
    """Return the summaries of articles by each baseline."""
    nearest = NearestSummary(train)
    return {"lead": [lead(article) for article in articles], "nearest": [nearest(article) for article in articles]}
