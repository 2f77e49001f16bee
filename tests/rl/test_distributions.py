"""Action distributions equal those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stairwell.rl.distributions import Categorical, Gaussian
from stairwell.rl.spaces import Box, Discrete, MultiDiscrete


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((3, 2, 5))])
def test_categorical_equals_torch(space: Any) -> None:
    categorical, rng = Categorical(space), np.random.default_rng(0)
    policy = torch.from_numpy(rng.normal(size=(1, categorical.head_size))).expand(40_000, -1)
    actions = categorical.sample(policy, torch.from_numpy(rng.random((40_000, categorical.action_size))))
    expected = [torch.distributions.Categorical(logits=logits) for logits in policy[:1].split(categorical.nvec, -1)]
    for i, own in enumerate(expected):
        frequency = actions[:, i].bincount(minlength=categorical.nvec[i]) / len(actions)
        torch.testing.assert_close(frequency.double(), own.probs[0], rtol=0, atol=0.01)
    some = actions[:7]
    log_prob = sum(own.log_prob(some[:, i]) for i, own in enumerate(expected))
    torch.testing.assert_close(categorical.log_prob(policy[:7], some), log_prob)
    torch.testing.assert_close(categorical.entropy(policy[:1]), sum(own.entropy() for own in expected))
    assert categorical.mode(policy[:1])[0].tolist() == [int(own.probs.argmax()) for own in expected]
    assert categorical.to_environment(some).shape == ((7,) if isinstance(space, Discrete) else (7, 3))


def test_gaussian_equals_torch_and_respects_bounds() -> None:
    gaussian, rng = Gaussian(Box((2,), (-1.0, 0.0), (3.0, 1.0))), np.random.default_rng(0)
    gaussian.log_std.data[:] = torch.tensor([0.3, -1.0])
    policy = torch.tensor([[0.5, -0.2]], dtype=torch.float64).expand(40_000, -1)
    actions = gaussian.sample(policy, torch.from_numpy(rng.random((40_000, 4)))).detach()
    torch.testing.assert_close(actions.mean(0), policy[0], rtol=0, atol=0.02)
    torch.testing.assert_close(actions.std(0), gaussian.std().detach().double(), rtol=0.02, atol=0)
    expected = torch.distributions.Normal(policy[:5], gaussian.std())
    torch.testing.assert_close(gaussian.log_prob(policy[:5], actions[:5]), expected.log_prob(actions[:5]).sum(-1))
    torch.testing.assert_close(gaussian.entropy(policy[:5]), expected.entropy().sum(-1))
    env_actions = gaussian.to_environment(torch.tensor([[0.0, 0.0], [9.0, -9.0], [-1.0, 1.0]]))
    np.testing.assert_allclose(env_actions, [[1.0, 0.5], [3.0, 0.0], [-1.0, 1.0]])
    integers = Gaussian(Box((1,), 0, 3, "int64")).to_environment(torch.tensor([[-2.0], [-0.9], [0.9], [0.2]]))
    assert integers.dtype == np.int64 and integers.tolist() == [[0], [0], [3], [2]]
    unbounded = Gaussian(Box((1,)))
    np.testing.assert_allclose(unbounded.to_environment(torch.tensor([[7.0]])), [[7.0]])
