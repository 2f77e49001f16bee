"""Transformers that attend to their own past high-level states: Feedback, Staircase attention and baselines."""

# isort: off
from stairwell import startup

if startup.is_command():
    startup.prepare_command()
if not startup.is_supported_platform():
    startup.reject_platform()
# isort: on

from os import PathLike
from typing import Any

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


def load(run: str | PathLike[str], device: str = "auto", engine: str = "auto") -> tuple[Any, Any]:
    """Return the trained model of a run, in evaluation mode, and its task.

    `run` is a run folder or the name of a pretrained model, such as "s5-feedback" (`stairwell list models`). `device`:
    auto, cpu, cuda or mps. `engine`: auto, fast or reference.
    """
    from stairwell.runs.load import load as load_run  # imports tasks and environments, which models alone do not need

    return load_run(run, device, engine)


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
    "load",
]
