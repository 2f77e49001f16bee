"""Every core against its listing, an independent NumPy implementation of the papers' equations (examples/)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from examples import listings
from stairwell.cores import CORES, build
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.lstm import LSTMConfig
from stairwell.cores.staircase import (
    CachedStaircaseConfig,
    GlobalCachedStaircaseConfig,
    MemoryNetworkConfig,
    MultiVectorRNNConfig,
    StaircaseConfig,
)
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.fast import choose_engine
from tests import invariants

pytestmark = pytest.mark.quick

T, R = 9, 3  # tokens; the ramp of the span, short enough that some slots have weight 0
SHAPE: dict[str, Any] = {"width": 4, "heads": 2, "head_width": 3, "inner": 5, "layers": 2}
Listing = Callable[[listings.Weights, listings.Array], listings.Array]

norms = pytest.mark.parametrize("norm", ["pre", "post"])
spans = pytest.mark.parametrize("span", [False, True], ids=["all", "span"])
currents = pytest.mark.parametrize("attend_to_current", [False, True], ids=["past", "current"])


def assert_equals_listing(config: Any, listing: Listing) -> None:
    """Compare the reference and the fast engine with a listing, for random parameters."""
    torch.manual_seed(11)
    core = invariants.scramble(build(config)).double().eval()
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    x = torch.randn(1, T, config.width, dtype=torch.float64)
    expected = listing(w, x[0].numpy())
    for engine in ("reference", "auto"):
        choose_engine(core, engine)  # type: ignore[arg-type]
        with torch.no_grad():
            y, _ = core(x, core.init_state(1))  # type: ignore[operator]
        np.testing.assert_allclose(y[0].numpy(), expected, rtol=1e-9, atol=1e-11, err_msg=engine)


def common_options(norm: str, span: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of all transformers, for a config and for a listing."""
    return {**SHAPE, "norm": norm, "adaptive_span": span, "span_ramp": R}, {"norm": norm, "R": R}


@norms
@spans
@currents
@pytest.mark.parametrize("share_kv", [True, False], ids=["shared", "unshared"])
@pytest.mark.parametrize("memory_composition", ["all", "average", "recurrent", 0, 1, 3])
def test_feedback_equals_its_listing(
    memory_composition: Any, share_kv: bool, attend_to_current: bool, span: bool, norm: str
) -> None:
    config_options, listing_options = common_options(norm, span)
    options = {"memory_composition": memory_composition, "attend_to_current": attend_to_current}
    config = FeedbackConfig(**{**config_options, "layers": 3}, memory=3, share_kv=share_kv, **options)
    assert_equals_listing(config, lambda w, x: listings.feedback(w, x, S=3, **options, **listing_options))


@norms
@spans
@currents
@pytest.mark.parametrize("S", [1, 4, 20])
def test_transformer_xl_equals_its_listing(S: int, attend_to_current: bool, span: bool, norm: str) -> None:
    config_options, listing_options = common_options(norm, span)
    config = TransformerXLConfig(**config_options, memory=S, attend_to_current=attend_to_current)
    assert_equals_listing(config, lambda w, x: listings.transformer_xl(w, x, S, attend_to_current, **listing_options))


@norms
@spans
@currents
@pytest.mark.parametrize("N", [1, 3])
def test_universal_equals_its_listing(N: int, attend_to_current: bool, span: bool, norm: str) -> None:
    config_options, listing_options = common_options(norm, span)
    config = UniversalConfig(**config_options, memory=3, passes=N, attend_to_current=attend_to_current)
    assert_equals_listing(config, lambda w, x: listings.universal(w, x, 3, N, attend_to_current, **listing_options))


@norms
@spans
@pytest.mark.parametrize(("C", "N"), [(1, 2), (2, 1), (2, 3), (3, 2), (20, 2)])
def test_staircase_equals_its_listing(C: int, N: int, span: bool, norm: str) -> None:
    """With C = 2 the last chunk is incomplete; with C = 20 there is only one."""
    config_options, listing_options = common_options(norm, span)
    config = StaircaseConfig(**config_options, chunk=C, passes=N)
    assert_equals_listing(config, lambda w, x: listings.staircase(w, x, C, N, **listing_options))


@pytest.mark.parametrize("M", [3, 4])
def test_cached_staircase_with_many_computed_passes_equals_its_listing(M: int) -> None:
    config_options, listing_options = common_options("pre", False)
    config = CachedStaircaseConfig(**config_options, chunk=1, passes=6, compute=M)
    assert_equals_listing(config, lambda w, x: listings.cached_staircase(w, x, 1, 6, M, **listing_options))


@norms
@spans
@pytest.mark.parametrize("M", [0, 1, 2, 3])
@pytest.mark.parametrize("C", [1, 2])
def test_cached_staircase_equals_its_listing(C: int, M: int, span: bool, norm: str) -> None:
    config_options, listing_options = common_options(norm, span)
    config = CachedStaircaseConfig(**config_options, chunk=C, passes=3, compute=M)
    assert_equals_listing(config, lambda w, x: listings.cached_staircase(w, x, C, 3, M, **listing_options))


@norms
@spans
@pytest.mark.parametrize("M", [0, 1, 2])
@pytest.mark.parametrize("distances", [4, 20])
def test_global_cached_staircase_equals_its_listing(distances: int, M: int, span: bool, norm: str) -> None:
    """With four learned distances most slots share the last embedding."""
    config_options, listing_options = common_options(norm, span)
    config = GlobalCachedStaircaseConfig(**config_options, chunk=2, compute=M, distances=distances)
    assert_equals_listing(config, lambda w, x: listings.cached_staircase(w, x, 2, None, M, **listing_options))


@norms
def test_multi_vector_rnn_and_memory_network_equal_their_listings(norm: str) -> None:
    """Section 3.3: both are Staircases with one token per chunk."""
    rnn = MultiVectorRNNConfig(**SHAPE, norm=norm)  # type: ignore[arg-type]
    assert_equals_listing(rnn, lambda w, x: listings.staircase(w, x, C=1, N=2, norm=norm))
    network = MemoryNetworkConfig(**SHAPE, norm=norm, passes=5)  # type: ignore[arg-type]
    assert_equals_listing(network, lambda w, x: listings.cached_staircase(w, x, C=1, N=5, M=0, norm=norm))


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_equals_its_listing(layers: int) -> None:
    assert_equals_listing(LSTMConfig(width=4, layers=layers), listings.lstm)


@norms
def test_the_listings_of_staircase_and_cached_staircase_agree(norm: str) -> None:
    """They are independent: equation 3 by diagonals, and chunk by chunk."""
    torch.manual_seed(11)
    core = invariants.scramble(build(StaircaseConfig(**SHAPE, norm=norm, chunk=2, passes=3))).double()  # type: ignore[arg-type]
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(T, 4))
    by_diagonals = listings.staircase(w, x, 2, 3, norm=norm)
    np.testing.assert_allclose(listings.cached_staircase(w, x, 2, 3, 3, norm=norm), by_diagonals, rtol=1e-10)


def test_every_core_has_a_listing() -> None:
    names = {"multi-vector-rnn": "staircase", "memory-network": "cached-staircase"}
    names["global-cached-staircase"] = "cached-staircase"
    for name in CORES:
        assert callable(getattr(listings, names.get(name, name).replace("-", "_")))
