"""Weight quantization: every path computes the same rounded function, and the change is small."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, LSTMConfig, TransformerXLConfig
from stairwell.cores.staircase import CachedStaircaseConfig
from stairwell.decode import Session
from stairwell.decode.program import cached_program
from stairwell.decode.weights import quantize, quantize_matrix, rounded, set_cache_type
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
        quantize(model, weights)
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
    quantize(model, weights)
    assert native_bytes(model) < before / {"bfloat16": 1.6, "int8": 2.5}[weights]


def native_bytes(model: LanguageModel) -> int:
    program = cached_program(model).native
    assert program is not None
    return sum(tensor.nbytes for tensor in program.tensors if tensor is not None)


@each_storage
def test_rounding_twice_changes_nothing(weights: Literal["bfloat16", "int8"]) -> None:
    matrix = torch.randn(50, 33)
    matrix[3] = 0
    once = rounded(matrix, weights)
    torch.testing.assert_close(rounded(once, weights), once, rtol=1e-6, atol=0)
    if weights == "int8":
        values, scale = quantize_matrix(matrix, weights)
        assert scale is not None and values.dtype == torch.int8 and values.abs().max() == 127
        assert bool(((once - matrix).abs() <= scale[:, None] * 0.501).all())


def test_unsupported_models_are_rejected() -> None:
    with pytest.raises(UserError, match="requires a transformer core, not LSTM"):
        quantize(make(LSTMConfig(width=8)), "int8")
    with pytest.raises(UserError, match="requires parameters in float32"):
        quantize(make(CONFIGS[0]).double(), "int8")
    model = make(CONFIGS[0])
    quantize(model, "float32")
    quantize(model, "int8")
    with pytest.raises(UserError, match="already rounded to int8"):
        quantize(model, "bfloat16")
    with pytest.raises(UserError, match="choose from float32, bfloat16, int8"):
        quantize(model, "int4")  # type: ignore[arg-type]


def test_a_parallel_segment_uses_the_rounded_parameters() -> None:
    model = make(TransformerXLConfig(**SIZES, memory=5))
    quantize(model, "int8")
    tokens = torch.randint(V, (2, 6))
    with torch.no_grad():
        expected, _ = model(tokens, model.init_state(2))
    session = Session(model, model.init_state(2, max_crop=6))
    torch.testing.assert_close(session.logits_each(tokens), expected, rtol=1e-4, atol=1e-4)
    assert native.UNAVAILABLE_REASON or cached_program(model).native is not None


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_a_cache_in_bfloat16_changes_little(config: Any, interpreter: str) -> None:
    model, tokens = make(config), torch.randint(V, (3, 30))
    with torch.no_grad():
        expected, state = model(tokens, model.init_state(3))
    set_cache_type(model, "bfloat16")
    session = Session(model, model.init_state(3))
    steps = torch.stack([session.step(tokens[:, t]) for t in range(30)], 1)
    change = (steps - expected).abs().max() / expected.abs().max()
    assert 0 < change < 0.03
    assert session.interpreter.rings[0].keys.all.dtype == torch.bfloat16  # type: ignore[attr-defined]
    # The state stores the memory itself, in the dtype of the model.
    assert all(a.dtype == b.dtype for (_, a), (_, b) in zip(session.state().tensors(), state.tensors(), strict=True))


def test_every_interpreter_rounds_the_cache_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FeedbackConfig(width=40, heads=2, layers=1, inner=70, memory=21)
    tokens, results = torch.randint(V, (2, 30)), []
    for name in (None, *native.INSTRUCTION_SETS[: native.BEST_INSTRUCTION_SET + 1]):
        with monkeypatch.context() as context:
            if name is None:
                context.setattr(native, "UNAVAILABLE_REASON", "test")
            else:
                context.setattr(native, "BEST_INSTRUCTION_SET", native.INSTRUCTION_SETS.index(name))
            model = make(config)
            set_cache_type(model, "bfloat16")
            session = Session(model, model.init_state(2))
            for t in range(30):
                logits = session.step(tokens[:, t])
            results.append((session.interpreter.rings[0].keys.all.float(), logits))  # type: ignore[attr-defined]
    (keys, logits), *others = results
    for other_keys, other_logits in others:
        # A value close to the middle of two numbers may be rounded to either.
        assert ((other_keys - keys).abs() <= 0.01 * keys.abs()).all()
        assert (other_keys != keys).float().mean() < 0.02
        torch.testing.assert_close(other_logits, logits, rtol=0.01, atol=0.01)


def test_an_unsupported_cache_is_rejected() -> None:
    with pytest.raises(UserError, match="requires a transformer core, not LSTM"):
        set_cache_type(make(LSTMConfig(width=8)), "bfloat16")
    with pytest.raises(UserError, match="requires parameters in float32"):
        set_cache_type(make(CONFIGS[0]).double(), "bfloat16")
    with pytest.raises(UserError, match="choose from float32, bfloat16"):
        set_cache_type(make(CONFIGS[0]), "int8")  # type: ignore[arg-type]
