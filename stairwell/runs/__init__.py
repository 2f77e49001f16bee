"""Runs: their configs and presets, training and resuming them, loading them."""

from stairwell.runs.config import RunConfig
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.runs.run import Run

__all__ = ["Run", "RunConfig", "fit", "load", "preset"]
