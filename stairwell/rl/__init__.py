"""Agents with memory: environments, as arrays over many rows and, if gymnasium is installed, by name in gymnasium."""

from __future__ import annotations

from contextlib import suppress

from .environments import ENVIRONMENTS, Batched, make

__all__ = ["ENVIRONMENTS", "Batched", "make"]

# Registers them; without gymnasium everything but this works.
with suppress(ImportError):
    from . import gym  # noqa: F401
