"""A2C and PPO as training objectives over rollouts.

    A2C   loss = - log pi(a) A + c_v (R - V)^2 / 2 - c_e entropy                                   (Mnih et al., 2016)
    PPO   loss = - min(r A, clip(r, 1 - e, 1 + e) A) + the same,   r = pi(a) / pi_old(a)        (Schulman et al., 2017)

A segment starts from the state stored in its rollout, which older parameters computed. Within the segment the memory
is recomputed with the current parameters. `bptt_length` splits a segment into windows between which gradients stop. A
window starts from the state stored in the rollout (`bptt_state` "stored"), so that all windows are computed in one
call, but the state is stale once the parameters have changed; or from the state computed with the current parameters
from the start of the segment ("recomputed"). Both are equal in A2C and in the first optimizer step of PPO on a
rollout. Letters: B environments, T frames, W windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stairwell.errors import UserError
from stairwell.state import State
from stairwell.train.objective import Objective, Outcome
from stairwell.train.streams import model_metrics

from .agent import Agent, AgentInputs, AgentOutput
from .rollouts import Rollout
from .train_config import AgentTrainConfig

RANDOM_RATES = ("dropout", "attention_dropout", "relu_dropout", "residual_dropout", "layer_drop")
RECENT_EPISODES = 500  # over which returns and lengths are averaged


class ActorCritic(Objective):
    """Shared parts of A2C and PPO. With several processes the episode statistics are those of the first."""

    model: Agent
    recent_episodes: Tensor
    episode_count: Tensor

    def __init__(self, model: Agent, config: AgentTrainConfig) -> None:
        super().__init__(model)
        self.config = config
        self.skips_parameters = model.core.skips_layers
        # Return and length.
        self.register_buffer("recent_episodes", torch.zeros(RECENT_EPISODES, 2, dtype=torch.float64))
        self.register_buffer("episode_count", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Rollout) -> Outcome:
        config, action_dist = self.config, self.model.action_dist
        self.record_episodes(batch.episodes)
        output = self.evaluate(batch)
        log_prob = action_dist.log_prob(output.policy, batch.action)
        policy_loss, further_metrics = self.policy_loss(log_prob, batch)
        value_loss = 0.5 * (batch.returns - output.value).square()
        entropy = action_dist.entropy(output.policy)
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        terms = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **further_metrics}
        metrics = {name: masked_sum(term.detach(), batch.mask) for name, term in terms.items()}
        span_loss = self.model.core.span_loss() if batch.is_first_part else None
        return Outcome(masked_sum(loss, batch.mask), metrics, span_loss)

    def policy_loss(self, log_prob: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each frame and further metrics, all (B, T)."""
        raise NotImplementedError

    def evaluate(self, batch: Rollout) -> AgentOutput:
        """Return policy and value of every frame, (B, T, ...), computed in BPTT windows."""
        W, T = len(batch.states), batch.start.shape[1]
        slices = [slice(w * T // W, (w + 1) * T // W) for w in range(W)]
        windows = [(slice_time(batch.inputs, frames), batch.start[:, frames]) for frames in slices]
        if self.config.bptt_state == "recomputed":
            return self.evaluate_in_sequence(windows, batch.states[0])
        inputs = batch.inputs if W == 1 else concatenate([inputs for inputs, _ in windows])
        state = batch.states[0] if W == 1 else type(batch.states[0]).join(batch.states)
        output, _ = self.model(inputs, state, torch.cat([start for _, start in windows]))
        return AgentOutput(*(torch.cat(part.chunk(W), 1) for part in output))

    def evaluate_in_sequence(self, windows: list[tuple[AgentInputs, Tensor]], state: State) -> AgentOutput:
        """Return the outputs of one window after the other; gradients stop between them."""
        outputs = []
        for inputs, start in windows:
            output, state = self.model(inputs, state.detach(), start)
            outputs.append(output)
        return AgentOutput(*(torch.cat(parts, 1) for parts in zip(*outputs)))

    def record_episodes(self, episodes: Tensor) -> None:
        """Record return and length of finished episodes (n, 2)."""
        for episode in episodes.to(self.recent_episodes.device):
            self.recent_episodes[int(self.episode_count) % RECENT_EPISODES] = episode
            self.episode_count += 1

    def after_step(self) -> None:
        self.model.core.clamp_spans()

    def dry_run(self) -> None:
        self.model.train()(self.model.zero_inputs(1, 1), self.model.init_state(1))

    def extra_metrics(self) -> dict[str, Any]:
        """Return means over recent episodes, the total number of episodes, and the core's own metrics."""
        count = int(self.episode_count)
        metrics: dict[str, Any] = {"episodes": count}
        if count:
            returns, lengths = self.recent_episodes[:count].T
            metrics |= {"return": float(returns.mean()), "return_std": float(returns.std(correction=0))}
            metrics["length"] = float(lengths.mean())
        return metrics | model_metrics(self.model)


class A2C(ActorCritic):
    def policy_loss(self, log_prob: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        return -log_prob * batch.advantage, {}


class PPO(ActorCritic):
    def __init__(self, model: Agent, config: AgentTrainConfig) -> None:
        super().__init__(model, config)
        if option := random_option(model.config.core):
            raise UserError(
                f"--core.{option}: PPO needs the same policy in rollouts, which do not use dropout or other noise, and "
                f"in training; leave this option out, or choose --train.algorithm a2c"
            )

    def policy_loss(self, log_prob: Tensor, batch: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        clip_range = self.config.clip_range
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)
        loss = -torch.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
        clip_fraction = ((ratio - 1).abs() > clip_range).to(loss.dtype)
        return loss, {"clip_fraction": clip_fraction, "approx_kl": (ratio - 1) - log_ratio}


ALGORITHMS: dict[str, type[ActorCritic]] = {"a2c": A2C, "ppo": PPO}


def random_option(core: Any) -> str:
    """Return the first option of a core's config that makes training passes random; empty if there is none."""
    options = {name: getattr(core, name) for name in RANDOM_RATES if getattr(core, name, 0)}
    if getattr(core, "positions", None) == "random":
        options["positions"] = "random"
    return next((f"{name} {value}" for name, value in options.items()), "")


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0).sum()


def slice_time(inputs: AgentInputs, frames: slice) -> AgentInputs:
    return inputs.map(lambda values: values[:, frames])


def concatenate(parts: list[AgentInputs]) -> AgentInputs:
    """Concatenate inputs along the batch dimension."""
    observation = {path: torch.cat([part.observation[path] for part in parts]) for path in parts[0].observation}
    last_action = torch.cat([part.last_action for part in parts])
    return AgentInputs(observation, last_action, torch.cat([part.last_reward for part in parts]))
