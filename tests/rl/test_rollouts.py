"""Rollouts: what is learned from is what was played, and a training that was stopped goes on as if it never had."""

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

from stairwell.rl.agent import Agent
from stairwell.rl.gymnasium_rows import GymnasiumRows, open_gymnasium
from stairwell.rl.learners import LEARNERS
from stairwell.rl.make_env import open_rows
from stairwell.rl.rollouts import Rollout, Rollouts, advantages
from stairwell.rl.rows import OwnRows, Rows
from stairwell.rl.task import agent_trainer
from stairwell.runs import RunConfig, preset
from stairwell.runs.launch import fit, load
from stairwell.train import Run
from tests.commands import assert_same_weights, measured

SMALL = {
    "core.width": 8, "core.layers": 1, "core.heads": 2, "core.memory": 3, "train.batch": 4, "train.segment": 6,
    "train.log_every": 1, "train.validate_every": 5, "train.checkpoint_every": 5, "train.valid_batch": 2,
    "train.warmup": 0, "train.steps": 12, "train.learner": "a2c", "train.decay": "none",
    "train.normalize_advantage": False, "train.normalize_rewards": False,
    "task.length": 2, "task.valid_episodes": 4, "task.test_episodes": 6,
}  # fmt: skip
PPO = {"train.learner": "ppo", "train.epochs": 2, "train.minibatches": 2}


def experiment(name: str = "rl/feedback", **options: Any) -> RunConfig:
    given = {**SMALL, **{key.replace("__", "."): value for key, value in options.items()}}
    known = preset(name).core.__dataclass_fields__
    given = {key: value for key, value in given.items() if not key.startswith("core.") or key[5:] in known}
    return preset(name).with_options({key: str(value) for key, value in given.items() if value is not None})


def batch_source(made: RunConfig, rows: Rows | None = None, numbers: range | None = None) -> Rollouts:
    task = made.make_tasks()[0]
    agent = made.make_model(task)
    numbers = numbers or range(made.train.batch)
    return Rollouts(agent, rows or task.open(numbers, 7), numbers, 7, made.train, 1000)


@torch.no_grad()
def test_a_rollout_holds_what_the_training_pass_says_of_it() -> None:
    made = batch_source(experiment(model__last_action=True, model__last_reward=True))
    agent: Agent = made.agent
    for _ in range(3):
        batch = made.read(6)
        said, after = agent(batch.inputs, batch.states[0], batch.start)
        log = agent.actions.log_probability(said.policy, batch.action)
        torch.testing.assert_close(log, batch.log_probability, rtol=1e-4, atol=1e-5)
        for (path, tensor), (_, other) in zip(after.tensors(), made.state.tensors(), strict=True):
            torch.testing.assert_close(other, tensor, rtol=1e-4, atol=1e-5, msg=path)
    assert batch.start.any() and not batch.start.all()


def test_rows_do_not_depend_on_how_they_are_dealt() -> None:
    made = experiment()
    whole, half = batch_source(made), batch_source(made, numbers=range(2, 4))
    for _ in range(4):
        one, other = whole.read(6).tensors(), half.read(6).tensors()
        for name, tensor in other.items():
            torch.testing.assert_close(tensor, one[name][2:], rtol=1e-4, atol=1e-5, msg=name)


def test_generalized_advantages_worked_out_by_hand() -> None:
    """Two frames of one episode that ends, then two of another; gamma 1/2, lambda 1/2."""
    rewards, value = torch.tensor([[1.0, 2.0, 0.0, 4.0]]), torch.tensor([[1.0, 3.0, 2.0, 1.0]])
    following = torch.tensor([[3.0, 0.0, 1.0, 6.0]])
    over = torch.tensor([[False, True, False, False]])
    # delta: 1 + 1.5 - 1, 2 + 0 - 3, 0 + 0.5 - 2, 4 + 3 - 1
    wanted = [1.5 + 0.25 * -1.0, -1.0, -1.5 + 0.25 * 6.0, 6.0]
    assert advantages(rewards, value, following, over, 0.5, 0.5)[0].tolist() == wanted


class Counting(gymnasium.Env[Any, Any]):
    """Observes the time and whose row it is, earns the time; ends after `length` steps, cut short or done."""

    def __init__(self, length: int = 3, cut: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.cut, self.time, self.episode = length, cut, 0, 0

    def observe(self) -> Any:
        return np.array([10 * self.episode + self.time], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time == self.length
        return self.observe(), float(self.time), over and not self.cut, over and self.cut, {}


def counting(mode: AutoresetMode, cut: bool) -> GymnasiumRows:
    lengths = (3, 5)
    envs = [lambda length=length: Counting(length, cut) for length in lengths]
    return GymnasiumRows(SyncVectorEnv(envs, autoreset_mode=mode), [0, 1])


@pytest.mark.parametrize("cut", [True, False])
def test_all_ways_to_go_on_after_an_end_give_the_same_episodes(cut: bool) -> None:
    seen = {}
    for mode in AutoresetMode:
        rows, episodes = counting(mode, cut), [[], []]  # type: ignore[var-annotated]
        now, start = rows.begin()["observation"], np.ones(2, dtype=bool)
        for _ in range(24):
            frame = rows.step(np.zeros(2, dtype=np.int64))
            for row in range(2):
                if frame.idle[row]:
                    assert frame.rewards[row] == 0
                    continue
                if start[row]:
                    episodes[row].append([])
                end = (bool(frame.terminated[row]), bool(frame.truncated[row]))
                last = float(frame.last["observation"][row, 0])
                episodes[row][-1].append((float(now[row, 0]), float(frame.rewards[row]), last, end))
            start, now = frame.start, frame.observations["observation"]
        seen[mode] = [row[:3] for row in episodes]
    first = seen[AutoresetMode.DISABLED]
    assert [len(episode) for episode in first[0]] == [3, 3, 3]
    assert first[0][0][-1] == (12.0, 3.0, 13.0, (not cut, cut))
    assert seen[AutoresetMode.SAME_STEP] == first and seen[AutoresetMode.NEXT_STEP] == first


def counted(mode: AutoresetMode, cut: bool) -> tuple[Rollouts, Rollout]:
    made = experiment(train__batch=2, train__gae=1, train__discount=0.5, task__length=None)
    rows = counting(mode, cut)
    from stairwell.rl.agent import AgentConfig

    torch.manual_seed(0)
    agent = Agent(AgentConfig(core=made.core, observation=rows.observation_space, action=rows.action_space))
    torch.nn.init.normal_(agent.value.weight)
    fed = Rollouts(agent, rows, range(2), 7, made.train, 1000)
    return fed, fed.read(8)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@torch.no_grad()
def test_the_value_of_what_was_seen_last_counts_where_the_clock_made_an_end(mode: AutoresetMode) -> None:
    """Row 0 earns 1, 2, 3 and is cut short, so that its first frame is worth 1 + 2/2 + 3/4 + V(last) / 8."""
    fed, batch = counted(mode, cut=True)
    state = fed.agent.init_state(1)
    first = batch.select(torch.tensor([0])).inputs.map(lambda values: values[:, :3])
    _, after = fed.agent(first, state)
    last = first.map(lambda values: values[:, -1:])
    last.observation["observation"] = torch.tensor([[[13.0]]])
    value = fed.agent(last, after)[0].value[0, 0]
    assert batch.target[0, 0].item() == pytest.approx(1 + 2 / 2 + 3 / 4 + value.item() / 8, abs=1e-4)
    assert abs(value) > 0.01
    _, done = counted(mode, cut=False)
    assert done.target[0, 0].item() == pytest.approx(1 + 2 / 2 + 3 / 4, abs=1e-5)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_that_are_none_are_neither_scored_nor_counted(mode: AutoresetMode) -> None:
    _, batch = counted(mode, cut=True)
    idle = int((~batch.scored).sum())
    assert (idle > 0) == (mode is AutoresetMode.NEXT_STEP)
    assert batch.terms == batch.size == 16 - idle
    assert batch.ended[:, 1].tolist()[:2] == [3.0, 5.0] and batch.ended[0, 0] == 6
    # A start follows the step that was none, and no other frame.
    starts = batch.start[0].nonzero().flatten().tolist()
    assert starts == ([0, 4] if mode is AutoresetMode.NEXT_STEP else [0, 3, 6])


def test_ppo_reads_every_row_once_an_epoch_and_counts_frames_once() -> None:
    made = experiment(**{key.replace(".", "__"): value for key, value in PPO.items()})
    fed = batch_source(made)
    batches = [fed.read(6) for _ in range(8)]
    assert [batch.size for batch in batches] == [24, 0, 0, 0, 24, 0, 0, 0]
    assert all(batch.terms == 12 for batch in batches)
    rollout = fed.rollout
    assert rollout is not None
    for epoch in (batches[4:6], batches[6:8]):
        rows = torch.cat([batch.log_probability for batch in epoch])
        torch.testing.assert_close(rows.sort(0).values, rollout.log_probability.sort(0).values)
    assert not torch.equal(batches[4].log_probability, batches[6].log_probability)
    assert sum(len(batch.ended) for batch in batches[5:8]) == 0


def test_minibatches_of_another_rollout_are_dealt_anew() -> None:
    fed = batch_source(experiment(train__learner="ppo", train__epochs=1, train__minibatches=2, train__batch=8))
    dealt = []
    for _ in range(4):
        dealt.append(fed.minibatch(0).tolist())
        fed.read(2), fed.read(2)
    assert len({tuple(sorted(rows)) for rows in dealt}) > 1 and all(len(set(rows)) == 4 for rows in dealt)


def test_episodes_that_end_are_told_with_their_own_return_and_length() -> None:
    """Over the edges of rollouts: the reward for a frame is read with the next one."""
    fed = batch_source(experiment(model__last_action=True, model__last_reward=True))
    batches = [fed.read(6) for _ in range(8)]
    start, reward = (torch.cat(parts, 1) for parts in zip(*((b.start, b.inputs.reward) for b in batches)))
    wanted = []
    for begins, rewards in zip(start, reward):
        edges = begins.nonzero().flatten().tolist()
        wanted += [(float(rewards[a + 1 : b + 1].sum()), float(b - a)) for a, b in pairwise(edges)]
    told = sorted(tuple(episode) for batch in batches for episode in batch.ended.tolist())
    # The last episode of a row may have ended with the last frame of all.
    missing = list(told)
    for episode in wanted:
        missing.remove(episode)
    assert len(wanted) > 8 and len(missing) <= 4 and len(set(told)) > 1


def test_normalized_advantages_have_mean_0_and_deviation_1_and_values_learn_the_same() -> None:
    for options in ({}, {"train__learner": "ppo", "train__epochs": 2, "train__minibatches": 2}):
        plain, normalized = (
            batch_source(experiment(train__normalize_advantages=asked, **options)) for asked in (False, True)
        )
        normalized.agent.load_state_dict(plain.agent.state_dict())
        for _ in range(2):
            ours, theirs = normalized.play(6), plain.play(6)
            counted = theirs.advantage[theirs.scored]
            wanted = (theirs.advantage - counted.mean()) / counted.std(correction=0)
            assert counted.std() > 0.01 and ours.scored.equal(theirs.scored)
            torch.testing.assert_close(ours.advantage[ours.scored], wanted[ours.scored], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours.target, theirs.target)


def test_normalized_rewards_divide_by_the_running_deviation_of_the_return() -> None:
    made = experiment(train__normalize_rewards=True, train__discount=0.5, train__gae=0)
    plain = experiment(train__discount=0.5, train__gae=0)
    ours, theirs = batch_source(made), batch_source(plain)
    returns: list[Tensor] = []
    running = torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        scaled, raw = ours.read(6), theirs.read(6)
        rewards = torch.cat([raw.inputs.reward[:, 1:], theirs.now.reward[:, None]], 1)
        ends = torch.cat([raw.start[:, 1:], theirs.start[:, None]], 1)
        for t in range(6):
            running = 0.5 * running + rewards[:, t]
            returns.append(running)
            running = torch.where(ends[:, t], 0, running)
    deviation = torch.stack(returns).std(correction=0)
    assert ours.agent.return_variance.sqrt() == pytest.approx(float(deviation))
    value = raw.target - raw.advantage
    earned = scaled.advantage - raw.advantage  # of equal values, so that rewards alone make the difference
    torch.testing.assert_close(earned, rewards / deviation.float() - rewards, rtol=1e-3, atol=1e-4)
    assert value.shape == (4, 6) and rewards.any()


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "lstm"])
@pytest.mark.parametrize("learner", ["a2c", "ppo", "ppo-windows"])
def test_a_training_that_was_stopped_goes_on_bit_for_bit(core: str, learner: str, tmp_path: Path) -> None:
    """Stopped at update 5 and 10: for PPO, with four reads a rollout, in the middle of one."""
    more = PPO if learner != "a2c" else {}
    more = {**more, "train.window": 3, "train.normalize_rewards": True} if learner == "ppo-windows" else more
    options = {key.replace(".", "__"): value for key, value in more.items()}
    # A rate that decays depends on where the training was to end.
    whole = experiment(f"rl/{core}", train__decay="none", **options)
    fit(whole, tmp_path / "whole", "cpu")
    stopped = dataclasses.replace(whole, train=dataclasses.replace(whole.train, steps=5))
    fit(stopped, tmp_path / "stopped", "cpu")
    assert ("feed.rollout.action" in Run(tmp_path / "stopped").load_checkpoint()[0]) == (learner != "a2c")
    fit(whole, tmp_path / "stopped", "cpu")
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole")
    lines = measured(tmp_path / "whole")
    assert [line for line in measured(tmp_path / "stopped") if "valid" not in line] == [
        line for line in lines if "valid" not in line
    ]
    assert lines[-1]["valid"]["episodes"] == 4


def test_gymnasiums_environments_begin_new_episodes_when_taken_up(tmp_path: Path) -> None:
    made = experiment(task__env="CartPole-v1", task__length=None)
    fit(made, tmp_path / "run", "cpu")
    longer = dataclasses.replace(made, train=dataclasses.replace(made.train, steps=20))
    again = agent_trainer(made.make_model(task := made.make_tasks()[0]), [task], longer.train, Run(tmp_path / "run"))
    assert again.resume() == ["this environment cannot be put back to where it was: all rows begin new episodes"]
    fit(longer, tmp_path / "run", "cpu")
    assert measured(tmp_path / "run")[-1]["step"] == 20
    rows = open_gymnasium("CartPole-v1", {}, range(2), 3)
    assert not rows.resumes and OwnRows.resumes


def test_every_resumption_of_a_gymnasium_environment_plays_episodes_of_its_own(tmp_path: Path) -> None:
    """New ones at every checkpoint, the same ones from the same checkpoint, in training as in a feed alone."""
    made = experiment(task__env="CartPole-v1", task__length=None, train__checkpoint_every=0)

    def episodes(steps: int) -> list[float]:
        """What the rows observe first when the training is resumed after so many steps."""
        shorter = dataclasses.replace(made, train=dataclasses.replace(made.train, steps=steps))
        fit(shorter, tmp_path / "run", "cpu")
        task = shorter.make_tasks()[0]
        trainer = agent_trainer(shorter.make_model(task), [task], shorter.train, Run(tmp_path / "run"))
        beginning = trainer.batch_source.now.observation["observation"].flatten().tolist()
        trainer.resume()
        return [beginning, trainer.batch_source.now.observation["observation"].flatten().tolist()]

    (first, two), (_, again), (_, four), (_, six) = episodes(2), episodes(2), episodes(4), episodes(6)
    assert two == again
    assert not set(first) & set(two) and not set(two) & set(four) and not set(four) & set(six)


class Flags(gymnasium.Env[Any, Any]):
    """Observations under the names that a rollout has for its own arrays of bools."""

    def __init__(self) -> None:
        part = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({"start": part, "scored": part, "over": part})
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}


gymnasium.register("Flags-v0", entry_point=f"{__name__}:Flags")


def test_a_position_keeps_the_types_of_its_arrays_whatever_observations_are_called() -> None:
    options = {key.replace(".", "__"): value for key, value in PPO.items()}
    made = experiment(task__env="Flags-v0", task__length=None, **options)
    fed, again = batch_source(made), batch_source(made)
    fed.read(6)  # the first of four reads, so that the rollout belongs to the position
    position = fed.position()
    again.seek(position)
    assert fed.rollout is not None and again.rollout is not None
    for name, tensor in fed.rollout.tensors().items():
        assert again.rollout.tensors()[name].dtype == tensor.dtype, name
        assert torch.equal(again.rollout.tensors()[name], tensor), name
    assert position["tensors"]["now.observation.start"].dtype == torch.uint8
    assert position["tensors"]["now.start"].dtype == torch.bool


def test_minigrids_pictures_are_read_as_names_of_things_and_its_mission_is_left_out() -> None:
    rows = open_rows("MiniGrid-MemoryS7-v0", {}, range(2), 0)
    made = experiment(task__env="MiniGrid-MemoryS7-v0", task__length=None, train__batch=2)
    task = made.make_tasks()[0]
    agent = made.make_model(task)
    assert task.describe().endswith("it does not read mission, which is text")
    assert sorted(agent.leaves) == ["observation.direction", "observation.image"]
    seen = rows.begin()
    assert seen["observation.image"].shape == (2, 7, 7, 3) and seen["observation.image"].max() < 11
    fed = Rollouts(agent, rows, range(2), 0, made.train, 1000)
    assert fed.read(6).terms == 12


def test_a_run_is_loaded_and_judged(tmp_path: Path) -> None:
    from stairwell.runs.launch import evaluate_run

    fit(experiment(), tmp_path, "cpu")
    agent, task = load(tmp_path, "cpu")
    assert isinstance(agent, Agent) and task.kind == "agent"
    scores = evaluate_run(tmp_path, "test", None, 1, 64, "cpu", "auto", None)
    assert scores["episodes"] == 6 and 0 <= scores["return"] <= 1
    assert scores["return_interval"] == pytest.approx(1.96 * scores["return_deviation"] / 6**0.5)


def test_every_learner_trains_with_accumulation_as_without() -> None:
    made = experiment()
    batch = batch_source(made).read(6)
    agent = batch_source(made).agent
    for name, learner in LEARNERS.items():
        objective = learner(agent, dataclasses.replace(made.train, learner=name))
        whole = objective(batch).loss
        parts = sum(objective(part).loss for part in batch.parts(2))
        torch.testing.assert_close(parts, whole)
