"""Every model of both papers, by name. A new core is one file and one entry here."""

from __future__ import annotations

from stairwell.cores.core import AttentionRecorder, Core
from stairwell.cores.delta import DeltaNet, DeltaNetConfig
from stairwell.cores.feedback import Feedback, FeedbackConfig
from stairwell.cores.lstm import LSTM, LSTMConfig
from stairwell.cores.registry import CORES, Entry, build, config_type, decoding_of, engine_of, entry, name_of
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircase,
    GlobalCachedStaircaseConfig,
    MemoryNetworkConfig,
    MultiVectorRNNConfig,
    Staircase,
    StaircaseConfig,
)
from stairwell.cores.transformer_xl import TransformerXL, TransformerXLConfig
from stairwell.cores.universal import Universal, UniversalConfig


def tokens_in_sight(config: FeedbackConfig | TransformerXLConfig) -> str:
    return f"{config.memory} tokens"


def chunks_in_sight(config: StaircaseConfig) -> str:
    return f"{config.passes} chunks of {config.chunk}"


def chunks_for(recall: int, chunk: int) -> int:
    """Chunks that hold so many tokens wherever in its chunk a token is."""
    return max(2, -(-recall // chunk) + 1)


CORES.update(
    {
        "feedback": Entry(
            FeedbackConfig,
            Feedback,
            "Feedback",
            "The Feedback Transformer (Fan et al., 2020): every layer reads one memory of past thoughts.",
            look_back=lambda task: {"memory": task.recall},
            in_sight=tokens_in_sight,
            color=0,
        ),
        "transformer-xl": Entry(
            TransformerXLConfig,
            TransformerXL,
            "Transformer-XL",
            "Transformer-XL (Dai et al., 2019), the papers' Transformer: each layer reads the past of the one below.",
            look_back=lambda task: {"memory": task.context},
            in_sight=tokens_in_sight,
            color=1,
        ),
        "staircase": Entry(
            StaircaseConfig,
            Staircase,
            "Staircase",
            "Staircase attention (Ju et al., 2021): chunks climb through the same layers, pass after pass.",
            look_back=lambda task: {"chunk": task.chunk, "passes": min(chunks_for(task.recall, task.chunk), 4)},
            in_sight=chunks_in_sight,
            color=3,
        ),
        "cached-staircase": Entry(
            CachedStaircaseConfig,
            Staircase,
            "Cached Staircase",
            "Cached Staircase (Ju et al., 2021): a chunk is computed in few passes, then seen as it came out.",
            look_back=lambda task: {"chunk": task.chunk, "passes": chunks_for(task.recall, task.chunk)},
            in_sight=chunks_in_sight,
            color=4,
        ),
        "global-cached-staircase": Entry(
            GlobalCachedStaircaseConfig,
            GlobalCachedStaircase,
            "Global Cached Staircase",
            "Global Cached Staircase (Ju et al., 2021): all earlier chunks stay in the cache, so the state grows.",
            look_back=lambda task: {"chunk": task.chunk},
            in_sight=lambda config: f"all chunks of {config.chunk}",
            color=5,
        ),
        "multi-vector-rnn": Entry(
            MultiVectorRNNConfig,
            Staircase,
            "Multi-vector RNN",
            "A Staircase of one token a chunk and two passes: an RNN whose state is the inputs of all layers.",
            in_sight=chunks_in_sight,
        ),
        "memory-network": Entry(
            MemoryNetworkConfig,
            Staircase,
            "Memory Network",
            "A Cached Staircase that sees the past through its embeddings only (Sukhbaatar et al., 2015).",
            look_back=lambda task: {"passes": task.context + 1},
            in_sight=chunks_in_sight,
        ),
        "universal": Entry(
            UniversalConfig,
            Universal,
            "Universal Transformer",
            "The Universal Transformer (Dehghani et al., 2018), without halting: the same layers, N passes deep.",
            look_back=lambda task: {"memory": task.context, "passes": 2},
            in_sight=tokens_in_sight,
        ),
        "lstm": Entry(
            LSTMConfig,
            LSTM,
            "LSTM",
            "The LSTM (Hochreiter & Schmidhuber, 1997), the recurrent baseline.",
            # An LSTM layer has 8 D^2 weights where a transformer layer has 12 D^2.
            width_factor=1.25,
            color=2,
        ),
        "deltanet": Entry(
            DeltaNetConfig,
            DeltaNet,
            "DeltaNet",
            "DeltaNet and DeltaProduct (Yang et al., 2024; Siems et al., 2025): a linear recurrence, a matrix a head.",
        ),
    }
)

__all__ = [
    "CORES",
    "AttentionRecorder",
    "Core",
    "Entry",
    "build",
    "config_type",
    "decoding_of",
    "engine_of",
    "entry",
    "name_of",
]
