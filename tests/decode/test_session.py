"""A session reads several tokens at once, and takes tokens back, as the model and its states do."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell import CORES, FeedbackConfig, LanguageModel, LSTMConfig, TransformerXLConfig
from stairwell.cores.staircase import CachedStaircaseConfig
from stairwell.decode import Session
from tests import invariants
from tests.cores.test_invariants import configs
from tests.decode.test_decode import V, make_model, warm_state

SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
SPANS = {"memory": 9, "adaptive_span": True, "span_ramp": 2}


def go_back_and_forth(model: LanguageModel, warm: int, max_crop: int, moves: list[tuple[int, int]], seed: int) -> None:
    """Read so many tokens, take so many back, and so on; compare with the model all along, whose states never went
    wrong ways."""
    torch.manual_seed(seed)
    state = warm_state(model, 2, warm, max_crop)
    session = Session(model, state)
    for tokens, back in moves:
        read = torch.randint(V, (2, tokens))
        with torch.no_grad():
            logits, after = model(read, state)
        torch.testing.assert_close(session.follow(read), logits, **invariants.CLOSE)
        back = min(back, int(after.croppable.min()))
        session.crop(back)
        state = after.crop(back) if back else after
        invariants.assert_same_state(session.state(), state)
        step = torch.randint(V, (2,))
        with torch.no_grad():
            logits, state = model(step[:, None], state)
        torch.testing.assert_close(session.step(step), logits[:, 0], **invariants.CLOSE)


@pytest.mark.parametrize("core", sorted(CORES))
def test_tokens_read_at_once_and_taken_back_are_as_in_the_model(core: str) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(
        config=configs(core),
        warm=st.integers(0, 9),
        max_crop=st.integers(0, 5),
        moves=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), min_size=1, max_size=5),
        seed=st.integers(0, 99),
    )
    def law(config: Any, warm: int, max_crop: int, moves: list[tuple[int, int]], seed: int) -> None:
        torch.manual_seed(seed)
        if "cross" in CORES[core].config.__dataclass_fields__:
            config = dataclasses.replace(config, cross=False)
        go_back_and_forth(make_model(config), warm, 0 if core in ("lstm", "deltanet") else max_crop, moves, seed)

    law()


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("kind", [FeedbackConfig, TransformerXLConfig])
def test_learned_spans_and_rings_that_turn_many_times(kind: Any, itself: bool) -> None:
    torch.manual_seed(0)
    model = make_model(kind(**SMALL, **SPANS, attend_to_current=itself))
    go_back_and_forth(model, 0, 4, [(4, 3), (3, 0), (5, 4), (2, 1)] * 8, 0)


def test_parameters_are_read_once_for_all_tokens_of_a_call() -> None:
    """That is what makes a draft worth its while: the products of a call do not grow in number with its tokens."""
    torch.manual_seed(0)
    model = make_model(TransformerXLConfig(**SMALL, memory=6))
    calls = []
    for tokens in (2, 5):
        session = Session(model, model.init_state(1, max_crop=6))
        with torch.profiler.profile() as profile:
            session.follow(torch.zeros(1, tokens, dtype=torch.int64))
        names = {"aten::mm", "aten::addmm"}
        calls.append(sum(event.count for event in profile.key_averages() if event.key in names))
    assert calls[0] == calls[1]


def test_what_cannot_be_taken_back_is_told() -> None:
    session = Session(
        make_model(FeedbackConfig(**SMALL)), make_model(FeedbackConfig(**SMALL)).init_state(1, max_crop=2)
    )
    session.follow(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="cannot crop 3 tokens of row 0: it can take back 2"):
        session.crop(3)
    with pytest.raises(ValueError, match="0 or more tokens back"):
        session.crop(-1)
    with pytest.raises(ValueError, match=r"tokens must be \(1 rows, tokens\)"):
        session.follow(torch.tensor([1, 2]))
    for config in (LSTMConfig(width=4), CachedStaircaseConfig(**SMALL, chunk=2, passes=2)):
        model = make_model(config)
        session = Session(model, model.init_state(1))
        session.follow(torch.tensor([[1, 2, 3]]))
        with pytest.raises(ValueError, match="take"):
            session.crop(1)


@pytest.mark.parametrize("core", sorted(CORES))
def test_autocast_changes_nothing_in_a_session(core: str) -> None:
    """Its buffers have the parameters' type, and a training in 16 bits decodes while it validates."""
    config = CORES[core].config(**({"width": 8} if core in ("lstm", "deltanet") else SMALL))
    model, tokens = make_model(config).float(), torch.randint(V, (2, 9))
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            session = Session(model=model, state=model.init_state(2))
            found.append([session.read(tokens[:, :4]), session.step(tokens[:, 4]), session.follow(tokens[:, 5:])])
        model.core.check_state(session.state(), 2)
    torch.testing.assert_close(*found, rtol=0, atol=0)
