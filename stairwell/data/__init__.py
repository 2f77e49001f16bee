"""Data on disk: published corpora, text files and their splits, encoded tokens and their cache."""

from stairwell.data.download import get
from stairwell.data.published import CORPORA, find_corpus

__all__ = ["CORPORA", "find_corpus", "get"]
