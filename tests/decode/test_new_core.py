"""A new attention core gets decoding and exports from its step description, without further code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import LanguageModel
from stairwell.cores import CORES, CoreEntry, step_of
from stairwell.cores.step import Application, Read
from stairwell.decode import Session
from stairwell.decode.interpreters import RingInterpreter
from stairwell.export import StepModule
from stairwell.export.pack import pack_language_model
from tests import invariants
from tests.decode.test_session import check_crops, check_steps, make_model, warm_state
from tests.export import test_engine
from tests.export.test_engine import EXPORT, run_node

pytestmark = pytest.mark.quick

V = 5
OPTIONS: list[dict[str, Any]] = [{}, {"norm": "post"}, {"adaptive_span": True, "span_ramp": 2, "memory": 11}]


@pytest.fixture(scope="module")
def core() -> Iterator[Any]:
    """Register the core of the example."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import attention_core

    CORES["top-down"] = CoreEntry(attention_core.TopDownConfig, attention_core.TopDown, "Top-down", "See the example.")
    yield attention_core.TopDownConfig
    del CORES["top-down"]
    sys.path.pop(0)
    sys.modules.pop("attention_core")


def make(core: Any, options: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(0)
    return make_model(core(**{"width": 6, "heads": 2, "layers": 3, "inner": 5, "memory": 4, **options}))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_invariants_hold(core: Any, options: dict[str, Any]) -> None:
    config = make(core, options).core.config
    case = invariants.make_case(config, B=3, T=7, seed=1, max_crop=2, starts=0.2)
    invariants.split(case, cuts=[1, 4])
    invariants.start(case)
    invariants.crop(case, tokens=[0, 2, 1])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_session_equals_teacher_forcing(core: Any, options: dict[str, Any]) -> None:
    model = make(core, options)
    state = warm_state(model, 3, 4, max_crop=3)
    assert isinstance(Session(model, state).interpreter, RingInterpreter)
    check_steps(model, state, torch.randint(V, (3, 30)), torch.rand(3, 30) < 0.1, state_every=10)
    check_crops(model, 0, 3, [(4, 3), (3, 0), (5, 2), (2, 1)] * 3, 0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_exported_step_gives_the_logits_of_the_model(core: Any, options: dict[str, Any]) -> None:
    model, tokens = make(core, options), torch.randint(V, (2, 14))
    step = StepModule(model)
    assert step.description is not None
    states = list(step.inputs(2).values())
    with torch.no_grad():
        expected, _ = model(tokens, model.init_state(2))
        for t in range(14):
            logits, *states = step(tokens[:, t], *states)
            torch.testing.assert_close(logits, expected[:, t])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_engine_js_gives_the_logits_of_the_model(core: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model, tokens = make(core, options).float(), torch.randint(V, (1, 14))
    packed = pack_language_model(model)
    stream = {"tokens": tokens[0].tolist(), "start": [False] * 14}
    case = {"header": packed.header, "block": packed.block, **stream}
    (tmp_path / "cases.json").write_text(json.dumps([case]))
    (result,) = run_node(
        Path(test_engine.__file__).with_name("engine_cases.js"), EXPORT / "engine.js", tmp_path / "cases.json"
    )
    logits = torch.tensor([step["logits"] for step in result["steps"]], dtype=torch.float64)
    with torch.no_grad():
        expected, _ = model.double()(tokens, model.init_state(1))
    torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-10)


def test_a_description_that_does_not_fit_raises(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(core, {})
    description = step_of(model.core)
    assert description is not None
    description.check(3)
    with pytest.raises(ValueError, match="a layer or a buffer that does not exist"):
        description.check(2)
    object.__setattr__(description, "applications", (Application(0, (Read(6, 1, 4),)),))
    with pytest.raises(ValueError, match="a layer or a buffer that does not exist"):
        description.check(3)
