"""A2C and PPO as objectives on the one loop, over rollouts.

    A2C   loss = - log pi(a) A + c_v (R - V)^2 / 2 - c_e entropy                                   (Mnih et al., 2016)
    PPO   loss = - min(r A, clip(r, 1 - e, 1 + e) A) + the same,   r = pi(a) / pi_then(a)       (Schulman et al., 2017)

A segment begins from the state with which it was played, made by the parameters of that time; within it memory is made
anew by those of today. `window` cuts the gradient within a segment. What a window begins from is a choice
(`window_memory`): `stored`, the memory of collection, which lets all windows be computed side by side but is stale once
parameters have changed; or `recomputed`, walking on from the segment's start with today's parameters. In A2C, and in
PPO's first update of a rollout, nothing has changed and the two are the same. Letters: B rows, T frames, W windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.errors import UserError
from stairwell.state import State
from stairwell.train.objective import Objective, Outcome
from stairwell.train.streams import inside

from .agent import Agent, AgentOutput, Inputs
from .config import AgentTrainConfig
from .rollouts import Rollout

RANDOM_RATES = ("dropout", "attention_dropout", "relu_dropout", "residual_dropout", "layer_drop")
RECENT = 500  # episodes over which returns and lengths are averaged


class ActorCritic(Objective):
    """What A2C and PPO share. The last episodes are counted here; with several processes, those of the first."""

    model: Agent
    recent: Tensor
    episodes: Tensor

    def __init__(self, model: Agent, config: AgentTrainConfig) -> None:
        super().__init__(model)
        self.config = config
        self.skips_parameters = model.core.skips_layers
        self.register_buffer("recent", torch.zeros(RECENT, 2, dtype=torch.float64))  # return and length
        self.register_buffer("episodes", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Rollout) -> Outcome:
        config = self.config
        self.remember(batch.ended)
        said = self.said(batch)
        log_probability = self.model.actions.log_probability(said.policy, batch.action)
        policy_loss, more = self.policy_loss(log_probability, batch)
        value_loss = 0.5 * (batch.target - said.value).square()
        entropy = self.model.actions.entropy(said.policy)
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        terms = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **more}
        metrics = {name: summed(term.detach(), batch.scored) for name, term in terms.items()}
        return Outcome(summed(loss, batch.scored), metrics, self.model.core.span_loss() if batch.first else None)

    def policy_loss(self, log_probability: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, T), and further numbers to be averaged."""
        raise NotImplementedError

    def said(self, batch: Rollout) -> AgentOutput:
        """The policy and value of every frame, (B, T, ...), window by window."""
        W, T = len(batch.states), batch.start.shape[1]
        cut = [(windowed(batch.inputs, w, T // W), batch.start[:, w * T // W : (w + 1) * T // W]) for w in range(W)]
        if self.config.window_memory == "recomputed":
            return self.in_turn(cut, batch.states[0])
        together = batch.inputs if W == 1 else joined([inputs for inputs, _ in cut])
        state = batch.states[0] if W == 1 else type(batch.states[0]).join(batch.states)
        said, _ = self.model(together, state, torch.cat([start for _, start in cut]))
        return AgentOutput(*(torch.cat(part.chunk(W), 1) for part in said))

    def in_turn(self, cut: list[tuple[Inputs, Tensor]], state: State) -> AgentOutput:
        """One window after the other with today's parameters; gradients stop between them."""
        found = []
        for inputs, start in cut:
            said, state = self.model(inputs, state.detach(), start)
            found.append(said)
        return AgentOutput(*(torch.cat(parts, 1) for parts in zip(*found)))

    def remember(self, ended: Tensor) -> None:
        for episode in ended.to(self.recent.device):
            self.recent[int(self.episodes) % RECENT] = episode
            self.episodes += 1

    def after_update(self) -> None:
        self.model.core.clamp_spans()

    def rehearse(self) -> None:
        self.model.train()(self.model.nothing(1, 1), self.model.init_state(1))

    def inside(self) -> dict[str, Any]:
        """Return and length of the last episodes, how many there were in all, and what the core tells of itself."""
        count = int(self.episodes)
        found: dict[str, Any] = {"episodes": count}
        if count:
            returns, lengths = self.recent[:count].T
            found |= {"return": float(returns.mean()), "return_deviation": float(returns.std(correction=0))}
            found["length"] = float(lengths.mean())
        return found | inside(self.model)


class A2C(ActorCritic):
    def policy_loss(self, log_probability: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        return -log_probability * batch.advantage, {}


class PPO(ActorCritic):
    def __init__(self, model: Agent, config: AgentTrainConfig) -> None:
        super().__init__(model, config)
        if option := random_in_training(model.config.core):
            raise UserError(
                f"--core.{option}: PPO compares the policy that acted with the one that learns, but agents act without "
                f"what is random in training; leave it out, or choose --train.learner a2c"
            )

    def policy_loss(self, log_probability: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        e = self.config.clip_range
        change = log_probability - batch.log_probability
        ratio = change.exp()
        loss = -torch.minimum(ratio * batch.advantage, ratio.clamp(1 - e, 1 + e) * batch.advantage)
        clipped = ((ratio - 1).abs() > e).to(loss.dtype)
        return loss, {"clipped": clipped, "divergence": (ratio - 1) - change}


LEARNERS: dict[str, type[ActorCritic]] = {"a2c": A2C, "ppo": PPO}


def random_in_training(core: Any) -> str:
    """Return the first option of a core's config that makes a forward pass random in training; empty without one."""
    options = {name: getattr(core, name) for name in RANDOM_RATES if getattr(core, name, 0)}
    if getattr(core, "positions", None) == "random":
        options["positions"] = "random"
    return next((f"{name} {value}" for name, value in options.items()), "")


def summed(values: Tensor, scored: Tensor) -> Tensor:
    return torch.where(scored, values, 0).sum()


def windowed(inputs: Inputs, w: int, length: int) -> Inputs:
    return inputs.map(lambda values: values[:, w * length : (w + 1) * length])


def joined(parts: list[Inputs]) -> Inputs:
    """Windows as further rows."""
    observed = {path: torch.cat([part.observation[path] for part in parts]) for path in parts[0].observation}
    return Inputs(observed, torch.cat([part.action for part in parts]), torch.cat([part.reward for part in parts]))
