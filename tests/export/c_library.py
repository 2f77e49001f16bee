"""Compile exported C files and call them from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stairwell.export.c import export_c
from stairwell.rl.agent import Agent, AgentInputs, AgentOutput

FLAGS = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
COMPILERS = [compiler for compiler in ("gcc", "clang", "cc") if shutil.which(compiler)]


def compile_c(compiler: str, *arguments: str | Path, flags: tuple[str, ...] = FLAGS) -> None:
    result = subprocess.run([compiler, *flags, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


class CLibrary:
    """A model exported as C and compiled to a shared library."""

    def __init__(self, model: Any, folder: Path, task: Any = None, weights: Any = "float32") -> None:
        self.model = model
        self.c_model = export_c(model, folder / "model.c", task, weights=weights)
        compile_c(COMPILERS[0], "-O1", "-shared", "-fPIC", folder / "model.c", "-o", folder / "model.so", "-lm")
        self.functions = ctypes.CDLL(str(folder / "model.so"))

    def new_state(self) -> Any:
        """Return the initial state of a stream, in memory that was not zero."""
        state = ctypes.create_string_buffer(b"\xff" * self.c_model.state_bytes, self.c_model.state_bytes)
        self.functions.model_init(state)
        return state


class TokenLibrary(CLibrary):
    def step(self, state: Any, token: int) -> tuple[int, Tensor]:
        """Return the predicted output and the logits (V,)."""
        logits = np.full(self.model.config.V, np.nan, np.float32)
        output = self.functions.model_step(state, token, logits.ctypes.data_as(ctypes.c_void_p))
        return output, torch.from_numpy(logits)

    def run(self, tokens: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs (T,) and logits (T, V) of a stream (T,), which is restarted where start is true."""
        state, steps = self.new_state(), []
        for t, token in enumerate(tokens.tolist()):
            if start is not None and start[t]:
                self.functions.model_init(state)
            steps.append(self.step(state, token))
        return torch.tensor([output for output, _ in steps]), torch.stack([logits for _, logits in steps])


class AgentLibrary(CLibrary):
    """An agent with the fields of its observation in the order of its leaves."""

    model: Agent

    def step(self, state: Any, inputs: AgentInputs) -> tuple[int, list[int], AgentOutput]:
        """Return the result of the C function, the action and the output for inputs (1, 1, ...)."""
        config, logits = self.model.config, self.model.action_dist.head_size
        fields = [inputs.observation[path] for path in self.model.leaves]
        fields += [inputs.last_action] * config.last_action + [inputs.last_reward] * config.last_reward
        numbers = [value.numpy().ravel() for value in fields]
        content = b"".join(n.astype(np.int32 if n.dtype == np.int64 else np.float32).tobytes() for n in numbers)
        content += b"\xff" * (-len(content) % 8)  # padding before the pointer
        mask = None
        if inputs.action_mask is not None:
            mask = ctypes.create_string_buffer(inputs.action_mask.numpy().astype(np.uint8).tobytes(), logits)
        content += (0 if mask is None else ctypes.addressof(mask)).to_bytes(8, "little")
        actions = self.model.action_dist.action_size
        output = np.zeros(actions + logits + 1, np.float32)
        result = self.functions.model_step(state, content, output.ctypes.data_as(ctypes.c_void_p))
        policy = torch.from_numpy(output[actions:-1])
        return result, output[:actions].view(np.int32).tolist(), AgentOutput(policy, torch.tensor(output[-1]))
