"""Agents with memory, a memory for other people's learners, and environments: as arrays over many rows and, where
gymnasium is installed, by name in gymnasium."""

from __future__ import annotations

from contextlib import suppress

from .agent import Agent, AgentConfig
from .environments import ENVIRONMENTS, Batched, make
from .memory import Memory, MemoryGRU, MemoryLSTM

__all__ = ["ENVIRONMENTS", "Agent", "AgentConfig", "Batched", "Memory", "MemoryGRU", "MemoryLSTM", "make"]

# Registers them; without gymnasium everything but this works.
with suppress(ImportError):
    from . import gym  # noqa: F401
