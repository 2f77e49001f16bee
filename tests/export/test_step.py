"""The exported step: onnxruntime and torch.export give the logits of PyTorch for every core."""

from __future__ import annotations

import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from stairwell import configs
from stairwell.cores import CORES, config_type
from stairwell.errors import UserError
from stairwell.export import StepModule, export_onnx, export_torch
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.text import Characters
from tests.invariants import scramble

ROOT = Path(__file__).parents[2]
V, TOKENS = 5, 14
SIZES: dict[str, Any] = {"width": 6, "heads": 2, "inner": 5, "layers": 1, "memory": 4, "chunk": 3, "passes": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "feedback": {"layers": 2, "adaptive_span": True, "span_ramp": 2},
    "cached-staircase": {"passes": 3, "compute": 2},
    "deltanet": {"products": 2, "gated": True},
    "memory-network": {"passes": 5},
    "global-cached-staircase": {"distances": 6},
    "transformer-xl": {"positions": "clamped", "position_embeddings": 2},
    "staircase": {"positions": "none"},
    "universal": {"positions": "random", "position_embeddings": 9},
}


def make_model(name: str) -> LanguageModel:
    config = config_type(name)
    sizes = {**SIZES, **OPTIONS.get(name, {})}
    core = config(**{key: value for key, value in sizes.items() if key in configs.field_types(config)})
    torch.manual_seed(0)
    return scramble(LanguageModel(LanguageModelConfig(core=core, inputs=V), "reference")).eval()  # type: ignore


@cache
def exported(name: str, folder: Path) -> Path:
    export_onnx(make_model(name), folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


def streams(batch: int) -> Tensor:
    return torch.randint(V, (batch, TOKENS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def expected(model: LanguageModel, tokens: Tensor) -> Tensor:
    return model(tokens, model.init_state(len(tokens)))[0]


@pytest.mark.parametrize("name", sorted(CORES))
def test_onnxruntime_gives_the_logits_of_pytorch(name: str, folder: Path) -> None:
    model, session = make_model(name), onnxruntime.InferenceSession(exported(name, folder))
    step = StepModule(model)
    outputs = [output.name for output in session.get_outputs()]
    assert [value.name for value in session.get_inputs()] == ["token", *step.names]
    assert outputs == ["logits", *(f"{name}N" for name in step.names)]
    for batch in (1, 3):
        tokens = streams(batch)
        states = {key: tensor.numpy() for key, tensor in step.inputs(batch).items()}
        for t in range(TOKENS):
            logits, *after = session.run(None, {"token": tokens[:, t].numpy(), **states})
            states = dict(zip(step.names, after))
            torch.testing.assert_close(torch.from_numpy(logits), expected(model, tokens)[:, t], rtol=0, atol=1e-5)
        assert (states["count"] == TOKENS).all()


@pytest.mark.parametrize("name", sorted(CORES))
def test_streams_at_different_positions_are_independent(name: str) -> None:
    """In PyTorch: one stream is two tokens ahead of the other."""
    model, tokens = make_model(name), streams(2)
    step = StepModule(model)
    with torch.no_grad():
        _, ahead = model(tokens[:1, :2], model.init_state(1))
        state = type(ahead).join([ahead, model.init_state(1)])
        states = {name: tensor for name, tensor in state.tensors() if name in step.names}
        shifted = torch.stack([tokens[0, 2:], tokens[1, : TOKENS - 2]])
        for t in range(TOKENS - 2):
            logits, *after = step(shifted[:, t], *states.values())
            states = dict(zip(step.names, after))
            logits_alone = [expected(model, tokens)[0, t + 2], expected(model, tokens)[1, t]]
            torch.testing.assert_close(logits, torch.stack(logits_alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(CORES))
def test_torch_export_gives_the_logits_of_pytorch(name: str, tmp_path: Path) -> None:
    model, tokens = make_model(name), streams(2)
    export_torch(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    states = list(StepModule(model).inputs(2).values())
    for t in range(TOKENS):
        logits, *states = program(tokens[:, t], *states)
        torch.testing.assert_close(logits, expected(model, tokens)[:, t], rtol=0, atol=1e-5)


def test_unsupported_models_are_rejected(tmp_path: Path) -> None:
    adaptive = LanguageModel(LanguageModelConfig(core=config_type("lstm")(width=8), inputs=9, adaptive=(4,)))
    with pytest.raises(UserError, match="adaptive embeddings"):
        export_onnx(adaptive, tmp_path / "model.onnx")
    with pytest.raises(UserError, match="not a Linear"):
        export_onnx(torch.nn.Linear(2, 2), tmp_path / "model.onnx")  # type: ignore[arg-type]
    assert not (tmp_path / "model.onnx").exists()


def test_example_streams_with_onnxruntime_alone(folder: Path, tmp_path: Path) -> None:
    vocabulary = Characters.build(["abcde"])
    export_onnx(make_model("global-cached-staircase"), tmp_path / "model.onnx", vocabulary)
    example = ROOT / "examples/onnx_streaming.py"
    # Without torch.
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", code, str(example), str(tmp_path / "model.onnx"), "abba", "30"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) == 31 and set(result.stdout) <= set("abcde\n")
    stream = runpy.run_path(str(example))["Stream"](str(exported("feedback", folder)))
    tokens = streams(1)
    logits = np.stack([stream.feed(int(token)) for token in tokens[0]])
    torch.testing.assert_close(torch.from_numpy(logits), expected(make_model("feedback"), tokens)[0], rtol=0, atol=1e-5)
