"""Greedy decoding and sampling over a decoding session; beam search is in `beam`.

    tokens = greedy(session, prompt, 100)                                     prompt (B, T) -> (B, 100)
    tokens = sample(session, prompt, 100, temperature=0.8, top_p=0.95)
    hypotheses = sample_hypotheses(stepper, prompt, 100, Sampling(), end, samples=4)     4 hypotheses per prompt

The prompt is read in one call of the model. Afterwards the session has read all tokens but the last one; to continue,
pass that one as the next prompt.
Letters: B prompts, n open hypotheses, T tokens of a prompt, V vocabulary size, t tokens decoded so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stairwell.decode.beam import Constraints, Hypothesis, Lengths, check_prompt
from stairwell.decode.sampling import Sampling
from stairwell.decode.stepper import Stepper
from stairwell.errors import UserError


def greedy(stepper: Stepper, prompt: Tensor, tokens: int) -> Tensor:
    """Decode with the most probable token at each step. prompt (B, T) -> (B, tokens)"""
    return sample(stepper, prompt, tokens, temperature=0)


def sample(
    stepper: Stepper,
    prompt: Tensor,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample tokens from the model's distribution. prompt (B, T) -> (B, tokens)"""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    return torch.stack(list(stream_tokens(stepper, prompt, tokens, sampling, generator)), 1)


def stream_tokens(
    stepper: Stepper, prompt: Tensor, tokens: int, sampling: Sampling, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Yield tokens (B,) one by one, each as soon as it is sampled."""
    check_prompt(stepper, prompt)
    if tokens < 1:
        raise UserError(f"the number of tokens to decode must be at least 1, not {tokens}")
    sampled = sampling.sample(stepper.read(prompt), generator)
    yield sampled
    for _ in range(tokens - 1):
        sampled = sampling.sample(stepper.step(sampled), generator)
        yield sampled


def sample_hypotheses(
    stepper: Stepper,
    prompt: Tensor,
    max_length: Lengths,
    sampling: Sampling,
    end: int | None,
    *,
    samples: int = 1,
    min_length: Lengths = 0,
    no_repeat_ngram_size: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[Hypothesis]]:
    """Return `samples` sampled hypotheses per prompt (B, T), under the constraints of beam search.

    A score is the log-probability per token. A hypothesis that has ended leaves the batch."""
    check_prompt(stepper, prompt)
    B = prompt.shape[0]
    constraints = Constraints.for_batch(B, end, max_length, min_length, no_repeat_ngram_size, prefixes)
    if samples < 1:
        raise UserError(f"the number of samples must be at least 1, not {samples}")
    each = torch.arange(B, device=prompt.device).repeat_interleave(samples)
    logits = stepper.read(prompt)[each]
    constraints.check_vocabulary(logits.shape[-1])
    stepper.select(each)
    open_samples, sentences = list(range(B * samples)), each.tolist()
    tokens = torch.empty(len(open_samples), 0, dtype=torch.int64, device=prompt.device)
    totals = torch.zeros(len(open_samples), dtype=logits.dtype, device=prompt.device)
    hypotheses: list[Hypothesis] = [Hypothesis((), 0.0, 0.0)] * len(open_samples)
    for t in range(max(constraints.max_length)):
        log_probs, allowed = logits.log_softmax(-1), logits.clone()
        constraints.mask_forbidden(allowed[:, None], tokens[:, None], sentences)
        sampled = sampling.sample(allowed, generator)
        totals = totals + log_probs.gather(1, sampled[:, None])[:, 0]
        tokens = torch.cat([tokens, sampled[:, None]], 1)
        still_open = []
        for i, token in enumerate(sampled.tolist()):
            if token != end and t + 1 < constraints.max_length[sentences[i]]:
                still_open.append(i)
            else:
                total = float(totals[i])
                hypotheses[open_samples[i]] = Hypothesis(tuple(tokens[i].tolist()), total, total / (t + 1))
        if not still_open:
            break
        open_samples, sentences = [open_samples[i] for i in still_open], [sentences[i] for i in still_open]
        index = torch.tensor(still_open, device=prompt.device)
        tokens, totals = tokens[index], totals[index]
        stepper.select(index)
        logits = stepper.step(tokens[:, -1])
    return [hypotheses[b * samples : (b + 1) * samples] for b in range(B)]
