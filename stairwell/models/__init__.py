"""Models: embed -> core -> head. One file a kind of model."""

from stairwell.models.embedding import (
    AdaptiveEmbedding,
    AdaptiveHead,
    AdaptiveVectors,
    Embedding,
    Head,
    StartEmbedding,
    borrow,
)
from stairwell.models.inspect import inspect
from stairwell.models.language import IGNORE, LanguageModel, LanguageModelConfig
from stairwell.models.seq2seq import Seq2Seq, Seq2SeqConfig

__all__ = [
    "IGNORE",
    "AdaptiveEmbedding",
    "AdaptiveHead",
    "AdaptiveVectors",
    "Embedding",
    "Head",
    "LanguageModel",
    "LanguageModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "StartEmbedding",
    "borrow",
    "inspect",
]
