"""NaN is never hidden: an engine returns NaN wherever the reference does, for NaN in any parameter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.fast import native, staircase, transformer_xl
from stairwell.fast.feedback import FeedbackEngine
from stairwell.fast.feedback_torch import TorchBackend
from tests import invariants

pytestmark = pytest.mark.quick

SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "inner": 9}
NATIVE = [] if native.UNAVAILABLE_REASON else list(range(native.BEST_INSTRUCTION_SET + 1))
ENGINES = {
    "Feedback in PyTorch": (FeedbackConfig(**SHAPE, memory=4), FeedbackEngine(TorchBackend(), 1)),
    "Feedback, post-norm": (FeedbackConfig(**SHAPE, memory=4, norm="post"), FeedbackEngine(TorchBackend(), 1)),
    "Transformer-XL": (TransformerXLConfig(**SHAPE, memory=4), transformer_xl.TransformerXLEngine()),
    "Staircase": (StaircaseConfig(**SHAPE, chunk=2, passes=2), staircase.StaircaseEngine()),
    "Cached Staircase": (CachedStaircaseConfig(**SHAPE, chunk=2, passes=3), staircase.StaircaseEngine()),
    **{
        f"Feedback with {native.INSTRUCTION_SETS[i]}, {norm}-norm": (
            FeedbackConfig(**SHAPE, memory=4, norm=norm),  # type: ignore[arg-type]
            FeedbackEngine(native.NativeBackend(i), 1),
        )
        for i in NATIVE
        for norm in ("pre", "post")
    },
}


@pytest.mark.parametrize("dropout", [False, True], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("name", ENGINES)
def test_nan_in_a_parameter_appears_wherever_it_does_in_the_reference(name: str, dropout: bool) -> None:
    config, engine = ENGINES[name]
    case = invariants.make_case(config, B=3, T=6, starts=0.0, warm=0)
    masks = invariants.sample_masks(case, 0.3, 0.3, 0.0) if dropout else None
    for parameter_name, parameter in case.core.named_parameters():
        parameter.requires_grad_(False)
        original = parameter.flatten()[0].item()
        parameter.view(-1)[0] = torch.nan
        expected, _ = case.core.reference(case.x, case.state, None, None, masks)
        actual, _ = engine(case.core, case.x, case.state, None, None, masks)  # type: ignore[operator]
        assert expected.isnan().any(), parameter_name
        assert actual[expected.isnan()].isnan().all(), parameter_name
        parameter.view(-1)[0] = original


@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("name", sorted(ENGINES))
def test_nan_in_source_padding_changes_nothing(name: str, engine: str) -> None:
    config = dataclasses.replace(ENGINES[name][0], cross=True)
    case = invariants.make_case(config, B=3, T=6)
    case.core.engine = ENGINES[name][1] if engine == "fast" else None  # type: ignore[assignment]
    y, after = case.run(case.x, case.state, case.start)
    case.source["source"][~case.source["source_mask"]] = torch.nan
    again, end = case.run(case.x, case.state, case.start)
    assert torch.equal(again, y)
    invariants.assert_same_state(end, after, exact=True)
