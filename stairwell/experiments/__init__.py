"""Experiments: what is trained on what, how large and how long."""

from stairwell.experiments.experiment import Experiment
from stairwell.experiments.presets import preset
from stairwell.experiments.trainings import fit, load

__all__ = ["Experiment", "fit", "load", "preset"]
