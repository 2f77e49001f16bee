"""Run an exported agent in its gymnasium environment, with onnxruntime and NumPy.

stairwell export corridor-feedback --onnx agent.onnx
python examples/onnx_agent.py agent.onnx 10

The graph reads one frame of one environment. `start` resets the memory; each output `...N` is the next input of that
name. The environment and its options are in the metadata of the file. The agent needs neither stairwell nor torch, but
the environment of this example is stairwell's, so stairwell must be installed. An environment of your own is imported
from the current directory.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import gymnasium
import numpy as np
import onnxruntime

TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}  # fmt: skip


class Agent:
    """An agent with its memory, for one environment."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.types = {given.name: TYPES[given.type] for given in self.session.get_inputs()}
        # One environment. A memory that grows (size `tokens`) starts with one masked position.
        sizes = {"batch": 1, "tokens": 1}
        self.inputs = {
            given.name: np.zeros([sizes.get(size, size) for size in given.shape], self.types[given.name])
            for given in self.session.get_inputs()
        }

    def act(self, observation: Any, info: dict[str, Any], reward: float, start: bool) -> Any:
        """Read a frame and return the most probable action."""
        frame = {**flatten(observation), "action_mask": info.get("action_mask"), "last_reward": reward, "start": start}
        for name in self.types.keys() & frame.keys():
            self.inputs[name] = np.asarray(frame[name], self.types[name])[None]
        outputs = dict(zip(self.outputs, self.session.run(None, self.inputs)))
        self.inputs |= {name[:-1]: values for name, values in outputs.items() if name.endswith("N")}
        if "last_action" in self.inputs:
            # Before clipping, if it is continuous.
            self.inputs["last_action"] = outputs.get("mean", outputs["action"])
        return outputs["action"][0]


def flatten(observation: Any, path: str = "observation") -> dict[str, Any]:
    """Return the parts of a nested observation by path."""
    if not isinstance(observation, dict | tuple):
        return {path: observation}
    children = observation.items() if isinstance(observation, dict) else enumerate(observation)
    return {key: part for name, child in children for key, part in flatten(child, f"{path}.{name}").items()}


def main(path: str, episodes: str = "10") -> None:
    agent = Agent(path)
    sys.path.append(os.getcwd())
    name = json.loads(agent.metadata["env"])
    # gymnasium imports the module before the colon, which registers the environment.
    name = f"stairwell.rl:{name}" if name.startswith("stairwell/") else name
    env = gymnasium.make(name, **json.loads(agent.metadata["options"]))
    for episode in range(int(episodes)):
        observation, info = env.reset(seed=episode)
        reward, total, start, done = 0.0, 0.0, True, False
        while not done:
            action = agent.act(observation, info, reward, start)
            observation, reward, terminated, truncated, info = env.step(action)
            total, start, done = total + float(reward), False, terminated or truncated
        print(f"episode {episode + 1}: return {total:.4g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
