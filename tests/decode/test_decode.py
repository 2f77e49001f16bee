"""Decoding: a session is the model read token by token, and searches find what they promise."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig, LSTMConfig, TransformerXLConfig
from stairwell.cores import CORES
from stairwell.cores.delta import DeltaNetConfig
from stairwell.cores.staircase import CachedStaircaseConfig, StaircaseConfig
from stairwell.cores.universal import UniversalConfig
from stairwell.decode import Hypothesis, Session, beam, greedy, sample
from stairwell.fast import products
from stairwell.state import State
from tests import invariants
from tests.cores.test_invariants import configs

V = 5
EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)
SMALL = {"width": 4, "heads": 2, "layers": 2, "inner": 5}
RINGS = [
    *(
        FeedbackConfig(
            **SMALL,
            memory=3,
            memory_composition=memory_composition,
            share_kv=share_kv,
            norm=norm,
            attend_to_current=itself,
        )
        for memory_composition, norm in itertools.product(["all", "average", "recurrent", 0, 2], ["pre", "post"])
        for share_kv, itself in itertools.product([True, False], repeat=2)
    ),
    *(
        kind(**SMALL, memory=3, norm=norm, attend_to_current=itself)
        for kind in (TransformerXLConfig, UniversalConfig)
        for norm, itself in itertools.product(["pre", "post"], [True, False])
    ),
    *(
        CachedStaircaseConfig(**SMALL, chunk=chunk, passes=passes, compute=compute, norm=norm)
        for chunk, norm in ((1, "pre"), (3, "post"))
        for passes in range(1, 4)
        for compute in range(passes + 1)
    ),
    CachedStaircaseConfig(**SMALL, chunk=3, passes=4, compute=2, adaptive_span=True, span_ramp=2),
    FeedbackConfig(**SMALL, memory=11, adaptive_span=True, span_ramp=2),
    TransformerXLConfig(**SMALL, memory=11, adaptive_span=True, span_ramp=2, attend_to_current=True),
]
FEW = [
    FeedbackConfig(**SMALL, memory=3),
    FeedbackConfig(**SMALL, memory=3, memory_composition="recurrent", share_kv=False, attend_to_current=True),
    TransformerXLConfig(**SMALL, memory=3),
    StaircaseConfig(**SMALL, chunk=2, passes=2),
    CachedStaircaseConfig(**SMALL, chunk=2, passes=3, compute=1),
    LSTMConfig(width=4),
    DeltaNetConfig(width=4, heads=2, products=2),
]


def make_model(core: Any, **options: Any) -> LanguageModel:
    model = LanguageModel(LanguageModelConfig(core=core, inputs=V, **options), engine="reference")
    return invariants.scramble(model).double().eval()  # type: ignore[return-value]


def name(config: Any) -> str:
    shown = (
        "memory_composition",
        "share_kv",
        "chunk",
        "passes",
        "compute",
        "norm",
        "attend_to_current",
        "adaptive_span",
    )
    values = [str(getattr(config, field)) for field in shown if hasattr(config, field)]
    return "-".join([type(config).__name__.removesuffix("Config"), *values])


def warm_state(model: LanguageModel, B: int, T: int, max_crop: int = 0) -> State:
    """A state whose rows have different ages."""
    state = model.init_state(B, max_crop=max_crop)
    if not T:
        return state
    with torch.no_grad():
        return model(torch.randint(V, (B, T)), state, torch.rand(B, T) < 0.3)[1]


def follow(model: LanguageModel, state: State, tokens: Tensor, start: Tensor, every: int) -> None:
    """Step a session through tokens (B, T), begin anew where start says, and compare with the model all along."""
    session = Session(model, state)
    with torch.no_grad():
        logits, after = model(tokens, state, start)
    for t in range(tokens.shape[1]):
        session.reset(start[:, t])
        torch.testing.assert_close(session.step(tokens[:, t]), logits[:, t], **invariants.CLOSE)
        if (t + 1) % every == 0:
            with torch.no_grad():
                _, so_far = model(tokens[:, : t + 1], state, start[:, : t + 1])
            invariants.assert_same_state(session.state(), so_far)
    invariants.assert_same_state(session.state(), after)


@pytest.mark.parametrize("core", sorted(CORES))
def test_a_session_equals_teacher_forcing_and_gives_back_its_state(core: str) -> None:
    @EXAMPLES
    @given(
        config=configs(core),
        B=st.integers(1, 3),
        T=st.sampled_from([1, 4, 11]),
        warm=st.sampled_from([0, 1, 4, 9]),
        max_crop=st.sampled_from([0, 2]),
        starts=st.sampled_from([0.0, 0.15, 0.5]),
        seed=st.integers(0, 2**20),
    )
    def law(config: Any, B: int, T: int, warm: int, max_crop: int, starts: float, seed: int) -> None:
        torch.manual_seed(seed)
        if "cross" in CORES[core].config.__dataclass_fields__:
            config = dataclasses.replace(config, cross=False)
        model = make_model(config)
        state = warm_state(model, B, warm, 0 if core in ("lstm", "deltanet") else max_crop)
        follow(model, state, torch.randint(V, (B, T)), torch.rand(B, T) < starts, every=7)

    law()


@pytest.mark.parametrize("config", RINGS, ids=name)
def test_every_kind_of_ring_goes_round_several_times(config: Any) -> None:
    torch.manual_seed(0)
    model = make_model(config)
    start = torch.zeros(3, 24, dtype=torch.bool)
    start[1, 17] = start[2, 5] = start[2, 6] = True
    follow(model, warm_state(model, 3, 2, max_crop=2), torch.randint(V, (3, 24)), start, every=9)


@pytest.mark.parametrize("options", [{"tied": True}, {"adaptive": (2,)}], ids=str)
def test_every_kind_of_head_can_be_decoded(options: Any) -> None:
    torch.manual_seed(0)
    model = make_model(FEW[0], **options)
    follow(model, model.init_state(2), torch.randint(V, (2, 9)), torch.zeros(2, 9, dtype=torch.bool), every=9)


@pytest.mark.parametrize("config", FEW, ids=name)
def test_reading_many_tokens_equals_stepping_through_them(config: Any) -> None:
    torch.manual_seed(1)
    model = make_model(config)
    tokens = torch.randint(V, (2, 8))
    stepped, read = (Session(model, model.init_state(2)) for _ in range(2))
    stepped.step(tokens[:, 0])
    read.step(tokens[:, 0])
    logits = read.read(tokens[:, 1:])
    for t in range(1, 8):
        last = stepped.step(tokens[:, t])
    torch.testing.assert_close(logits, last, **invariants.CLOSE)
    invariants.assert_same_state(read.state(), stepped.state())


@pytest.mark.parametrize("config", FEW, ids=name)
def test_rows_come_and_go_as_in_a_state(config: Any) -> None:
    """Any sequence of select, join, reset and step does to a session what it does to a state."""
    torch.manual_seed(2)
    model = make_model(config)
    state = warm_state(model, 2, 4)
    guest = warm_state(model, 1, 7)
    session = Session(model, state, capacity=3)

    def step() -> None:
        nonlocal state
        tokens = torch.randint(V, (state.batch,))
        with torch.no_grad():
            logits, state = model(tokens[:, None], state)
        torch.testing.assert_close(session.step(tokens), logits[:, 0], **invariants.CLOSE)

    def check() -> None:
        step()
        invariants.assert_same_state(session.state(), state)
        step()

    step()
    for rows in ([1, 0], [1, 1, 0, 0, 1], [4, 2], [False, True, True], [0]):
        session.select(rows)
        state = state.select(torch.tensor(rows))
        check()
        session.join(guest)
        state = type(state).join([state, guest])
        check()
        session.reset([state.batch - 1])
        state = state.reset([state.batch - 1])
        check()
    session.select([])
    with pytest.raises(ValueError, match="every row has left"):
        session.step(torch.zeros(0, dtype=torch.int64))
    session.join(Session(model, guest))
    state = guest
    check()


@pytest.mark.parametrize("kind", [FeedbackConfig, TransformerXLConfig])
@pytest.mark.parametrize("options", [{}, {"attend_to_current": True}, {"adaptive_span": True, "span_ramp": 2}], ids=str)
def test_a_ring_grows_with_what_is_in_it_and_no_further(kind: Any, options: Any) -> None:
    """Through all its lengths and round twice, while rows change places as in a beam and others come in."""
    torch.manual_seed(12)
    model = make_model(kind(**SMALL, memory=40, **options))
    state = warm_state(model, 2, 3, max_crop=2)
    session, fresh = Session(model, state), Session(model, warm_state(model, 2, 0, max_crop=2))
    lengths: list[int] = []
    for t in range(100):
        rows = torch.randint(state.batch, (4,))
        session.select(rows)
        state = state.select(rows)
        if t == 30:
            guest = warm_state(model, 1, 35, max_crop=2)
            session.join(guest)
            state = type(state).join([state, guest])
        tokens = torch.randint(V, (state.batch,))
        with torch.no_grad():
            logits, state = model(tokens[:, None], state)
        torch.testing.assert_close(session.step(tokens), logits[:, 0], **invariants.CLOSE)
        if t % 20 == 19:
            invariants.assert_same_state(session.state(), state)
        lengths.append(session.steps.position.R)  # type: ignore[attr-defined]
    most = session.steps.R  # type: ignore[attr-defined]
    assert lengths == sorted(lengths) and 4 * lengths[0] < 2 * most and lengths[-1] == most

    def buffers(of: Session) -> int:
        return sum(rows.all[0].numel() for rows in of.steps.parts())  # type: ignore[attr-defined]

    assert 2 * buffers(fresh) < buffers(session)


@pytest.mark.parametrize("config", [*FEW[:5], FeedbackConfig(**SMALL, memory=40)], ids=name)
def test_a_row_that_takes_everything_back_has_read_nothing(config: Any) -> None:
    model = make_model(config)
    state = model.init_state(2, max_crop=2)
    session = Session(model, state)
    session.step(torch.tensor([1, 2]))
    session.step(torch.tensor([3, 4]))
    session.crop(2)
    tokens = torch.tensor([[0, 3], [2, 2]])
    with torch.no_grad():
        logits, after = model(tokens, state)
    for t in range(2):
        torch.testing.assert_close(session.step(tokens[:, t]), logits[:, t], **invariants.CLOSE)
    invariants.assert_same_state(session.state(), after)


@pytest.mark.parametrize("config", FEW, ids=name)
def test_a_state_handed_in_or_out_is_never_touched(config: Any) -> None:
    torch.manual_seed(3)
    model = make_model(config)
    given_state = warm_state(model, 2, 5)
    session = Session(model, given_state)
    session.step(torch.tensor([1, 2]))
    middle = session.state()
    kept = [[tensor.clone() for _, tensor in state.tensors()] for state in (given_state, middle)]
    session.step(torch.tensor([3, 4]))
    session.reset([0])
    session.select([1, 1])
    for state, before in zip((given_state, middle), kept, strict=True):
        assert all(torch.equal(a, b) for (_, a), b in zip(state.tensors(), before, strict=True))


@pytest.mark.parametrize("config", FEW, ids=name)
def test_a_session_made_in_inference_mode_goes_on_outside(config: Any) -> None:
    model = make_model(config)
    tokens = torch.tensor([0, 1])
    with torch.inference_mode():
        session = Session(model, model.init_state(2))
        session.step(tokens)
        session.select([1, 0])
    with torch.enable_grad():
        logits = session.step(tokens)
    assert not logits.requires_grad
    with torch.inference_mode():
        session.step(tokens)


def change_in_place(model: LanguageModel) -> None:
    with torch.no_grad():
        next(model.core.parameters()).add_(0.1)


def change_data(model: LanguageModel) -> None:
    model.float().double()


def change_parameter(model: LanguageModel) -> None:
    model.head.bias = torch.nn.Parameter(torch.zeros(V, dtype=torch.float64))


@pytest.mark.parametrize("change", [change_in_place, change_data, change_parameter])
def test_a_session_refuses_weights_that_have_changed(change: Any) -> None:
    model = make_model(FEW[0])
    session = Session(model, model.init_state(1))
    session.step(torch.tensor([0]))
    change(model)
    for act in (lambda: session.step(torch.tensor([0])), lambda: session.read(torch.tensor([[0]]))):
        with pytest.raises(RuntimeError, match="weights have changed"):
            act()
    Session(model, session.state()).step(torch.tensor([0]))


def test_mistakes_are_told_plainly() -> None:
    model = make_model(FEW[0])
    session = Session(model, model.init_state(2))
    with pytest.raises(ValueError, match="one token for each of 2 rows"):
        session.step(torch.tensor([0]))
    with pytest.raises(ValueError, match="token 5 at row 1"):
        session.step(torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="max_crop 1 cannot join a session with max_crop 0"):
        session.join(model.init_state(1, max_crop=1))
    with pytest.raises(IndexError, match=r"rows must be in 0\.\.1"):
        session.select([2])
    with pytest.raises(ValueError, match="too small"):
        Session(model, model.init_state(2), capacity=1)
    with pytest.raises(TypeError, match="needs a FeedbackState"):
        Session(model, make_model(FEW[2]).init_state(1))
    with pytest.raises(ValueError, match="a prompt must be"):
        greedy(session, torch.zeros(1, 3, dtype=torch.int64), 4)
    model.train()
    with pytest.raises(RuntimeError, match=r"model\.eval"):
        session.step(torch.tensor([0, 0]))


class Products(TorchDispatchMode):
    """Counts operations and the numbers that they write into new memory, and the most that one of them writes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.numbers = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in torch.utils._pytree.tree_leaves((args, kwargs))
                 if isinstance(tensor, Tensor)}  # fmt: skip
        self.operations += 1
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.numbers += tensor.numel()
                self.most = max(self.most, tensor.numel())
        return result


@pytest.mark.parametrize("kind", [FeedbackConfig, TransformerXLConfig, UniversalConfig])
@pytest.mark.parametrize("itself", [True, False])
def test_a_step_makes_nothing_of_the_size_of_the_memory_and_costs_the_same_for_ever(kind: Any, itself: bool) -> None:
    S, D, B = 64, 16, 2
    model = make_model(kind(width=D, heads=2, layers=1, memory=S, attend_to_current=itself))
    session = Session(model, model.init_state(B))
    tokens = torch.tensor([1, 2])
    costs: dict[int, tuple[int, int]] = {}
    for t in range(1, 1001):
        if t in (10, S + 2, 999, 1000):
            with Products() as made:
                session.step(tokens)
            assert made.most < B * S * D
            costs[t] = made.operations, made.numbers
        else:
            session.step(tokens)
    assert costs[1000] == costs[999] == costs[S + 2]
    # As long as a row is not full there is a mask besides, made once and put on in every layer, and nothing else.
    assert costs[10][1] - costs[1000][1] <= 2 * B * S
    assert costs[10][0] - costs[1000][0] <= 10 + 3 * model.core.depth()


@pytest.mark.parametrize(("passes", "compute"), [(3, 3), (4, 1), (4, 0)])
def test_a_step_up_a_staircase_costs_the_same_at_every_chunk(passes: int, compute: int) -> None:
    C, D, B = 4, 16, 2
    config = CachedStaircaseConfig(width=D, heads=2, layers=2, chunk=C, passes=passes, compute=compute)
    model = make_model(config)
    session = Session(model, model.init_state(B))
    costs = []
    for _ in range(60):
        with Products() as made:
            session.step(torch.tensor([1, 2]))
        assert made.most < B * passes * C * D
        costs.append(made.numbers)
    # A token late in its chunk sees more of it; from chunk to chunk nothing changes once all of the past is there.
    full = passes * C
    assert costs[full:-C] == costs[full + C :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", FEW, ids=name)
def test_other_floating_types_decode_too(config: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(11)
    model = make_model(config).to(dtype)
    state, tokens = model.init_state(2), torch.randint(V, (2, 6))
    session = Session(model, state)
    with torch.no_grad():
        logits, _ = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(6)], 1)
    assert stepped.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(stepped, logits, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(products.ONEDNN is None, reason="this torch has no oneDNN")
@pytest.mark.parametrize("tied", [True, False])
def test_products_of_many_rows_with_large_weights_are_the_same(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(13)
    monkeypatch.setattr(products, "LARGE", 0)
    model = make_model(FeedbackConfig(**SMALL, memory=3), tied=tied).float()
    state, tokens = model.init_state(9), torch.randint(V, (9, 5))
    used: list[bool] = []
    by_onednn = products.by_onednn
    monkeypatch.setattr(products, "by_onednn", lambda *given: (used.append(True), by_onednn(*given))[1])
    session = Session(model, state)
    with torch.no_grad():
        logits, _ = model(tokens, state)
    stepped = torch.stack([session.step(tokens[:, t]) for t in range(5)], 1)
    torch.testing.assert_close(stepped, logits, rtol=1e-4, atol=1e-4)
    assert used
    before = len(used)
    Session(model.double(), model.double().init_state(9)).step(tokens[:, 0])  # it knows no such type
    assert len(used) == before


@pytest.mark.parametrize("config", FEW, ids=name)
def test_greedy_takes_the_most_probable_token_each_time(config: Any) -> None:
    torch.manual_seed(4)
    model = make_model(config)
    prompt = torch.randint(V, (3, 4))
    said = greedy(Session(model, model.init_state(3)), prompt, 6)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, said], 1), model.init_state(3))
    assert torch.equal(said, logits[:, 3:-1].argmax(-1))


def test_a_text_can_be_gone_on_with_from_its_last_token() -> None:
    torch.manual_seed(5)
    model = make_model(FEW[0])
    prompt = torch.randint(V, (2, 3))
    whole = greedy(Session(model, model.init_state(2)), prompt, 9)
    session = Session(model, model.init_state(2))
    first = greedy(session, prompt, 4)
    assert torch.equal(torch.cat([first, greedy(session, first[:, -1:], 5)], 1), whole)


def test_sampling_is_fixed_by_its_generator_and_keeps_to_what_is_likely() -> None:
    torch.manual_seed(6)
    model = make_model(FEW[0])
    prompt = torch.randint(V, (4, 3))

    def draw(seed: int, **options: Any) -> Tensor:
        session = Session(model, model.init_state(4))
        return sample(session, prompt, 20, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    best = greedy(Session(model, model.init_state(4)), prompt, 20)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 0.0}, {"temperature": 1e-6}):
        assert torch.equal(draw(0, **options), best), options
    said = draw(0, top_k=2)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, said], 1), model.init_state(4))
    assert (logits[:, 2:-1].topk(2).indices == said[..., None]).any(-1).all()
    said = draw(0, top_p=0.6)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, said], 1), model.init_state(4))
    chances = logits[:, 2:-1].softmax(-1)
    drawn = chances.gather(-1, said[..., None])
    assert ((chances * (chances > drawn)).sum(-1) < 0.6).all()


def test_samples_follow_the_distribution() -> None:
    torch.manual_seed(7)
    model = make_model(FEW[0])
    rows = 4000
    prompt = torch.tensor([[1, 2]]).expand(rows, 2)
    drawn = sample(Session(model, model.init_state(rows)), prompt, 1, 0.7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, _ = model(prompt[:1], model.init_state(1))
    expected = (logits[0, -1] / 0.7).softmax(-1)
    found = torch.bincount(drawn[:, 0], minlength=V) / rows
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5}], ids=str)
def test_a_sampler_refuses_what_makes_no_sense(options: Any) -> None:
    model = make_model(FEW[0])
    with pytest.raises(ValueError, match=next(iter(options))):
        sample(Session(model, model.init_state(1)), torch.tensor([[0]]), 1, **options)


def log_probabilities(model: LanguageModel, prompt: Tensor, texts: list[tuple[int, ...]]) -> dict[Any, float]:
    """What the model gives each text after the prompt, read from the beginning; all texts of one length at once."""
    scores = {}
    for length in {len(text) for text in texts}:
        same = [text for text in texts if len(text) == length]
        whole = torch.cat([prompt.expand(len(same), -1), torch.tensor(same)], 1)
        with torch.no_grad():
            logits, _ = model(whole[:, :-1], model.init_state(len(same)))
        chances = logits[:, len(prompt) - 1 :].log_softmax(-1)
        scores |= dict(zip(same, chances.gather(2, whole[:, len(prompt) :, None]).sum((1, 2)).tolist(), strict=True))
    return scores


def every_text(tokens: int, end: int | None) -> list[tuple[int, ...]]:
    """Everything that can be said: ended by the end, or of the full length."""
    texts = []
    for length in range(1, tokens + 1):
        for text in itertools.product(range(V), repeat=length):
            if end not in text[:-1] and (length == tokens or text[-1] == end):
                texts.append(text)
    return texts


@pytest.mark.parametrize("config", FEW[1:4], ids=name)
@pytest.mark.parametrize(("length_penalty", "end"), [(0.0, None), (0.0, 2), (1.0, 2), (-0.5, 2)])
def test_a_beam_wide_enough_finds_the_best_of_everything(config: Any, length_penalty: float, end: int | None) -> None:
    torch.manual_seed(8)
    model = make_model(config)
    prompts = torch.randint(V, (2, 3))
    found = beam(Session(model, model.init_state(2)), prompts, 3, V**3, length_penalty, end)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        scores = log_probabilities(model, prompt, every_text(3, end))
        ranked = sorted(scores, key=lambda text: -scores[text] / len(text) ** length_penalty)
        assert [h.tokens for h in hypotheses] == ranked
        assert [h.log_probability for h in hypotheses] == pytest.approx([scores[text] for text in ranked])


def beam_by_hand(
    model: LanguageModel, prompt: Tensor, tokens: int, width: int, penalty: float, end: int | None
) -> list[tuple[int, ...]]:
    """Beam search in plain lists, every text scored from its beginning."""
    live: list[tuple[int, ...]] = [()]
    finished: list[tuple[int, ...]] = []
    known: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(tokens):
        ways = [(*text, token) for text in live for token in range(V)]
        known |= log_probabilities(model, prompt, ways)
        ways.sort(key=lambda way: -known[way])
        finished += [way for way in ways[:width] if way[-1] == end]
        live = [way for way in ways[: 2 * width] if way[-1] != end][:width]
    finished += live
    return sorted(finished, key=lambda text: -known[text] / len(text) ** penalty)[:width]


@pytest.mark.parametrize("config", FEW[:4], ids=name)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("length_penalty", "end"), [(0.0, None), (1.0, 2), (0.5, 0), (0.0, 3)])
def test_a_narrow_beam_finds_what_lists_find(config: Any, width: int, length_penalty: float, end: int | None) -> None:
    torch.manual_seed(9)
    model = make_model(config)
    prompts = torch.randint(V, (2, 2))
    found = beam(Session(model, model.init_state(2)), prompts, 5, width, length_penalty, end)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        by_hand = beam_by_hand(model, prompt, 5, width, length_penalty, end)
        assert [h.tokens for h in hypotheses] == by_hand
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)


def test_a_beam_of_one_is_greedy() -> None:
    torch.manual_seed(10)
    model = make_model(FEW[0])
    prompt = torch.randint(V, (3, 4))
    said = greedy(Session(model, model.init_state(3)), prompt, 7)
    found = beam(Session(model, model.init_state(3)), prompt, 7, width=1)
    assert [list(h.tokens) for (h,) in found] == said.tolist()
    assert isinstance(found[0][0], Hypothesis)
