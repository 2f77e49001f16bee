"""Invalid input raises an error that says what is wrong and what to do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import (
    CachedStaircaseConfig,
    FeedbackConfig,
    LanguageModel,
    LanguageModelConfig,
    StaircaseConfig,
    TransformerXLConfig,
    build,
)
from stairwell.cores import config_type
from stairwell.decode import Session, greedy
from stairwell.errors import MissingPackage, UserError, install_command, suggestion
from stairwell.tasks import task_type

pytestmark = pytest.mark.quick

SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2}


def feedback(**options: Any) -> Any:
    return build(FeedbackConfig(**SMALL, memory=3, **options))


def test_a_state_of_another_batch_size() -> None:
    core = feedback()
    with pytest.raises(ValueError, match="the state has batch size 2, the input 3"):
        core(torch.zeros(3, 1, 4), core.init_state(2))


def test_a_state_of_another_core() -> None:
    other = build(TransformerXLConfig(**SMALL, memory=3))
    with pytest.raises(TypeError, match="Feedback needs a FeedbackState, not a TransformerXLState"):
        feedback()(torch.zeros(1, 1, 4), other.init_state(1))


def test_a_state_of_another_size_of_the_same_core() -> None:
    other = build(FeedbackConfig(width=6, heads=2, layers=2, memory=3))
    with pytest.raises(
        ValueError, match=r"another model: its 'memory' is \(3, 1, 6\) per stream, this Feedback has \(3, 1, 4\)"
    ):
        feedback()(torch.zeros(1, 1, 4), other.init_state(1))
    shorter = build(FeedbackConfig(**SMALL, memory=2)).init_state(1)
    with pytest.raises(ValueError, match="another model"):
        feedback()(torch.zeros(1, 1, 4), shorter)


def test_a_staircase_state_of_other_passes() -> None:
    two, three = (build(StaircaseConfig(**SMALL, chunk=2, passes=passes)) for passes in (2, 3))
    with pytest.raises(ValueError, match="another model"):
        two(torch.zeros(1, 1, 4), three.init_state(1))
    with pytest.raises(ValueError, match="another model"):
        three(torch.zeros(1, 1, 4), two.init_state(1))


def test_a_state_of_another_type_or_device() -> None:
    core = feedback()
    with pytest.raises(
        ValueError, match=r"torch.float64 on cpu, the model's parameters are torch.float32 on cpu; use state.to"
    ):
        core(torch.zeros(1, 1, 4), core.init_state(1).to(dtype=torch.float64))
    with pytest.raises(ValueError, match="on meta"):
        core(torch.zeros(1, 1, 4), core.init_state(1).to("meta"))


def test_an_input_of_another_shape() -> None:
    core = feedback()
    for shape in ((1, 4), (1, 0, 4), (1, 2, 5)):
        with pytest.raises(ValueError, match="width 4"):
            core(torch.zeros(shape), core.init_state(1))
    with pytest.raises(ValueError, match=r"start must be bool of shape \(1, 2\)"):
        core(torch.zeros(1, 2, 4), core.init_state(1), torch.zeros(1, 2))


def test_an_unexpected_source_and_a_missing_one() -> None:
    with pytest.raises(ValueError, match="without cross=True"):
        feedback()(torch.zeros(1, 1, 4), feedback().init_state(1), source=torch.zeros(1, 2, 4))
    core = feedback(cross=True)
    with pytest.raises(ValueError, match="needs a source"):
        core(torch.zeros(1, 1, 4), core.init_state(1))
    with pytest.raises(ValueError, match="source must be"):
        core(torch.zeros(1, 1, 4), core.init_state(1), source=torch.zeros(2, 2, 4))
    with pytest.raises(ValueError, match="source_mask must be bool"):
        core(torch.zeros(1, 1, 4), core.init_state(1), source=torch.zeros(1, 2, 4), source_mask=torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("config_type", "options", "message"),
    [
        (FeedbackConfig, {"width": 10, "heads": 4}, "width 10 is not divisible by 4 heads"),
        (FeedbackConfig, {"memory": 0}, "memory must be at least 1"),
        (FeedbackConfig, {"layers": 2, "memory_composition": 3}, r"a layer from 0 \(the embedding\) to 2 \(the top\)"),
        (FeedbackConfig, {"memory_composition": "top"}, "memory_composition must be 'all'"),
        (FeedbackConfig, {"norm": "none"}, "norm must be 'pre' or 'post'"),
        (FeedbackConfig, {"attention_dropout": 1.0}, r"attention_dropout must be in \[0, 1\)"),
        (FeedbackConfig, {"span_loss": 0.1}, "only read with adaptive_span"),
        (TransformerXLConfig, {"layers": 0}, "layers must be at least 1"),
        (CachedStaircaseConfig, {"passes": 2, "compute": 3}, r"compute \(M\) must be in 0..passes \(N = 2\), not 3"),
        (StaircaseConfig, {"chunk": 0}, "chunk must be at least 1"),
        (LanguageModelConfig, {"core": FeedbackConfig(cross=True)}, "a language model has no source"),
        (LanguageModelConfig, {"inputs": 5, "outputs": 3, "tied": True}, "tied requires outputs equal to inputs"),
        (LanguageModelConfig, {"embedding_dropout": -0.1}, "embedding_dropout"),
    ],
)
def test_invalid_configs(config_type: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_type(**options)


def test_with_head_width_heads_need_not_divide_width() -> None:
    core = build(FeedbackConfig(width=10, heads=4, head_width=3, layers=1, memory=2))
    core(torch.zeros(1, 1, 10), core.init_state(1))


def test_tokens_out_of_range() -> None:
    model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(**SMALL, memory=3), inputs=5, outputs=3))
    state = model.init_state(2)
    tokens = torch.tensor([[0, 1], [4, 5]])
    with pytest.raises(ValueError, match=r"token 5 at stream 1, position 1 is out of range"):
        model(tokens, state)
    valid = tokens.clamp(max=4)
    with pytest.raises(ValueError, match=r"target 3 at stream 0, position 0 is out of range"):
        model.nll(valid, torch.full((2, 2), 3), state)
    with pytest.raises(ValueError, match="must be the same"):
        model.nll(valid, torch.zeros(2, 1, dtype=torch.int64), state)
    with pytest.raises(TypeError, match="int64"):
        model(valid.int(), state)
    with pytest.raises(ValueError, match="has no source"):
        model.init_state(2, source=torch.zeros(2, 1, 4))


def test_an_unknown_core_suggests_a_similar_one() -> None:
    with pytest.raises(ValueError, match="unknown core 'feedbak'; did you mean 'feedback'"):
        config_type("feedbak")


def test_lists_instead_of_tensors() -> None:
    model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(**SMALL, memory=3), inputs=5)).eval()
    tokens, state = torch.zeros(1, 2, dtype=torch.int64), model.init_state(1)
    wrong: Any = [[0, 1]]
    with pytest.raises(TypeError, match="tokens must be a tensor, not a list"):
        model(wrong, state)
    with pytest.raises(TypeError, match="targets must be a tensor, not a list"):
        model.nll(tokens, wrong, state)
    with pytest.raises(TypeError, match="tokens must be a tensor, not a list"):
        model.nll(wrong, tokens, state)
    for start in ([[False, True]], [False]):
        with pytest.raises(TypeError, match="start must be a tensor, not a list"):
            model(tokens, state, start)
        with pytest.raises(TypeError, match="start must be a tensor, not a list"):
            model.core(torch.zeros(1, 2, 4), state, start)
    with pytest.raises(ValueError, match=r"start must be bool of shape \(1, 2\), not torch.float32"):
        model(tokens, state, torch.zeros(1, 2))
    with pytest.raises(TypeError, match="the input must be a tensor, not a list"):
        model.core([[[0.0] * 4]], state)
    with pytest.raises(TypeError, match="tokens must be a tensor, not a list"):
        Session(model, state).step([0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a prompt must be a tensor, not a list"):
        greedy(Session(model, state), wrong, 3)
    cross = feedback(cross=True)
    with pytest.raises(TypeError, match="the source must be a tensor, not a list"):
        cross(torch.zeros(1, 1, 4), cross.init_state(1), source=[[0.0] * 4])
    with pytest.raises(TypeError, match="source_mask must be a tensor, not a list"):
        cross(torch.zeros(1, 1, 4), cross.init_state(1), source=torch.zeros(1, 1, 4), source_mask=[[True]])


def test_a_state_that_is_none() -> None:
    model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(**SMALL, memory=3), inputs=5))
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(TypeError, match="Feedback needs a FeedbackState, not a NoneType"):
        model(tokens, None)
    with pytest.raises(ValueError, match="the state has batch size 3, the input 2"):
        model(tokens, model.init_state(3))


def test_a_name_is_suggested_only_if_it_is_similar() -> None:
    names = ["random-walk", "multi-vector-rnn", "universal", "transformer-xl"]
    for name, similar in (("randomwalk", "random-walk"), ("transformer", "transformer-xl"), ("univeral", "universal")):
        assert suggestion(name, names) == f"; did you mean '{similar}'?"
    assert suggestion("univeral", names, "--core.{}") == "; did you mean --core.universal?"
    for name in ("unicorn", "walk", "", "x" * 40):
        assert suggestion(name, names) == "; there are: random-walk, multi-vector-rnn, universal, transformer-xl"


def test_unknown_names_are_user_errors() -> None:
    for look_up in (config_type, task_type):
        with pytest.raises(UserError, match=r"unknown .* 'unicorn'; there are: "):
            look_up("unicorn")


def test_installation_hints_name_packages_of_the_extras_and_never_the_package_stairwell() -> None:
    """The package `stairwell` of the public index is another project."""
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    known = {requirement for extra in extras.values() for requirement in extra}
    hints = set()
    for path in [*root.glob("stairwell/**/*.py"), *root.glob("bench/*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install ['\"]?stairwell", text), path
        hints |= set(re.findall(r"\"((?:[a-z0-9_-]+)>=[0-9.]+)\"", text)) | set(
            re.findall(r"'([a-z0-9_-]+>=[0-9.]+)'", text)
        )
    assert {"gymnasium>=1.1", "transformers>=5.18", "onnx>=1.17", "sacrebleu>=2.4", "uvicorn>=0.30"} <= hints <= known


def test_an_installation_command_quotes_versions_for_the_shell() -> None:
    assert install_command("gymnasium>=1.1", "popgym") == 'pip install "gymnasium>=1.1" popgym'
    missing = MissingPackage("X is not installed", "x>=2")
    assert isinstance(missing, UserError) and str(missing) == 'X is not installed: pip install "x>=2"'
