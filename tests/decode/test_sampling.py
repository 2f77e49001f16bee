"""Drawn targets: by the model's own probabilities, under the rules, whatever the batch."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from stairwell.decode.sampling import draw
from stairwell.decode.search import most_probable, sampler
from stairwell.errors import UserError
from stairwell.state import RowNumbers

END = 3
CHANCES = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])


class Chain:
    """The next token depends on the last one alone."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def read(self, tokens: Tensor) -> Tensor:
        return self.step(tokens[:, -1])

    def step(self, tokens: Tensor) -> Tensor:
        assert tokens.shape == (self.batch,)
        return CHANCES[tokens].log()

    def select(self, rows: RowNumbers) -> None:
        self.batch = len(torch.as_tensor(rows))


def test_targets_come_as_often_as_the_model_says() -> None:
    dice = torch.Generator().manual_seed(0)
    found = draw(Chain(1), torch.tensor([[0]]), 2, sampler(generator=dice), END, samples=20_000)[0]
    counts = Counter(hypothesis.tokens for hypothesis in found)
    wanted = {(END,): 0.4, (0, 0): 0.01, (0, END): 0.04, (1, 0): 0.1, (2, 2): 0.075}
    for tokens, chance in wanted.items():
        assert abs(counts[tokens] / 20_000 - chance) < 4 * math.sqrt(chance / 20_000)
    for hypothesis in found[:50]:
        chance = 1.0
        for before, token in zip((0, *hypothesis.tokens), hypothesis.tokens):
            chance *= float(CHANCES[before, token])
        assert hypothesis.log_probability == pytest.approx(math.log(chance), rel=1e-4)


def test_rows_that_end_leave_and_the_others_go_on() -> None:
    longest = [1, 3, 2]
    found = draw(Chain(3), torch.tensor([[3], [1], [2]]), longest, most_probable, END)
    assert [hypotheses[0].tokens for hypotheses in found] == [(0,), (0, 3), (0, 3)]


def test_the_rules_of_the_search_hold() -> None:
    dice = torch.Generator().manual_seed(1)
    found = draw(
        Chain(2), torch.tensor([[0], [1]]), 6, sampler(generator=dice), END,
        samples=200, shortest=2, block=2, prefixes=[(2, 2), ()],
    )  # fmt: skip
    assert all(hypothesis.tokens[:2] == (2, 2) for hypothesis in found[0])
    for hypothesis in found[1]:
        pairs = list(zip(hypothesis.tokens, hypothesis.tokens[1:]))
        assert END not in hypothesis.tokens[:2]
        assert len(set(pairs)) == len(pairs) or hypothesis.tokens[-1] == END


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        draw(Chain(1), torch.tensor([[0]]), 0, most_probable, END)
