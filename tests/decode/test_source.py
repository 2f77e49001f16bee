"""Sessions with cross-attention equal the model, and project each source once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, TransformerXLConfig
from stairwell.cores import build
from stairwell.cores.core import SourceState
from stairwell.cores.sliding_window import tokens_since_start
from stairwell.cores.staircase import CachedStaircaseConfig, GlobalCachedStaircaseConfig, StaircaseConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.decode import Session, beam_search
from tests import invariants

pytestmark = pytest.mark.quick

V = 5
SMALL: dict[str, Any] = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
CONFIGS = [
    FeedbackConfig(**SMALL, memory=3),
    FeedbackConfig(
        **SMALL, memory=3, memory_composition="recurrent", share_kv=False, attend_to_current=True, norm="post"
    ),
    TransformerXLConfig(**SMALL, memory=3),
    UniversalConfig(**SMALL, memory=3, passes=2, norm="post"),
    StaircaseConfig(**SMALL, chunk=2, passes=2),
    CachedStaircaseConfig(**SMALL, chunk=2, passes=3, compute=1, norm="post"),
    GlobalCachedStaircaseConfig(**SMALL, chunk=2, compute=1),
]
each_core = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__ + config.norm)


class Decoder(LanguageModel):
    """The smallest model with a source, whose vectors are given."""

    def __init__(self, config: Any) -> None:
        super().__init__(LanguageModelConfig(core=config, inputs=V), engine="reference")
        self.core = build(dataclasses.replace(config, cross=True))

    def hidden(self, tokens: Tensor, state: Any, start: Tensor | None = None) -> tuple[Tensor, Any]:
        x = self.embed(tokens, tokens_since_start(state.count, start, tokens.shape[1]))
        x, decoder = self.core(x, state.decoder, start, state.source, state.source_mask)
        return self.norm(x), dataclasses.replace(state, decoder=decoder)


def make_model(config: Any) -> Decoder:
    torch.manual_seed(0)
    return invariants.scramble(Decoder(config)).double().eval()  # type: ignore[return-value]


def make_state(model: Decoder, lengths: list[int], warm: int = 0, max_crop: int = 0) -> SourceState:
    """Return a state with sources of these lengths. Padding is NaN, so that reading it would be noticed."""
    B, J = len(lengths), max(lengths)
    mask = torch.arange(J) < torch.tensor(lengths)[:, None]
    source = torch.randn(B, J, 4, dtype=torch.float64).masked_fill(~mask[..., None], torch.nan)
    state = SourceState(decoder=model.core.init_state(B, max_crop), source=source, source_mask=mask)
    if not warm:
        return state
    with torch.no_grad():
        return model(torch.randint(V, (B, warm)), state, torch.rand(B, warm) < 0.3)[1]  # type: ignore[return-value]


def assert_same_state(ours: Any, theirs: Any) -> None:
    """Compare the decoders' states and the sources without padding."""
    invariants.assert_same_state(ours.decoder, theirs.decoder)
    J = min(ours.source_mask.shape[1], theirs.source_mask.shape[1])
    for state in (ours, theirs):
        assert not state.source_mask[:, J:].any()
    mask = theirs.source_mask[:, :J]
    assert torch.equal(ours.source_mask[:, :J], mask)
    assert torch.equal(ours.source[:, :J][mask], theirs.source[:, :J][mask])


@each_core
@pytest.mark.parametrize("warm", [0, 5])
def test_a_session_with_a_source_equals_teacher_forcing(config: Any, warm: int) -> None:
    model = make_model(config)
    state = make_state(model, [3, 1, 4], warm, max_crop=1)
    tokens, start = torch.randint(V, (3, 11)), torch.rand(3, 11) < 0.15
    session = Session(model, state)
    with torch.no_grad():
        logits, after = model(tokens, state, start)
    for t in range(11):
        session.reset(start[:, t])
        torch.testing.assert_close(session.step(tokens[:, t]), logits[:, t], **invariants.CLOSE)
    assert_same_state(session.state(), after)


@each_core
def test_select_join_and_reset_keep_the_source_of_each_stream(config: Any) -> None:
    """select, join, reset, read and step change a session as they change a state."""
    model = make_model(config)
    state, other = make_state(model, [3, 1], 4), make_state(model, [5, 2], 7)
    session = Session(model, state, capacity=3)

    def check() -> None:
        nonlocal state
        tokens = torch.randint(V, (state.batch, 4))
        for t in range(2):
            with torch.no_grad():
                logits, state = model(tokens[:, t : t + 1], state)
            torch.testing.assert_close(session.step(tokens[:, t]), logits[:, 0], **invariants.CLOSE)
        with torch.no_grad():
            logits, state = model(tokens[:, 2:], state)
        torch.testing.assert_close(session.read(tokens[:, 2:]), logits[:, -1], **invariants.CLOSE)
        assert_same_state(session.state(), state)

    check()
    for index in ([1, 0], [1, 1, 0, 0, 1], [4, 2], [0]):
        session.select(index)
        state = state.select(torch.tensor(index))
        check()
        session.join(other)
        state = SourceState.join([state, other])  # type: ignore[assignment]
        check()
        session.reset([state.batch - 1])
        state = state.reset([state.batch - 1])
        check()


def test_a_beam_shares_one_projection_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(CONFIGS[0])
    projected: list[int] = []
    for layer in model.core.layers:  # type: ignore[union-attr]
        layer.cross.key.register_forward_hook(lambda module, inputs, output: projected.append(inputs[0].shape[0]))
    session = Session(model, make_state(model, [3, 4]))
    assert projected == [2, 2]  # once per layer
    session.select([0, 0, 0, 1, 1, 1])
    for _ in range(4):
        session.step(torch.randint(V, (6,)))
        session.select([0, 0, 1, 5, 3, 3])
    assert projected == [2, 2]
    assert session.sources is not None
    assert all(slots.keys[0].shape[0] == 2 for slots in session.sources.slots.values())


def test_sources_without_streams_are_dropped() -> None:
    model = make_model(CONFIGS[0])
    session = Session(model, make_state(model, [3, 4]))
    assert session.sources is not None
    for _ in range(5):
        session.select([session.batch - 1])
        assert session.sources.mask.shape[0] == 1
        session.join(make_state(model, [2, 2]))
        assert session.sources.mask.shape[0] == 3


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[4]], ids=["feedback", "staircase"])
def test_scores_of_a_beam_with_a_source_equal_teacher_forcing(config: Any) -> None:
    model = make_model(config)
    state = make_state(model, [3, 1])
    results = beam_search(
        Session(model, state), torch.zeros(2, 1, dtype=torch.int64), 3, width=V**3, length_penalty=0.0
    )
    for i, hypotheses in enumerate(results):
        best = hypotheses[0]
        tokens = torch.tensor([[0, *best.tokens]])
        with torch.no_grad():
            logits, _ = model(tokens[:, :-1], state.select([i]))
        score = logits.log_softmax(-1)[0].gather(1, tokens[0, 1:, None]).sum()
        assert best.log_probability == pytest.approx(float(score))


def test_a_missing_or_unexpected_source_raises() -> None:
    model = make_model(CONFIGS[0])
    state = make_state(model, [3])
    with pytest.raises(ValueError, match="needs a source"):
        Session(model, state.decoder)
    plain = LanguageModel(LanguageModelConfig(core=CONFIGS[0], inputs=V)).double().eval()
    with pytest.raises(ValueError, match="takes no source"):
        Session(plain, state)
    with pytest.raises(ValueError, match="needs a source"):
        Session(model, state).join(state.decoder)
