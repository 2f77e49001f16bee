"""Rollouts: they equal the training pass, do not depend on the autoreset mode, and resume exactly."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from stairwell.rl.agent import Agent, AgentConfig
from stairwell.rl.algorithms import ALGORITHMS
from stairwell.rl.gymnasium_vector_env import GymnasiumVectorEnv, make_gymnasium_env
from stairwell.rl.make_env import make_vec_env
from stairwell.rl.rollouts import Rollout, RolloutSource, compute_gae
from stairwell.rl.task import agent_trainer
from stairwell.rl.vector_env import BatchedVectorEnv
from stairwell.runs.launch import fit
from stairwell.runs.load import evaluate_run, load
from stairwell.runs.run import Run
from tests.commands import assert_same_tensors, read_metrics
from tests.rl.small_runs import PPO, rollout_source, run_config


@torch.no_grad()
def test_a_rollout_equals_the_training_pass() -> None:
    source = rollout_source(run_config(model__last_action=True, model__last_reward=True))
    agent: Agent = source.agent
    for _ in range(3):
        batch = source.read(6)
        output, state = agent(batch.inputs, batch.states[0], batch.start)
        log_prob = agent.action_dist.log_prob(output.policy, batch.action)
        torch.testing.assert_close(log_prob, batch.log_prob, rtol=1e-4, atol=1e-5)
        for (path, tensor), (_, other) in zip(state.tensors(), source.state.tensors(), strict=True):
            torch.testing.assert_close(other, tensor, rtol=1e-4, atol=1e-5, msg=path)
    assert batch.start.any() and not batch.start.all()


def test_an_environment_does_not_depend_on_how_they_are_distributed() -> None:
    config = run_config()
    whole, half = rollout_source(config), rollout_source(config, indices=range(2, 4))
    for _ in range(4):
        expected, tensors = whole.read(6).tensors(), half.read(6).tensors()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, expected[name][2:], rtol=1e-4, atol=1e-5, msg=name)


def test_generalized_advantages_by_hand() -> None:
    """Two frames of an episode that ends, then two of another; gamma 1/2, lambda 1/2."""
    rewards, value = torch.tensor([[1.0, 2.0, 0.0, 4.0]]), torch.tensor([[1.0, 3.0, 2.0, 1.0]])
    next_value = torch.tensor([[3.0, 0.0, 1.0, 6.0]])
    done = torch.tensor([[False, True, False, False]])
    # delta: 1 + 1.5 - 1, 2 + 0 - 3, 0 + 0.5 - 2, 4 + 3 - 1
    expected = [1.5 + 0.25 * -1.0, -1.0, -1.5 + 0.25 * 6.0, 6.0]
    assert compute_gae(rewards, value, next_value, done, 0.5, 0.5)[0].tolist() == expected


class Counter(gymnasium.Env[Any, Any]):
    """Observes 10 * episode + step. The reward is the step. Terminates or is truncated after `length` steps."""

    def __init__(self, length: int = 3, truncate: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.truncate, self.steps, self.episode = length, truncate, 0, 0

    def observe(self) -> Any:
        return np.array([10 * self.episode + self.steps], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        done = self.steps == self.length
        return self.observe(), float(self.steps), done and not self.truncate, done and self.truncate, {}


def counters(mode: AutoresetMode, truncate: bool) -> GymnasiumVectorEnv:
    """Return two counters with episodes of 3 and 5 steps."""
    envs = [lambda length=length: Counter(length, truncate) for length in (3, 5)]
    return GymnasiumVectorEnv(SyncVectorEnv(envs, autoreset_mode=mode), [0, 1])


@pytest.mark.parametrize("truncate", [True, False])
def test_all_autoreset_modes_give_the_same_episodes(truncate: bool) -> None:
    episodes_of = {}
    for mode in AutoresetMode:
        env, episodes = counters(mode, truncate), [[], []]  # type: ignore[var-annotated]
        observations, start = env.reset()["observation"], np.ones(2, dtype=bool)
        for _ in range(24):
            step = env.step(np.zeros(2, dtype=np.int64))
            for i in range(2):
                if step.ignored[i]:
                    assert step.rewards[i] == 0
                    continue
                if start[i]:
                    episodes[i].append([])
                end = (bool(step.terminated[i]), bool(step.truncated[i]))
                final = float(step.final_observations["observation"][i, 0])
                episodes[i][-1].append((float(observations[i, 0]), float(step.rewards[i]), final, end))
            start, observations = step.start, step.observations["observation"]
        episodes_of[mode] = [some[:3] for some in episodes]
    expected = episodes_of[AutoresetMode.DISABLED]
    assert [len(episode) for episode in expected[0]] == [3, 3, 3]
    assert expected[0][0][-1] == (12.0, 3.0, 13.0, (not truncate, truncate))
    assert episodes_of[AutoresetMode.SAME_STEP] == expected and episodes_of[AutoresetMode.NEXT_STEP] == expected


def counter_rollout(mode: AutoresetMode, truncate: bool) -> tuple[RolloutSource, Rollout]:
    config = run_config(train__batch=2, train__gae_lambda=1, train__gamma=0.5, task__length=None)
    env = counters(mode, truncate)
    torch.manual_seed(0)
    agent = Agent(AgentConfig(core=config.core, observation_space=env.observation_space, action_space=env.action_space))
    torch.nn.init.normal_(agent.value.weight)
    source = RolloutSource(agent, env, range(2), 7, config.train, 1000)
    return source, source.read(8)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@torch.no_grad()
def test_truncated_episodes_are_bootstrapped_with_the_final_value(mode: AutoresetMode) -> None:
    """Environment 0 has rewards 1, 2, 3 and is truncated: its first return is 1 + 2/2 + 3/4 + V(final) / 8."""
    source, batch = counter_rollout(mode, truncate=True)
    first = batch.select(torch.tensor([0])).inputs.map(lambda values: values[:, :3])
    _, state = source.agent(first, source.agent.init_state(1))
    final = first.map(lambda values: values[:, -1:])
    final.observation["observation"] = torch.tensor([[[13.0]]])
    value = source.agent(final, state)[0].value[0, 0]
    assert batch.returns[0, 0].item() == pytest.approx(1 + 2 / 2 + 3 / 4 + value.item() / 8, abs=1e-4)
    assert abs(value) > 0.01
    _, terminated = counter_rollout(mode, truncate=False)
    assert terminated.returns[0, 0].item() == pytest.approx(1 + 2 / 2 + 3 / 4, abs=1e-5)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_ignored_actions_are_masked(mode: AutoresetMode) -> None:
    _, batch = counter_rollout(mode, truncate=True)
    ignored = int((~batch.mask).sum())
    assert (ignored > 0) == (mode is AutoresetMode.NEXT_STEP)
    assert batch.terms == batch.size == 16 - ignored
    assert batch.episodes[:, 1].tolist()[:2] == [3.0, 5.0] and batch.episodes[0, 0] == 6
    # A start follows the ignored action.
    starts = batch.start[0].nonzero().flatten().tolist()
    assert starts == ([0, 4] if mode is AutoresetMode.NEXT_STEP else [0, 3, 6])


def test_ppo_reads_every_environment_once_per_epoch_and_counts_frames_once() -> None:
    source = rollout_source(run_config(**PPO))
    batches = [source.read(6) for _ in range(8)]
    assert [batch.size for batch in batches] == [24, 0, 0, 0, 24, 0, 0, 0]
    assert all(batch.terms == 12 for batch in batches)
    rollout = source.rollout
    assert rollout is not None
    for epoch in (batches[4:6], batches[6:8]):
        log_prob = torch.cat([batch.log_prob for batch in epoch])
        torch.testing.assert_close(log_prob.sort(0).values, rollout.log_prob.sort(0).values)
    assert not torch.equal(batches[4].log_prob, batches[6].log_prob)
    assert sum(len(batch.episodes) for batch in batches[5:8]) == 0


def test_each_rollout_has_its_own_minibatches() -> None:
    options = {"train__algorithm": "ppo", "train__epochs": 1, "train__minibatches": 2, "train__batch": 8}
    source = rollout_source(run_config(**options))
    minibatches = []
    for _ in range(4):
        minibatches.append(source.minibatch(0).tolist())
        source.read(2), source.read(2)
    assert len({tuple(sorted(envs)) for envs in minibatches}) > 1 and all(len(set(envs)) == 4 for envs in minibatches)


def test_returns_and_lengths_of_episodes_span_rollouts() -> None:
    """The reward of a frame is the last reward of the next one."""
    source = rollout_source(run_config(model__last_action=True, model__last_reward=True))
    batches = [source.read(6) for _ in range(8)]
    start, reward = (torch.cat(parts, 1) for parts in zip(*((b.start, b.inputs.last_reward) for b in batches)))
    expected = []
    for starts, rewards in zip(start, reward):
        frames = starts.nonzero().flatten().tolist()
        expected += [(float(rewards[a + 1 : b + 1].sum()), float(b - a)) for a, b in pairwise(frames)]
    recorded = sorted(tuple(episode) for batch in batches for episode in batch.episodes.tolist())
    # The last episode of an environment may have ended with the very last frame.
    rest = list(recorded)
    for episode in expected:
        rest.remove(episode)
    assert len(expected) > 8 and len(rest) <= 4 and len(set(recorded)) > 1


def test_normalized_advantages_leave_returns_unchanged() -> None:
    for options in ({}, PPO):
        raw, normalized = (
            rollout_source(run_config(train__normalize_advantage=normalize, **options)) for normalize in (False, True)
        )
        normalized.agent.load_state_dict(raw.agent.state_dict())
        for _ in range(2):
            rollout, expected = normalized.collect(6), raw.collect(6)
            advantages = expected.advantage[expected.mask]
            expected_advantage = (expected.advantage - advantages.mean()) / advantages.std(correction=0)
            assert advantages.std() > 0.01 and rollout.mask.equal(expected.mask)
            torch.testing.assert_close(
                rollout.advantage[rollout.mask], expected_advantage[rollout.mask], rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(rollout.returns, expected.returns)


def test_rewards_are_divided_by_the_running_std_of_the_discounted_return() -> None:
    options = {"train__gamma": 0.5, "train__gae_lambda": 0}
    source = rollout_source(run_config(train__normalize_rewards=True, **options))
    raw_source = rollout_source(run_config(**options))
    returns: list[Tensor] = []
    running = torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        normalized, raw = source.read(6), raw_source.read(6)
        rewards = torch.cat([raw.inputs.last_reward[:, 1:], raw_source.inputs.last_reward[:, None]], 1)
        ends = torch.cat([raw.start[:, 1:], raw_source.start[:, None]], 1)
        for t in range(6):
            running = 0.5 * running + rewards[:, t]
            returns.append(running)
            running = torch.where(ends[:, t], 0, running)
    std = torch.stack(returns).std(correction=0)
    assert source.agent.return_variance.sqrt() == pytest.approx(float(std))
    # Values are equal, so advantages differ by the rewards only.
    difference = normalized.advantage - raw.advantage
    torch.testing.assert_close(difference, rewards / std.float() - rewards, rtol=1e-3, atol=1e-4)
    assert rewards.any()


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "lstm"])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "ppo-bptt"])
def test_a_stopped_run_resumes_bit_for_bit(core: str, algorithm: str, tmp_path: Path) -> None:
    """Stopped at steps 5 and 10: with PPO, which takes four steps per rollout, between its minibatches."""
    options: dict[str, Any] = {} if algorithm == "a2c" else dict(PPO)
    if algorithm == "ppo-bptt":
        options |= {"train__bptt_length": 3, "train__normalize_rewards": True}
    whole = run_config(f"rl/{core}", **options)
    fit(whole, tmp_path / "whole", "cpu")
    stopped = dataclasses.replace(whole, train=dataclasses.replace(whole.train, steps=5))
    fit(stopped, tmp_path / "stopped", "cpu")
    saved = Run(tmp_path / "stopped").load_checkpoint()[0]
    assert any(name.endswith(".rollout.action") for name in saved) == (algorithm != "a2c")
    fit(whole, tmp_path / "stopped", "cpu")
    assert_same_tensors(tmp_path / "stopped", tmp_path / "whole")
    lines = read_metrics(tmp_path / "whole")
    assert [line for line in read_metrics(tmp_path / "stopped") if "valid" not in line] == [
        line for line in lines if "valid" not in line
    ]
    assert lines[-1]["valid"]["episodes"] == 4


def test_gymnasium_environments_start_new_episodes_when_resumed(tmp_path: Path) -> None:
    config = run_config(task__env="CartPole-v1", task__length=None)
    fit(config, tmp_path / "run", "cpu")
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=20))
    task = config.make_tasks()[0]
    trainer = agent_trainer(config.make_model(task), task, longer.train, Run(tmp_path / "run"))
    message = "the state of this environment cannot be restored: all environments start new episodes"
    assert trainer.resume() == [message]
    fit(longer, tmp_path / "run", "cpu")
    assert read_metrics(tmp_path / "run")[-1]["step"] == 20
    assert not make_gymnasium_env("CartPole-v1", {}, range(2), 3).can_restore and BatchedVectorEnv.can_restore


def test_gymnasium_episodes_depend_on_the_checkpoint_resumed_from(tmp_path: Path) -> None:
    config = run_config(task__env="CartPole-v1", task__length=None, train__checkpoint_every=0)

    def first_observations(steps: int) -> list[list[float]]:
        """Return the first observations of a new run and of one resumed after `steps` steps."""
        shorter = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=steps))
        fit(shorter, tmp_path / "run", "cpu")
        task = shorter.make_tasks()[0]
        trainer = agent_trainer(shorter.make_model(task), task, shorter.train, Run(tmp_path / "run"))
        new = trainer.batch_source.inputs.observation["observation"].flatten().tolist()
        trainer.resume()
        return [new, trainer.batch_source.inputs.observation["observation"].flatten().tolist()]

    (new, two), (_, again), (_, four), (_, six) = (first_observations(steps) for steps in (2, 2, 4, 6))
    assert two == again
    assert not set(new) & set(two) and not set(two) & set(four) and not set(four) & set(six)


class NameClash(gymnasium.Env[Any, Any]):
    """Observations with the names of a rollout's own tensors."""

    def __init__(self) -> None:
        box = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"start": box, "mask": box, "done": box})
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 3, False, {}


gymnasium.register("NameClash-v0", entry_point=f"{__name__}:NameClash")


def test_a_position_keeps_dtypes_whatever_observations_are_called() -> None:
    config = run_config(task__env="NameClash-v0", task__length=None, **PPO)
    source, resumed = rollout_source(config), rollout_source(config)
    source.read(6)  # the first of four minibatches, so that the position contains the rollout
    position = source.position()
    resumed.seek(position)
    assert source.rollout is not None and resumed.rollout is not None
    for name, tensor in source.rollout.tensors().items():
        assert resumed.rollout.tensors()[name].dtype == tensor.dtype, name
        assert torch.equal(resumed.rollout.tensors()[name], tensor), name
    assert position["tensors"]["inputs.observation.start"].dtype == torch.uint8
    assert position["tensors"]["start"].dtype == torch.bool


def test_minigrid_images_are_categories_and_the_mission_is_ignored() -> None:
    env = make_vec_env("MiniGrid-MemoryS7-v0", {}, range(2), 0)
    config = run_config(task__env="MiniGrid-MemoryS7-v0", task__length=None, train__batch=2)
    task = config.make_tasks()[0]
    agent = config.make_model(task)
    assert task.describe().endswith("text observations are ignored (mission)")
    assert sorted(agent.leaves) == ["observation.direction", "observation.image"]
    image = env.reset()["observation.image"]
    assert image.shape == (2, 7, 7, 3) and image.max() < 11
    assert RolloutSource(agent, env, range(2), 0, config.train, 1000).read(6).terms == 12


def test_a_run_is_loaded_and_evaluated(tmp_path: Path) -> None:
    fit(run_config(), tmp_path, "cpu")
    agent, task = load(tmp_path, "cpu")
    assert isinstance(agent, Agent) and task.family == "rl"
    scores = evaluate_run(tmp_path, "test", device="cpu")
    assert scores["episodes"] == 6 and 0 <= scores["return"] <= 1
    assert scores["return_ci95"] == pytest.approx(1.96 * scores["return_std"] / 6**0.5)


def test_the_parts_of_a_batch_have_the_loss_of_the_batch() -> None:
    config = run_config()
    batch = rollout_source(config).read(6)
    agent = rollout_source(config).agent
    for name, algorithm in ALGORITHMS.items():
        objective = algorithm(agent, dataclasses.replace(config.train, algorithm=name))
        loss = objective(batch).loss
        torch.testing.assert_close(sum(objective(part).loss for part in batch.parts(2)), loss)
