"""Speculative decoding gives what the target gives: the same tokens if greedy, the same distribution if sampled."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import CORES, LanguageModel, LanguageModelConfig
from stairwell.configs import field_types
from stairwell.cores import config_type
from stairwell.decode import Sampling, Session, greedy
from stairwell.decode.speculative import speculate, verify
from stairwell.errors import UserError
from tests.invariants import scramble

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
CROPS = sorted(set(CORES) - {"lstm", "deltanet"})


def make_model(name: str, seed: int = 0, vocabulary_size: int = 7) -> LanguageModel:
    config = config_type(name)
    sizes = {key: value for key, value in SIZES.items() if key in field_types(config)}
    if name == "memory-network":
        sizes["passes"] = 6
    torch.manual_seed(seed)
    return scramble(LanguageModel(LanguageModelConfig(core=config(**sizes), inputs=vocabulary_size))).eval()  # type: ignore


def prompt(tokens: int = 9) -> Tensor:
    return torch.randint(7, (1, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("target", CROPS)
@pytest.mark.parametrize("length", [1, 4])
def test_a_draft_does_not_change_greedy_tokens(target: str, length: int) -> None:
    model, draft = make_model(target), make_model("feedback", seed=3)
    for tokens in (1, 2, 40):
        result = speculate(model, draft, prompt(), tokens, length, temperature=0)
        assert torch.equal(result.tokens, greedy(Session(model, model.init_state(1)), prompt(), tokens))


@pytest.mark.parametrize("drafter", CROPS)
def test_a_draft_equal_to_the_target_is_always_accepted(drafter: str) -> None:
    greedy_result = speculate(make_model(drafter), make_model(drafter), prompt(1), 41, 4, temperature=0)
    assert greedy_result.acceptance == 1 and greedy_result.rounds == 9
    sampled = speculate(make_model(drafter), make_model(drafter), prompt(), 61, 4)
    assert sampled.acceptance > 0.95  # not 1 because of rounding


OPTIONS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_k": 2}, {"top_p": 0.8}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_verification_preserves_the_distribution_of_the_target(options: dict[str, Any]) -> None:
    """The probability of each first token, summed over all proposals, is that of the target."""
    sampling = Sampling(**options)
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2
    p, q = sampling.probabilities(logits[0]), sampling.probabilities(logits[1])[:2]
    first = torch.zeros(4, dtype=torch.float64)
    for token in range(4):
        if q[0, token]:
            first[token] += q[0, token] * min(1.0, float(p[0, token] / q[0, token]))
    rest = (p[0] - q[0]).clamp(min=0)
    first += (1 - first.sum()) * (rest / rest.sum() if rest.sum() else 0)
    torch.testing.assert_close(first, p[0])
    # The same by counting what `verify` returns.
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(4, dtype=torch.float64)
    for _ in range(4000):
        proposed = torch.cat([torch.multinomial(q[i], 1, generator=generator) for i in range(2)])
        n, new = verify(p, q, proposed, generator)
        counts[int(proposed[0]) if n else int(new)] += 1
    torch.testing.assert_close(counts / 4000, p[0], rtol=0, atol=0.03)
    assert (counts[p[0] == 0] == 0).all()


@pytest.mark.slow
def test_three_sampled_tokens_have_the_distribution_of_the_target() -> None:
    model, draft = make_model("transformer-xl", vocabulary_size=3), make_model("feedback", 3, vocabulary_size=3)
    start, samples = torch.tensor([[0, 2, 1]]), 3000
    continuations = torch.tensor(list(itertools.product(range(3), repeat=3)))
    with torch.no_grad():
        whole = torch.cat([start.expand(len(continuations), -1), continuations], 1)
        logits, _ = model(whole[:, :-1], model.init_state(len(continuations)))
        log_probs = logits[:, 2:].log_softmax(-1).gather(2, continuations[..., None])
        expected = samples * log_probs.sum((1, 2)).exp().double()
    counts, generator = torch.zeros(27, dtype=torch.float64), torch.Generator().manual_seed(0)
    digits = torch.tensor([9, 3, 1])
    for _ in range(samples):
        tokens = speculate(model, draft, start, 3, 2, generator=generator).tokens[0]
        counts[int((tokens * digits).sum())] += 1
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 60  # 26 degrees of freedom: p = 1e-4


def test_a_seed_determines_the_tokens() -> None:
    def tokens(seed: int) -> list[int]:
        models = make_model("transformer-xl"), make_model("feedback", 3)
        return speculate(*models, prompt(), 30, generator=torch.Generator().manual_seed(seed)).tokens[0].tolist()

    assert tokens(1) == tokens(1) != tokens(2)


def test_invalid_arguments_raise() -> None:
    model = make_model("transformer-xl")
    for arguments, message in (
        ({"tokens": 0}, "at least 1 token"),
        ({"draft": make_model("feedback", vocabulary_size=5)}, "vocabulary of the target"),
        ({"draft": make_model("feedback").train()}, "call eval"),
        ({"top_p": 3.0}, "top_p"),
    ):
        with pytest.raises(UserError, match=message):
            speculate(
                **{"target": model, "draft": make_model("feedback"), "prompt": prompt(), "tokens": 5, **arguments}
            )
    with pytest.raises(ValueError, match="does not support crop"):
        speculate(model, make_model("lstm"), prompt(), 5)
