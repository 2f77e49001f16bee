"""Weight quantization: every path computes the same rounded function, and the change is small."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, LSTMConfig, TransformerXLConfig
from stairwell.cores.staircase import CachedStaircaseConfig
from stairwell.decode import Session
from stairwell.decode.program import program_of
from stairwell.decode.weights import rounded, stored, use_weights
from stairwell.errors import UserError
from stairwell.fast import native
from tests.decode.test_interpreters import interpreter, needs_native

pytestmark = pytest.mark.quick
__all__ = ["interpreter"]

V = 9
SIZES: dict[str, Any] = {"width": 36, "heads": 2, "layers": 2, "inner": 70}
CONFIGS = [
    FeedbackConfig(**SIZES, memory=5),
    TransformerXLConfig(**SIZES, memory=5, norm="post"),
    CachedStaircaseConfig(**SIZES, chunk=3, passes=3, compute=1),
]
each_storage = pytest.mark.parametrize("weights", ["bfloat16", "int8"])


def make(config: Any, tied: bool = False) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=config, inputs=V, tied=tied), engine="reference").eval()


@each_storage
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_sessions_equal_the_rounded_model(
    config: Any, tied: bool, weights: Literal["bfloat16", "int8"], interpreter: str
) -> None:
    model, tokens = make(config, tied), torch.randint(V, (3, 12))
    with torch.no_grad():
        exact, _ = model(tokens, model.init_state(3))
        use_weights(model, weights)
        expected, _ = model(tokens, model.init_state(3))
    session = Session(model, model.init_state(3))
    session.read(tokens[:, :4])
    steps = torch.stack([session.step(tokens[:, t]) for t in range(4, 12)], 1)
    torch.testing.assert_close(steps, expected[:, 4:], rtol=1e-4, atol=1e-4)
    change = (expected - exact).abs().max() / exact.abs().max()
    assert 0 < change < 0.05


@needs_native
@each_storage
def test_native_code_stores_fewer_bits(weights: Literal["bfloat16", "int8"]) -> None:
    model = make(CONFIGS[0])
    before = native_bytes(model)
    use_weights(model, weights)
    assert native_bytes(model) < before / {"bfloat16": 1.6, "int8": 2.5}[weights]


def native_bytes(model: LanguageModel) -> int:
    program = program_of(model).native
    assert program is not None
    return sum(tensor.nbytes for tensor in program.tensors if tensor is not None)


@each_storage
def test_rounding_twice_changes_nothing(weights: Literal["bfloat16", "int8"]) -> None:
    matrix = torch.randn(50, 33)
    matrix[3] = 0
    once = rounded(matrix, weights)
    torch.testing.assert_close(rounded(once, weights), once, rtol=1e-6, atol=0)
    if weights == "int8":
        values, scale = stored(matrix, weights)
        assert scale is not None and values.dtype == torch.int8 and values.abs().max() == 127
        assert bool(((once - matrix).abs() <= scale[:, None] * 0.501).all())


def test_unsupported_models_are_rejected() -> None:
    with pytest.raises(UserError, match="requires a transformer core, not LSTM"):
        use_weights(make(LSTMConfig(width=8)), "int8")
    with pytest.raises(UserError, match="requires parameters in float32"):
        use_weights(make(CONFIGS[0]).double(), "int8")
    model = make(CONFIGS[0])
    use_weights(model, "float32")
    use_weights(model, "int8")
    with pytest.raises(UserError, match="already rounded to int8"):
        use_weights(model, "bfloat16")
    with pytest.raises(UserError, match="choose from float32, bfloat16, int8"):
        use_weights(model, "int4")  # type: ignore[arg-type]


def test_a_parallel_segment_uses_the_rounded_parameters() -> None:
    model = make(TransformerXLConfig(**SIZES, memory=5))
    use_weights(model, "int8")
    tokens = torch.randint(V, (2, 6))
    with torch.no_grad():
        expected, _ = model(tokens, model.init_state(2))
    session = Session(model, model.init_state(2, max_crop=6))
    torch.testing.assert_close(session.logits_each(tokens), expected, rtol=1e-4, atol=1e-4)
    assert native.UNAVAILABLE_REASON or program_of(model).native is not None
