"""Targets drawn from a model's distribution, many sentences at once, under the rules of beam search.

    found = draw(stepper, prompt, 100, sampler(0.8, generator=dice), end, samples=4)     -> 4 Hypotheses for each row

A row that has ended leaves the batch. Letters: B rows of the prompt, n rows that are still open, V symbols, t tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stairwell.decode.beam import Hypothesis, Lengths, Rules, check_prompt, per_sentence
from stairwell.decode.search import Choose
from stairwell.decode.stepper import Stepper
from stairwell.errors import UserError


def draw(
    stepper: Stepper,
    prompt: Tensor,
    tokens: Lengths,
    choose: Choose,
    end: int | None,
    *,
    samples: int = 1,
    shortest: Lengths = 0,
    block: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt (B, T) some hypotheses in the order they were drawn; a score is the log-probability a token."""
    check_prompt(stepper, prompt)
    B = prompt.shape[0]
    rules = Rules(end, per_sentence(tokens, B), per_sentence(shortest, B), block, prefixes or [()] * B)
    if min(rules.longest) < 1 or samples < 1:
        raise UserError("to draw needs at least one token and one sample")
    each = torch.arange(B, device=prompt.device).repeat_interleave(samples)
    logits = stepper.read(prompt)[each]
    stepper.select(each)
    rows, sentences = list(range(B * samples)), each.tolist()
    said = torch.empty(len(rows), 0, dtype=torch.int64, device=prompt.device)
    totals = torch.zeros(len(rows), dtype=logits.dtype, device=prompt.device)
    found: list[Hypothesis] = [Hypothesis((), 0.0, 0.0)] * len(rows)
    for t in range(max(rules.longest)):
        scores, allowed = logits.log_softmax(-1), logits.clone()
        rules.silence(allowed[:, None], said[:, None], sentences)
        chosen = choose(allowed)
        totals = totals + scores.gather(1, chosen[:, None])[:, 0]
        said = torch.cat([said, chosen[:, None]], 1)
        stay = []
        for i, token in enumerate(chosen.tolist()):
            if token != end and t + 1 < rules.longest[sentences[i]]:
                stay.append(i)
            else:
                total = float(totals[i])
                found[rows[i]] = Hypothesis(tuple(said[i].tolist()), total, total / (t + 1))
        if not stay:
            break
        rows, sentences = [rows[i] for i in stay], [sentences[i] for i in stay]
        kept = torch.tensor(stay, device=prompt.device)
        said, totals = said[kept], totals[kept]
        stepper.select(kept)
        logits = stepper.step(said[:, -1])
    return [found[b * samples : (b + 1) * samples] for b in range(B)]
