"""A Feedback Transformer in Stable-Baselines3, in ten lines: repeat the suit of the card shown four steps before.

    pip install ".[sb3]" popgym
    python examples/sb3_ten_lines.py

The maximum of the mean episode return is 1; chance level is -0.5.
"""

import popgym  # noqa: F401  registers its environments
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import stairwell.rl.sb3  # noqa: F401  registers the names of the policies
from stairwell import FeedbackConfig

envs = make_vec_env("popgym-RepeatPreviousEasy-v0", n_envs=16, seed=0)
memory = {"core": FeedbackConfig(width=64, heads=4, layers=1, memory=8), "net_arch": []}
ppo = {"n_steps": 64, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3, "gamma": 0.5}
model = RecurrentPPO("MlpMemoryPolicy", envs, policy_kwargs=memory, **ppo, verbose=1, seed=0)
model.learn(80_000).save("agent.zip")
