"""Speculative decoding (Leviathan et al., 2023; Chen et al., 2023): a small model drafts, a large one checks.

    said = speculate(target, draft, prompt, 100, length=4)          prompt (1, T); said.tokens (1, 100), said.accepted

Each round the draft writes `length` tokens, one after the other, and the target reads them all in one call. A drafted
token x is kept with the chance min(1, p(x) / q(x)), where p is the target's distribution and q the draft's. At the
first that is not kept, another is drawn from max(p - q, 0), scaled to add up to 1; if all are kept, one more is drawn
from p. What is written is distributed exactly as if the target had written alone; greedily it is the same.

Both are decoding sessions, and tokens that were not kept are taken back from them by `crop`. A target gains where it
reads many tokens in one call faster than one by one: a Transformer-XL reads its parameters once for all of them; a
Feedback model reads one token after the other whatever is asked of it, so it makes a good draft and no target.
Letters: V symbols, k drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.decode.search import COLDEST, sampler
from stairwell.decode.session import Session
from stairwell.errors import UserError
from stairwell.models import LanguageModel


@dataclass(frozen=True)
class Speculated:
    tokens: Tensor  # (1, n)
    rounds: int  # calls of the target, besides the prompt
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """Which part of the drafted tokens was kept."""
        return self.accepted / max(1, self.drafted)


@dataclass(frozen=True)
class Chances:
    """The distribution that a token is drawn from: a temperature, the likeliest `top_k`, and of these the fewest that
    hold `top_p` of the probability. A temperature below 1e-6 puts all of it on the likeliest token."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        sampler(self.temperature, self.top_k, self.top_p)  # refuses what makes no sense

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) -> probabilities (..., V), in float64 so that differences of them mean something"""
        if self.temperature < COLDEST:
            return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        if self.top_k is None and self.top_p is None:
            return (logits.double() / self.temperature).softmax(-1)
        values, symbols = (logits.double() / self.temperature).sort(dim=-1, descending=True, stable=True)
        chances = values.softmax(-1)
        if self.top_k is not None:
            chances = chances.masked_fill(torch.arange(chances.shape[-1], device=chances.device) >= self.top_k, 0)
            chances = chances / chances.sum(-1, keepdim=True)
        if self.top_p is not None:
            chances = chances.masked_fill(chances.cumsum(-1) - chances >= self.top_p, 0)
            chances = chances / chances.sum(-1, keepdim=True)
        return torch.zeros_like(chances).scatter(-1, symbols, chances)


@torch.no_grad()
def speculate(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: Tensor,
    tokens: int,
    length: int = 4,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Speculated:
    """Write `tokens` tokens after a prompt (1, T) with the target's own distribution."""
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] < 1 or tokens < 1 or length < 1:
        raise UserError(
            f"speculation needs one prompt of at least 1 token, and at least 1 token to write and to draft; got a "
            f"prompt of {tuple(prompt.shape)}, {tokens} and {length}"
        )
    if target.config.V != draft.config.V or target.config.inputs != draft.config.inputs:
        raise UserError("the draft must know the symbols of the target, in the same order")
    if target.training or draft.training:
        raise UserError("decoding with dropout is not meant: call eval() on both models first")
    chances = Chances(temperature, top_k, top_p)
    reads, drafts = (Session(model, model.init_state(1, max_crop=length + 1)) for model in (target, draft))
    # Both have read all but the last token.
    if prompt.shape[1] > 1:
        reads.read(prompt[:, :-1])
        drafts.read(prompt[:, :-1])
    last, written = prompt[:, -1:], [prompt[:, :0]]
    left, rounds, drafted, accepted = tokens, 0, 0, 0
    while left:
        k = min(length, left - 1)  # the last token of all is the target's own
        proposed, q = propose(drafts, last, k, chances, generator)
        p = chances(reads.follow(torch.cat([last, proposed], 1))[0])  # (k + 1, V)
        kept, new = judge(p, q, proposed[0], generator)
        reads.crop(k - kept)
        if kept < k:
            drafts.crop(k - 1 - kept)
        else:  # the draft has not read its own last token yet
            drafts.step(proposed[:, -1] if k else last[0])
        written += [proposed[:, :kept], new]
        last, left = new, left - kept - 1
        rounds, drafted, accepted = rounds + 1, drafted + k, accepted + kept
    return Speculated(torch.cat(written, 1), rounds, drafted, accepted)


def propose(
    drafts: Session, last: Tensor, k: int, chances: Chances, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """k tokens (1, k) after `last`, and the distributions (k, V) that they were drawn from. The draft has then read all
    but the last of them."""
    if k == 0:
        return last[:, :0], torch.zeros(0, drafts.model.config.V, dtype=torch.float64, device=last.device)
    token, proposed, q = last[0], [], []
    for _ in range(k):
        q.append(chances(drafts.step(token)[0]))
        token = draw(q[-1], generator)
        proposed.append(token)
    return torch.stack(proposed, 1), torch.stack(q)


def judge(p: Tensor, q: Tensor, proposed: Tensor, generator: torch.Generator | None) -> tuple[int, Tensor]:
    """How many of the proposed tokens (k,) are kept, and the target's own token (1, 1) after them.

    p (k + 1, V), q (k, V)"""
    for i, token in enumerate(proposed.tolist()):
        coin = torch.rand((), generator=generator, device=p.device, dtype=torch.float64)
        # Kept with the chance p / q; q is not 0, since the token was drawn from it.
        if coin * q[i, token] >= p[i, token]:
            rest = (p[i] - q[i]).clamp(min=0)
            # Where the two are the same but for rounding nothing is left, and the target's own will do.
            return i, draw(rest if float(rest.sum()) > 0 else p[i], generator)[None]
    return len(proposed), draw(p[-1], generator)[None]


def draw(chances: Tensor, generator: torch.Generator | None) -> Tensor:
    """(V,) -> a token (1,)"""
    return torch.multinomial(chances, 1, generator=generator)
