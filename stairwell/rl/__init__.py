"""Recurrent memories for any RL library, agents with memory, and environments, which are registered with gymnasium
where it is installed."""

from __future__ import annotations

from contextlib import suppress

from .agent import Agent, AgentConfig
from .environments import ENVIRONMENTS, BatchedEnv, make
from .memory import Memory, MemoryGRU, MemoryLSTM

__all__ = ["ENVIRONMENTS", "Agent", "AgentConfig", "BatchedEnv", "Memory", "MemoryGRU", "MemoryLSTM", "make"]

# Register the environments; everything else works without gymnasium.
with suppress(ImportError):
    from . import gym  # noqa: F401
