"""Distances that can extrapolate: which vector each one has, what is drawn in training, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES, Core, build
from stairwell.cores.core import TransformerCore
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import GlobalCachedStaircaseConfig
from stairwell.layers import CLAMPED, draw_vectors
from stairwell.models import LanguageModel, LanguageModelConfig
from tests import invariants

TRANSFORMERS = sorted(name for name in CORES if issubclass(CORES[name].core, TransformerCore))
SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
EXTRAPOLATING: list[dict[str, Any]] = [
    {"positions": "none"},
    {"positions": "clamped", "position_vectors": 2},
    {"positions": "random", "position_vectors": 30},
]


def config_of(name: str, **options: Any) -> Any:
    window = {"memory": 12} if "memory" in CORES[name].config.__dataclass_fields__ else {}
    return CORES[name].config(**SMALL, **window, **options)


def position_of(core: Core) -> Any:
    assert isinstance(core, TransformerCore)
    return core.position


@pytest.mark.parametrize("options", EXTRAPOLATING, ids=lambda options: options["positions"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_kind_keeps_the_laws_of_streams(name: str, options: dict[str, Any]) -> None:
    case = invariants.make_case(config_of(name, **options), B=2, T=7, seed=1, starts=0.2, warm=4, max_crop=2)
    invariants.split(case, [1, 4])
    invariants.start(case)
    invariants.decode(case)
    invariants.crop(case, [2, 1])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_clamped_is_learned_with_equal_far_vectors(name: str) -> None:
    learned = invariants.make_case(config_of(name), B=2, T=9, seed=2)
    clamped = invariants.make_case(config_of(name, positions="clamped", position_vectors=2), B=2, T=9, seed=2)
    vectors = position_of(learned.core).vectors
    with torch.no_grad():
        vectors[2:] = vectors[1]
    clamped.core.load_state_dict({**learned.core.state_dict(), "position.vectors": vectors[:2].clone()})
    expected, _ = learned.run(learned.x, learned.core.init_state(2), learned.start)
    found, _ = clamped.run(learned.x, clamped.core.init_state(2), learned.start)
    torch.testing.assert_close(found, expected, **invariants.CLOSE)


def test_without_positions_the_order_of_the_memory_does_not_matter() -> None:
    case = invariants.make_case(FeedbackConfig(**SMALL, memory=6, positions="none"), B=1, T=1, warm=6, starts=0)
    memory = case.state.memory  # type: ignore[attr-defined]
    turned = case.state.map(lambda tensor: tensor.flip(1) if tensor is memory else tensor)
    start = torch.zeros(1, 1, dtype=torch.bool)
    torch.testing.assert_close(
        case.run(case.x, turned, start)[0], case.run(case.x, case.state, start)[0], **invariants.CLOSE
    )
    assert not any("position" in name for name, _ in case.core.named_parameters())


def training_vectors(core: Core, x: Tensor, state: Any, start: Tensor | None = None) -> Tensor:
    masks = core.train().draw(x, state, None, start)
    assert masks is not None and masks.vectors is not None
    return masks.vectors


def test_random_vectors_are_in_order_and_reach_the_whole_range() -> None:
    torch.manual_seed(0)
    drawn = [draw_vectors(5, 40, torch.device("cpu")) for _ in range(300)]
    assert all((vectors.diff() > 0).all() and len(vectors) == 5 for vectors in drawn)
    assert {int(vector) for vectors in drawn for vector in vectors} == set(range(40))
    # Evaluation has dense ones: training must not be without them.
    assert sum(torch.equal(vectors, torch.arange(5)) for vectors in drawn) > 10
    assert torch.equal(draw_vectors(9, 4, torch.device("cpu")), torch.arange(4))


def test_only_the_distances_of_a_call_are_spread() -> None:
    """Few distances can lie far apart; a row that begins anew has few."""
    core = build(FeedbackConfig(**SMALL, memory=50, positions="random"))
    x, state = torch.randn(2, 6, 4), core.init_state(2)
    assert len(training_vectors(core, x, state)) == 5
    _, later = core(torch.randn(2, 20, 4), state)
    assert len(training_vectors(core, x, later)) == 25
    start = torch.zeros(2, 6, dtype=torch.bool)
    start[:, 2] = True
    assert len(training_vectors(core, x, state, start)) == 3
    for _ in range(3):
        _, later = core(torch.randn(2, 20, 4), later)
    assert len(training_vectors(core, x, later)) == 50


def test_training_on_short_calls_reaches_far_vectors_and_evaluation_is_not_random() -> None:
    torch.manual_seed(0)
    core = build(FeedbackConfig(**SMALL, memory=200, positions="random"))
    x = torch.randn(2, 6, 4)
    for _ in range(60):
        core(x, core.init_state(2))[0].square().sum().backward()
    reached = position_of(core).vectors.grad.abs().sum(1) > 0
    assert reached[100:].any(), "no far vector was ever trained"
    core.eval()
    assert torch.equal(core(x, core.init_state(2))[0], core(x, core.init_state(2))[0])
    masks = core.train().draw(x, core.init_state(2), None)
    once, again = (core.walk(x, core.init_state(2), None, None, masks)[0] for _ in range(2))
    assert torch.equal(once, again)


def test_how_many_vectors_there_are() -> None:
    def count(**options: Any) -> int:
        return position_of(build(FeedbackConfig(**SMALL, memory=100, **options))).vectors.shape[0]

    assert count() == 100
    assert count(positions="clamped") == CLAMPED
    assert count(positions="clamped", position_vectors=500) == 100
    assert count(positions="random") == 100
    assert count(positions="random", position_vectors=500) == 500
    assert count(positions="none") == 1
    assert position_of(build(GlobalCachedStaircaseConfig(**SMALL, positions="clamped"))).vectors.shape[0] == CLAMPED


def test_wrong_options_are_refused_in_a_line() -> None:
    with pytest.raises(ValueError, match="positions must be 'learned' or 'clamped' or 'none' or 'random', not 'sinus'"):
        FeedbackConfig(positions="sinus")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="position_vectors is only read with positions clamped or random"):
        FeedbackConfig(position_vectors=3)
    with pytest.raises(ValueError, match="position_vectors must be at least 1"):
        FeedbackConfig(positions="clamped", position_vectors=0)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_fast_engines_take_the_vectors_that_were_drawn(name: str) -> None:
    """In training with the same seed, values and gradients of the reference."""
    config = config_of(name, positions="random", position_vectors=30)
    found = []
    for engine in ("reference", "auto"):
        torch.manual_seed(3)
        model = LanguageModel(LanguageModelConfig(core=config, inputs=5), engine).double().train()
        invariants.scramble(model)
        logits, _ = model(torch.randint(5, (2, 9)), model.init_state(2))
        found.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
        assert (model.core.engine_name == "reference") == (engine == "reference")
    invariants.assert_close(found[1], found[0], "random positions")
