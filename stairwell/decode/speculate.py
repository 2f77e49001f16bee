"""Speculative decoding (Leviathan et al., 2023; Chen et al., 2023): a small model drafts, a large one checks.

    said = speculate(target, draft, prompt, 100, length=4)          prompt (1, T); said.tokens (1, 100), said.accepted

Each round the draft writes `length` tokens, one after the other, and the target reads them all in one call. A drafted
token x is kept with the chance min(1, p(x) / q(x)), where p is the target's distribution and q the draft's. At the
first that is not kept, another is drawn from max(p - q, 0), scaled to add up to 1; if all are kept, one more is drawn
from p. What is written is distributed exactly as if the target had written alone; greedily it is the same.

Tokens that were not kept are taken back from both states by `crop`. A target gains where it reads many tokens in one
call faster than one by one: a Transformer-XL does; a Feedback model reads one after the other whatever is asked of it,
so it makes a good draft and no target. Letters: V symbols, k drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.decode.search import sampler
from stairwell.decode.session import Session
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.state import State


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
    hold `top_p` of the probability. A temperature of 0 puts all of it on the likeliest token."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        sampler(self.temperature, self.top_k, self.top_p)  # refuses what makes no sense

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) -> probabilities (..., V), in float64 so that differences of them mean something"""
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
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
    # Both have read all but the last token.
    target_state, draft_state = (model.init_state(1, slack=length + 1) for model in (target, draft))
    if prompt.shape[1] > 1:
        target_state, draft_state = (
            model.hidden(prompt[:, :-1], state)[1] for model, state in ((target, target_state), (draft, draft_state))
        )
    last, written = prompt[:, -1:], prompt[:, :0]
    rounds = drafted = accepted = 0
    while written.shape[1] < tokens:
        k = min(length, tokens - written.shape[1] - 1)  # the last token of all is the target's own
        proposed, q, draft_state = propose(draft, draft_state, last, k, chances, generator)
        logits, target_state = target(torch.cat([last, proposed], 1), target_state)  # (1, k + 1, V)
        kept, new = judge(chances(logits[0]), q, proposed[0], generator)
        target_state = target_state.crop(k - kept)
        if kept < k:
            draft_state = draft_state.crop(k - 1 - kept)
        elif k:  # the draft has not read its own last token yet
            draft_state = draft.hidden(proposed[:, -1:], draft_state)[1]
        else:
            draft_state = draft.hidden(last, draft_state)[1]
        written = torch.cat([written, proposed[:, :kept], new], 1)
        last = new
        rounds, drafted, accepted = rounds + 1, drafted + k, accepted + kept
    return Speculated(written, rounds, drafted, accepted)


def propose(
    draft: LanguageModel, state: State, last: Tensor, k: int, chances: Chances, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, State]:
    """k tokens (1, k), the distributions (k, V) that they were drawn from, and the state after all but the last."""
    if k == 0:
        return last[:, :0], chances(torch.zeros(0, draft.config.V, device=last.device)), state
    session, token = Session(draft, state), last[0]
    proposed, q = [], []
    for _ in range(k):
        q.append(chances(session.step(token)[0]))
        token = draw(q[-1], generator)
        proposed.append(token)
    return torch.stack(proposed, 1), torch.stack(q), session.state()


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
