"""What to say next: greedy, sampled or by beam search, over a decoding session.

    tokens = greedy(session, prompt, 100)                                     prompt (B, T) -> (B, 100)
    tokens = sample(session, prompt, 100, temperature=0.8, top_p=0.95)
    best = beam(session, prompt, 100, width=4, end=newline)[row][0]           a Hypothesis

The prompt is read in one call of the model. Afterwards the session has read all but the last token, which nothing
depended on: to go on, hand that in as the next prompt. Letters: B rows, T tokens, V symbols, W beam width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.cores.core import check_tensor
from stairwell.decode.session import Session

Choose = Callable[[Tensor], Tensor]  # logits (B, V) -> tokens (B,)


def stream(session: Session, prompt: Tensor, tokens: int, choose: Choose) -> Iterator[Tensor]:
    """Tokens (B,) one by one, each as soon as it is chosen."""
    check_prompt(session, prompt, tokens)
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
    probability. A temperature of 0 is greedy."""
    if temperature < 0:
        raise ValueError(f"temperature must be 0 or more, not {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, not {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {top_p}")
    if temperature == 0:
        return most_probable

    def draw(logits: Tensor) -> Tensor:
        # The most probable first, so that what is kept is a beginning.
        values, symbols = (logits / temperature).sort(dim=-1, descending=True, stable=True)
        if top_k is not None:
            values, symbols = values[:, :top_k], symbols[:, :top_k]
        chances = values.softmax(-1)
        if top_p is not None:
            before = chances.cumsum(-1) - chances
            chances = chances.masked_fill(before >= top_p, 0)
        drawn = torch.multinomial(chances, 1, generator=generator)
        return symbols.gather(1, drawn)[:, 0]

    return draw


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...]  # the end token included, if it came
    log_probability: float
    score: float  # log_probability / length ** length_penalty


def beam(
    session: Session,
    prompt: Tensor,
    tokens: int,
    width: int,
    length_penalty: float = 1.0,
    end: int | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses found for each prompt (B, T), at most `width`, the best first.

    A hypothesis ends with the token `end`, or after `tokens` tokens. At every step the `width` best ways to go on are
    looked at; those that end are kept aside, and the best that do not end go on. The session ends up with B * width
    rows."""
    check_prompt(session, prompt, tokens)
    if width < 1:
        raise ValueError(f"a beam's width must be at least 1, not {width}")
    B, W, V = prompt.shape[0], width, session.model.config.V
    logits = session.read(prompt)
    session.select(torch.arange(B, device=prompt.device).repeat_interleave(W))
    logits = logits.repeat_interleave(W, 0)
    # At first all beams of a prompt are the same one, so only one counts.
    totals = torch.full((B, W), -math.inf, dtype=logits.dtype, device=logits.device)
    totals[:, 0] = 0
    said = torch.empty(B, W, 0, dtype=torch.int64, device=prompt.device)
    found = [Finished(W, tokens, length_penalty) for _ in range(B)]
    for t in range(tokens):
        ways = (totals[..., None] + logits.log_softmax(-1).view(B, W, V)).flatten(1)  # (B, W * V)
        best, way = ways.topk(min(2 * W, W * V), -1)  # at most W of these can end
        parent, token = way // V, way % V
        ends = (token == end) if end is not None else torch.zeros_like(token, dtype=torch.bool)
        keep_aside(found, best[:, :W], said, parent[:, :W], token[:, :W], ends[:, :W])
        going = ends.int().argsort(dim=-1, stable=True)[:, :W]  # the best that go on, in their order
        totals, parent, token = (part.gather(1, going) for part in (best.masked_fill(ends, -math.inf), parent, token))
        said = torch.cat([said.gather(1, parent[..., None].expand(-1, -1, t)), token[..., None]], -1)
        if t == tokens - 1 or all(f.closed(float(total[0])) for f, total in zip(found, totals)):
            break
        session.select((parent + W * torch.arange(B, device=parent.device)[:, None]).flatten())
        logits = session.step(token.flatten())
    for b, finished in enumerate(found):
        for w in range(W):
            finished.add(said[b, w].tolist(), float(totals[b, w]))
    return [finished.best() for finished in found]


class Finished:
    """The finished hypotheses of one prompt."""

    def __init__(self, width: int, longest: int, length_penalty: float) -> None:
        self.width, self.longest, self.length_penalty = width, longest, length_penalty
        self.hypotheses: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probability: float) -> None:
        if log_probability > -math.inf:
            score = self.score(log_probability, len(tokens))
            self.hypotheses.append(Hypothesis(tuple(tokens), log_probability, score))

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / length**self.length_penalty

    def best(self) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.width]

    def closed(self, most_probable: float) -> bool:
        """Whether nothing that goes on can come in: a hypothesis only loses probability, so the most that the best of
        them can reach is what it has now, at the length that suits it best."""
        if len(self.hypotheses) < self.width:
            return False
        length = self.longest if self.length_penalty > 0 else 1
        return self.best()[-1].score >= self.score(most_probable, length)


def keep_aside(
    found: list[Finished], totals: Tensor, said: Tensor, parent: Tensor, token: Tensor, ends: Tensor
) -> None:
    for b, i in ends.nonzero().tolist():
        before = said[b, parent[b, i]].tolist()
        found[b].add([*before, int(token[b, i])], float(totals[b, i]))


def check_prompt(session: Session, prompt: Tensor, tokens: int) -> None:
    check_tensor(prompt, "a prompt")
    if prompt.dim() != 2 or prompt.shape[0] != session.batch or prompt.shape[1] < 1:
        raise ValueError(f"a prompt must be ({session.batch} rows, at least 1 token), not {tuple(prompt.shape)}")
    if tokens < 1:
        raise ValueError(f"the number of tokens to decode must be at least 1, not {tokens}")
