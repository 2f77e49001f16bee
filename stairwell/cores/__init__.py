"""Every model of both papers, by name. A new core is one file and one line here."""

from __future__ import annotations

from typing import Any

from stairwell.cores.core import Core, Seen
from stairwell.cores.delta import DeltaNet, DeltaNetConfig
from stairwell.cores.feedback import Feedback, FeedbackConfig
from stairwell.cores.lstm import LSTM, LSTMConfig
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
from stairwell.errors import UserError, nearest

CORES: dict[str, tuple[type[Any], type[Core]]] = {
    "feedback": (FeedbackConfig, Feedback),
    "transformer-xl": (TransformerXLConfig, TransformerXL),
    "staircase": (StaircaseConfig, Staircase),
    "cached-staircase": (CachedStaircaseConfig, Staircase),
    "global-cached-staircase": (GlobalCachedStaircaseConfig, GlobalCachedStaircase),
    "multi-vector-rnn": (MultiVectorRNNConfig, Staircase),
    "memory-network": (MemoryNetworkConfig, Staircase),
    "universal": (UniversalConfig, Universal),
    "lstm": (LSTMConfig, LSTM),
    "deltanet": (DeltaNetConfig, DeltaNet),
}


def build(config: Any) -> Core:
    """The core that a config describes."""
    for kind, core in CORES.values():
        if type(config) is kind:
            return core(config)
    raise TypeError(f"{type(config).__name__} is not a core's config; there are: {', '.join(CORES)}")


def config_type(name: str) -> type[Any]:
    """The config of a core by its name."""
    if name not in CORES:
        raise UserError(f"unknown core '{name}'{nearest(name, CORES)}")
    return CORES[name][0]


__all__ = ["CORES", "Core", "Seen", "build", "config_type"]
