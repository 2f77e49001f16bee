"""A2C and PPO: losses worked out in another way, and what becomes of memory when parameters change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES, config_type
from stairwell.errors import UserError
from stairwell.rl.learners import A2C, PPO, RANDOM_RATES, RECENT, ActorCritic
from stairwell.rl.rollouts import Rollout
from tests.rl.test_rollouts import batch_source, experiment


def setting(learner: str = "a2c", length: int = 6, **options: Any) -> tuple[ActorCritic, Rollout]:
    made = experiment(train__learner=learner, **{f"train__{name}": value for name, value in options.items()})
    fed = batch_source(made)
    fed.read(length)
    while fed.reads % made.train.reads:
        fed.read(length)
    batch = fed.read(length) if learner == "a2c" else None
    if batch is None:
        fed.read(length)
        assert fed.rollout is not None
        batch = fed.rollout
    return {"a2c": A2C, "ppo": PPO}[learner](fed.agent, made.train), batch


def said(objective: ActorCritic, batch: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    made, _ = objective.model(batch.inputs, batch.states[0], batch.start)
    own = torch.distributions.Categorical(logits=made.policy)
    return own.log_prob(batch.action[..., 0]), own.entropy(), made.value


def test_a2c_is_the_advantage_times_the_log_probability() -> None:
    objective, batch = setting(ent_coef=0.3, vf_coef=0.7)
    log, entropy, value = said(objective, batch)
    wanted = -(log * batch.advantage).sum() + 0.7 * 0.5 * ((batch.target - value) ** 2).sum() - 0.3 * entropy.sum()
    torch.testing.assert_close(objective(batch).loss, wanted)
    # A frame that does not count adds nothing.
    scored = torch.arange(batch.start.numel()).view(batch.start.shape) % 3 > 0
    each = -log * batch.advantage + 0.35 * (batch.target - value) ** 2 - 0.3 * entropy
    outcome = objective(dataclasses.replace(batch, scored=scored))
    torch.testing.assert_close(outcome.loss, each[scored].sum())
    torch.testing.assert_close(outcome.metrics["entropy"], entropy[scored].sum())


def test_the_loss_on_spans_is_added_in_one_part_of_a_step() -> None:
    made = experiment(core__adaptive_span=True, core__span_loss=0.1)
    fed = batch_source(made)
    objective = A2C(fed.agent, made.train)
    first, second = (objective(part) for part in fed.read(6).parts(2))
    assert first.penalty is not None and second.penalty is None
    torch.testing.assert_close(first.penalty, fed.agent.core.span_loss())


def test_ppo_is_a2c_at_first_and_clipped_later() -> None:
    objective, batch = setting("ppo", clip_range=0.1, minibatches=2)
    plain = A2C(objective.model, dataclasses.replace(objective.config, learner="a2c", clip_range=0.2, minibatches=4))
    ours, theirs = objective(batch), plain(batch)
    assert float(ours.metrics["clipped"]) == 0 and abs(float(ours.metrics["divergence"])) < 1e-4
    for one, other in zip(gradients(objective, ours.loss), gradients(objective, theirs.loss)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    # An action that has become twice as likely, or half, is not pushed any further.
    for change, advantage in ((0.7, 1.0), (-0.7, -1.0)):
        moved = dataclasses.replace(
            batch,
            log_probability=said(objective, batch)[0].detach() - change,
            advantage=torch.full_like(batch.advantage, advantage),
        )
        loss, more = objective.policy_loss(said(objective, moved)[0], moved)
        assert more["clipped"].all()
        torch.testing.assert_close(loss.mean(), torch.tensor(-(1.1 if change > 0 else -0.9)))
        assert not any(gradient.any() for gradient in gradients(objective, loss.sum()))
    # One that has moved the wrong way is pushed back, however far it is.
    for change, advantage in ((0.7, -1.0), (-0.7, 1.0)):
        log_probability = torch.full_like(batch.log_probability, change, requires_grad=True)
        moved = dataclasses.replace(
            batch,
            log_probability=torch.zeros_like(batch.log_probability),
            advantage=torch.full_like(batch.advantage, advantage),
        )
        loss, more = objective.policy_loss(log_probability, moved)
        assert more["clipped"].all()
        wanted = torch.full_like(log_probability, -advantage).mul(torch.tensor(change).exp())
        torch.testing.assert_close(loss, wanted)
        (gradient,) = torch.autograd.grad(loss.sum(), log_probability)
        torch.testing.assert_close(gradient, wanted)


def gradients(objective: ActorCritic, loss: Tensor) -> list[Tensor]:
    parameters = list(objective.model.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(own) if part is None else part for own, part in zip(parameters, found)]


def test_stored_and_recomputed_memory_are_the_same_until_parameters_change() -> None:
    options = {"window": 3, "minibatches": 2}
    stored, batch = setting("ppo", 6, **options)
    made = dataclasses.replace(stored.config, window_memory="recomputed")
    recomputed = PPO(stored.model, made)
    assert len(batch.states) == 2
    ours, theirs = stored(batch).loss, recomputed(batch).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for one, other in zip(gradients(stored, ours), gradients(stored, theirs)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        for parameter in stored.model.core.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    before, after = stored.said(batch).value, recomputed.said(batch).value
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before[:, 3:], after[:, 3:], rtol=1e-3, atol=1e-4)
    # Recomputed is what a walk over the whole segment says; only gradients stop between windows.
    whole = PPO(stored.model, dataclasses.replace(stored.config, window=0))
    torch.testing.assert_close(whole.said(dataclasses.replace(batch, states=batch.states[:1])).value, after)


@pytest.mark.parametrize("memory", ["stored", "recomputed"])
def test_gradients_stop_between_windows(memory: str) -> None:
    objective, batch = setting("ppo", 6, window=3, window_memory=memory, minibatches=2)
    start = torch.zeros_like(batch.start)
    batch = dataclasses.replace(batch, start=start)
    embedded: list[Tensor] = []
    objective.model.core.register_forward_pre_hook(lambda module, given: embedded.append(given[0]))
    values = objective.said(batch).value
    found = torch.autograd.grad(values[:, 3:].sum(), embedded, allow_unused=True)
    first = found[0] if memory == "recomputed" else found[0][:4]
    assert first is None or not first.any()


def test_the_last_episodes_are_averaged() -> None:
    objective, _ = setting()
    objective.remember(torch.tensor([[1.0, 10.0], [3.0, 20.0]]))
    found = objective.inside()
    assert (found["return"], found["return_deviation"], found["length"], found["episodes"]) == (2.0, 1.0, 15.0, 2)
    objective.remember(torch.tensor([[5.0, 1.0]]).expand(RECENT, 2))
    assert objective.inside()["return"] == 5.0 and objective.inside()["episodes"] == RECENT + 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"window": 4}, "train.window 4 does not divide the segment of 6 frames"),
        ({"window_memory": "recomputed"}, "train.window_memory is read with train.window only"),
        ({"epochs": 2}, "train.epochs is not read with train.learner a2c"),
        ({"learner": "ppo", "minibatches": 3}, "train.minibatches 3 does not divide the batch of 4 rows"),
        ({"gamma": 1.5}, r"train.gamma must be in \[0, 1\]"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        experiment(**{f"train__{name}": value for name, value in options.items()})


@pytest.mark.parametrize(
    ("core", "option"),
    [
        ("feedback", "attention_dropout 0.1"), ("feedback", "relu_dropout 0.1"), ("feedback", "residual_dropout 0.1"),
        ("staircase", "layer_drop 0.1"), ("feedback", "positions random"), ("lstm", "dropout 0.1"),
    ],
)  # fmt: skip
def test_ppo_refuses_what_is_random_in_training_but_not_at_play(core: str, option: str) -> None:
    """The policy that learns would not be the one that acted, and their ratio not 1 before the first step."""
    name, value = option.split()
    made = experiment(f"rl/{core}", core__layers=2, **{f"core__{name}": value})
    agent = made.make_model(made.make_tasks()[0])
    with pytest.raises(UserError, match=rf"--core\.{option}: PPO compares .*--train\.learner a2c"):
        PPO(agent, dataclasses.replace(made.train, learner="ppo"))
    A2C(agent, made.train)


def test_no_core_has_a_rate_that_ppo_has_not_heard_of() -> None:
    rates = {name for core in CORES for name in config_type(core).__dataclass_fields__ if "drop" in name}
    assert rates - {"locked_dropout"} == set(RANDOM_RATES)
