"""Who has an engine and decoding steps: the cores of the register, and what is derived from them without a change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, fast
from stairwell.cores import CORES, Entry, decoding_of, engine_of
from stairwell.cores.core import tell_once
from stairwell.cores.feedback import Feedback
from stairwell.decode import Session
from stairwell.decode.steps import CarriedSteps, FeedbackSteps
from tests import invariants

CONFIG = FeedbackConfig(width=8, heads=2, layers=2, memory=5)


class Renamed(Feedback):
    """Nothing but a name, and something of its own beside the core's modules."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.probe = nn.Linear(config.width, 2)

    def extra_repr(self) -> str:
        return "mine"


class Doubled(Feedback):
    def apply_layer(self, *given: Any) -> Tensor:
        return 2 * super().apply_layer(*given)


class Biased(Feedback):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers[0].attention.query = nn.Linear(config.width, config.heads * config.K)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Longer(FeedbackConfig):
    memory: int = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nearer(FeedbackConfig):
    @property
    def memories(self) -> int:
        return 1


LONGER = Longer(width=8, heads=2, layers=2)
NEARER = Nearer(width=8, heads=2, layers=2, memory=5)


def model_of(core: Any) -> LanguageModel:
    """A language model with this core in the place of its own."""
    model = LanguageModel(LanguageModelConfig(core=CONFIG, inputs=7)).eval()
    model.core = invariants.scramble(core)
    fast.choose_engine(model.core, "auto")
    return model


@pytest.mark.parametrize("core, config", [(Renamed, CONFIG), (Feedback, LONGER), (Renamed, LONGER)])
def test_a_subclass_that_computes_the_same_keeps_engine_and_decoding(
    core: Any, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tell_once.cache_clear()
    made = core(config)
    assert engine_of(made) is CORES["feedback"].engine and decoding_of(made) is FeedbackSteps
    assert not caplog.records
    check(made)


@pytest.mark.parametrize(
    "core, config, told",
    [(Doubled, CONFIG, "overrides apply_layer"), (Biased, CONFIG, "query.bias"), (Feedback, NEARER, "memories")],
)
def test_a_subclass_that_may_compute_something_else_loses_them_and_is_told_once(
    core: Any, config: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    tell_once.cache_clear()
    made = core(config)
    check(made)
    assert engine_of(made) is None and decoding_of(made) is None
    assert [told in record.message for record in caplog.records] == [True]


def check(core: Any) -> None:
    """Whatever runs gives the core's own results, in a call and token by token."""
    model, tokens = model_of(core), torch.randint(7, (2, 9))
    with torch.no_grad():
        found, _ = model(tokens, model.init_state(2))
        model.core.engine = None
        wanted, _ = model(tokens, model.init_state(2))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(Session(model, model.init_state(2)).follow(tokens), wanted)


def test_an_entry_of_its_own_inherits_what_it_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORES, "longer", Entry(Longer, Feedback, "Longer", "Feedback with a longer memory."))
    monkeypatch.setitem(CORES, "doubled", Entry(Nearer, Doubled, "Doubled", "Twice as much."))
    tell_once.cache_clear()
    assert engine_of(Feedback(LONGER)) is CORES["feedback"].engine
    assert engine_of(Doubled(NEARER)) is None
    assert tell_once.cache_info().currsize == 0  # it has an entry: the reference is what was asked for
    model = LanguageModel(LanguageModelConfig(core=LONGER, inputs=7))
    assert model.core.engine_name.startswith("fast")


@pytest.mark.parametrize("name", ["global-cached-staircase", "lstm", "deltanet"])
def test_what_no_entry_has_is_not_taken_from_a_relative(name: str) -> None:
    assert decoding_of(CORES[name].core(CORES[name].config(width=8))) is None


class Adapter(nn.Module):
    """As libraries of adapters wrap a linear layer: its `weight` is that of the layer below."""

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
def test_adapters_and_hooks_are_not_passed_over(change: str, caplog: pytest.LogCaptureFixture) -> None:
    """The engines and decoding sessions read parameters; a module that does more has to be called."""
    model, tokens = model_of(Feedback(CONFIG)), torch.randint(7, (2, 9))
    plain, _ = model(tokens, model.init_state(2))
    attention = model.core.layers[1].attention
    if change == "adapter":
        attention.out = Adapter(attention.out)
    else:
        attention.out.register_forward_hook(lambda module, given, out: 2 * out)
    tell_once.cache_clear()
    assert model.core.engine_name == "reference"
    with torch.no_grad():
        found, _ = model(tokens, model.init_state(2))
        session = Session(model, model.init_state(2))
        assert isinstance(session.steps, CarriedSteps)
        torch.testing.assert_close(session.follow(tokens), found)
        wanted, _ = model.core.walk(torch.randn(2, 3, 8), model.core.init_state(2))
    assert not torch.allclose(found, plain) and wanted.isfinite().all()
    assert ["layers.1.attention.out was replaced or has hooks" in r.message for r in caplog.records] == [True]
