"""Models: embedding -> core -> head. One file per type of model."""

from stairwell.models.embedding import IGNORE_INDEX, StartEmbedding
from stairwell.models.inspect import inspect
from stairwell.models.language import LanguageModel, LanguageModelConfig
from stairwell.models.seq2seq import Seq2Seq, Seq2SeqConfig

__all__ = [
    "IGNORE_INDEX",
    "LanguageModel",
    "LanguageModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "StartEmbedding",
    "inspect",
]
