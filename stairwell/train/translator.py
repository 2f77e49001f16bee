"""Texts in, texts out: a sequence-to-sequence model and its task's symbols, by beam search.

    for best in Translator(model, task).translate(["ein hund läuft"]):
        print(best[0].text, best[0].score)

Letters: B sentences of a batch, J source tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stairwell import configs
from stairwell.decode.beam import Hypothesis, beam, check_length_penalty, has_loop
from stairwell.decode.sampling import draw
from stairwell.decode.search import sampler
from stairwell.decode.stepper import encoded, stepper
from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.models import Seq2Seq
from stairwell.state import State
from stairwell.tasks.pair_task import PairTask

SEARCH = "search.json"  # in a run's folder, once it was tuned
LOOP_BLOCK = 3  # tokens of the sequences that must not be repeated once a loop was found; every loop has one
MOST_RATIO = 1_000_000  # target tokens per source token; more is a typing error
SORTED = 2000  # texts that are read ahead, so that those of like lengths are searched together


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a target is looked for."""

    beam: int = 5
    "hypotheses that are followed at a time; 1 is greedy"
    length_penalty: float = 1.0
    "a hypothesis's log-probability is divided by its length to this power"
    block: int = 0
    "no sequence of so many tokens comes twice; 0: anything may"
    break_loops: bool = True
    "decode a target that repeats itself in a loop again, without repeated sequences of 3 tokens"
    longest: int = 0
    "the most tokens of a target; 0: as long as any in training"
    longest_ratio: float = 3.0
    "the most tokens of a target for each of its source, and 10 more; 0: no such limit"
    shortest: int = 0
    "the fewest tokens of a target"
    shortest_ratio: float = 0.0
    "the fewest tokens of a target for each of its source"
    temperature: float = 0.0
    "draw targets instead of searching for the best; lower makes them likelier; 0: beam search"
    top_k: int = 0
    "draw: only from the so many likeliest tokens; 0: from all"
    top_p: float = 1.0
    "draw: only from the fewest tokens that hold this much of the probability"
    seed: int = 0
    "draw: fixes what is drawn, together with the texts and the batch"

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise UserError(f"the beam must be at least 1, not {self.beam}")
        for name in ("block", "longest", "longest_ratio", "shortest", "shortest_ratio", "top_k"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a finite number, 0 or more, not {getattr(self, name)}")
        for name in ("longest_ratio", "shortest_ratio"):
            if getattr(self, name) > MOST_RATIO:
                raise UserError(f"{name} must be at most {MOST_RATIO:,}, not {getattr(self, name):g}")
        if 0 < self.longest < self.shortest:
            raise UserError(f"shortest {self.shortest:,} is above longest {self.longest:,}; lower it or raise longest")
        if 0 < self.longest_ratio < self.shortest_ratio:
            raise UserError(
                f"shortest_ratio {self.shortest_ratio:g} is above longest_ratio {self.longest_ratio:g}; lower it or "
                "raise longest_ratio"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be 0 or more and below 2^63, not {self.seed}")
        check_length_penalty(self.length_penalty)
        sampler(self.temperature, self.top_k or None, self.top_p)  # refuses what makes no sense
        if not self.temperature and (self.top_k or self.top_p < 1 or self.seed):
            raise UserError("top_k, top_p and seed are for drawn targets; give a temperature too")

    def lengths(self, source: int, most: int) -> tuple[int, int]:
        """The fewest and the most tokens of a target, its end not counted, for a source of so many tokens."""
        longest = min(self.longest or most, most)
        if self.longest_ratio:
            longest = min(longest, int(self.longest_ratio * source) + 10)
        longest = max(longest, 1)
        return min(max(self.shortest, int(self.shortest_ratio * source)), longest), longest


def search_of(folder: Path, task: PairTask, **options: Any) -> Search:
    """The search that a run was tuned to, or else the task's own, with other options where they are not None."""
    path = folder / SEARCH
    search = Search(**task.search)
    if path.exists():
        try:
            search = configs.from_json(Search, parse_json(path.read_bytes()), str(path))
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {error}; delete it or tune the run again") from None
    return replace(search, **{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True)
class Written:
    """One way to write a target."""

    text: str
    score: float
    log_probability: float


class Translator:
    """Counts what it does: `cut` sources were longer than the model reads, `unended` targets were stopped by their
    length, `looped` ones were decoded again because they ran in a loop."""

    def __init__(self, model: Seq2Seq, task: PairTask, search: Search | None = None, batch: int = 64) -> None:
        self.ahead = SORTED
        self.model, self.task, self.search, self.batch = model, task, search or Search(), batch
        self.cut = self.unended = self.looped = 0
        self.dice = torch.Generator(next(model.parameters()).device).manual_seed(self.search.seed)

    def translate(
        self, texts: Iterable[str], best: int = 1, prefixes: Sequence[str] | None = None
    ) -> Iterator[list[Written]]:
        """For every text the `best` ways to write it, in the order of the texts. An empty one is written as empty."""
        if best < 1 or (best > self.search.beam and not self.search.temperature):
            raise UserError(f"the {best} best of a beam of {self.search.beam}; widen the beam")
        iterator, done = iter(texts), 0
        while group := list(islice(iterator, self.ahead)):
            forced = prefixes[done : done + len(group)] if prefixes is not None else [""] * len(group)
            if len(forced) < len(group):
                raise UserError(
                    f"there are {len(prefixes or ()):,} prefixes and more texts; an empty line is no prefix"
                )
            yield from self._group(group, best, forced)
            done += len(group)
        if prefixes is not None and len(prefixes) > done:
            raise UserError(f"there are {len(prefixes):,} prefixes and {done:,} texts; give one line for each text")

    def _group(self, texts: list[str], best: int, prefixes: Sequence[str]) -> list[list[Written]]:
        sources, cut = self.task.read_sources(texts)
        self.cut += cut
        found: list[list[Written]] = [[Written("", 0.0, 0.0)]] * len(texts)
        # A source that is nothing but its end says nothing.
        order = sorted((i for i, source in enumerate(sources) if len(source) > 1), key=lambda i: len(sources[i]))
        was_training = self.model.training
        self.model.eval()
        try:
            for begin in range(0, len(order), self.batch):
                chosen = order[begin : begin + self.batch]
                forced = [self._prefix(prefixes[i]) for i in chosen]
                for i, hypotheses in zip(chosen, self._search([sources[i] for i in chosen], best, forced), strict=True):
                    found[i] = [self._written(hypothesis) for hypothesis in hypotheses]
        finally:
            self.model.train(was_training)
        return found

    def _prefix(self, text: str) -> list[int]:
        ids: list[int] = self.task.vocabulary.target.encode(self.task.normal(text)).tolist()
        return ids

    def _search(self, sources: list[np.ndarray], best: int, prefixes: list[list[int]]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        B, J = len(sources), max(map(len, sources))
        ids, mask = np.zeros((B, J), np.int64), np.zeros((B, J), bool)
        for b, source in enumerate(sources):
            ids[b, : len(source)], mask[b, : len(source)] = source, True
        state = encoded(self.model, torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))
        found = self._decode(state, sources, best, prefixes, self.search.block)
        again = self._in_loops(found, sources)
        if again:
            sources, prefixes = [sources[b] for b in again], [prefixes[b] for b in again]
            others = self._decode(state.select(again), sources, best, prefixes, LOOP_BLOCK)
            for b, hypotheses in zip(again, others, strict=True):
                found[b] = hypotheses
        self.looped += len(again)
        self.unended += sum(hypotheses[0].tokens[-1] != self.task.end for hypotheses in found)
        return found

    def _in_loops(self, found: list[list[Hypothesis]], sources: list[np.ndarray]) -> list[int]:
        """Return the sentences whose best hypothesis runs in a loop. Where the source does so too, it may be right."""
        if not self.search.break_loops or 0 < self.search.block <= LOOP_BLOCK:
            return []
        looped = [b for b, hypotheses in enumerate(found) if has_loop(hypotheses[0].tokens)]
        return [b for b in looped if not has_loop(sources[b].tolist())]

    def _decode(
        self, state: State, sources: list[np.ndarray], best: int, prefixes: list[list[int]], block: int
    ) -> list[list[Hypothesis]]:
        end, search, B = self.task.end, self.search, len(sources)
        limits = [search.lengths(len(source) - 1, self.task.config.max_target_length) for source in sources]
        # The end is a token too.
        longest = [max(limit, len(prefix)) + 1 for (_, limit), prefix in zip(limits, prefixes)]
        begin = torch.full((B, 1), end, device=next(self.model.parameters()).device)
        rules: dict[str, Any] = {
            "shortest": [shortest for shortest, _ in limits], "block": block, "prefixes": prefixes,
        }  # fmt: skip
        steps = stepper(self.model, state)
        if search.temperature:
            choose = sampler(search.temperature, search.top_k or None, search.top_p, self.dice)
            return draw(steps, begin, longest, choose, end, samples=best, **rules)
        return beam(steps, begin, longest, search.beam, search.length_penalty, end, best=best, **rules)

    def _written(self, hypothesis: Hypothesis) -> Written:
        # The last token is the end, or the one where the end should have been.
        text = self.task.write_target(hypothesis.tokens[:-1])
        return Written(text, hypothesis.score, hypothesis.log_probability)
