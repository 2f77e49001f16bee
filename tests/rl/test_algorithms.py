"""A2C and PPO: losses computed independently, and BPTT windows with stored and recomputed states."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES, config_type
from stairwell.errors import UserError
from stairwell.rl.algorithms import A2C, ALGORITHMS, PPO, RANDOM_RATES, RECENT_EPISODES, ActorCritic
from stairwell.rl.rollouts import Rollout
from tests.rl.small_runs import rollout_source, run_config


def make_objective(algorithm: str = "a2c", length: int = 6, **options: Any) -> tuple[ActorCritic, Rollout]:
    """Return an objective and the second rollout of its agent."""
    config = run_config(train__algorithm=algorithm, **{f"train__{name}": value for name, value in options.items()})
    source = rollout_source(config)
    source.collect(length)
    return ALGORITHMS[algorithm](source.agent, config.train), source.collect(length)


def evaluate(objective: ActorCritic, batch: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities, entropy and values."""
    output, _ = objective.model(batch.inputs, batch.states[0], batch.start)
    distribution = torch.distributions.Categorical(logits=output.policy)
    return distribution.log_prob(batch.action[..., 0]), distribution.entropy(), output.value


def gradients(objective: ActorCritic, loss: Tensor) -> list[Tensor]:
    parameters = list(objective.model.parameters())
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(parameter) if grad is None else grad for parameter, grad in zip(parameters, grads)]


def test_the_loss_of_a2c() -> None:
    objective, batch = make_objective(ent_coef=0.3, vf_coef=0.7)
    log_prob, entropy, value = evaluate(objective, batch)
    loss = -log_prob * batch.advantage + 0.7 * 0.5 * (batch.returns - value) ** 2 - 0.3 * entropy
    torch.testing.assert_close(objective(batch).loss, loss.sum())
    mask = torch.arange(batch.start.numel()).view(batch.start.shape) % 3 > 0
    outcome = objective(dataclasses.replace(batch, mask=mask))
    torch.testing.assert_close(outcome.loss, loss[mask].sum())
    torch.testing.assert_close(outcome.metrics["entropy"], entropy[mask].sum())


def test_the_span_loss_is_added_in_one_part_of_a_step() -> None:
    config = run_config(core__adaptive_span=True, core__span_loss=0.1)
    source = rollout_source(config)
    objective = A2C(source.agent, config.train)
    first, second = (objective(part) for part in source.read(6).parts(2))
    assert first.penalty is not None and second.penalty is None
    torch.testing.assert_close(first.penalty, source.agent.core.span_loss())


def test_ppo_equals_a2c_in_the_first_step() -> None:
    objective, batch = make_objective("ppo", clip_range=0.1, minibatches=2)
    config = dataclasses.replace(objective.config, algorithm="a2c", clip_range=0.2, minibatches=4)
    outcome, expected = objective(batch), A2C(objective.model, config)(batch)
    assert float(outcome.metrics["clip_fraction"]) == 0 and abs(float(outcome.metrics["approx_kl"])) < 1e-4
    for gradient, other in zip(gradients(objective, outcome.loss), gradients(objective, expected.loss)):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("change", "advantage"), [(0.7, 1.0), (-0.7, -1.0)])
def test_ppo_has_no_gradient_beyond_the_clip_range(change: float, advantage: float) -> None:
    """The action has become twice, or half, as probable, in the direction of its advantage."""
    objective, batch = make_objective("ppo", clip_range=0.1, minibatches=2)
    moved = dataclasses.replace(
        batch,
        log_prob=evaluate(objective, batch)[0].detach() - change,
        advantage=torch.full_like(batch.advantage, advantage),
    )
    loss, metrics = objective.policy_loss(evaluate(objective, moved)[0], moved)
    assert metrics["clip_fraction"].all()
    torch.testing.assert_close(loss.mean(), torch.tensor(-(1.1 if change > 0 else -0.9)))
    assert not any(gradient.any() for gradient in gradients(objective, loss.sum()))


@pytest.mark.parametrize(("change", "advantage"), [(0.7, -1.0), (-0.7, 1.0)])
def test_ppo_does_not_clip_against_the_advantage(change: float, advantage: float) -> None:
    objective, batch = make_objective("ppo", clip_range=0.1, minibatches=2)
    log_prob = torch.full_like(batch.log_prob, change, requires_grad=True)
    moved = dataclasses.replace(
        batch,
        log_prob=torch.zeros_like(batch.log_prob),
        advantage=torch.full_like(batch.advantage, advantage),
    )
    loss, metrics = objective.policy_loss(log_prob, moved)
    assert metrics["clip_fraction"].all()
    expected = torch.full_like(log_prob, -advantage).mul(torch.tensor(change).exp())
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    torch.testing.assert_close(gradient, expected)


def test_stored_and_recomputed_states_are_equal_until_parameters_change() -> None:
    stored, batch = make_objective("ppo", 6, bptt_length=3, minibatches=2)
    recomputed = PPO(stored.model, dataclasses.replace(stored.config, bptt_state="recomputed"))
    assert len(batch.states) == 2
    loss, other_loss = stored(batch).loss, recomputed(batch).loss
    torch.testing.assert_close(loss, other_loss, rtol=1e-4, atol=1e-4)
    for gradient, other in zip(gradients(stored, loss), gradients(stored, other_loss)):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        for parameter in stored.model.core.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    value, recomputed_value = stored.evaluate(batch).value, recomputed.evaluate(batch).value
    torch.testing.assert_close(value[:, :3], recomputed_value[:, :3], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(value[:, 3:], recomputed_value[:, 3:], rtol=1e-3, atol=1e-4)
    # Recomputed values equal those of the whole segment; only gradients stop between windows.
    whole = PPO(stored.model, dataclasses.replace(stored.config, bptt_length=0))
    whole_value = whole.evaluate(dataclasses.replace(batch, states=batch.states[:1])).value
    torch.testing.assert_close(whole_value, recomputed_value)


@pytest.mark.parametrize("bptt_state", ["stored", "recomputed"])
def test_gradients_stop_between_windows(bptt_state: str) -> None:
    objective, batch = make_objective("ppo", 6, bptt_length=3, bptt_state=bptt_state, minibatches=2)
    batch = dataclasses.replace(batch, start=torch.zeros_like(batch.start))
    embedded: list[Tensor] = []
    objective.model.core.register_forward_pre_hook(lambda module, arguments: embedded.append(arguments[0]))
    values = objective.evaluate(batch).value
    grads = torch.autograd.grad(values[:, 3:].sum(), embedded, allow_unused=True)
    first_window = grads[0] if bptt_state == "recomputed" else grads[0][:4]
    assert first_window is None or not first_window.any()


def test_recent_episodes_are_averaged() -> None:
    objective, _ = make_objective()
    objective.record_episodes(torch.tensor([[1.0, 10.0], [3.0, 20.0]]))
    metrics = objective.extra_metrics()
    assert (metrics["return"], metrics["return_std"], metrics["length"], metrics["episodes"]) == (2.0, 1.0, 15.0, 2)
    objective.record_episodes(torch.tensor([[5.0, 1.0]]).expand(RECENT_EPISODES, 2))
    metrics = objective.extra_metrics()
    assert metrics["return"] == 5.0 and metrics["episodes"] == RECENT_EPISODES + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bptt_length": 4}, "train.bptt_length 4 does not divide the segment of 6 frames"),
        ({"bptt_state": "recomputed"}, "train.bptt_state needs train.bptt_length"),
        ({"epochs": 2}, "train.epochs has no effect with A2C"),
        ({"algorithm": "ppo", "minibatches": 3}, "train.minibatches 3 does not divide the batch of 4"),
        ({"gamma": 1.5}, r"train.gamma must be in \[0, 1\]"),
    ],
)
def test_invalid_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_config(**{f"train__{name}": value for name, value in options.items()})


@pytest.mark.parametrize(
    ("core", "option"),
    [
        ("feedback", "attention_dropout 0.1"), ("feedback", "relu_dropout 0.1"), ("feedback", "residual_dropout 0.1"),
        ("staircase", "layer_drop 0.1"), ("feedback", "positions random"), ("lstm", "dropout 0.1"),
    ],
)  # fmt: skip
def test_ppo_rejects_options_that_make_training_passes_random(core: str, option: str) -> None:
    """The probability ratio would not be 1 before the first step."""
    name, value = option.split()
    config = run_config(f"rl/{core}", core__layers=2, **{f"core__{name}": value})
    agent = config.make_model(config.make_tasks()[0])
    with pytest.raises(UserError, match=rf"--core\.{option}: PPO needs .*--train\.algorithm a2c"):
        PPO(agent, dataclasses.replace(config.train, algorithm="ppo"))
    A2C(agent, config.train)


def test_ppo_checks_the_dropout_rates_of_all_cores() -> None:
    rates = {name for core in CORES for name in config_type(core).__dataclass_fields__ if "drop" in name}
    assert rates - {"locked_dropout"} == set(RANDOM_RATES)
