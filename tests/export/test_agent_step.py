"""The exported step of an agent: onnxruntime and torch.export give the actions, distributions and values of PyTorch."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.export import AgentStep, StepModule, export_agent_onnx, export_agent_torch
from stairwell.export.step import write_onnx, write_program
from stairwell.rl import Agent, AgentConfig
from stairwell.rl.acting import eval_mode
from stairwell.rl.agent import AgentInputs
from stairwell.rl.distributions import Gaussian
from stairwell.rl.evaluation import iterate_transitions
from stairwell.rl.flatten import ACTION_MASK, leaf_nvec, leaf_shape
from stairwell.rl.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from stairwell.runs.load import load
from tests.invariants import scramble
from tests.rl import masked_environments  # noqa: F401
from tests.rl.small_runs import run_config

ROOT = Path(__file__).parents[2]
B, T = 3, 20


class Case(NamedTuple):
    core: str
    observation: Space
    action: Space
    last_action: bool = False
    last_reward: bool = False
    action_mask: bool = False


EVERYTHING = Dict(
    (
        ("image", Box((9, 9, 3), 0, 255, "uint8")),
        ("direction", Discrete(4)),
        ("numbers", Box((2, 2), (-1.0, 0.0, -np.inf, 2.0), (1.0, 5.0, np.inf, 4.0))),
        ("flags", MultiDiscrete((2,) * 4, (2, 2))),
        ("pair", Tuple((Discrete(2), Box((), 0, 9, "int64")))),
    )
)
CASES = {
    "dict and masked multi-discrete": Case("feedback", EVERYTHING, MultiDiscrete((3, 2, 4)), True, True, True),
    "box and box": Case("lstm", Box((3,)), Box((2, 2), -2, (3.0, 4.0, 5.0, np.inf)), True, True),
    "masked discrete": Case("staircase", Discrete(5), Discrete(4), False, True, True),
    "multi-binary": Case("transformer-xl", MultiDiscrete((2, 2)), MultiDiscrete((2,) * 4, (2, 2)), True),
    "integer box": Case("global-cached-staircase", Tuple((Box((2,), 0, 1),)), Box((3,), -4, 6, "int32")),
}
each_case = pytest.mark.parametrize("name", CASES)


@cache
def make_agent(name: str) -> Agent:
    """Return an agent with random parameters everywhere and statistics of observations and rewards."""
    case = CASES[name]
    config = config_type(case.core)
    sizes = {"width": 8, "layers": 2, "heads": 2, "memory": 4, "chunk": 3, "passes": 2}
    core = config(**{key: value for key, value in sizes.items() if key in config.__dataclass_fields__})
    torch.manual_seed(0)
    spaces: Any = {"observation_space": case.observation, "action_space": case.action}
    observed = {"last_action": case.last_action, "last_reward": case.last_reward}
    agent = Agent(AgentConfig(core=core, **spaces, **observed), "reference")
    scramble(agent)
    agent.return_variance.fill_(6.25)
    agent.return_count.fill_(100)
    agent.update_observation_statistics(random_observations(agent, 50, 1))
    return agent.eval()


def random_observations(agent: Agent, *shape: int) -> dict[str, Tensor]:
    generator = np.random.default_rng(0)
    observations = {}
    for path, leaf in agent.leaves.items():
        size = (*shape, *leaf_shape(leaf))
        if not isinstance(leaf, Box):
            values = generator.integers(0, np.reshape(leaf_nvec(leaf), leaf_shape(leaf)), size)
        else:
            values = generator.normal(size=size) if leaf.dtype == "float32" else generator.integers(0, 9, size)
            values = values.astype(leaf.dtype)
        observations[path] = torch.from_numpy(values)
    return observations


def random_inputs(agent: Agent, action_mask: bool) -> tuple[AgentInputs, Tensor]:
    """Return the inputs (B, T, ...) and where episodes start (B, T)."""
    generator = torch.Generator().manual_seed(2)
    observation, distribution = random_observations(agent, B, T), agent.action_dist
    if isinstance(distribution, Gaussian):
        last_action = torch.randn(B, T, distribution.action_size, generator=generator)
    else:
        last_action = torch.randint(0, 2, (B, T, distribution.action_size), generator=generator)
        if action_mask:
            allowed = torch.rand(B, T, distribution.head_size, generator=generator) < 0.5
            for part in allowed.split(distribution.nvec, -1):
                part[..., 0] |= ~part.any(-1)
            observation[ACTION_MASK] = allowed
    start = torch.rand(B, T, generator=generator) < 0.15
    start[:, 0] = True
    return AgentInputs(observation, last_action, 5 * torch.randn(B, T, generator=generator)), start


@cache
@torch.no_grad()
def expected(name: str) -> dict[str, Tensor]:
    """Return the outputs (B, T, ...) of a pass over whole episodes, in units of the environment."""
    agent = make_agent(name)
    inputs, start = random_inputs(agent, CASES[name].action_mask)
    output, _ = agent(inputs, agent.init_state(B), start)
    return to_environment(agent, output.policy, output.value)


def to_environment(agent: Agent, policy: Tensor, value: Tensor) -> dict[str, Tensor]:
    distribution = agent.action_dist
    modes = distribution.to_environment(distribution.mode(policy).flatten(0, 1))
    outputs = {
        "action": torch.from_numpy(modes).view(*value.shape, *distribution.shape),
        "value": value * agent.reward_scale,
    }
    if not isinstance(distribution, Gaussian):
        return outputs | {"logits": policy}
    mean = torch.tensor(distribution.center) + torch.tensor(distribution.scale) * policy
    std = (torch.tensor(distribution.scale) * distribution.std()).expand(mean.shape)
    shape = (*value.shape, *distribution.shape)
    return outputs | {"mean": mean.float().view(shape), "std": std.float().view(shape)}


def arguments(agent: Agent, inputs: AgentInputs, start: Tensor, t: int) -> dict[str, Tensor]:
    """Return the arguments of a frame as a program without stairwell has them."""
    last_action, distribution = inputs.last_action[:, t], agent.action_dist
    if isinstance(distribution, Gaussian):
        last_action = (torch.tensor(distribution.center) + torch.tensor(distribution.scale) * last_action).float()
    frame = {path: values[:, t] for path, values in inputs.observation.items()}
    frame |= {"last_action": last_action.view(-1, *distribution.shape), "last_reward": inputs.last_reward[:, t]}
    return frame | {"start": start[:, t]}


def compare(outputs: dict[str, Tensor], wanted: dict[str, Tensor], t: int) -> None:
    for name, tensor in wanted.items():
        assert outputs[name].dtype == tensor.dtype, name
        torch.testing.assert_close(outputs[name], tensor[:, t], rtol=1e-5, atol=1e-5)


class Onnx:
    """The steps of an ONNX file: everything that it needs is in the file."""

    def __init__(self, path: Path, state: dict[str, Tensor]) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.inputs = [given.name for given in self.session.get_inputs()]
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.state = {name: tensor.numpy() for name, tensor in state.items()}

    def step(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        frame = {name: tensor.numpy() for name, tensor in given.items() if name in self.inputs}
        outputs = dict(zip(self.outputs, self.session.run(None, frame | self.state)))
        self.state = {name: outputs.pop(f"{name}N") for name in self.state}
        return {name: torch.from_numpy(values) for name, values in outputs.items()}


@each_case
def test_onnxruntime_equals_pytorch(name: str, tmp_path: Path) -> None:
    agent, case = make_agent(name), CASES[name]
    step = AgentStep(agent, case.action_mask)
    names = write_onnx(step, tmp_path / "agent.onnx")
    run = Onnx(tmp_path / "agent.onnx", step.inputs(B))
    assert names == {"inputs": run.inputs, "outputs": run.outputs}
    assert set(expected(name)) == {output for output in run.outputs if not output.endswith("N")}
    inputs, start = random_inputs(agent, case.action_mask)
    for t in range(T):
        compare(run.step(arguments(agent, inputs, start, t)), expected(name), t)


@each_case
def test_torch_export_equals_pytorch(name: str, tmp_path: Path) -> None:
    agent, case = make_agent(name), CASES[name]
    step = AgentStep(agent, case.action_mask)
    names = write_program(step, tmp_path / "agent.pt2")
    extra = {"names": ""}
    program = torch.export.load(tmp_path / "agent.pt2", extra_files=extra).module()
    assert json.loads(extra["names"]) == names
    state = step.inputs(B)
    inputs, start = random_inputs(agent, case.action_mask)
    for t in range(T):
        frame = arguments(agent, inputs, start, t) | state
        outputs = dict(zip(names["outputs"], program(*(frame[name] for name in names["inputs"]))))
        state = {name: outputs.pop(f"{name}N") for name in state}
        compare(outputs, expected(name), t)


def test_only_what_the_agent_observes_is_an_input() -> None:
    assert list(AgentStep(make_agent("integer box")).arguments(1)) == ["observation.0", "start"]
    masked = AgentStep(make_agent("masked discrete"), True)
    assert list(masked.arguments(1)) == ["observation", "action_mask", "last_reward", "start"]


SHIPPED = {
    "corridor-feedback": ("stairwell/Corridor-v0", {"length": 20}, 3, 100),
    "memory-s9-feedback": ("MiniGrid-MemoryS9-v0", {}, 7, 300),
    "taxi-feedback": ("Taxi-v4", {}, 6, 250),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_agent_equals_pytorch_over_1000_steps(name: str, tmp_path: Path) -> None:
    """With the action masks of the environment, if it has any."""
    if name == "memory-s9-feedback":
        pytest.importorskip("minigrid")
    env, options, actions, least_episodes = SHIPPED[name]
    agent, task = load(name, "cpu")
    export_agent_onnx(agent, task, tmp_path / "agent.onnx")
    run = Onnx(tmp_path / "agent.onnx", AgentStep(agent, task.has_action_mask).inputs(4))
    metadata = run.session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["env"]) == env and json.loads(metadata["options"]) == options
    assert json.loads(metadata["action_space"]) == {"type": "discrete", "n": actions}
    episodes = masked = 0
    with eval_mode(agent):
        for frame in itertools.islice(iterate_transitions(agent, task.make_env(range(4), 7), 7), 1000):
            given = {**frame.inputs.observation, "start": frame.start}
            if frame.inputs.action_mask is not None:
                given["action_mask"] = mask = frame.inputs.action_mask.bool()
                masked += int((~mask).sum())
            outputs = run.step(given)
            wanted = to_environment(agent, frame.output.policy[:, None], frame.output.value[:, None])
            compare(outputs, wanted, 0)
            episodes += int(frame.start.sum())
            assert "action_mask" not in given or mask.gather(-1, outputs["action"].reshape(4, 1)).all()
    assert episodes > least_episodes and (masked > 1000) == (name == "taxi-feedback")


def test_action_mask_is_an_input_if_the_environment_gives_one(tmp_path: Path) -> None:
    env = "tests.rl.masked_environments:MaskedPair-v0"
    task = run_config(task__env=env, task__length=None).make_tasks()[0]
    assert task.has_action_mask
    agent = run_config(task__env=env, task__length=None).make_model(task)
    names = export_agent_torch(agent, task, tmp_path / "agent.pt2")
    assert names["inputs"][:2] == ["observation", "action_mask"]
    assert not run_config().make_tasks()[0].has_action_mask


def test_example_plays_with_onnxruntime(tmp_path: Path) -> None:
    agent, task = load("corridor-feedback", "cpu")
    export_agent_onnx(agent, task, tmp_path / "agent.onnx")
    command = [sys.executable, str(ROOT / "examples/onnx_agent.py"), str(tmp_path / "agent.onnx"), "3"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "".join(f"episode {i}: return 1\n" for i in (1, 2, 3)), result.stderr


def test_example_imports_your_own_environment_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "examples/recall.py").read_text())
    monkeypatch.chdir(tmp_path)
    config = run_config(task__env="mine:Recall-v0", task__length=None)
    task = config.make_tasks()[0]
    export_agent_onnx(config.make_model(task).eval(), task, tmp_path / "agent.onnx")
    command = [sys.executable, str(ROOT / "examples/onnx_agent.py"), "agent.onnx", "2"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.startswith("episode 1: return "), result.stderr


def test_agent_is_not_a_language_model() -> None:
    with pytest.raises(UserError, match="only a LanguageModel can be exported as a graph, not a Agent"):
        StepModule(make_agent("integer box"))  # type: ignore[arg-type]
