"""Experiments: what is trained on what, how large and how long."""

from stairwell.experiments.experiment import Experiment
from stairwell.experiments.presets import preset

__all__ = ["Experiment", "preset"]
