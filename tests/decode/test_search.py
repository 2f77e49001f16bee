"""Greedy decoding, sampling and beam search over models, against the model and against search in plain lists."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import LanguageModel
from stairwell.decode import (
    Hypothesis,
    ModelStepper,
    Sampling,
    Session,
    beam_search,
    greedy,
    sample,
    sample_hypotheses,
)
from stairwell.errors import UserError
from tests.decode.test_session import CONFIGS, V, config_id, make_model


@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
def test_greedy_takes_the_most_probable_tokens(config: Any) -> None:
    torch.manual_seed(4)
    model = make_model(config)
    prompt = torch.randint(V, (3, 4))
    tokens = greedy(Session(model, model.init_state(3)), prompt, 6)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, tokens], 1), model.init_state(3))
    assert torch.equal(tokens, logits[:, 3:-1].argmax(-1))


def test_decoding_continues_from_the_last_token() -> None:
    torch.manual_seed(5)
    model = make_model(CONFIGS[0])
    prompt = torch.randint(V, (2, 3))
    whole = greedy(Session(model, model.init_state(2)), prompt, 9)
    session = Session(model, model.init_state(2))
    first = greedy(session, prompt, 4)
    assert torch.equal(torch.cat([first, greedy(session, first[:, -1:], 5)], 1), whole)


def test_samples_depend_on_the_generator_and_respect_top_k_and_top_p() -> None:
    torch.manual_seed(6)
    model = make_model(CONFIGS[0])
    prompt = torch.randint(V, (4, 3))

    def samples(seed: int, **options: Any) -> Tensor:
        session = Session(model, model.init_state(4))
        return sample(session, prompt, 20, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(samples(0), samples(0))
    assert not torch.equal(samples(0), samples(1))
    best = greedy(Session(model, model.init_state(4)), prompt, 20)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 0.0}, {"temperature": 1e-6}):
        assert torch.equal(samples(0, **options), best), options
    tokens = samples(0, top_k=2)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, tokens], 1), model.init_state(4))
    assert (logits[:, 2:-1].topk(2).indices == tokens[..., None]).any(-1).all()
    tokens = samples(0, top_p=0.6)
    with torch.no_grad():
        logits, _ = model(torch.cat([prompt, tokens], 1), model.init_state(4))
    probabilities = logits[:, 2:-1].softmax(-1)
    sampled = probabilities.gather(-1, tokens[..., None])
    assert ((probabilities * (probabilities > sampled)).sum(-1) < 0.6).all()


def test_samples_have_the_model_distribution() -> None:
    torch.manual_seed(7)
    model = make_model(CONFIGS[0])
    n = 4000
    prompt = torch.tensor([[1, 2]]).expand(n, 2)
    tokens = sample(Session(model, model.init_state(n)), prompt, 1, 0.7, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, _ = model(prompt[:1], model.init_state(1))
    expected = (logits[0, -1] / 0.7).softmax(-1)
    frequencies = torch.bincount(tokens[:, 0], minlength=V) / n
    torch.testing.assert_close(frequencies.double(), expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5}], ids=str)
def test_invalid_sampling_options_raise(options: Any) -> None:
    model = make_model(CONFIGS[0])
    with pytest.raises(ValueError, match=next(iter(options))):
        sample(Session(model, model.init_state(1)), torch.tensor([[0]]), 1, **options)


def test_parameters_with_nan_raise() -> None:
    model = make_model(CONFIGS[0])
    prompt = torch.tensor([[0]])
    with torch.no_grad():
        model.head.bias[1] = torch.nan
    for make in (Session, ModelStepper):
        for search in (
            lambda stepper: greedy(stepper, prompt, 2),
            lambda stepper: beam_search(stepper, prompt, 2, 2),
            lambda stepper: sample_hypotheses(stepper, prompt, 2, Sampling(), None),
        ):
            with pytest.raises(UserError, match=r"the parameter 'head\.bias' contains NaN or infinity"):
                search(make(model, model.init_state(1)))


def log_probabilities(model: LanguageModel, prompt: Tensor, texts: list[tuple[int, ...]]) -> dict[Any, float]:
    """Return the log-probability of each text after the prompt, in one call per length."""
    scores = {}
    for length in {len(text) for text in texts}:
        same = [text for text in texts if len(text) == length]
        whole = torch.cat([prompt.expand(len(same), -1), torch.tensor(same)], 1)
        with torch.no_grad():
            logits, _ = model(whole[:, :-1], model.init_state(len(same)))
        log_probs = logits[:, len(prompt) - 1 :].log_softmax(-1)
        scores |= dict(zip(same, log_probs.gather(2, whole[:, len(prompt) :, None]).sum((1, 2)).tolist(), strict=True))
    return scores


def all_texts(tokens: int, end: int | None) -> list[tuple[int, ...]]:
    """Return every text that ends with the end token or has the maximum length."""
    texts = []
    for length in range(1, tokens + 1):
        for text in itertools.product(range(V), repeat=length):
            if end not in text[:-1] and (length == tokens or text[-1] == end):
                texts.append(text)
    return texts


@pytest.mark.parametrize("config", CONFIGS[1:4], ids=config_id)
@pytest.mark.parametrize(("length_penalty", "end"), [(0.0, None), (0.0, 2), (1.0, 2), (-0.5, 2)])
def test_a_wide_beam_finds_what_exhaustive_search_finds(config: Any, length_penalty: float, end: int | None) -> None:
    torch.manual_seed(8)
    model = make_model(config)
    prompts = torch.randint(V, (2, 3))
    results = beam_search(Session(model, model.init_state(2)), prompts, 3, V**3, length_penalty, end)
    for prompt, hypotheses in zip(prompts, results, strict=True):
        scores = log_probabilities(model, prompt, all_texts(3, end))
        ranked = sorted(scores, key=lambda text: -scores[text] / len(text) ** length_penalty)
        assert [h.tokens for h in hypotheses] == ranked
        assert [h.log_probability for h in hypotheses] == pytest.approx([scores[text] for text in ranked])


def beam_search_in_lists(
    model: LanguageModel, prompt: Tensor, tokens: int, width: int, penalty: float, end: int | None
) -> list[tuple[int, ...]]:
    """Beam search in plain lists; every text is scored from its start."""
    live: list[tuple[int, ...]] = [()]
    finished: list[tuple[int, ...]] = []
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(tokens):
        texts = [(*text, token) for text in live for token in range(V)]
        scores |= log_probabilities(model, prompt, texts)
        texts.sort(key=lambda text: -scores[text])
        finished += [text for text in texts[:width] if text[-1] == end]
        live = [text for text in texts[: 2 * width] if text[-1] != end][:width]
    finished += live
    return sorted(finished, key=lambda text: -scores[text] / len(text) ** penalty)[:width]


@pytest.mark.parametrize("config", CONFIGS[:4], ids=config_id)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(("length_penalty", "end"), [(0.0, None), (1.0, 2), (0.5, 0), (0.0, 3)])
def test_a_narrow_beam_equals_beam_search_in_lists(
    config: Any, width: int, length_penalty: float, end: int | None
) -> None:
    torch.manual_seed(9)
    model = make_model(config)
    prompts = torch.randint(V, (2, 2))
    results = beam_search(Session(model, model.init_state(2)), prompts, 5, width, length_penalty, end)
    for prompt, hypotheses in zip(prompts, results, strict=True):
        expected = beam_search_in_lists(model, prompt, 5, width, length_penalty, end)
        assert [h.tokens for h in hypotheses] == expected
        assert hypotheses == sorted(hypotheses, key=lambda h: -h.score)


def test_a_beam_of_one_is_greedy() -> None:
    torch.manual_seed(10)
    model = make_model(CONFIGS[0])
    prompt = torch.randint(V, (3, 4))
    tokens = greedy(Session(model, model.init_state(3)), prompt, 7)
    results = beam_search(Session(model, model.init_state(3)), prompt, 7, width=1)
    assert [list(h.tokens) for (h,) in results] == tokens.tolist()
    assert isinstance(results[0][0], Hypothesis)
