"""Bytes on disk and arrays: published corpora, files and how they fall into splits, packed tokens and their cache."""

from stairwell.data.checking import check
from stairwell.data.download import get
from stairwell.data.published import CORPORA, find

__all__ = ["CORPORA", "check", "find", "get"]
