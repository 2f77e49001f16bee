"""An agent in an endless corridor: does it still know the color after N steps?

The agent sees the object in its first frame and the same empty hallway in all others, whatever it does. So the frames
can be read in segments, and one walk measures corridors of many lengths: after some steps a copy of the state sees the
doors, and the action with the highest probability must be the door of the object's color.

Letters: B streams, T frames of a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from stairwell.errors import UserError
from stairwell.state import State
from stairwell.tasks.base import IGNORE_INDEX

from .acting import to_tensors
from .agent import Agent, AgentInputs, AgentOutput
from .environments import Array, Corridor
from .evaluation import split_seed
from .flatten import flatten
from .task import RLTask
from .vector_env import BatchedVectorEnv


def corridors(task: RLTask, seeds: int, streams: int) -> list[Corridor]:
    """Return one batched environment per seed, after its first reset."""
    envs = [task.make_env(range(streams), split_seed(seed, "test")) for seed in range(seeds)]
    if not all(isinstance(env, BatchedVectorEnv) and isinstance(env.env, Corridor) for env in envs):
        raise UserError("--horizon follows agents in a corridor (corridor, passive-t-maze) only; leave it out")
    for env in envs:
        env.reset()
    return [env.env for env in envs if isinstance(env, BatchedVectorEnv) and isinstance(env.env, Corridor)]


class Walk:
    """B agents in endless corridors."""

    def __init__(self, agent: Agent, envs: list[Corridor]) -> None:
        if agent.last_action is not None or agent.last_reward is not None:
            raise UserError("--horizon needs an agent that does not observe its last action or reward")
        self.agent, self.envs = agent, envs
        self.target = np.concatenate([(env.doors == env.color[:, None]).argmax(1) for env in envs]) + 1  # the action
        self.object = self.observe(0)
        self.hallway = self.observe(1)
        self.doors = self.observe(envs[0].config.length)

    def observe(self, cell: int) -> dict[str, torch.Tensor]:
        """Return what all agents see in a cell, (B, ...) by path."""
        for env in self.envs:
            env.cell[:] = cell
        observations = np.concatenate([env.observe() for env in self.envs])
        return to_tensors(flatten(self.envs[0].observation_space, observations))

    def read(self, frame: dict[str, torch.Tensor], T: int, state: State) -> tuple[AgentOutput, State]:
        """Read the same frame T times."""
        agent, B = self.agent, len(self.target)
        device = agent.policy.weight.device
        observation = {path: x[:, None].expand(B, T, *x.shape[1:]).to(device) for path, x in frame.items()}
        zeros = agent.zero_inputs(B, T)
        output, state = agent(AgentInputs(observation, zeros.last_action, zeros.last_reward), state)
        return output, state

    @torch.no_grad()
    def segments(self, steps: int, probes: Iterable[int], segment: int) -> Iterator[tuple[Array, Array]]:
        """Yield chosen and right actions (B, T) segment by segment; those not after `probes` steps are
        IGNORE_INDEX."""
        state, position, frame = self.agent.init_state(len(self.target)), 0, self.object
        for end in sorted({steps, *(n for n in probes if n < steps)}):
            while position < end:
                T = min(segment, end - position) if position else 1
                _, state = self.read(frame, T, state)
                frame, position = self.hallway, position + T
                chosen, right = np.full((2, len(self.target), T), IGNORE_INDEX)
                if position == end:
                    policy = self.read(self.doors, 1, state)[0].policy
                    chosen[:, -1], right[:, -1] = policy[:, 0].argmax(-1).cpu().numpy(), self.target
                yield chosen, right
