"""Beam search against everything that can be said, against scores worked out by hand, and in its corners."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stairwell.decode import Hypothesis, ModelStepper, beam, stepper
from stairwell.decode.beam import Finished, has_loop, likeliest, near_parents
from stairwell.errors import UserError
from stairwell.models import Seq2Seq
from stairwell.state import row_numbers
from tests.models.test_seq2seq import DECODERS, make
from tests.models.test_seq2seq import V as SYMBOLS

END = 0


class Chain:
    """A toy: what comes next depends on the sentence and the last token only. tables (sentences, V, V) of chances."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.rows, self.steps = tables.double().log(), torch.arange(len(tables)), 0
        self.widths: list[int] = []

    @property
    def batch(self) -> int:
        return len(self.rows)

    def read(self, tokens: Tensor) -> Tensor:
        return self.tables[self.rows, tokens[:, -1]]

    def step(self, tokens: Tensor) -> Tensor:
        self.widths.append(self.batch)
        return self.tables[self.rows, tokens]

    def select(self, rows: Tensor | Sequence[int]) -> None:
        self.rows = self.rows[row_numbers(rows, self.batch, torch.device("cpu"))]


def chances(sentences: int, V: int, seed: int = 0) -> Tensor:
    return torch.rand(sentences, V, V, generator=torch.Generator().manual_seed(seed)).double().softmax(-1)


def begin(sentences: int) -> Tensor:
    return torch.full((sentences, 1), END)


def every_text(V: int, longest: int, shortest: int = 0) -> list[tuple[int, ...]]:
    """Everything that can be said: ended by the end, or of the full length."""
    return [
        text
        for length in range(1, longest + 1)
        for text in itertools.product(range(V), repeat=length)
        if END not in text[:-1] and (text[-1] == END or length == longest) and (text[-1] != END or length > shortest)
    ]


def repeats(text: tuple[int, ...], block: int) -> bool:
    grams = [text[i : i + block] for i in range(len(text) - block + 1)]
    return len(grams) != len(set(grams))


def log_probability(table: Tensor, text: tuple[int, ...]) -> float:
    return sum(math.log(table[a, b]) for a, b in zip((END, *text), text))


@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("shortest", [0, 2])
@pytest.mark.parametrize("best", [1, 3, 200])
def test_a_beam_wide_enough_finds_the_best_of_everything(length_penalty: float, shortest: int, best: int) -> None:
    tables = chances(3, 4)
    found = beam(Chain(tables), begin(3), 4, 200, length_penalty, END, best=best, shortest=shortest)
    for table, hypotheses in zip(tables, found, strict=True):
        scores = {
            text: log_probability(table, text) / len(text) ** length_penalty for text in every_text(4, 4, shortest)
        }
        ranked = sorted(scores, key=lambda text: -scores[text])[:best]
        # The order of a chain's steps does not change its chance: texts may be tied.
        assert [h.score for h in hypotheses] == pytest.approx([scores[text] for text in ranked])
        assert [h.score for h in hypotheses] == pytest.approx([scores[h.tokens] for h in hypotheses])
        assert len({h.tokens for h in hypotheses}) == len(ranked)


def test_blocked_repetitions_leave_the_best_of_the_rest() -> None:
    tables = chances(2, 3)
    found = beam(Chain(tables), begin(2), 5, 300, 1.0, END, best=1, block=2)
    for table, (hypothesis,) in zip(tables, found, strict=True):
        allowed = [text for text in every_text(3, 5) if not repeats(text, 2)]
        scores = {text: log_probability(table, text) / len(text) for text in allowed}
        assert hypothesis.tokens == max(scores, key=lambda text: scores[text])


def test_scores_worked_out_by_hand() -> None:
    # After the beginning: 1 (0.6) or the end (0.4). After 1: the end (0.5), 2 (0.5). After 2: the end, always.
    table = torch.tensor([[0.4, 0.6, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]).clamp(min=1e-30)
    ways: dict[tuple[int, ...], float] = {(0,): math.log(0.4), (1, 0): math.log(0.3), (1, 2, 0): math.log(0.3)}
    for penalty, first in ((0.0, (0,)), (1.0, (1, 2, 0))):
        (found,) = beam(Chain(table[None]), begin(1), 9, 3, penalty, END, best=3)
        wanted = sorted(ways, key=lambda text: -ways[text] / len(text) ** penalty)
        assert [h.tokens for h in found] == wanted and wanted[0] == first
        assert found[0].score == pytest.approx(ways[first] / len(first) ** penalty)


def test_a_sentence_goes_on_while_a_longer_one_can_still_win() -> None:
    # The first to end is (0,): log 0.5 = -0.69. (1, 1, 1, 0) has log(0.5 * 0.9 * 0.9 * 1) = -0.90, but by four tokens.
    table = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    (hypothesis,) = beam(Chain(table[None]), begin(1), 4, 2, 1.0, END, best=1)[0]
    assert hypothesis.tokens == (1, 1, 1, 1)
    finished = Finished(1, 4, 1.0)
    finished.add([END], math.log(0.5))
    assert not finished.closed(math.log(0.5), 1) and finished.closed(4 * math.log(0.4), 3)


def test_a_sentence_goes_on_while_a_much_longer_one_can_still_win() -> None:
    # The first to end is (0,): log 0.8 = -0.22. Two tokens have at most log 0.2 / 2 = -0.80, but ten about -0.16.
    table = torch.tensor([[0.8, 0.2], [0.001, 0.999]])
    (hypothesis,) = beam(Chain(table[None]), begin(1), 10, 2, 1.0, END, best=1)[0]
    assert hypothesis.tokens == (1,) * 10
    finished = Finished(1, 10, 1.0)
    finished.add([END], math.log(0.8))
    assert not finished.closed(math.log(0.2), 1) and finished.closed(math.log(0.1), 1)


@pytest.mark.parametrize("length_penalty", [math.nan, math.inf, -math.inf, 1e5])
def test_a_length_penalty_that_orders_nothing_is_refused(length_penalty: float) -> None:
    with pytest.raises(UserError, match="the length penalty must be from -10 to 10, not "):
        beam(Chain(chances(1, 3)), begin(1), 4, 2, length_penalty, END)


def test_a_loop_is_a_sequence_that_comes_twice_in_a_row_over_six_tokens() -> None:
    for looped in ("aaaaaa", "xababab", "abcabcx", "xabcdabcdx", "ababababa"):
        assert has_loop([*map(ord, looped)]), looped
    for not_looped in ("", "a", "aaaaa", "ababa", "abcdabc", "aaabaaa", "abcxabcyabc"):
        assert not has_loop([*map(ord, not_looped)]), not_looped
    dice = random.Random(0)
    for _ in range(300):
        tokens = [dice.randrange(2) for _ in range(dice.randrange(12))]
        looped = any(
            tokens[i : j - period] == tokens[i + period : j]
            for i in range(len(tokens))
            for j in range(i + 6, len(tokens) + 1)
            for period in range(1, (j - i) // 2 + 1)
        )
        assert has_loop(tokens) == looped, tokens


def test_blocking_that_leaves_no_way_to_go_on_ends_the_sentence() -> None:
    # One word, which is nearly certain, and the end, which a minimum length forbids: no pair of words may come twice.
    table = torch.tensor([[0.001, 0.999], [0.001, 0.999]])
    (found,) = beam(Chain(table[None]), begin(1), 9, 2, 1.0, END, shortest=6, block=2)
    assert [h.tokens for h in found] == [(1, 1, END)]
    # Without an end the rule gives way instead.
    (found,) = beam(Chain(table[None][:, 1:, 1:]), torch.zeros(1, 1, dtype=torch.int64), 4, 1, block=2)
    assert [h.tokens for h in found] == [(0, 0, 0, 0)]


def test_forced_prefixes_come_first_whatever_the_other_rules_say() -> None:
    tables = chances(3, 4)
    prefixes: list[tuple[int, ...]] = [(2, 2, 2, 2), (), (3,)]
    found = beam(Chain(tables), begin(3), 5, 200, 1.0, END, best=1, shortest=1, block=2, prefixes=prefixes)
    for table, prefix, (hypothesis,) in zip(tables, prefixes, found, strict=True):
        assert hypothesis.tokens[: len(prefix)] == prefix
        assert hypothesis.log_probability == pytest.approx(log_probability(table, hypothesis.tokens))
    allowed = [text for text in every_text(4, 5, 1) if text[0] == 3 and not repeats(text, 2)]
    scores = {text: log_probability(tables[2], text) / len(text) for text in allowed}
    assert found[2][0].tokens == max(scores, key=lambda text: scores[text])


def test_every_sentence_has_its_own_lengths() -> None:
    tables = chances(3, 4)
    found = beam(Chain(tables), begin(3), [2, 5, 3], 100, 1.0, END, best=1, shortest=[1, 4, 0])
    for table, longest, shortest, (hypothesis,) in zip(tables, (2, 5, 3), (1, 4, 0), found, strict=True):
        scores = {text: log_probability(table, text) / len(text) for text in every_text(4, longest, shortest)}
        assert hypothesis.tokens == max(scores, key=lambda text: scores[text])


def test_finished_sentences_leave_the_batch() -> None:
    quick, slow = torch.tensor([[0.999, 0.001], [0.999, 0.001]]), torch.tensor([[0.001, 0.999], [0.001, 0.999]])
    chain = Chain(torch.stack([quick, slow]))
    beam(chain, begin(2), 6, 1, 0.0, END)
    assert chain.widths == [1] * 5


def test_a_batch_finds_what_its_sentences_find_alone() -> None:
    model: Seq2Seq = make("feedback")
    sources = [torch.randint(SYMBOLS, (1, J), generator=torch.Generator().manual_seed(J)) for J in (3, 6, 4)]

    def search(source: Tensor, mask: Tensor) -> list[list[Hypothesis]]:
        state = model.init_state(source.shape[0], source, mask)
        return beam(ModelStepper(model, state), begin(source.shape[0]), 6, 3, 1.0, END)

    alone = [search(source, torch.ones_like(source).bool())[0] for source in sources]
    padded = torch.cat([torch.nn.functional.pad(source, (0, 6 - source.shape[1])) for source in sources])
    mask = torch.arange(6) < torch.tensor([[3], [6], [4]])
    for together, one in zip(search(padded, mask), alone, strict=True):
        assert [h.tokens for h in together] == [h.tokens for h in one]
        assert [h.score for h in together] == pytest.approx([h.score for h in one])


@pytest.mark.parametrize("core", DECODERS)
def test_a_session_finds_what_the_model_itself_finds(core: str) -> None:
    model = make(core, sources=5, targets=SYMBOLS, joint=False, tied="output")
    source = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[3], [6], [4]])
    state = model.init_state(3, source, mask)
    quick, plain = (
        beam(steps, begin(3), 6, 4, 1.0, END) for steps in (stepper(model, state), ModelStepper(model, state))
    )
    for ours, theirs in zip(quick, plain, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs])


@pytest.mark.parametrize("V", [30, 640, 1000, 8001])
@pytest.mark.parametrize("k", [1, 6, 10])
def test_the_likeliest_symbols_are_those_that_an_order_finds(V: int, k: int) -> None:
    scores = torch.randn(2, 3, V, generator=torch.Generator().manual_seed(V))
    scores[0, 0, V // 2 :] = -math.inf
    scores[0, 1, 0] = scores[1, 1, -1] = 9.0
    scores[1, 2, 5:] = -math.inf  # fewer than are asked for
    likely, symbols = likeliest(scores, k)
    torch.testing.assert_close(likely, scores.topk(k, -1).values, rtol=0, atol=0)
    assert torch.equal(scores.gather(-1, symbols), likely)
    assert all(len(set(row)) == k for row in symbols.flatten(0, 1).tolist())


def test_hypotheses_lie_where_their_parents_lay_as_far_as_they_can() -> None:
    """All of them still come once, and only a parent's second child and those after it have to be copied."""
    parents = torch.tensor(list(itertools.product(range(4), repeat=4)))
    order = near_parents(parents)
    assert torch.equal(order.sort(1).values, torch.arange(4).expand_as(order))
    stay = (parents.gather(1, order) == torch.arange(4)).sum(1)
    assert stay.tolist() == [len(set(row)) for row in parents.tolist()]


def test_what_cannot_be_searched_is_a_plain_error() -> None:
    chain = Chain(chances(2, 3))
    for problem, options in (
        ("width", {"width": 0}), ("best", {"width": 2, "best": 3}), ("block", {"width": 1, "block": -1}),
        ("at least 1", {"width": 1, "tokens": [1, 0]}), ("one each", {"width": 1, "tokens": [1]}),
    ):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            beam(chain, begin(2), **{"tokens": 3, **options})  # type: ignore[arg-type]
