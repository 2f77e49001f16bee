"""What a summary costs nothing: the article's first sentence, or the summary of the most similar article in training.

A model that does not beat them has learned little. Letters: N articles of the training set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from stairwell.data.docstrings import LINE_END

WORD = re.compile(r"\w+|[^\w\s]")
OPENS = re.compile(rf"(?:[:]|->[^{LINE_END}]*:) {LINE_END} ")  # the end of a function's head


def lead(article: str) -> str:
    """The first sentence; of a function, the first line of its body."""
    if LINE_END in article:
        body = OPENS.split(article, maxsplit=1)[-1]
        return body.split(LINE_END, 1)[0].strip()
    return re.split(r"(?<=[.!?])\s+", article.strip(), maxsplit=1)[0]


def grams(text: str) -> Counter[str]:
    """Words and pairs of words, with how often each comes."""
    words = [word.lower() for word in WORD.findall(text)]
    return Counter(words) + Counter(f"{a} {b}" for a, b in pairwise(words))


class Nearest:
    """The summary of the training article that is most like another by the n-grams of both, rare ones counting more
    (the cosine of tf-idf)."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        places: dict[str, list[int]] = {}
        counts: dict[str, list[int]] = {}
        self.summaries: list[str] = []
        for number, (article, summary) in enumerate(pairs):
            self.summaries.append(summary)
            for gram, count in grams(article).items():
                places.setdefault(gram, []).append(number)
                counts.setdefault(gram, []).append(count)
        N = len(self.summaries)
        self.rarity = {gram: float(np.log((1 + N) / len(found))) for gram, found in places.items()}
        self.index = {
            gram: (np.array(found), self.rarity[gram] * np.array(counts[gram], np.float64))
            for gram, found in places.items()
        }
        squares = np.zeros(N)
        for found, weights in self.index.values():
            squares[found] += weights**2
        self.lengths = np.sqrt(np.maximum(squares, 1e-12))

    def __call__(self, article: str) -> str:
        alike = np.zeros(len(self.summaries))
        for gram, count in grams(article).items():
            if gram in self.index:
                found, weights = self.index[gram]
                alike[found] += self.rarity[gram] * count * weights
        return self.summaries[int(np.argmax(alike / self.lengths))]


def baselines(train: Iterable[tuple[str, str]], articles: Sequence[str]) -> dict[str, list[str]]:
    """What each baseline says of some articles."""
    nearest = Nearest(train)
    return {"lead": [lead(article) for article in articles], "nearest": [nearest(article) for article in articles]}
