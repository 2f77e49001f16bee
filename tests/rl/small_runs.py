"""Small RL runs for tests."""

from __future__ import annotations

from typing import Any

from stairwell.rl.rollouts import RolloutSource
from stairwell.rl.vector_env import VectorEnv
from stairwell.runs import RunConfig, preset

SMALL = {
    "core.width": 8, "core.layers": 1, "core.heads": 2, "core.memory": 3, "train.batch": 4, "train.segment": 6,
    "train.log_every": 1, "train.validate_every": 5, "train.checkpoint_every": 5, "train.valid_batch": 2,
    "train.warmup": 0, "train.steps": 12, "train.algorithm": "a2c", "train.decay": "none",
    "train.normalize_advantage": False, "train.normalize_rewards": False,
    "task.length": 2, "task.valid_episodes": 4, "task.test_episodes": 6,
}  # fmt: skip
PPO = {"train__algorithm": "ppo", "train__epochs": 2, "train__minibatches": 2}


def run_config(name: str = "rl/feedback", **options: Any) -> RunConfig:
    """Return a small preset. Options are `section__field=value`; None removes an option of SMALL."""
    values = {**SMALL, **{key.replace("__", "."): value for key, value in options.items()}}
    core_fields = preset(name).core.__dataclass_fields__
    values = {key: value for key, value in values.items() if not key.startswith("core.") or key[5:] in core_fields}
    return preset(name).with_options({key: str(value) for key, value in values.items() if value is not None})


def rollout_source(config: RunConfig, env: VectorEnv | None = None, indices: range | None = None) -> RolloutSource:
    task = config.make_tasks()[0]
    agent = config.make_model(task)
    indices = indices or range(config.train.batch)
    return RolloutSource(agent, env or task.make_env(indices, 7), indices, 7, config.train, 1000)
