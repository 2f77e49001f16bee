"""Speculation writes what the target alone would write: the same tokens greedily, the same distribution by chance."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import CORES, LanguageModel, LanguageModelConfig
from stairwell.configs import field_types
from stairwell.cores import config_type
from stairwell.decode import Session, greedy
from stairwell.decode.speculate import Chances, judge, speculate
from stairwell.errors import UserError
from tests.invariants import scramble

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
CROPS = sorted(set(CORES) - {"lstm", "deltanet"})


def make_model(name: str, seed: int = 0, symbols: int = 7) -> LanguageModel:
    kind = config_type(name)
    sizes = {key: value for key, value in SIZES.items() if key in field_types(kind)}
    if name == "memory-network":
        sizes["passes"] = 6
    torch.manual_seed(seed)
    return scramble(LanguageModel(LanguageModelConfig(core=kind(**sizes), inputs=symbols))).eval()  # type: ignore


def prompt(tokens: int = 9) -> Tensor:
    return torch.randint(7, (1, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("target", CROPS)
@pytest.mark.parametrize("length", [1, 4])
def test_greedily_a_feedback_draft_changes_no_token(target: str, length: int) -> None:
    model, draft = make_model(target), make_model("feedback", seed=3)
    for tokens in (1, 2, 40):
        said = speculate(model, draft, prompt(), tokens, length, temperature=0)
        assert torch.equal(said.tokens, greedy(Session(model, model.init_state(1)), prompt(), tokens))


@pytest.mark.parametrize("drafter", CROPS)
def test_a_draft_that_is_the_target_is_always_right(drafter: str) -> None:
    said = speculate(make_model(drafter), make_model(drafter), prompt(1), 41, 4, temperature=0)
    assert said.acceptance == 1 and said.rounds == 9
    drawn = speculate(make_model(drafter), make_model(drafter), prompt(), 61, 4)
    assert drawn.acceptance > 0.95  # by chance too, but for rounding


OPTIONS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_k": 2}, {"top_p": 0.8}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_judgment_leaves_the_distribution_of_the_target(options: dict[str, Any]) -> None:
    """Worked out exactly: over all proposals and coins, the first token is distributed as the target says."""
    chances = Chances(**options)
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2
    p, q = chances(logits[0]), chances(logits[1])[:2]
    first = torch.zeros(4, dtype=torch.float64)
    for token in range(4):
        kept = q[0, token] * min(1.0, float(p[0, token] / q[0, token])) if q[0, token] else 0.0
        first[token] += kept
    rest = (p[0] - q[0]).clamp(min=0)
    first += (1 - first.sum()) * (rest / rest.sum() if rest.sum() else 0)
    torch.testing.assert_close(first, p[0])
    # And the code does what was worked out, counted.
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(4, dtype=torch.float64)
    for _ in range(4000):
        proposed = torch.cat([torch.multinomial(q[i], 1, generator=generator) for i in range(2)])
        n, new = judge(p, q, proposed, generator)
        counts[int(proposed[0]) if n else int(new)] += 1
    torch.testing.assert_close(counts / 4000, p[0], rtol=0, atol=0.03)
    assert (counts[p[0] == 0] == 0).all()


@pytest.mark.slow
def test_three_tokens_by_chance_have_the_distribution_of_the_target() -> None:
    model, draft = make_model("transformer-xl", symbols=3), make_model("feedback", 3, symbols=3)
    begin, draws = torch.tensor([[0, 2, 1]]), 3000
    words = torch.tensor(list(itertools.product(range(3), repeat=3)))
    with torch.no_grad():
        whole = torch.cat([begin.expand(len(words), -1), words], 1)
        logits, _ = model(whole[:, :-1], model.init_state(len(words)))
        wanted = logits[:, 2:].log_softmax(-1).gather(2, words[..., None]).sum((1, 2)).exp().double()
    counts, generator = torch.zeros(27, dtype=torch.float64), torch.Generator().manual_seed(0)
    place = torch.tensor([9, 3, 1])
    for _ in range(draws):
        counts[int((speculate(model, draft, begin, 3, 2, generator=generator).tokens[0] * place).sum())] += 1
    chi = float(((counts - draws * wanted) ** 2 / (draws * wanted)).sum())
    assert chi < 60  # 26 degrees of freedom: 1 in 10,000 by chance


def test_a_seed_fixes_what_is_written() -> None:
    def said(seed: int) -> list[int]:
        models = make_model("transformer-xl"), make_model("feedback", 3)
        return speculate(*models, prompt(), 30, generator=torch.Generator().manual_seed(seed)).tokens[0].tolist()

    assert said(1) == said(1) != said(2)


def test_mistakes_are_told() -> None:
    model = make_model("transformer-xl")
    for given, told in (
        ({"tokens": 0}, "at least 1 token"),
        ({"draft": make_model("feedback", symbols=5)}, "symbols of the target"),
        ({"draft": make_model("feedback").train()}, "call eval"),
        ({"top_p": 3.0}, "top_p"),
    ):
        with pytest.raises(UserError, match=told):
            speculate(**{"target": model, "draft": make_model("feedback"), "prompt": prompt(), "tokens": 5, **given})
    with pytest.raises(ValueError, match="cannot take tokens back"):
        speculate(model, make_model("lstm"), prompt(), 5)
