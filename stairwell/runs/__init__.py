"""A run, from what is to be trained to its folder and back: experiments, their presets, trainings, loading."""

from stairwell.runs.experiment import Experiment
from stairwell.runs.presets import preset
from stairwell.runs.trainings import fit, load

__all__ = ["Experiment", "fit", "load", "preset"]
