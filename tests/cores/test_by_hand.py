"""Every core against its listing: separate straight-line code from the papers' equations, in NumPy (examples/)."""

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

T, R = 9, 3  # tokens; the span's ramp, so short that some slots fade, some are out of sight
SHAPE: dict[str, Any] = {"width": 4, "heads": 2, "head_width": 3, "inner": 5, "layers": 2}
Listing = Callable[[listings.Weights, listings.Array], listings.Array]

norms = pytest.mark.parametrize("norm", ["pre", "post"])
spans = pytest.mark.parametrize("span", [False, True], ids=["all", "span"])
itself = pytest.mark.parametrize("attend_to_current", [False, True], ids=["past", "itself"])


def assert_as_listed(config: Any, listing: Listing) -> None:
    """Outputs of the reference and of the fast engine, for scrambled weights, are the listing's."""
    torch.manual_seed(11)
    core = invariants.scramble(build(config)).double().eval()
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    x = torch.randn(1, T, config.width, dtype=torch.float64)
    wanted = listing(w, x[0].numpy())
    for engine in ("reference", "auto"):
        choose_engine(core, engine)  # type: ignore[arg-type]
        with torch.no_grad():
            y, _ = core(x, core.init_state(1))  # type: ignore[operator]
        np.testing.assert_allclose(y[0].numpy(), wanted, rtol=1e-9, atol=1e-11, err_msg=engine)


def shared(norm: str, span: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that all transformers have, for a config and for a listing."""
    return {**SHAPE, "norm": norm, "adaptive_span": span, "span_ramp": R}, {"norm": norm, "R": R}


@norms
@spans
@itself
@pytest.mark.parametrize("share_kv", [True, False], ids=["shared", "unshared"])
@pytest.mark.parametrize("memory_composition", ["all", "average", "recurrent", 0, 1, 3])
def test_feedback_by_hand(
    memory_composition: Any, share_kv: bool, attend_to_current: bool, span: bool, norm: str
) -> None:
    ours, theirs = shared(norm, span)
    options = {"memory_composition": memory_composition, "attend_to_current": attend_to_current}
    config = FeedbackConfig(**{**ours, "layers": 3}, memory=3, share_kv=share_kv, **options)
    assert_as_listed(config, lambda w, x: listings.feedback(w, x, S=3, **options, **theirs))


@norms
@spans
@itself
@pytest.mark.parametrize("S", [1, 4, 20])
def test_transformer_xl_by_hand(S: int, attend_to_current: bool, span: bool, norm: str) -> None:
    ours, theirs = shared(norm, span)
    config = TransformerXLConfig(**ours, memory=S, attend_to_current=attend_to_current)
    assert_as_listed(config, lambda w, x: listings.transformer_xl(w, x, S, attend_to_current, **theirs))


@norms
@spans
@itself
@pytest.mark.parametrize("N", [1, 3])
def test_universal_by_hand(N: int, attend_to_current: bool, span: bool, norm: str) -> None:
    ours, theirs = shared(norm, span)
    config = UniversalConfig(**ours, memory=3, passes=N, attend_to_current=attend_to_current)
    assert_as_listed(config, lambda w, x: listings.universal(w, x, 3, N, attend_to_current, **theirs))


@norms
@spans
@pytest.mark.parametrize(("C", "N"), [(1, 2), (2, 1), (2, 3), (3, 2), (20, 2)])
def test_staircase_by_hand(C: int, N: int, span: bool, norm: str) -> None:
    """The last chunk is short for a chunk of 2; a chunk of 20 never ends."""
    ours, theirs = shared(norm, span)
    config = StaircaseConfig(**ours, chunk=C, passes=N)
    assert_as_listed(config, lambda w, x: listings.staircase(w, x, C, N, **theirs))


@pytest.mark.parametrize("M", [3, 4])
def test_a_cached_staircase_of_many_computed_passes_by_hand(M: int) -> None:
    ours, theirs = shared("pre", False)
    config = CachedStaircaseConfig(**ours, chunk=1, passes=6, compute=M)
    assert_as_listed(config, lambda w, x: listings.cached_staircase(w, x, 1, 6, M, **theirs))


@norms
@spans
@pytest.mark.parametrize("M", [0, 1, 2, 3])
@pytest.mark.parametrize("C", [1, 2])
def test_cached_staircase_by_hand(C: int, M: int, span: bool, norm: str) -> None:
    ours, theirs = shared(norm, span)
    config = CachedStaircaseConfig(**ours, chunk=C, passes=3, compute=M)
    assert_as_listed(config, lambda w, x: listings.cached_staircase(w, x, C, 3, M, **theirs))


@norms
@spans
@pytest.mark.parametrize("M", [0, 1, 2])
@pytest.mark.parametrize("distances", [4, 20])
def test_global_cached_staircase_by_hand(distances: int, M: int, span: bool, norm: str) -> None:
    """With four learned distances most of the past shares the last."""
    ours, theirs = shared(norm, span)
    config = GlobalCachedStaircaseConfig(**ours, chunk=2, compute=M, distances=distances)
    assert_as_listed(config, lambda w, x: listings.cached_staircase(w, x, 2, None, M, **theirs))


@norms
def test_multi_vector_rnn_and_memory_network_by_hand(norm: str) -> None:
    """Section 3.3: they are staircases of single tokens."""
    rnn = MultiVectorRNNConfig(**SHAPE, norm=norm)  # type: ignore[arg-type]
    assert_as_listed(rnn, lambda w, x: listings.staircase(w, x, C=1, N=2, norm=norm))
    network = MemoryNetworkConfig(**SHAPE, norm=norm, passes=5)  # type: ignore[arg-type]
    assert_as_listed(network, lambda w, x: listings.cached_staircase(w, x, C=1, N=5, M=0, norm=norm))


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_by_hand(layers: int) -> None:
    assert_as_listed(LSTMConfig(width=4, layers=layers), listings.lstm)


@norms
def test_a_staircase_is_a_cached_one_that_computes_every_pass(norm: str) -> None:
    """The two listings are separate code: equation 3 by diagonals, and chunk by chunk."""
    torch.manual_seed(11)
    core = invariants.scramble(build(StaircaseConfig(**SHAPE, norm=norm, chunk=2, passes=3))).double()  # type: ignore[arg-type]
    w = {name: tensor.numpy() for name, tensor in core.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(T, 4))
    by_diagonals = listings.staircase(w, x, 2, 3, norm=norm)
    np.testing.assert_allclose(listings.cached_staircase(w, x, 2, 3, 3, norm=norm), by_diagonals, rtol=1e-10)


def test_every_core_has_a_listing() -> None:
    listed = {"multi-vector-rnn": "staircase", "memory-network": "cached-staircase"}
    listed["global-cached-staircase"] = "cached-staircase"
    for name in CORES:
        assert callable(getattr(listings, listed.get(name, name).replace("-", "_")))
