"""Long corridors: one walk in segments gives the answers of real corridors of every length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.rl.acting import first_inputs, to_tensors
from stairwell.rl.agent import Agent, AgentConfig, AgentInputs
from stairwell.rl.evaluation import split_seed
from stairwell.rl.long_corridor import Walk, corridors
from stairwell.rl.task import RLTask, RLTaskConfig
from stairwell.runs.launch import fit
from stairwell.runs.long_streams import measure
from stairwell.runs.presets import preset
from stairwell.tasks.base import IGNORE_INDEX

B, SEEDS = 3, 2


def make_agent(task: RLTask, core: str = "feedback", **options: bool) -> Agent:
    torch.manual_seed(0)
    core_config = preset(f"rl/{core}").with_options({"core.width": "8"}).core
    spaces = {"observation_space": task.observation_space, "action_space": task.action_space}
    agent = Agent(AgentConfig(core=core_config, **spaces, **options)).eval()
    torch.nn.init.normal_(agent.policy.weight)  # a new agent's policy is nearly uniform
    return agent


@torch.no_grad()
def answers_of_real_corridors(agent: Agent, length: int) -> list[int]:
    """Walk to the doors of a corridor of `length` steps, frame by frame, and return the preferred actions there."""
    task, actions = RLTask(RLTaskConfig(env="corridor", length=length, colors=4, shuffled=True)), []
    for seed in range(SEEDS):
        env = task.make_env(range(B), split_seed(seed, "test"))
        inputs, state = first_inputs(agent, env.reset()), agent.init_state(B)
        for _ in range(length + 1):
            output, state = agent(inputs.map(lambda values: values[:, None]), state)
            step = env.step(np.zeros(B, dtype=np.int64))
            inputs = AgentInputs(to_tensors(step.observations), agent.zero_actions(B), torch.zeros(B))
        actions += output.policy[:, 0].argmax(-1).tolist()
    return actions


@pytest.mark.parametrize("core", [name for name in CORES if name != "global-cached-staircase"])
def test_one_walk_gives_the_answers_of_corridors_of_every_length(core: str) -> None:
    task = RLTask(RLTaskConfig(env="corridor", length=7, colors=4, shuffled=True))
    agent, lengths = make_agent(task, core), (1, 2, 3, 8, 13, 40)
    walk = Walk(agent, corridors(task, SEEDS, B))
    chosen, right = (np.concatenate(arrays, 1) for arrays in zip(*walk.segments(40, lengths, segment=5)))
    assert chosen.shape == (SEEDS * B, 40)
    assert np.flatnonzero((right != IGNORE_INDEX).any(0)).tolist() == [n - 1 for n in lengths]
    for n in lengths:
        assert chosen[:, n - 1].tolist() == answers_of_real_corridors(agent, n), n


def test_the_right_action_is_the_door_of_the_objects_color() -> None:
    task = RLTask(RLTaskConfig(env="corridor", length=1, colors=4, shuffled=True))
    walk = Walk(make_agent(task), corridors(task, 1, 16))
    env = task.make_env(range(16), split_seed(0, "test"))
    env.reset()
    env.step(np.zeros(16, dtype=np.int64))
    assert (env.step(walk.target).rewards == 1).all()


def test_what_cannot_be_followed_is_named() -> None:
    maze = RLTask(RLTaskConfig(env="water-maze"))
    with pytest.raises(UserError, match="in a corridor"):
        corridors(maze, 1, 2)
    task = RLTask(RLTaskConfig(env="corridor"))
    with pytest.raises(UserError, match="last action"):
        Walk(make_agent(task, last_action=True), corridors(task, 1, 2))


def test_a_run_is_measured_and_the_result_saved(tmp_path: Path) -> None:
    few = {"task.env": "corridor", "task.length": "3", "task.valid_episodes": "4", "task.test_episodes": "4"}
    config = preset("rl/feedback").with_options({**few, "train.steps": "1", "train.batch": "4", "core.width": "8"})
    fit(config, tmp_path / "run", "cpu")
    result = measure(tmp_path / "run", 300, streams=5, device="cpu")
    assert result["tokens"] == 300 and result["trained_on"] == 3 and len(result["streams"]) == 5
    assert max(result["curve"]["positions"]) <= 300 and sum(result["curve"]["scored"]) == 5 * len(
        {*result["curve"]["positions"], 300}
    )
    assert (tmp_path / "run" / "horizon.json").exists()
