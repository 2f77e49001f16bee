"""Agents with memory: environments, as arrays over many rows and, if gymnasium is installed, by name in gymnasium."""

from __future__ import annotations

from importlib.util import find_spec

from .environments import ENVIRONMENTS, Batched, make

__all__ = ["ENVIRONMENTS", "Batched", "make"]

if find_spec("gymnasium"):
    from . import gym  # noqa: F401  (registers the environments)
