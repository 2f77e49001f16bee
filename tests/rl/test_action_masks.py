"""Actions that an environment does not allow are never taken, and the policy that is trained knows it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.errors import UserError
from stairwell.rl.distributions import make_distribution, mask_policy
from stairwell.rl.evaluation import evaluate_policy, iterate_transitions
from stairwell.rl.gymnasium_vector_env import GymnasiumVectorEnv
from stairwell.rl.spaces import Discrete, MultiDiscrete
from stairwell.rl.vector_env import BrokenEnvironment
from tests.commands import stairwell
from tests.rl import masked_environments
from tests.rl.small_runs import PPO, rollout_source, run_config

MODULE = "tests.rl.masked_environments"
NAMES = ["MaskedChoice-v0", "MaskedPair-v0"]


def config(name: str, **options: Any) -> Any:
    return run_config(task__env=f"{MODULE}:{name}", **{"task__length": None, **options})


def test_masked_actions_have_probability_zero_and_no_gradient() -> None:
    action_dist = make_distribution(MultiDiscrete((3, 2), (2,)))
    policy = torch.randn(4, 5, requires_grad=True)
    allowed = torch.tensor([True, False, True, False, True])
    masked = mask_policy(policy, allowed)
    for u in (0.0, 0.3, 0.999999):
        actions = action_dist.sample(masked, torch.full((4, 2), u))
        assert set(actions[:, 0].tolist()) <= {0, 2} and actions[:, 1].tolist() == [1] * 4
    assert set(action_dist.mode(masked)[:, 0].tolist()) <= {0, 2}
    entropy = action_dist.entropy(masked)
    two = torch.distributions.Categorical(logits=policy[:, [0, 2]])
    torch.testing.assert_close(entropy, two.entropy())
    chosen = torch.tensor([[0, 1]] * 4)
    torch.testing.assert_close(action_dist.log_prob(masked, chosen), two.log_prob(torch.zeros(4)))
    (entropy.sum() + action_dist.log_prob(masked, chosen).sum()).backward()
    assert policy.grad is not None and policy.grad.isfinite().all()
    assert (policy.grad[:, [1, 3, 4]] == 0).all() and (policy.grad[:, [0, 2]] != 0).all()


def test_rounding_never_samples_a_masked_last_action() -> None:
    action_dist = make_distribution(Discrete(1000))
    allowed = torch.ones(1000, dtype=torch.bool)
    allowed[-3:] = False
    policy = mask_policy(torch.randn(200, 1000), allowed)
    noise = torch.full((200, 1), float(np.nextafter(np.float32(1), np.float32(0))))
    assert int(action_dist.sample(policy, noise).max()) == 996


@pytest.mark.parametrize("by_method", [False, True])
@pytest.mark.parametrize("algorithm", [{}, PPO], ids=["a2c", "ppo"])
def test_training_takes_allowed_actions_only(by_method: bool, algorithm: dict[str, Any]) -> None:
    source = rollout_source(config(NAMES[0], task__options=f"by_method={by_method}", **algorithm))
    seen = 0
    for _ in range(8):
        rollout = source.read(6)  # the environment raises on an action that is not allowed
        mask = rollout.inputs.action_mask
        assert mask is not None and mask.shape[-1] == 5 and (mask.sum(-1) == 2).all()
        assert (mask.gather(-1, rollout.action) == 1).all()
        # The policy of the training pass is that of the rollout.
        output, _ = source.agent(rollout.inputs, rollout.states[0], rollout.start)
        log_prob = source.agent.action_dist.log_prob(output.policy, rollout.action)
        torch.testing.assert_close(log_prob, rollout.log_prob, rtol=1e-4, atol=1e-5)
        assert (rollout.log_prob > -math.log(4)).all(), "two actions are allowed, and a new policy is nearly uniform"
        seen += int(rollout.start.sum())
    assert seen > 4  # masks are those of the new episode after a reset


def test_the_method_may_be_that_of_a_wrapper() -> None:
    rollout = rollout_source(config("MethodOfAWrapper-v0")).read(6)
    assert rollout.inputs.action_mask is not None and (rollout.inputs.action_mask.sum(-1) == 2).all()


def test_masks_of_gymnasiums_taxi_are_used_unless_turned_off() -> None:
    run = run_config(task__env="Taxi-v4", task__length=None)
    for _ in range(3):
        rollout = rollout_source(run).read(6)
        assert rollout.inputs.action_mask is not None and (rollout.inputs.action_mask.sum(-1) < 6).all()
        assert (rollout.inputs.action_mask.gather(-1, rollout.action) == 1).all()
    without = run.with_options({"task.action_masks": "false"})
    assert rollout_source(without).read(6).inputs.action_mask is None
    with pytest.raises(UserError, match=r"--no-task\.action_masks: stairwell/Corridor-v0 has no action masks"):
        run_config(task__action_masks=False).make_tasks()


def test_each_integer_of_an_action_has_a_mask() -> None:
    source = rollout_source(config(NAMES[1]))
    for _ in range(4):
        rollout = source.read(6)
        assert rollout.inputs.action_mask is not None and rollout.inputs.action_mask.shape[-1] == 5


@pytest.mark.parametrize("deterministic", [False, True])
def test_evaluation_takes_allowed_actions_only(deterministic: bool) -> None:
    run = config(NAMES[0])
    task = run.make_tasks()[0]
    agent, env = run.make_model(task), task.make_env(range(3), 5)
    assert evaluate_policy(agent, env, 9, 5, 100, deterministic).scores()["episodes"] == 9


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_masks_follow_resets_in_every_autoreset_mode(mode: str) -> None:
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    run = config(NAMES[0])
    agent = run.make_model(run.make_tasks()[0])
    agent.eval()
    make = [masked_environments.MaskedChoice for _ in range(3)]
    env = GymnasiumVectorEnv(SyncVectorEnv(make, autoreset_mode=AutoresetMode[mode]), [1, 2, 3])
    for number, transition in enumerate(iterate_transitions(agent, env, 0)):
        mask = transition.inputs.action_mask
        assert mask is not None
        played = torch.from_numpy(~transition.step.ignored)
        assert (mask.gather(-1, transition.action)[played] == 1).all()
        if number == 20:
            break


def test_observation_statistics_are_measured_with_allowed_actions() -> None:
    run = config(NAMES[0])
    task = run.make_tasks()[0]
    agent = run.make_model(task)
    before = [buffer.clone() for buffer in agent.encoders.buffers()]
    task.fit_observation_statistics(agent, 0)  # gives up silently if the environment raises
    assert any((old != new).any() for old, new in zip(before, agent.encoders.buffers()))


@pytest.mark.parametrize(
    ("name", "message"),
    [("NothingAllowed-v0", "allows no action"), ("WrongMask-v0", "it must have 5 flags, one per value of an action")],
)
def test_invalid_masks_are_reported(name: str, message: str) -> None:
    with pytest.raises(BrokenEnvironment, match=message):
        rollout_source(config(name)).read(6)


def test_a_mask_of_the_wrong_shape_is_rejected() -> None:
    run = config(NAMES[0])
    agent = run.make_model(run.make_tasks()[0])
    inputs = agent.zero_inputs(2, 3)
    inputs.observation["action_mask"] = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match="the action mask has shape"):
        agent(inputs, agent.init_state(2))


def test_an_agent_learns_and_plays_with_masks(tmp_path: Path) -> None:
    """Uniform choice among the allowed actions has a return of 2."""
    out = str(tmp_path / "run")
    trained = stairwell(
        tmp_path, "train", "rl/lstm", "--task.env", f"{MODULE}:MaskedChoice-v0", "--core.width", "16",
        "--train.batch", "32", "--train.segment", "16", "--steps", "150", "--train.learning_rate", "0.01",
        "--train.validate_every", "150", "--task.valid_episodes", "50", "--train.valid_batch", "16", "--out", out,
    )  # fmt: skip
    assert trained.status == 0, trained
    evaluated = stairwell(tmp_path, "eval", out, "--split", "valid")
    score = float(next(line.split()[1] for line in evaluated.out.splitlines() if line.startswith("return ")))
    assert score > 3.5, evaluated
    played = stairwell(tmp_path, "play", out, "--episodes", "2")
    assert played.status == 0, played
