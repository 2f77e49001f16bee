"""Relative position embeddings that can extrapolate: clamped, none and random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES, Core, build
from stairwell.cores.core import TransformerCore
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import GlobalCachedStaircaseConfig
from stairwell.layers import CLAMPED, sample_position_index
from stairwell.models import LanguageModel, LanguageModelConfig
from tests import invariants

TRANSFORMERS = sorted(name for name in CORES if issubclass(CORES[name].core, TransformerCore))
SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
EXTRAPOLATING: list[dict[str, Any]] = [
    {"positions": "none"},
    {"positions": "clamped", "position_embeddings": 2},
    {"positions": "random", "position_embeddings": 30},
]


def config_of(name: str, **options: Any) -> Any:
    window = {"memory": 12} if "memory" in CORES[name].config.__dataclass_fields__ else {}
    return CORES[name].config(**SMALL, **window, **options)


def position_of(core: Core) -> Any:
    assert isinstance(core, TransformerCore)
    return core.position


@pytest.mark.parametrize("options", EXTRAPOLATING, ids=lambda options: options["positions"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_option_satisfies_the_invariants(name: str, options: dict[str, Any]) -> None:
    case = invariants.make_case(config_of(name, **options), B=2, T=7, seed=1, starts=0.2, warm=4, max_crop=2)
    invariants.split(case, [1, 4])
    invariants.start(case)
    invariants.decode(case)
    invariants.crop(case, [2, 1])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_clamped_equals_learned_with_equal_far_embeddings(name: str) -> None:
    learned = invariants.make_case(config_of(name), B=2, T=9, seed=2)
    clamped = invariants.make_case(config_of(name, positions="clamped", position_embeddings=2), B=2, T=9, seed=2)
    vectors = position_of(learned.core).vectors
    with torch.no_grad():
        vectors[2:] = vectors[1]
    clamped.core.load_state_dict({**learned.core.state_dict(), "position.vectors": vectors[:2].clone()})
    expected, _ = learned.run(learned.x, learned.core.init_state(2), learned.start)
    actual, _ = clamped.run(learned.x, clamped.core.init_state(2), learned.start)
    torch.testing.assert_close(actual, expected, **invariants.CLOSE)


def test_without_positions_the_order_of_the_memory_does_not_matter() -> None:
    case = invariants.make_case(FeedbackConfig(**SMALL, memory=6, positions="none"), B=1, T=1, warm=6, starts=0)
    memory = case.state.memory  # type: ignore[attr-defined]
    reversed_state = case.state.map(lambda tensor: tensor.flip(1) if tensor is memory else tensor)
    start = torch.zeros(1, 1, dtype=torch.bool)
    torch.testing.assert_close(
        case.run(case.x, reversed_state, start)[0], case.run(case.x, case.state, start)[0], **invariants.CLOSE
    )
    assert not any("position" in name for name, _ in case.core.named_parameters())


def sampled_index(core: Core, x: Tensor, state: Any, start: Tensor | None = None) -> Tensor:
    masks = core.train().sample_masks(x, state, None, start)
    assert masks is not None and masks.position_index is not None
    return masks.position_index


def test_random_indices_are_increasing_and_cover_the_whole_range() -> None:
    torch.manual_seed(0)
    samples = [sample_position_index(5, 40, torch.device("cpu")) for _ in range(300)]
    assert all((index.diff() > 0).all() and len(index) == 5 for index in samples)
    assert {int(i) for index in samples for i in index} == set(range(40))
    # Evaluation uses the first indices, so training must include them.
    assert sum(torch.equal(index, torch.arange(5)) for index in samples) > 10
    assert torch.equal(sample_position_index(9, 4, torch.device("cpu")), torch.arange(4))


def test_only_distances_that_occur_in_a_call_are_sampled() -> None:
    """A stream that is reset has few distances."""
    core = build(FeedbackConfig(**SMALL, memory=50, positions="random"))
    x, state = torch.randn(2, 6, 4), core.init_state(2)
    assert len(sampled_index(core, x, state)) == 5
    _, later = core(torch.randn(2, 20, 4), state)
    assert len(sampled_index(core, x, later)) == 25
    start = torch.zeros(2, 6, dtype=torch.bool)
    start[:, 2] = True
    assert len(sampled_index(core, x, state, start)) == 3
    for _ in range(3):
        _, later = core(torch.randn(2, 20, 4), later)
    assert len(sampled_index(core, x, later)) == 50


def test_short_calls_train_far_embeddings_and_evaluation_is_deterministic() -> None:
    torch.manual_seed(0)
    core = build(FeedbackConfig(**SMALL, memory=200, positions="random"))
    x = torch.randn(2, 6, 4)
    for _ in range(60):
        core(x, core.init_state(2))[0].square().sum().backward()
    reached = position_of(core).vectors.grad.abs().sum(1) > 0
    assert reached[100:].any(), "no far embedding was ever trained"
    core.eval()
    assert torch.equal(core(x, core.init_state(2))[0], core(x, core.init_state(2))[0])
    masks = core.train().sample_masks(x, core.init_state(2), None)
    once, again = (core.reference(x, core.init_state(2), None, None, masks)[0] for _ in range(2))
    assert torch.equal(once, again)


def test_number_of_embeddings() -> None:
    def count(**options: Any) -> int:
        return position_of(build(FeedbackConfig(**SMALL, memory=100, **options))).vectors.shape[0]

    assert count() == 100
    assert count(positions="clamped") == CLAMPED
    assert count(positions="clamped", position_embeddings=500) == 100
    assert count(positions="random") == 100
    assert count(positions="random", position_embeddings=500) == 500
    assert count(positions="none") == 1
    assert position_of(build(GlobalCachedStaircaseConfig(**SMALL, positions="clamped"))).vectors.shape[0] == CLAMPED


def test_wrong_options_raise() -> None:
    with pytest.raises(ValueError, match="positions must be 'learned' or 'clamped' or 'none' or 'random', not 'sinus'"):
        FeedbackConfig(positions="sinus")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="position_embeddings is only read with positions clamped or random"):
        FeedbackConfig(position_embeddings=3)
    with pytest.raises(ValueError, match="position_embeddings must be at least 1"):
        FeedbackConfig(positions="clamped", position_embeddings=0)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_fast_engines_use_the_sampled_positions(name: str) -> None:
    """With the same seed, training gives the values and gradients of the reference."""
    config = config_of(name, positions="random", position_embeddings=30)
    results = []
    for engine in ("reference", "auto"):
        torch.manual_seed(3)
        model = LanguageModel(LanguageModelConfig(core=config, inputs=5), engine).double().train()
        invariants.scramble(model)
        logits, _ = model(torch.randint(5, (2, 9)), model.init_state(2))
        results.append([logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))])
        assert (model.core.engine_name == "reference") == (engine == "reference")
    invariants.assert_close(results[1], results[0], "random positions")
