"""A run, from what is to be trained to its folder and back: experiments, their presets, trainings, loading."""

from stairwell.runs.config import RunConfig
from stairwell.runs.launch import fit, load
from stairwell.runs.presets import preset

__all__ = ["RunConfig", "fit", "load", "preset"]
