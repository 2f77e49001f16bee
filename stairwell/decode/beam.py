"""Beam search over many sentences at once.

    found = beam(stepper, prompt, 100, width=5, end=newline)       prompt (B, T) -> for each row the best Hypotheses
    score = log_probability / length ** length_penalty             length counts the end token

At every step the W best ways to go on are looked at; those that end are kept aside, and the W best that do not end go
on. A sentence ends only when nothing that is still open can win any more, and then leaves the batch.
Letters: B rows, n sentences that are still open, W beam width, V symbols, t tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stairwell.decode.stepper import Stepper
from stairwell.errors import UserError
from stairwell.fast import native

Lengths = int | Sequence[int]  # one for all sentences, or one each
DEPTH = 16  # of the columns that symbols are looked through by
FEW = 64  # symbols that native code looks for
LOOP = 6  # tokens of the shortest loop: shorter repetitions may be meant
MOST_PENALTY = 10  # a length to a higher power has more digits than a float


@dataclass(frozen=True)
class Hypothesis:
    tokens: tuple[int, ...]  # the end token included, if it came
    log_probability: float
    score: float  # log_probability / length ** length_penalty


def beam(
    stepper: Stepper,
    prompt: Tensor,
    tokens: Lengths,
    width: int,
    length_penalty: float = 1.0,
    end: int | None = None,
    *,
    best: int | None = None,
    shortest: Lengths = 0,
    block: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The `best` (`width` if not given) hypotheses found for each prompt (B, T), the best first.

    A hypothesis ends with the token `end`, or after `tokens` tokens; `end` does not come before `shortest` others.
    With `block`, no sequence of that many tokens comes twice in a hypothesis; one that this leaves no way to go on ends
    there. Hypotheses begin with their sentence's prefix, whatever these rules say."""
    check_prompt(stepper, prompt)
    B = prompt.shape[0]
    if width < 1 or (best is not None and not 1 <= best <= width):
        raise UserError(f"a beam needs a width of at least 1 and 1 <= best <= width, not {width} and {best}")
    check_length_penalty(length_penalty)
    if block < 0:
        raise UserError(f"block is 0 or the number of tokens that must not be repeated, not {block}")
    rules = Rules(end, per_sentence(tokens, B), per_sentence(shortest, B), block, prefixes or [()] * B)
    if min(rules.longest) < 1:
        raise UserError(f"the number of tokens to decode must be at least 1, not {min(rules.longest)}")
    logits = stepper.read(prompt)
    stepper.select(torch.arange(B, device=prompt.device).repeat_interleave(width))
    open_beams = OpenBeams.begin(logits, width)
    found = [Finished(best or width, longest, length_penalty) for longest in rules.longest]
    for t in range(max(rules.longest)):
        open_beams, parents = advance(open_beams, rules, found, t)
        if not open_beams.sentences:
            break
        stepper.select(parents)
        open_beams.logits = stepper.step(open_beams.said[..., -1].flatten())
    return [finished.best() for finished in found]


@dataclass(frozen=True)
class Rules:
    """What may be said, sentence by sentence."""

    end: int | None
    longest: list[int]
    shortest: list[int]
    block: int
    prefixes: Sequence[Sequence[int]]

    def silence(self, scores: Tensor, said: Tensor, sentences: Sequence[int]) -> None:
        """Take every chance from what must not come next. scores (n, W, V), changed in place; said (n, W, t)"""
        n, W, t = said.shape
        forced = [(i, self.prefixes[b][t]) for i, b in enumerate(sentences) if t < len(self.prefixes[b])]
        chances = [scores[i, :, token].clone() for i, token in forced]
        early = [i for i, b in enumerate(sentences) if t < self.shortest[b]] if self.end is not None else []
        if self.block and t >= self.block:
            wrong = torch.zeros_like(scores, dtype=torch.bool)
            if early:
                wrong[early, :, self.end] = True
            repeated(said.flatten(0, 1), self.block, wrong.view(n * W, -1))
            stuck = wrong.all(-1)
            if self.end is None:
                wrong &= ~stuck[..., None]
            else:
                wrong[..., self.end] &= ~stuck
            scores.masked_fill_(wrong, -math.inf)
        elif early:
            scores[slice(None) if len(early) == n else early, :, self.end] = -math.inf
        for (i, token), chance in zip(forced, chances):
            scores[i] = -math.inf
            scores[i, :, token] = chance


def repeated(said: Tensor, block: int, wrong: Tensor) -> None:
    """Mark what would repeat a sequence of `block` tokens. said (rows, t), wrong (rows, V) bool"""
    windows = said.unfold(1, block, 1)  # (rows, t - block + 1, block)
    last = said[:, said.shape[1] - block + 1 :]  # (rows, block - 1)
    again = (windows[..., :-1] == last[:, None]).all(-1)
    row, place = again.nonzero(as_tuple=True)
    wrong[row, windows[row, place, -1]] = True


@dataclass
class OpenBeams:
    """The hypotheses that go on."""

    sentences: list[int]  # which ones are still open (n)
    totals: Tensor  # (n, W): log-probability so far; -inf where there is no hypothesis
    said: Tensor  # (n, W, t)
    logits: Tensor  # (n * W, V)

    @staticmethod
    def begin(logits: Tensor, width: int) -> OpenBeams:
        B = logits.shape[0]
        # At first all beams of a prompt are the same one, so only one counts.
        totals = torch.full((B, width), -math.inf, dtype=logits.dtype, device=logits.device)
        totals[:, 0] = 0
        said = torch.empty(B, width, 0, dtype=torch.int64, device=logits.device)
        return OpenBeams(list(range(B)), totals, said, logits.repeat_interleave(width, 0))


def advance(beams: OpenBeams, rules: Rules, found: list[Finished], t: int) -> tuple[OpenBeams, Tensor]:
    """One token more for every hypothesis: those that go on, and the rows that they come from."""
    n, W = beams.totals.shape
    V = beams.logits.shape[-1]
    logits = beams.logits.view(n, W, V)
    # Log-probabilities are logits less these, also of what has to be silent; only those of the likeliest are needed.
    sums = log_sums(logits)
    rules.silence(logits, beams.said, beams.sentences)
    # The best ways of all are among the best of each hypothesis; at most W of 2 W can end.
    likely, symbols = likeliest(logits, min(2 * W, V))
    ways = (beams.totals[..., None] + (likely - sums[..., None])).flatten(1)
    best, way = ways.topk(min(2 * W, ways.shape[1]), -1)
    parent, token = way // likely.shape[-1], symbols.flatten(1).gather(1, way)
    ends = (token == rules.end) if rules.end is not None else torch.zeros_like(token, dtype=torch.bool)
    for i, place in (ends & (best > -math.inf))[:, :W].nonzero().tolist():
        before = beams.said[i, parent[i, place]].tolist()
        found[beams.sentences[i]].add([*before, int(token[i, place])], float(best[i, place]))
    going = ends.int().argsort(dim=-1, stable=True)[:, :W]  # the best that go on, in their order
    going = going.gather(1, near_parents(parent.gather(1, going)))
    totals, parent, token = (part.gather(1, going) for part in (best.masked_fill(ends, -math.inf), parent, token))
    said = torch.cat([beams.said.gather(1, parent[..., None].expand(-1, -1, t)), token[..., None]], -1)
    stay = []
    for i, (b, leading) in enumerate(zip(beams.sentences, totals.amax(1).tolist())):
        if t + 1 == rules.longest[b]:
            for tokens, total in zip(said[i].tolist(), totals[i].tolist()):
                found[b].add(tokens, total)
        elif not found[b].closed(leading, t + 1):
            stay.append(i)
    rows = parent + W * torch.arange(n, device=parent.device)[:, None]
    if len(stay) < n:
        index = torch.tensor(stay, dtype=torch.int64, device=parent.device)
        totals, said, rows = totals[index], said[index], rows[index]
    return OpenBeams([beams.sentences[i] for i in stay], totals, said, beams.logits), rows.flatten()


def near_parents(parent: Tensor) -> Tensor:
    """An order (n, W) of hypotheses with parents (n, W) in which the first child of a parent lies where the parent lay:
    whatever stays where it is need not be copied."""
    W = parent.shape[1]
    place = torch.arange(W, device=parent.device)
    earlier = place[:, None] > place
    first = ~((parent[:, :, None] == parent[:, None]) & earlier).any(-1)  # no other child of its parent comes before it
    # Each parent is the place of its first child; the others fill the places that are left, in their order.
    taken = torch.zeros_like(first).scatter_(1, parent, True)
    left = taken.int().argsort(dim=-1, stable=True)
    others = first.int().argsort(dim=-1, stable=True)
    goes = torch.empty_like(parent).scatter_(1, others, left)  # pairs of what is left; the rest is written over
    goes = torch.where(first, parent, goes)
    return torch.empty_like(parent).scatter_(1, goes, place.expand_as(parent))


def log_sums(scores: Tensor) -> Tensor:
    """log(sum of e^score) over the symbols. (..., V) -> (...)"""
    return native.log_sums(scores) if native.supports(scores) else scores.logsumexp(-1)


def likeliest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of scores (..., V), the highest first, and their symbols: (..., k) each."""
    # In native code what is found is put in order one by one, which is slow for many.
    return native.highest(scores, k) if k <= FEW and native.supports(scores) else likeliest_torch(scores, k)


def likeliest_torch(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same in PyTorch.

    Symbols are folded into columns of DEPTH. The k highest lie in the k columns with the highest maxima, and maxima are
    found many times faster than an order."""
    V = scores.shape[-1]
    columns = V // DEPTH
    if columns < 4 * k:
        return scores.topk(k, -1)
    folded = columns * DEPTH
    best = scores[..., :folded].unflatten(-1, (DEPTH, columns)).amax(-2).topk(k, -1, sorted=False).indices
    symbol = torch.arange(V, device=scores.device)
    inside = (best[..., None, :] + symbol[:folded:columns, None]).flatten(-2)  # (..., DEPTH * k)
    inside = torch.cat([inside, symbol[folded:].expand(*inside.shape[:-1], -1)], -1)
    likely, place = scores.gather(-1, inside).topk(k, -1)
    return likely, inside.gather(-1, place)


class Finished:
    """The finished hypotheses of one prompt, of which the best `wanted` count."""

    def __init__(self, wanted: int, longest: int, length_penalty: float) -> None:
        self.wanted, self.longest, self.length_penalty = wanted, longest, length_penalty
        self.hypotheses: list[Hypothesis] = []

    def add(self, tokens: list[int], log_probability: float) -> None:
        if log_probability > -math.inf:
            score = self.score(log_probability, len(tokens))
            self.hypotheses.append(Hypothesis(tuple(tokens), log_probability, score))

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / length**self.length_penalty

    def best(self) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.wanted]

    def closed(self, most_probable: float, length: int) -> bool:
        """Whether nothing that goes on after `length` tokens can come in: a hypothesis only loses probability, so the
        most that the best of them can reach is what it has now, at the length that suits it best."""
        if most_probable == -math.inf:
            return True
        if len(self.hypotheses) < self.wanted:
            return False
        suits = self.longest if self.length_penalty > 0 else length + 1
        return self.best()[-1].score >= self.score(most_probable, suits)


def has_loop(tokens: Sequence[int]) -> bool:
    """Whether a sequence occurs at least twice in a row, over LOOP tokens or more: `there is there is there is`."""
    ids = np.asarray(tokens)
    for period in range(1, len(ids) // 2 + 1):
        needed = max(2 * period, LOOP) - period
        changes = np.flatnonzero(ids[period:] != ids[:-period])
        runs = np.diff(changes, prepend=-1, append=len(ids) - period) - 1  # of tokens that equal those a period before
        if runs.max() >= needed:
            return True
    return False


def check_length_penalty(length_penalty: float) -> None:
    if not abs(length_penalty) <= MOST_PENALTY:
        raise UserError(f"the length penalty must be from -{MOST_PENALTY} to {MOST_PENALTY}, not {length_penalty}")


def per_sentence(lengths: Lengths, B: int) -> list[int]:
    if isinstance(lengths, int):
        return [lengths] * B
    if len(lengths) != B:
        raise UserError(f"{len(lengths)} lengths for {B} sentences; give one each, or one for all")
    return list(lengths)


def check_prompt(stepper: Stepper, prompt: Tensor) -> None:
    if not isinstance(prompt, Tensor):
        raise TypeError(f"a prompt must be a tensor, not a {type(prompt).__name__}")
    if prompt.dim() != 2 or prompt.shape[0] != stepper.batch or prompt.shape[1] < 1:
        raise UserError(f"a prompt must be ({stepper.batch} rows, at least 1 token), not {tuple(prompt.shape)}")
