"""Speculative decoding (Leviathan et al., 2023; Chen et al., 2023): a small model drafts, a large one verifies.

    result = speculate(target, draft, prompt, 100, length=4)        prompt (1, T); result.tokens (1, 100)

Each round, the draft samples `length` tokens one by one, and the target scores them in one call. A drafted token x is
accepted with probability min(1, p(x) / q(x)), where p is the target's distribution and q the draft's. At the first
rejection, a token is sampled from max(p - q, 0), normalized; if all are accepted, one more is sampled from p. The
result has exactly the target's distribution; greedy decoding gives the same tokens as the target alone.

Both models run in decoding sessions, and `crop` removes rejected tokens. This pays off if the target processes many
tokens in one call faster than one by one. A Transformer-XL does: it reads its parameters once per call. A Feedback
model processes tokens one by one in any case, so it is a good draft but gains nothing as a target.
Letters: V vocabulary size, k drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stairwell.decode.sampling import Sampling
from stairwell.decode.session import Session
from stairwell.errors import UserError
from stairwell.models import LanguageModel


@dataclass(frozen=True)
class SpeculativeOutput:
    tokens: Tensor  # (1, n)
    rounds: int  # calls of the target, excluding the one for the prompt
    drafted: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """Fraction of the drafted tokens that were accepted."""
        return self.accepted / max(1, self.drafted)


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
) -> SpeculativeOutput:
    """Generate `tokens` tokens after a prompt (1, T) from the target's distribution."""
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] < 1 or tokens < 1 or length < 1:
        raise UserError(
            "speculate requires a prompt (1, at least 1 token), at least 1 token to generate and at least 1 to draft; "
            f"got a prompt {tuple(prompt.shape)}, {tokens} and {length}"
        )
    if target.config.V != draft.config.V or target.config.inputs != draft.config.inputs:
        raise UserError("the draft must have the vocabulary of the target")
    if target.training or draft.training:
        raise UserError("a model is in training mode; call eval() on both models first")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    target_session, draft_session = (
        Session(model, model.init_state(1, max_crop=length + 1)) for model in (target, draft)
    )
    # Between rounds, both sessions have read all tokens but the last one.
    if prompt.shape[1] > 1:
        target_session.read(prompt[:, :-1])
        draft_session.read(prompt[:, :-1])
    last, generated = prompt[:, -1:], [prompt[:, :0]]
    remaining, rounds, drafted, accepted = tokens, 0, 0, 0
    while remaining:
        k = min(length, remaining - 1)  # each round also adds one token sampled from the target
        proposed, q = propose(draft_session, last, k, sampling, generator)
        p = sampling.probabilities(target_session.logits_each(torch.cat([last, proposed], 1))[0])  # (k + 1, V)
        n, new = verify(p, q, proposed[0], generator)
        target_session.crop(k - n)
        if n < k:
            draft_session.crop(k - 1 - n)
        else:  # the draft has not read its own last token yet
            draft_session.step(proposed[:, -1] if k else last[0])
        generated += [proposed[:, :n], new]
        last, remaining = new, remaining - n - 1
        rounds, drafted, accepted = rounds + 1, drafted + k, accepted + n
    return SpeculativeOutput(torch.cat(generated, 1), rounds, drafted, accepted)


def propose(
    session: Session, last: Tensor, k: int, sampling: Sampling, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return k drafted tokens (1, k) after `last` and the distributions (k, V) they were sampled from. The session has
    then read all of them but the last."""
    if k == 0:
        return last[:, :0], torch.zeros(0, session.model.config.V, dtype=torch.float64, device=last.device)
    token, proposed, q = last[0], [], []
    for _ in range(k):
        q.append(sampling.probabilities(session.step(token)[0]))
        token = torch.multinomial(q[-1], 1, generator=generator)
        proposed.append(token)
    return torch.stack(proposed, 1), torch.stack(q)


def verify(p: Tensor, q: Tensor, proposed: Tensor, generator: torch.Generator | None) -> tuple[int, Tensor]:
    """Return how many of the proposed tokens (k,) are accepted, and a token (1, 1) sampled from the target after them.

    p (k + 1, V), q (k, V)"""
    for i, token in enumerate(proposed.tolist()):
        uniform = torch.rand((), generator=generator, device=p.device, dtype=torch.float64)
        # Accept with probability p / q; q > 0, since the token was sampled from it.
        if uniform * q[i, token] >= p[i, token]:
            residual = (p[i] - q[i]).clamp(min=0)
            # If p equals q up to rounding, the residual may be zero everywhere.
            residual = residual if float(residual.sum()) > 0 else p[i]
            return i, torch.multinomial(residual, 1, generator=generator)[None]
    return len(proposed), torch.multinomial(p[-1], 1, generator=generator)[None]
