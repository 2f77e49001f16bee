"""Which cores and subclasses have an engine and decoding steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, fast
from stairwell.cores import CORES, CoreEntry, engine_of, step_of
from stairwell.cores.core import warn_once
from stairwell.cores.feedback import Feedback
from stairwell.decode import Session
from stairwell.decode.interpreters import ReferenceInterpreter, RingInterpreter
from tests import invariants

CONFIG = FeedbackConfig(width=8, heads=2, layers=2, memory=5)


class Renamed(Feedback):
    """A subclass that adds a module but computes the same."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.probe = nn.Linear(config.width, 2)

    def extra_repr(self) -> str:
        return "mine"


class Doubled(Feedback):
    def apply_layer(self, *inputs: Any) -> Tensor:
        return 2 * super().apply_layer(*inputs)


class Biased(Feedback):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers[0].attention.query = nn.Linear(config.width, config.heads * config.K)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Longer(FeedbackConfig):
    memory: int = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleMemory(FeedbackConfig):
    @property
    def memories(self) -> int:
        return 1


LONGER = Longer(width=8, heads=2, layers=2)
SINGLE_MEMORY = SingleMemory(width=8, heads=2, layers=2, memory=5)


def model_of(core: Any) -> LanguageModel:
    """Return a language model with this core."""
    model = LanguageModel(LanguageModelConfig(core=CONFIG, inputs=7)).eval()
    model.core = invariants.scramble(core)
    fast.choose_engine(model.core, "auto")
    return model


@pytest.mark.parametrize("core, config", [(Renamed, CONFIG), (Feedback, LONGER), (Renamed, LONGER)])
def test_a_subclass_that_computes_the_same_keeps_engine_and_decoding(
    core: Any, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    instance = core(config)
    assert engine_of(instance) is CORES["feedback"].engine and step_of(instance) is not None
    assert not caplog.records
    check(instance)


@pytest.mark.parametrize(
    "core, config, reason",
    [(Doubled, CONFIG, "overrides apply_layer"), (Biased, CONFIG, "query.bias"), (Feedback, SINGLE_MEMORY, "memories")],
)
def test_a_subclass_that_may_compute_something_else_has_none_and_warns_once(
    core: Any, config: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    instance = core(config)
    check(instance)
    assert engine_of(instance) is None and step_of(instance) is None
    assert [reason in record.message for record in caplog.records] == [True]


def check(core: Any) -> None:
    """Compare the engine and a decoding session with the reference."""
    model, tokens = model_of(core), torch.randint(7, (2, 9))
    with torch.no_grad():
        actual, _ = model(tokens, model.init_state(2))
        model.core.engine = None
        expected, _ = model(tokens, model.init_state(2))
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(Session(model, model.init_state(2)).logits_each(tokens), expected)


def test_an_entry_inherits_missing_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORES, "longer", CoreEntry(Longer, Feedback, "Longer", "Feedback with a longer memory."))
    monkeypatch.setitem(CORES, "doubled", CoreEntry(SingleMemory, Doubled, "Doubled", "Twice as much."))
    warn_once.cache_clear()
    assert engine_of(Feedback(LONGER)) is CORES["feedback"].engine
    assert engine_of(Doubled(SINGLE_MEMORY)) is None and step_of(Doubled(SINGLE_MEMORY)) is None
    assert warn_once.cache_info().currsize == 0  # no warning: it has its own entry
    model = LanguageModel(LanguageModelConfig(core=LONGER, inputs=7))
    assert model.core.engine_name.startswith("fast")


@pytest.mark.parametrize("name", sorted(CORES))
def test_every_attention_core_describes_its_step(name: str) -> None:
    model = LanguageModel(LanguageModelConfig(core=CORES[name].config(width=8), inputs=7)).eval()
    assert (step_of(model.core) is None) == (name in ("lstm", "deltanet"))
    # The memory of Global Cached Staircase has no limit, so it has no rings.
    has_rings = name not in ("lstm", "deltanet", "global-cached-staircase")
    assert isinstance(Session(model, model.init_state(1)).interpreter, RingInterpreter) == has_rings


class Adapter(nn.Module):
    """Wraps a linear layer as adapter libraries do; its `weight` is that of the wrapped layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 1), nn.Linear(1, base.out_features)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("change", ["adapter", "hook"])
def test_adapters_and_hooks_are_applied(change: str, caplog: pytest.LogCaptureFixture) -> None:
    """Engines and decoding sessions read parameters instead of calling modules, so they must not run here."""
    model, tokens = model_of(Feedback(CONFIG)), torch.randint(7, (2, 9))
    plain, _ = model(tokens, model.init_state(2))
    attention = model.core.layers[1].attention
    if change == "adapter":
        attention.out = Adapter(attention.out)
    else:
        attention.out.register_forward_hook(lambda module, inputs, output: 2 * output)
    warn_once.cache_clear()
    assert model.core.engine_name == "reference"
    with torch.no_grad():
        logits, _ = model(tokens, model.init_state(2))
        session = Session(model, model.init_state(2))
        assert isinstance(session.interpreter, ReferenceInterpreter)
        torch.testing.assert_close(session.logits_each(tokens), logits)
        y, _ = model.core.reference(torch.randn(2, 3, 8), model.core.init_state(2))
    assert not torch.allclose(logits, plain) and y.isfinite().all()
    assert ["layers.1.attention.out was replaced or has hooks" in r.message for r in caplog.records] == [True]
