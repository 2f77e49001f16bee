"""What to say next, greedy or sampled, over a decoding session; `beam` has beam search.

    tokens = greedy(session, prompt, 100)                                     prompt (B, T) -> (B, 100)
    tokens = sample(session, prompt, 100, temperature=0.8, top_p=0.95)

The prompt is read in one call of the model. Afterwards the session has read all but the last token, which nothing
depended on: to go on, hand that in as the next prompt. Letters: B rows, T tokens, V symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from stairwell.decode.beam import check_prompt
from stairwell.decode.session import Session
from stairwell.errors import UserError

Choose = Callable[[Tensor], Tensor]  # logits (B, V) -> tokens (B,)
COLDEST = 1e-6  # a lower temperature is greedy: single precision cannot tell its distribution from that


def stream(session: Session, prompt: Tensor, tokens: int, choose: Choose) -> Iterator[Tensor]:
    """Tokens (B,) one by one, each as soon as it is chosen."""
    check_tokens(session, prompt, tokens)
    chosen = choose(session.read(prompt))
    yield chosen
    for _ in range(tokens - 1):
        chosen = choose(session.step(chosen))
        yield chosen


def greedy(session: Session, prompt: Tensor, tokens: int) -> Tensor:
    """The most probable token each time. prompt (B, T) -> (B, tokens)"""
    return torch.stack(list(stream(session, prompt, tokens, most_probable)), 1)


def sample(
    session: Session,
    prompt: Tensor,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Tokens drawn from the model's distribution, or from the likely part of it. prompt (B, T) -> (B, tokens)"""
    return torch.stack(list(stream(session, prompt, tokens, sampler(temperature, top_k, top_p, generator))), 1)


def most_probable(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def sampler(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Choose:
    """How to draw: from the `top_k` most probable tokens, and of these from the fewest that hold `top_p` of the
    probability. A temperature below 1e-6 is greedy."""
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature must be a finite number, 0 or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k must be at least 1, not {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p}")
    if temperature < COLDEST:
        return most_probable

    def draw(logits: Tensor) -> Tensor:
        # The most probable first, so that what is kept is a beginning.
        values, symbols = (logits / temperature).sort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            values, symbols = values[:, :top_k], symbols[:, :top_k]
        chances = values.softmax(-1)
        if top_p is not None:
            before = chances.cumsum(-1) - chances
            # The most probable stays, however small top_p is in single precision.
            chances = chances.masked_fill((before >= top_p) & (before > 0), 0)
        drawn = torch.multinomial(chances, 1, generator=generator)
        return symbols.gather(1, drawn)[:, 0]

    return draw


def check_tokens(session: Session, prompt: Tensor, tokens: int) -> None:
    check_prompt(session, prompt)
    if tokens < 1:
        raise UserError(f"the number of tokens to decode must be at least 1, not {tokens}")
