"""Transformers that attend to their own past high-level states: Feedback, Staircase attention and baselines."""

# isort: off
from stairwell import startup

if startup.is_command():
    startup.prepare_command()
if not startup.is_supported():
    startup.refuse_platform()
# isort: on

from stairwell.cores import CORES, build
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.lstm import LSTMConfig
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircaseConfig,
    MemoryNetworkConfig,
    MultiVectorRNNConfig,
    StaircaseConfig,
)
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.models import LanguageModel, LanguageModelConfig, inspect
from stairwell.state import State
from stairwell.version import __version__

__all__ = [
    "CORES",
    "CachedStaircaseConfig",
    "DeltaNetConfig",
    "FeedbackConfig",
    "GlobalCachedStaircaseConfig",
    "LSTMConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "MemoryNetworkConfig",
    "MultiVectorRNNConfig",
    "StaircaseConfig",
    "State",
    "TransformerXLConfig",
    "UniversalConfig",
    "__version__",
    "build",
    "inspect",
]
