"""Beam search: against exhaustive search, against scores worked out by hand, and edge cases."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stairwell.decode import Hypothesis, ModelStepper, Sampling, beam, beam_search, make_stepper, sample_hypotheses
from stairwell.decode.beam import FinishedHypotheses, align_with_parents, has_loop, top_scores
from stairwell.errors import UserError
from stairwell.models import Seq2Seq
from stairwell.state import batch_indices
from tests.models.test_seq2seq import DECODERS, make
from tests.models.test_seq2seq import V as VOCABULARY_SIZE

pytestmark = pytest.mark.quick

END = 0


class MarkovChain:
    """A stepper whose next token depends on the sentence and the last token only. tables (sentences, V, V) of
    probabilities"""

    def __init__(self, tables: Tensor) -> None:
        self.log_tables, self.sentence = tables.double().log(), torch.arange(len(tables))
        self.batch_sizes: list[int] = []

    @property
    def batch(self) -> int:
        return len(self.sentence)

    def read(self, tokens: Tensor) -> Tensor:
        return self.log_tables[self.sentence, tokens[:, -1]]

    def step(self, tokens: Tensor) -> Tensor:
        self.batch_sizes.append(self.batch)
        return self.log_tables[self.sentence, tokens]

    def select(self, streams: Tensor | Sequence[int]) -> None:
        self.sentence = self.sentence[batch_indices(streams, self.batch, torch.device("cpu"))]


def random_tables(sentences: int, V: int, seed: int = 0) -> Tensor:
    return torch.rand(sentences, V, V, generator=torch.Generator().manual_seed(seed)).double().softmax(-1)


def prompts(sentences: int) -> Tensor:
    return torch.full((sentences, 1), END)


def all_hypotheses(V: int, max_length: int, min_length: int = 0) -> list[tuple[int, ...]]:
    """Every hypothesis that ends with END or has the maximum length."""
    return [
        tokens
        for length in range(1, max_length + 1)
        for tokens in itertools.product(range(V), repeat=length)
        if END not in tokens[:-1]
        and (tokens[-1] == END or length == max_length)
        and (tokens[-1] != END or length > min_length)
    ]


def repeats_ngram(tokens: tuple[int, ...], n: int) -> bool:
    ngrams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return len(ngrams) != len(set(ngrams))


def log_probability(table: Tensor, tokens: tuple[int, ...]) -> float:
    return sum(math.log(table[a, b]) for a, b in zip((END, *tokens), tokens))


@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("min_length", [0, 2])
@pytest.mark.parametrize("nbest", [1, 3, 200])
def test_a_wide_beam_finds_what_exhaustive_search_finds(length_penalty: float, min_length: int, nbest: int) -> None:
    tables = random_tables(3, 4)
    results = beam_search(
        MarkovChain(tables), prompts(3), 4, 200, length_penalty, END, nbest=nbest, min_length=min_length
    )
    for table, hypotheses in zip(tables, results, strict=True):
        scores = {
            tokens: log_probability(table, tokens) / len(tokens) ** length_penalty
            for tokens in all_hypotheses(4, 4, min_length)
        }
        ranked = sorted(scores, key=lambda tokens: -scores[tokens])[:nbest]
        # Hypotheses with the same transitions in another order are tied.
        assert [h.score for h in hypotheses] == pytest.approx([scores[tokens] for tokens in ranked])
        assert [h.score for h in hypotheses] == pytest.approx([scores[h.tokens] for h in hypotheses])
        assert len({h.tokens for h in hypotheses}) == len(ranked)


def test_without_repeated_ngrams_the_best_of_the_rest_is_found() -> None:
    tables = random_tables(2, 3)
    results = beam_search(MarkovChain(tables), prompts(2), 5, 300, 1.0, END, nbest=1, no_repeat_ngram_size=2)
    for table, (hypothesis,) in zip(tables, results, strict=True):
        allowed = [tokens for tokens in all_hypotheses(3, 5) if not repeats_ngram(tokens, 2)]
        scores = {tokens: log_probability(table, tokens) / len(tokens) for tokens in allowed}
        assert hypothesis.tokens == max(scores, key=lambda tokens: scores[tokens])


def test_scores_worked_out_by_hand() -> None:
    # At first: 1 (0.6) or the end (0.4). After 1: the end (0.5) or 2 (0.5). After 2: the end, always.
    table = torch.tensor([[0.4, 0.6, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]).clamp(min=1e-30)
    log_probs: dict[tuple[int, ...], float] = {(0,): math.log(0.4), (1, 0): math.log(0.3), (1, 2, 0): math.log(0.3)}
    for penalty, first in ((0.0, (0,)), (1.0, (1, 2, 0))):
        (hypotheses,) = beam_search(MarkovChain(table[None]), prompts(1), 9, 3, penalty, END, nbest=3)
        expected = sorted(log_probs, key=lambda tokens: -log_probs[tokens] / len(tokens) ** penalty)
        assert [h.tokens for h in hypotheses] == expected and expected[0] == first
        assert hypotheses[0].score == pytest.approx(log_probs[first] / len(first) ** penalty)


def test_a_sentence_stays_open_while_a_longer_hypothesis_can_win() -> None:
    # The first to end is (0,): log 0.5 = -0.69. (1, 1, 1, 0) has log(0.5 * 0.9 * 0.9 * 1) = -0.90 over four tokens.
    table = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    (hypothesis,) = beam_search(MarkovChain(table[None]), prompts(1), 4, 2, 1.0, END, nbest=1)[0]
    assert hypothesis.tokens == (1, 1, 1, 1)
    finished = FinishedHypotheses(1, 4, 1.0)
    finished.add([END], math.log(0.5))
    assert not finished.is_done(math.log(0.5), 1) and finished.is_done(4 * math.log(0.4), 3)


def test_a_sentence_stays_open_while_a_much_longer_hypothesis_can_win() -> None:
    # The first to end is (0,): log 0.8 = -0.22. Two tokens reach at most log 0.2 / 2 = -0.80, but ten about -0.16.
    table = torch.tensor([[0.8, 0.2], [0.001, 0.999]])
    (hypothesis,) = beam_search(MarkovChain(table[None]), prompts(1), 10, 2, 1.0, END, nbest=1)[0]
    assert hypothesis.tokens == (1,) * 10
    finished = FinishedHypotheses(1, 10, 1.0)
    finished.add([END], math.log(0.8))
    assert not finished.is_done(math.log(0.2), 1) and finished.is_done(math.log(0.1), 1)


@pytest.mark.parametrize("length_penalty", [math.nan, math.inf, -math.inf, 1e5])
def test_an_invalid_length_penalty_raises(length_penalty: float) -> None:
    with pytest.raises(UserError, match="the length penalty must be from -10 to 10, not "):
        beam_search(MarkovChain(random_tables(1, 3)), prompts(1), 4, 2, length_penalty, END)


def test_a_loop_is_an_immediate_repetition_over_six_tokens() -> None:
    for looped in ("aaaaaa", "xababab", "abcabcx", "xabcdabcdx", "ababababa"):
        assert has_loop([*map(ord, looped)]), looped
    for not_looped in ("", "a", "aaaaa", "ababa", "abcdabc", "aaabaaa", "abcxabcyabc"):
        assert not has_loop([*map(ord, not_looped)]), not_looped
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(12))]
        expected = any(
            tokens[i : j - period] == tokens[i + period : j]
            for i in range(len(tokens))
            for j in range(i + 6, len(tokens) + 1)
            for period in range(1, (j - i) // 2 + 1)
        )
        assert has_loop(tokens) == expected, tokens


def test_a_hypothesis_that_cannot_be_continued_ends() -> None:
    # One word, nearly certain, and the end, which min_length forbids: no bigram may repeat.
    table = torch.tensor([[0.001, 0.999], [0.001, 0.999]])
    chain = MarkovChain(table[None])
    (hypotheses,) = beam_search(chain, prompts(1), 9, 2, 1.0, END, min_length=6, no_repeat_ngram_size=2)
    assert [h.tokens for h in hypotheses] == [(1, 1, END)]
    # Without an end token, the constraint is dropped instead.
    chain = MarkovChain(table[None][:, 1:, 1:])
    (hypotheses,) = beam_search(chain, torch.zeros(1, 1, dtype=torch.int64), 4, 1, no_repeat_ngram_size=2)
    assert [h.tokens for h in hypotheses] == [(0, 0, 0, 0)]


def test_forced_prefixes_take_precedence_over_constraints() -> None:
    tables = random_tables(3, 4)
    prefixes: list[tuple[int, ...]] = [(2, 2, 2, 2), (), (3,)]
    results = beam_search(
        MarkovChain(tables), prompts(3), 5, 200, 1.0, END, nbest=1, min_length=1, no_repeat_ngram_size=2,
        prefixes=prefixes,
    )  # fmt: skip
    for table, prefix, (hypothesis,) in zip(tables, prefixes, results, strict=True):
        assert hypothesis.tokens[: len(prefix)] == prefix
        assert hypothesis.log_probability == pytest.approx(log_probability(table, hypothesis.tokens))
    allowed = [tokens for tokens in all_hypotheses(4, 5, 1) if tokens[0] == 3 and not repeats_ngram(tokens, 2)]
    scores = {tokens: log_probability(tables[2], tokens) / len(tokens) for tokens in allowed}
    assert results[2][0].tokens == max(scores, key=lambda tokens: scores[tokens])


def test_lengths_may_differ_per_sentence() -> None:
    tables = random_tables(3, 4)
    results = beam_search(MarkovChain(tables), prompts(3), [2, 5, 3], 100, 1.0, END, nbest=1, min_length=[1, 4, 0])
    for table, max_length, min_length, (hypothesis,) in zip(tables, (2, 5, 3), (1, 4, 0), results, strict=True):
        candidates = all_hypotheses(4, max_length, min_length)
        scores = {tokens: log_probability(table, tokens) / len(tokens) for tokens in candidates}
        assert hypothesis.tokens == max(scores, key=lambda tokens: scores[tokens])


def test_finished_sentences_leave_the_batch() -> None:
    short, long = torch.tensor([[0.999, 0.001], [0.999, 0.001]]), torch.tensor([[0.001, 0.999], [0.001, 0.999]])
    chain = MarkovChain(torch.stack([short, long]))
    beam_search(chain, prompts(2), 6, 1, 0.0, END)
    assert chain.batch_sizes == [1] * 5


def test_a_sentence_has_the_same_hypotheses_in_any_batch() -> None:
    model: Seq2Seq = make("feedback")
    sources = [torch.randint(VOCABULARY_SIZE, (1, J), generator=torch.Generator().manual_seed(J)) for J in (3, 6, 4)]

    def search(source: Tensor, mask: Tensor) -> list[list[Hypothesis]]:
        state = model.init_state(source.shape[0], source, mask)
        return beam_search(ModelStepper(model, state), prompts(source.shape[0]), 6, 3, 1.0, END)

    alone = [search(source, torch.ones_like(source).bool())[0] for source in sources]
    padded = torch.cat([torch.nn.functional.pad(source, (0, 6 - source.shape[1])) for source in sources])
    mask = torch.arange(6) < torch.tensor([[3], [6], [4]])
    for in_batch, expected in zip(search(padded, mask), alone, strict=True):
        assert [h.tokens for h in in_batch] == [h.tokens for h in expected]
        assert [h.score for h in in_batch] == pytest.approx([h.score for h in expected])


@pytest.mark.parametrize("core", DECODERS)
def test_a_session_finds_the_same_hypotheses_as_the_model(core: str) -> None:
    model = make(core, sources=5, targets=VOCABULARY_SIZE, joint=False, tied="output")
    source = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([[3], [6], [4]])
    state = model.init_state(3, source, mask)
    by_session, by_model = (
        beam_search(stepper, prompts(3), 6, 4, 1.0, END)
        for stepper in (make_stepper(model, state), ModelStepper(model, state))
    )
    for hypotheses, expected in zip(by_session, by_model, strict=True):
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected])


@pytest.mark.parametrize("max_native_k", [64, 0], ids=["native", "torch"])
@pytest.mark.parametrize("V", [30, 640, 1000, 8001])
@pytest.mark.parametrize("k", [1, 6, 10])
def test_top_scores_equal_topk(V: int, k: int, max_native_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "MAX_NATIVE_K", max_native_k)
    scores = torch.randn(2, 3, V, generator=torch.Generator().manual_seed(V))
    scores[0, 0, V // 2 :] = -math.inf
    scores[0, 1, 0] = scores[1, 1, -1] = 9.0
    scores[1, 2, 5:] = -math.inf  # fewer finite scores than k
    top, tokens = top_scores(scores, k)
    torch.testing.assert_close(top, scores.topk(k, -1).values, rtol=0, atol=0)
    assert torch.equal(scores.gather(-1, tokens), top)
    assert all(len(set(each)) == k for each in tokens.flatten(0, 1).tolist())


def test_hypotheses_keep_the_index_of_their_parent_where_possible() -> None:
    """The order is a permutation, and only second and later children of a parent have to be copied."""
    parents = torch.tensor(list(itertools.product(range(4), repeat=4)))
    order = align_with_parents(parents)
    assert torch.equal(order.sort(1).values, torch.arange(4).expand_as(order))
    unmoved = (parents.gather(1, order) == torch.arange(4)).sum(1)
    assert unmoved.tolist() == [len(set(each)) for each in parents.tolist()]


def test_invalid_arguments_raise() -> None:
    chain = MarkovChain(random_tables(2, 3))
    for message, options in (
        ("width", {"width": 0}),
        ("nbest", {"width": 2, "nbest": 3}),
        ("no_repeat_ngram_size", {"width": 1, "no_repeat_ngram_size": -1}),
        ("at least 1", {"width": 1, "max_length": [1, 0]}),
        ("one per sentence", {"width": 1, "max_length": [1]}),
    ):
        with pytest.raises(UserError, match=message):
            beam_search(chain, prompts(2), **{"max_length": 3, **options})  # type: ignore[arg-type]
    for message, options in (
        ("width must be an integer, not 2.5", {"width": 2.5}),
        ("nbest must be an integer, not 1.5", {"width": 2, "nbest": 1.5}),
        ("the end token must be an integer, not 1.5", {"width": 1, "end": 1.5}),
    ):
        with pytest.raises(TypeError, match=message):
            beam_search(chain, prompts(2), 3, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [-1, 3, 99])
def test_tokens_outside_the_vocabulary_raise(token: int) -> None:
    tables, message = random_tables(2, 3), f"token {token} is not in the model's vocabulary of 3 tokens"
    for end, prefixes in ((token, None), (None, [[0], [token]])):
        with pytest.raises(UserError, match=message):
            beam_search(MarkovChain(tables), prompts(2), 3, 2, end=end, prefixes=prefixes)
        with pytest.raises(UserError, match=message):
            sample_hypotheses(MarkovChain(tables), prompts(2), 3, Sampling(), end, prefixes=prefixes)
