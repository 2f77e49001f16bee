"""Sampling: options, repetition penalty, and sampled hypotheses under the constraints of beam search."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.decode import Sampling, sample_hypotheses
from stairwell.decode.sampling import make_generator, penalize_repetition
from stairwell.errors import UserError
from stairwell.state import BatchIndices

END = 3
TABLE = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
GREEDY = Sampling(temperature=0)


class MarkovChain:
    """A stepper whose next token depends on the last one only."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def read(self, tokens: Tensor) -> Tensor:
        return self.step(tokens[:, -1])

    def step(self, tokens: Tensor) -> Tensor:
        assert tokens.shape == (self.batch,)
        return TABLE[tokens].log()

    def select(self, streams: BatchIndices) -> None:
        self.batch = len(torch.as_tensor(streams))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "0 or more"),
        ({"top_k": 0}, "at least 1"),
        ({"top_p": 0}, "above 0"),
        ({"top_p": 1.5}, "at most 1"),
        ({"temperature": math.nan}, "a finite number, 0 or more"),
        ({"temperature": math.inf}, "a finite number, 0 or more"),
        ({"repetition_penalty": 0}, "from 0.01 to 100"),
        ({"repetition_penalty": math.nan}, "from 0.01 to 100"),
        ({"repetition_penalty": 1e-320}, "from 0.01 to 100"),
        ({"repetition_penalty": math.inf}, "from 0.01 to 100"),
    ],
    ids=str,
)
def test_invalid_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "repetition_penalty"])
def test_options_of_a_wrong_type_raise(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be"):
        Sampling(**{name: "1"})
    with pytest.raises(TypeError, match=f"{name} must be"):
        Sampling(**{name: [1]})


def test_a_fractional_top_k_raises() -> None:
    with pytest.raises(TypeError, match=r"top_k must be an integer, not 2\.5"):
        Sampling(top_k=2.5)  # type: ignore[arg-type]


def test_nan_logits_raise() -> None:
    logits = torch.tensor([[0.1, 0.2, math.nan], [1.0, 2.0, 3.0]])
    with pytest.raises(UserError, match="the logits contain NaN"):
        GREEDY.sample(logits)
    with pytest.raises(UserError, match="the logits contain NaN"):
        GREEDY.probabilities(logits)


def test_all_bits_of_a_seed_count() -> None:
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**32), -(2**62), -(2**63)]
    generators = [make_generator(torch.device("cpu"), seed) for seed in seeds]
    first = {int(torch.randint(2**62, (), generator=generator)) for generator in generators}
    assert len(first) == len(seeds)
    for seed in (0, 7, 2**32 - 1):
        expected = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.rand(3, generator=make_generator(torch.device("cpu"), seed)), expected)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.6}, {"top_k": 3, "top_p": 0.5}, {"temperature": 0}]
)
def test_samples_have_the_distribution_that_probabilities_returns(options: dict[str, Any]) -> None:
    sampling, n = Sampling(**options), 20_000
    probabilities = sampling.probabilities(TABLE.log())
    for row, expected in zip(TABLE, probabilities):
        sampled = sampling.sample(row.log().expand(n, -1), torch.Generator().manual_seed(0))
        counts = torch.bincount(sampled, minlength=4) / n
        torch.testing.assert_close(counts.double(), expected, rtol=0, atol=0.02)
        assert (counts[expected == 0] == 0).all()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, dtype=torch.float64))


def test_top_k_and_top_p_keep_the_most_probable_tokens() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()
    for options, expected in (
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.71}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_k": 3, "top_p": 0.44}, [0, 1, 0, 0]),
    ):
        probabilities = Sampling(**options).probabilities(logits)  # type: ignore[arg-type]
        torch.testing.assert_close(probabilities, torch.tensor(expected, dtype=torch.float64))


def test_a_repetition_penalty_lowers_the_logits_of_recent_tokens() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0])
    assert penalize_repetition(logits, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 1.0]
    penalized = Sampling(temperature=0, repetition_penalty=3.0)
    assert penalized(logits, [0], None) == 2 and penalized(logits, [], None) == 0


def test_hypotheses_are_sampled_from_the_model_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    prompt = torch.tensor([[0]])
    hypotheses = sample_hypotheses(MarkovChain(1), prompt, 2, Sampling(), END, samples=20_000, generator=generator)[0]
    counts = Counter(hypothesis.tokens for hypothesis in hypotheses)
    expected = {(END,): 0.4, (0, 0): 0.01, (0, END): 0.04, (1, 0): 0.1, (2, 2): 0.075}
    for tokens, probability in expected.items():
        assert abs(counts[tokens] / 20_000 - probability) < 4 * math.sqrt(probability / 20_000)
    for hypothesis in hypotheses[:50]:
        probability = 1.0
        for previous, token in zip((0, *hypothesis.tokens), hypothesis.tokens):
            probability *= float(TABLE[previous, token])
        assert hypothesis.log_probability == pytest.approx(math.log(probability), rel=1e-4)


def test_finished_hypotheses_leave_the_batch() -> None:
    results = sample_hypotheses(MarkovChain(3), torch.tensor([[3], [1], [2]]), [1, 3, 2], GREEDY, END)
    assert [hypotheses[0].tokens for hypotheses in results] == [(0,), (0, 3), (0, 3)]


def test_sampled_hypotheses_satisfy_the_constraints() -> None:
    results = sample_hypotheses(
        MarkovChain(2), torch.tensor([[0], [1]]), 6, Sampling(), END, samples=200, min_length=2,
        no_repeat_ngram_size=2, prefixes=[(2, 2), ()], generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert all(hypothesis.tokens[:2] == (2, 2) for hypothesis in results[0])
    for hypothesis in results[1]:
        bigrams = list(zip(hypothesis.tokens, hypothesis.tokens[1:]))
        assert END not in hypothesis.tokens[:2]
        assert len(set(bigrams)) == len(bigrams) or hypothesis.tokens[-1] == END


@pytest.mark.parametrize("options", [{"max_length": 0}, {"max_length": 1, "samples": 0}], ids=str)
def test_zero_tokens_or_samples_raise(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        sample_hypotheses(MarkovChain(1), torch.tensor([[0]]), sampling=GREEDY, end=END, **options)
