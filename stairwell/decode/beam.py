"""Beam search over a batch of sentences.

    hypotheses = beam_search(stepper, prompt, 100, width=5, end=newline)     prompt (B, T) -> Hypotheses per prompt
    score = log_probability / length ** length_penalty                       length includes the end token

Each step ranks the 2 W best continuations of a sentence. Those among the first W that end are stored, and the best W
that do not end are continued. A sentence is finished, and leaves the batch, when no open hypothesis can beat the stored
ones.
Letters: B prompts, n open sentences, W beam width, V vocabulary size, t tokens decoded so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stairwell.decode.sampling import as_integer
from stairwell.decode.stepper import Stepper, check_parameters
from stairwell.errors import UserError
from stairwell.fast import native

Lengths = int | Sequence[int]  # one for all sentences, or one per sentence
FOLDS = 16  # number of folds of the vocabulary in the PyTorch implementation of top-k
MAX_NATIVE_K = 64  # the native top-k uses insertion sort, which is slow for a large k
MIN_LOOP = 6  # tokens; shorter repetitions may be intended
MAX_LENGTH_PENALTY = 10  # with a larger exponent, length ** length_penalty may overflow


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...]  # including the end token, if there is one
    log_probability: float
    score: float  # log_probability / length ** length_penalty


def beam_search(
    stepper: Stepper,
    prompt: Tensor,
    max_length: Lengths,
    width: int,
    length_penalty: float = 1.0,
    end: int | None = None,
    *,
    nbest: int | None = None,
    min_length: Lengths = 0,
    no_repeat_ngram_size: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `nbest` (default: `width`) best hypotheses per prompt (B, T), best first.

    A hypothesis ends with the token `end` or after `max_length` tokens, the end token included. `end` is not
    allowed before `min_length` other tokens. With `no_repeat_ngram_size`, no n-gram of that size occurs twice; a
    hypothesis that cannot be continued under this constraint ends. Prefixes are forced: they take precedence over the
    constraints."""
    check_prompt(stepper, prompt)
    B = prompt.shape[0]
    width = as_integer(width, "width must be an integer")
    nbest = None if nbest is None else as_integer(nbest, "nbest must be an integer")
    if width < 1 or (nbest is not None and not 1 <= nbest <= width):
        raise UserError(f"beam search requires width >= 1 and 1 <= nbest <= width, not width {width}, nbest {nbest}")
    check_length_penalty(length_penalty)
    constraints = Constraints.for_batch(B, end, max_length, min_length, no_repeat_ngram_size, prefixes)
    logits = stepper.read(prompt)
    constraints.check_vocabulary(logits.shape[-1])
    stepper.select(torch.arange(B, device=prompt.device).repeat_interleave(width))
    beams = OpenBeams.start(logits, width)
    finished = [FinishedHypotheses(nbest or width, length, length_penalty) for length in constraints.max_length]
    for t in range(max(constraints.max_length)):
        beams, parents = advance(beams, constraints, finished, t)
        if not beams.sentences:
            break
        stepper.select(parents)
        beams.logits = stepper.step(beams.tokens[..., -1].flatten())
    return [hypotheses.best() for hypotheses in finished]


@dataclass(frozen=True)
class Constraints:
    """Which tokens may come next in each sentence."""

    end: int | None
    max_length: list[int]
    min_length: list[int]
    no_repeat_ngram_size: int
    prefixes: Sequence[Sequence[int]]

    @staticmethod
    def for_batch(
        B: int,
        end: int | None,
        max_length: Lengths,
        min_length: Lengths,
        no_repeat_ngram_size: int,
        prefixes: Sequence[Sequence[int]] | None,
    ) -> Constraints:
        """Return the constraints of B sentences; an integer length applies to all of them."""
        if no_repeat_ngram_size < 0:
            raise UserError(f"no_repeat_ngram_size must be 0 or more, not {no_repeat_ngram_size}")
        if end is not None:
            as_integer(end, "the end token must be an integer")
        max_lengths = per_sentence(max_length, B)
        if min(max_lengths) < 1:
            raise UserError(f"max_length must be at least 1, not {min(max_lengths)}")
        return Constraints(end, max_lengths, per_sentence(min_length, B), no_repeat_ngram_size, prefixes or [()] * B)

    def check_vocabulary(self, V: int) -> None:
        """Raise an error if the end token or a token of a prefix is not in the vocabulary."""
        ends = [] if self.end is None else [self.end]
        for token in itertools.chain(ends, *self.prefixes):
            if not 0 <= token < V:
                raise UserError(f"token {token} is not in the model's vocabulary of {V} tokens")

    def mask_forbidden(self, scores: Tensor, tokens: Tensor, sentences: Sequence[int]) -> None:
        """Set the scores (n, W, V) of tokens that must not follow tokens (n, W, t) to -inf, in place."""
        n, W, t = tokens.shape
        forced = [(i, self.prefixes[b][t]) for i, b in enumerate(sentences) if t < len(self.prefixes[b])]
        forced_scores = [scores[i, :, token].clone() for i, token in forced]
        too_short = [i for i, b in enumerate(sentences) if t < self.min_length[b]] if self.end is not None else []
        if self.no_repeat_ngram_size and t >= self.no_repeat_ngram_size:
            forbidden = torch.zeros_like(scores, dtype=torch.bool)
            if too_short:
                forbidden[too_short, :, self.end] = True
            mark_repeated(tokens.flatten(0, 1), self.no_repeat_ngram_size, forbidden.view(n * W, -1))
            stuck = forbidden.all(-1)  # may end, or repeat an n-gram if there is no end token
            if self.end is None:
                forbidden &= ~stuck[..., None]
            else:
                forbidden[..., self.end] &= ~stuck
            scores.masked_fill_(forbidden, -math.inf)
        elif too_short:
            # A slice is faster than a list of indices.
            scores[slice(None) if len(too_short) == n else too_short, :, self.end] = -math.inf
        for (i, token), score in zip(forced, forced_scores):
            scores[i] = -math.inf
            scores[i, :, token] = score


def mark_repeated(tokens: Tensor, n: int, repeated: Tensor) -> None:
    """Mark the tokens that would repeat an n-gram. tokens (B, t), repeated (B, V) bool, changed in place"""
    ngrams = tokens.unfold(1, n, 1)  # (B, t - n + 1, n)
    last = tokens[:, tokens.shape[1] - n + 1 :]  # (B, n - 1)
    b, i = (ngrams[..., :-1] == last[:, None]).all(-1).nonzero(as_tuple=True)
    repeated[b, ngrams[b, i, -1]] = True


@dataclass
class OpenBeams:
    """The hypotheses that have not ended."""

    sentences: list[int]  # indices of the sentences that are still open (n)
    totals: Tensor  # (n, W): log-probability so far; -inf where there is no hypothesis
    tokens: Tensor  # (n, W, t)
    logits: Tensor  # (n * W, V)

    @staticmethod
    def start(logits: Tensor, width: int) -> OpenBeams:
        B = logits.shape[0]
        # All beams of a prompt are equal at first, so only one of them counts.
        totals = torch.full((B, width), -math.inf, dtype=logits.dtype, device=logits.device)
        totals[:, 0] = 0
        tokens = torch.empty(B, width, 0, dtype=torch.int64, device=logits.device)
        return OpenBeams(list(range(B)), totals, tokens, logits.repeat_interleave(width, 0))


def advance(
    beams: OpenBeams, constraints: Constraints, finished: list[FinishedHypotheses], t: int
) -> tuple[OpenBeams, Tensor]:
    """Extend every hypothesis by one token. Return the open hypotheses and the batch index of each one's parent."""
    n, W = beams.totals.shape
    V = beams.logits.shape[-1]
    logits = beams.logits.view(n, W, V)
    # Normalize before masking, so that forbidden tokens keep their share of the probability. Log-probabilities are
    # computed only for the highest logits.
    normalizers = log_sum_exp(logits)
    constraints.mask_forbidden(logits, beams.tokens, beams.sentences)
    # Each hypothesis has one continuation that ends, so at least W of the best 2 W do not end.
    top_logits, top_tokens = top_scores(logits, min(2 * W, V))
    continuations = (beams.totals[..., None] + (top_logits - normalizers[..., None])).flatten(1)
    totals, index = continuations.topk(min(2 * W, continuations.shape[1]), -1)
    parent, token = index // top_logits.shape[-1], top_tokens.flatten(1).gather(1, index)
    ends = (token == constraints.end) if constraints.end is not None else torch.zeros_like(token, dtype=torch.bool)
    for i, w in (ends & (totals > -math.inf))[:, :W].nonzero().tolist():
        earlier = beams.tokens[i, parent[i, w]].tolist()
        finished[beams.sentences[i]].add([*earlier, int(token[i, w])], float(totals[i, w]))
    order = ends.int().argsort(dim=-1, stable=True)[:, :W]  # the best W that do not end
    order = order.gather(1, align_with_parents(parent.gather(1, order)))
    totals, parent, token = (part.gather(1, order) for part in (totals.masked_fill(ends, -math.inf), parent, token))
    tokens = torch.cat([beams.tokens.gather(1, parent[..., None].expand(-1, -1, t)), token[..., None]], -1)
    still_open = []
    for i, (b, best_total) in enumerate(zip(beams.sentences, totals.amax(1).tolist())):
        if t + 1 == constraints.max_length[b]:
            for sequence, total in zip(tokens[i].tolist(), totals[i].tolist()):
                finished[b].add(sequence, total)
        elif not finished[b].is_done(best_total, t + 1):
            still_open.append(i)
    parents = parent + W * torch.arange(n, device=parent.device)[:, None]
    if len(still_open) < n:
        index = torch.tensor(still_open, dtype=torch.int64, device=parent.device)
        totals, tokens, parents = totals[index], tokens[index], parents[index]
    return OpenBeams([beams.sentences[i] for i in still_open], totals, tokens, beams.logits), parents.flatten()


def align_with_parents(parent: Tensor) -> Tensor:
    """Return an order (n, W) of hypotheses with parents (n, W) that puts the first child of each parent at the parent's
    own index. A hypothesis that stays at its index need not be copied."""
    W = parent.shape[1]
    index = torch.arange(W, device=parent.device)
    earlier = index[:, None] > index
    first_child = ~((parent[:, :, None] == parent[:, None]) & earlier).any(-1)
    # The other children fill the indices that are left, in order.
    taken = torch.zeros_like(first_child).scatter_(1, parent, True)
    left = taken.int().argsort(dim=-1, stable=True)
    others = first_child.int().argsort(dim=-1, stable=True)
    target = torch.empty_like(parent).scatter_(1, others, left)  # valid for the other children only
    target = torch.where(first_child, parent, target)
    return torch.empty_like(parent).scatter_(1, target, index.expand_as(parent))


def log_sum_exp(scores: Tensor) -> Tensor:
    """(..., V) -> (...)"""
    return native.logsumexp(scores) if native.supports(scores) else scores.logsumexp(-1)


def top_scores(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores and their tokens, highest first. (..., V) -> (..., k), (..., k)"""
    if k <= MAX_NATIVE_K and native.supports(scores):
        return native.topk(scores, k)
    # Fold the vocabulary into columns. The k highest scores are in the k columns with the highest maxima, and a maximum
    # takes far less time than sorting.
    V = scores.shape[-1]
    columns = V // FOLDS
    if columns < 4 * k:
        return scores.topk(k, -1)
    folded = columns * FOLDS
    maxima = scores[..., :folded].view(*scores.shape[:-1], FOLDS, columns).amax(-2)
    best = maxima.topk(k, -1, sorted=False).indices
    token = torch.arange(V, device=scores.device)
    candidates = (best[..., None, :] + token[:folded:columns, None]).flatten(-2)  # (..., FOLDS * k)
    candidates = torch.cat([candidates, token[folded:].expand(*candidates.shape[:-1], -1)], -1)
    top, index = scores.gather(-1, candidates).topk(k, -1)
    return top, candidates.gather(-1, index)


class FinishedHypotheses:
    """The finished hypotheses of one prompt; `best` returns the best `n` of them."""

    def __init__(self, n: int, max_length: int, length_penalty: float) -> None:
        self.n, self.max_length, self.length_penalty = n, max_length, length_penalty
        self.hypotheses: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probability: float) -> None:
        if log_probability > -math.inf:
            score = self.score(log_probability, len(tokens))
            self.hypotheses.append(Hypothesis(tuple(tokens), log_probability, score))

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / float(length**self.length_penalty)

    def best(self) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.n]

    def is_done(self, log_probability: float, length: int) -> bool:
        """Return whether no open hypothesis of `length` tokens can enter the n best.

        Probabilities only decrease, so no score can exceed that of the best open `log_probability` at the most
        favorable length."""
        if log_probability == -math.inf:
            return True
        if len(self.hypotheses) < self.n:
            return False
        favorable = self.max_length if self.length_penalty > 0 else length + 1
        return self.best()[-1].score >= self.score(log_probability, favorable)


def has_loop(tokens: Sequence[int]) -> bool:
    """Return whether an n-gram repeats back to back over at least MIN_LOOP tokens: `there is there is there is`."""
    ids = np.asarray(tokens)
    for period in range(1, len(ids) // 2 + 1):
        needed = max(2 * period, MIN_LOOP) - period
        changes = np.flatnonzero(ids[period:] != ids[:-period])
        # Lengths of the stretches in which every token equals the token one period earlier.
        stretches = np.diff(changes, prepend=-1, append=len(ids) - period) - 1
        if stretches.max() >= needed:
            return True
    return False


def check_length_penalty(length_penalty: float) -> None:
    if not abs(length_penalty) <= MAX_LENGTH_PENALTY:
        raise UserError(
            f"the length penalty must be from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}, not {length_penalty}"
        )


def per_sentence(lengths: Lengths, B: int) -> list[int]:
    if isinstance(lengths, int):
        return [lengths] * B
    if len(lengths) != B:
        raise UserError(f"got {len(lengths)} lengths for {B} sentences; give one per sentence, or one for all")
    return list(lengths)


def check_prompt(stepper: Stepper, prompt: Tensor) -> None:
    if not isinstance(prompt, Tensor):
        raise TypeError(f"a prompt must be a tensor, not a {type(prompt).__name__}")
    if isinstance(model := getattr(stepper, "model", None), nn.Module):
        check_parameters(model)
    if prompt.dim() != 2 or prompt.shape[0] != stepper.batch or prompt.shape[1] < 1:
        raise UserError(f"a prompt must be ({stepper.batch} streams, at least 1 token), not {tuple(prompt.shape)}")
