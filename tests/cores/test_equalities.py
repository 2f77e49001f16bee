"""Configurations that must be equal with the same parameters, among them the papers' special cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import Core, build
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircaseConfig,
    MemoryNetworkConfig,
    MultiVectorRNNConfig,
    StaircaseConfig,
)
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from tests import invariants

pytestmark = pytest.mark.quick

SHAPE: dict[str, Any] = {"width": 6, "heads": 2, "head_width": 4, "inner": 9, "layers": 2}
norms = pytest.mark.parametrize("norm", ["pre", "post"])


def with_same_parameters(one: Any, other: Any) -> tuple[Core, Core]:
    """Return two cores with the same parameters under the same names."""
    torch.manual_seed(3)
    first = invariants.scramble(build(one)).double()
    second = build(other).double()
    missing = second.load_state_dict(first.state_dict(), strict=False)
    assert not [name for name in missing.missing_keys if "mix" not in name], missing
    return first, second  # type: ignore[return-value]


def outputs(core: Core, T: int = 13, start: Tensor | None = None) -> Tensor:
    torch.manual_seed(5)
    x = torch.randn(2, T, core.width, dtype=torch.float64)
    first, state = core(x[:, :4], core.init_state(2), None if start is None else start[:, :4])
    second, _ = core(x[:, 4:], state, None if start is None else start[:, 4:])
    return torch.cat([first, second], 1)


def assert_equal(one: Core, other: Core, T: int = 13) -> None:
    torch.manual_seed(4)
    for start in (None, torch.rand(2, T) < 0.2):
        torch.testing.assert_close(outputs(one, T, start), outputs(other, T, start), **invariants.CLOSE)


@norms
@pytest.mark.parametrize("passes", [2, 5])
def test_cached_staircase_of_single_tokens_equals_feedback_of_the_top_layer(norm: str, passes: int) -> None:
    cached = CachedStaircaseConfig(**SHAPE, norm=norm, chunk=1, compute=1, passes=passes)
    feedback = FeedbackConfig(
        **SHAPE, norm=norm, memory_composition=2, share_kv=False, memory=passes - 1, attend_to_current=True
    )
    assert_equal(*with_same_parameters(cached, feedback))


@norms
def test_memory_network_equals_feedback_of_the_embedding(norm: str) -> None:
    network = MemoryNetworkConfig(**SHAPE, norm=norm, passes=5)
    assert (network.chunk, network.compute) == (1, 0)
    feedback = FeedbackConfig(
        **SHAPE, norm=norm, memory_composition=0, share_kv=False, memory=4, attend_to_current=True
    )
    assert_equal(*with_same_parameters(network, feedback))


@norms
def test_one_pass_over_one_large_chunk_equals_transformer_xl(norm: str) -> None:
    staircase = StaircaseConfig(**SHAPE, norm=norm, passes=1, chunk=13)
    assert_equal(
        *with_same_parameters(staircase, TransformerXLConfig(**SHAPE, norm=norm, memory=12, attend_to_current=True))
    )


@norms
@pytest.mark.parametrize(("passes", "chunk"), [(1, 3), (2, 1), (3, 2), (4, 5)])
def test_caching_after_the_last_pass_equals_staircase(norm: str, passes: int, chunk: int) -> None:
    cached = CachedStaircaseConfig(**SHAPE, norm=norm, passes=passes, compute=passes, chunk=chunk)
    assert_equal(*with_same_parameters(cached, StaircaseConfig(**SHAPE, norm=norm, passes=passes, chunk=chunk)))


@norms
@pytest.mark.parametrize("compute", [0, 1, 2])
def test_a_cache_longer_than_the_stream_equals_a_global_cache(norm: str, compute: int) -> None:
    cached = CachedStaircaseConfig(**SHAPE, norm=norm, passes=9, chunk=2, compute=compute)
    global_cached = GlobalCachedStaircaseConfig(**SHAPE, norm=norm, chunk=2, compute=compute, distances=18)
    assert_equal(*with_same_parameters(cached, global_cached))


def test_multi_vector_rnn_equals_two_passes_of_single_tokens() -> None:
    assert_equal(*with_same_parameters(MultiVectorRNNConfig(**SHAPE), StaircaseConfig(**SHAPE, chunk=1, passes=2)))


@norms
def test_average_equals_all_layers_with_equal_weights(norm: str) -> None:
    options = {**SHAPE, "norm": norm, "memory": 3}
    learned, average = with_same_parameters(
        FeedbackConfig(**options, memory_composition="all"), FeedbackConfig(**options, memory_composition="average")
    )
    torch.nn.init.constant_(learned.mix.weights, 0.7)  # type: ignore[union-attr, arg-type]
    assert_equal(learned, average)


def test_all_layers_can_select_a_single_one() -> None:
    options = {**SHAPE, "memory": 3}
    learned, single = with_same_parameters(
        FeedbackConfig(**options, memory_composition="all"), FeedbackConfig(**options, memory_composition=1)
    )
    with torch.no_grad():
        learned.mix.weights.copy_(torch.tensor([[0.0, 800.0, 0.0]]))  # type: ignore[union-attr, operator]
    assert_equal(learned, single)


@norms
@pytest.mark.parametrize("memory_composition", ["all", "recurrent"])
@pytest.mark.parametrize("attend_to_current", [False, True])
def test_shared_projections_equal_identical_projections(
    norm: str, memory_composition: Any, attend_to_current: bool
) -> None:
    options = {
        **SHAPE,
        "norm": norm,
        "memory": 3,
        "memory_composition": memory_composition,
        "attend_to_current": attend_to_current,
    }
    torch.manual_seed(3)
    shared = invariants.scramble(build(FeedbackConfig(**options, share_kv=True))).double()
    unshared = build(FeedbackConfig(**options, share_kv=False)).double()
    parameters = dict(shared.state_dict())
    for name in ("attention_norm.weight", "attention_norm.bias", "attention.key.weight", "attention.value.weight"):
        parameters[f"layers.1.{name}"] = parameters[f"layers.0.{name}"]
    shared.load_state_dict(parameters, strict=False)
    unshared.load_state_dict(parameters)
    assert_equal(shared, unshared)  # type: ignore[arg-type]


def test_universal_with_one_pass_equals_transformer_xl() -> None:
    options = {**SHAPE, "memory": 4, "attend_to_current": True}
    assert_equal(*with_same_parameters(UniversalConfig(**options, passes=1), TransformerXLConfig(**options)))


def test_universal_equals_a_deeper_transformer_xl_with_repeated_parameters() -> None:
    options = {**SHAPE, "layers": 1, "memory": 4, "attend_to_current": True}
    universal, deep = (
        build(UniversalConfig(**options, passes=3)),
        build(TransformerXLConfig(**{**options, "layers": 3})),
    )
    torch.manual_seed(3)
    invariants.scramble(universal).double()
    deep.double().load_state_dict(
        {name: weight for name, weight in universal.state_dict().items() if not name.startswith("layers")}
        | {
            name.replace("layers.0", f"layers.{l}"): weight
            for l in range(3)
            for name, weight in universal.state_dict().items()
            if name.startswith("layers.0")
        }
    )
    assert_equal(universal, deep)
