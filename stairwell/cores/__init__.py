"""Every model of both papers, by name. A new core is one file and one entry here."""

from __future__ import annotations

from stairwell.cores.core import AttentionRecorder, Core
from stairwell.cores.delta import DeltaNet, DeltaNetConfig
from stairwell.cores.feedback import Feedback, FeedbackConfig
from stairwell.cores.lstm import LSTM, LSTMConfig
from stairwell.cores.registry import CORES, CoreEntry, build, config_type, engine_of, entry, name_of, step_of
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


def tokens(config: FeedbackConfig | TransformerXLConfig) -> str:
    return f"{config.memory} tokens"


def chunks(config: StaircaseConfig) -> str:
    return f"{config.passes} chunks of {config.chunk}"


CORES.update(
    {
        "feedback": CoreEntry(
            FeedbackConfig,
            Feedback,
            "Feedback",
            "Feedback Transformer (Fan et al., 2020): every layer attends to one memory of past high-level states.",
            context=tokens,
        ),
        "transformer-xl": CoreEntry(
            TransformerXLConfig,
            TransformerXL,
            "Transformer-XL",
            "Transformer-XL (Dai et al., 2019), the papers' Transformer: layers attend to the past of the layer below.",
            context=tokens,
        ),
        "staircase": CoreEntry(
            StaircaseConfig,
            Staircase,
            "Staircase",
            "Staircase attention (Ju et al., 2021): each chunk goes through the same layers several times.",
            context=chunks,
        ),
        "cached-staircase": CoreEntry(
            CachedStaircaseConfig,
            Staircase,
            "Cached Staircase",
            "Cached Staircase (Ju et al., 2021): few passes per chunk, then its final states are cached.",
            context=chunks,
        ),
        "global-cached-staircase": CoreEntry(
            GlobalCachedStaircaseConfig,
            GlobalCachedStaircase,
            "Global Cached Staircase",
            "Global Cached Staircase (Ju et al., 2021): all earlier chunks stay in the cache, so the state grows.",
            context=lambda config: f"all chunks of {config.chunk}",
        ),
        "multi-vector-rnn": CoreEntry(
            MultiVectorRNNConfig,
            Staircase,
            "Multi-vector RNN",
            "Staircase with one token per chunk and two passes: an RNN whose state is the inputs of all layers.",
            context=chunks,
        ),
        "memory-network": CoreEntry(
            MemoryNetworkConfig,
            Staircase,
            "Memory Network",
            "Cached Staircase that attends to embeddings of past tokens only (Sukhbaatar et al., 2015).",
            context=chunks,
        ),
        "universal": CoreEntry(
            UniversalConfig,
            Universal,
            "Universal Transformer",
            "Universal Transformer (Dehghani et al., 2018) without halting: the same layers, applied N times.",
            context=tokens,
        ),
        "lstm": CoreEntry(LSTMConfig, LSTM, "LSTM", "LSTM (Hochreiter & Schmidhuber, 1997), the recurrent baseline."),
        "deltanet": CoreEntry(
            DeltaNetConfig,
            DeltaNet,
            "DeltaNet",
            "DeltaNet and DeltaProduct (Yang et al., 2024; Siems et al., 2025): linear recurrence, a matrix per head.",
        ),
    }
)

__all__ = [
    "CORES",
    "AttentionRecorder",
    "Core",
    "CoreEntry",
    "build",
    "config_type",
    "engine_of",
    "entry",
    "name_of",
    "step_of",
]
