"""Decode texts with a sequence-to-sequence model and the vocabularies of its task.

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
from stairwell.data.cache import Array
from stairwell.decode.beam import Hypothesis, beam_search, check_length_penalty, has_loop
from stairwell.decode.sampling import Sampling
from stairwell.decode.search import sample_hypotheses
from stairwell.decode.stepper import encode_source, make_stepper
from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.models import Seq2Seq
from stairwell.state import State
from stairwell.tasks.pair_task import PairTask

SEARCH = "search.json"  # in a run folder, after tuning
LOOP_NGRAM_SIZE = 3  # size of the n-grams that must not repeat once a loop was found; every loop has one
MAX_RATIO = 1_000_000  # target tokens per source token; larger values are typing errors
NOT_NEGATIVE = ("no_repeat_ngram_size", "max_length", "max_length_ratio", "min_length", "min_length_ratio", "top_k")
READ_AHEAD = 2000  # texts that are sorted by length, so that batches have similar lengths


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options of decoding."""

    beam: int = 5
    "Beam size; 1 for greedy search."
    length_penalty: float = 1.0
    "Length penalty: the power of the length that divides the log-probability of a hypothesis."
    no_repeat_ngram_size: int = 0
    "Size of n-grams that must not repeat; 0 for none."
    break_loops: bool = True
    "Decode a target that runs in a loop again, without repeated 3-grams."
    max_length: int = 0
    "Maximum length of a target in tokens; 0 for that of training."
    max_length_ratio: float = 3.0
    "Maximum number of target tokens per source token, plus 10; 0 for no limit."
    min_length: int = 0
    "Minimum length of a target in tokens."
    min_length_ratio: float = 0.0
    "Minimum number of target tokens per source token."
    temperature: float = 0.0
    "Temperature of sampling; 0 for beam search."
    top_k: int = 0
    "Sampling: number of most probable tokens to sample from; 0 for all."
    top_p: float = 1.0
    "Sampling: probability of the smallest set of most probable tokens to sample from."
    seed: int = 0
    "Sampling: seed. Results also depend on the texts and the batch size."

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise UserError(f"the beam must be at least 1, not {self.beam}")
        for name in NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a finite number, 0 or more, not {getattr(self, name)}")
        for name in ("max_length_ratio", "min_length_ratio"):
            if getattr(self, name) > MAX_RATIO:
                raise UserError(f"{name} must be at most {MAX_RATIO:,}, not {getattr(self, name):g}")
        if 0 < self.max_length < self.min_length:
            raise UserError(
                f"min_length {self.min_length:,} is above max_length {self.max_length:,}; lower it or raise max_length"
            )
        if 0 < self.max_length_ratio < self.min_length_ratio:
            raise UserError(
                f"min_length_ratio {self.min_length_ratio:g} is above max_length_ratio {self.max_length_ratio:g}; "
                "lower it or raise max_length_ratio"
            )
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be 0 or more and below 2^63, not {self.seed}")
        check_length_penalty(self.length_penalty)
        self.sampling()  # raises on invalid values
        if not self.temperature and (self.top_k or self.top_p < 1 or self.seed):
            raise UserError("top_k, top_p and seed have no effect without a temperature; set one")

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k or None, top_p=self.top_p)

    def lengths(self, source: int, limit: int) -> tuple[int, int]:
        """Return the minimum and maximum length of a target, without its end token, for a source of `source` tokens."""
        max_length = min(self.max_length or limit, limit)
        if self.max_length_ratio:
            max_length = min(max_length, int(self.max_length_ratio * source) + 10)
        max_length = max(max_length, 1)
        return min(max(self.min_length, int(self.min_length_ratio * source)), max_length), max_length


def load_search(folder: Path, task: PairTask, **options: Any) -> Search:
    """Return the tuned search of a run, or the task's default, with other options where they are not None."""
    path = folder / SEARCH
    search = Search(**task.search_defaults)
    if path.exists():
        try:
            search = configs.from_json(Search, parse_json(path.read_bytes()), str(path))
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {error}; delete it or tune the run again") from None
    return replace(search, **{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True)
class DecodedText:
    """A decoded target."""

    text: str
    score: float
    log_probability: float


class Translator:
    """Decodes texts in batches.

    It counts sources that were `cut` to the maximum length, targets that are `unended` at theirs, and `looped` targets,
    which were decoded again because they ran in a loop."""

    def __init__(self, model: Seq2Seq, task: PairTask, search: Search | None = None, batch: int = 64) -> None:
        self.read_ahead = READ_AHEAD
        self.model, self.task, self.search, self.batch = model, task, search or Search(), batch
        if self.search.min_length > task.config.max_target_length:
            raise UserError(
                f"min_length {self.search.min_length:,} is above the longest target of the run, "
                f"{task.config.max_target_length:,} tokens (task.max_target_length); lower it"
            )
        self.cut = self.unended = self.looped = 0
        self.generator = torch.Generator(next(model.parameters()).device).manual_seed(self.search.seed)

    def translate(
        self, texts: Iterable[str], best: int = 1, prefixes: Sequence[str] | None = None
    ) -> Iterator[list[DecodedText]]:
        """Yield the `best` translations of each text, in order. That of an empty text is empty."""
        if best < 1 or (best > self.search.beam and not self.search.temperature):
            raise UserError(f"cannot return the {best} best of a beam of {self.search.beam}; use a larger beam")
        iterator, done = iter(texts), 0
        while group := list(islice(iterator, self.read_ahead)):
            forced = prefixes[done : done + len(group)] if prefixes is not None else [""] * len(group)
            if len(forced) < len(group):
                raise UserError(
                    f"there are {len(prefixes or ()):,} prefixes and more texts; use an empty line for no prefix"
                )
            yield from self._translate_group(group, best, forced)
            done += len(group)
        if prefixes is not None and len(prefixes) > done:
            raise UserError(f"there are {len(prefixes):,} prefixes and {done:,} texts; give one line per text")

    def _translate_group(self, texts: list[str], best: int, prefixes: Sequence[str]) -> list[list[DecodedText]]:
        sources, cut = self.task.encode_sources(texts)
        self.cut += cut
        translations: list[list[DecodedText]] = [[DecodedText("", 0.0, 0.0)]] * len(texts)
        # A source of only its end token is empty.
        order = sorted((i for i, source in enumerate(sources) if len(source) > 1), key=lambda i: len(sources[i]))
        was_training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(order), self.batch):
                batch = order[start : start + self.batch]
                forced = [self._encode_prefix(prefixes[i]) for i in batch]
                for i, hypotheses in zip(batch, self._search([sources[i] for i in batch], best, forced), strict=True):
                    translations[i] = [self._to_text(hypothesis) for hypothesis in hypotheses]
        finally:
            self.model.train(was_training)
        return translations

    def _encode_prefix(self, text: str) -> list[int]:
        ids: list[int] = self.task.vocabulary.target.encode(self.task.normalize(text)).tolist()
        return ids

    def _search(self, sources: list[Array], best: int, prefixes: list[list[int]]) -> list[list[Hypothesis]]:
        device = next(self.model.parameters()).device
        B, J = len(sources), max(map(len, sources))
        ids, mask = np.zeros((B, J), np.int64), np.zeros((B, J), bool)
        for b, source in enumerate(sources):
            ids[b, : len(source)], mask[b, : len(source)] = source, True
        state = encode_source(self.model, torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))
        decoded = self._decode(state, sources, best, prefixes, self.search.no_repeat_ngram_size)
        again = self._find_loops(decoded, sources)
        if again:
            sources, prefixes = [sources[b] for b in again], [prefixes[b] for b in again]
            replacements = self._decode(state.select(again), sources, best, prefixes, LOOP_NGRAM_SIZE)
            for b, hypotheses in zip(again, replacements, strict=True):
                decoded[b] = hypotheses
        self.looped += len(again)
        self.unended += sum(hypotheses[0].tokens[-1] != self.task.end for hypotheses in decoded)
        return decoded

    def _find_loops(self, decoded: list[list[Hypothesis]], sources: list[Array]) -> list[int]:
        """Return the sentences whose best hypothesis runs in a loop. If the source does too, it may be correct."""
        if not self.search.break_loops or 0 < self.search.no_repeat_ngram_size <= LOOP_NGRAM_SIZE:
            return []
        looped = [b for b, hypotheses in enumerate(decoded) if has_loop(hypotheses[0].tokens)]
        return [b for b in looped if not has_loop(sources[b].tolist())]

    def _decode(
        self, state: State, sources: list[Array], best: int, prefixes: list[list[int]], no_repeat_ngram_size: int
    ) -> list[list[Hypothesis]]:
        end, search, B = self.task.end, self.search, len(sources)
        limits = [search.lengths(len(source) - 1, self.task.config.max_target_length) for source in sources]
        # The end token counts too.
        max_length = [max(limit, len(prefix)) + 1 for (_, limit), prefix in zip(limits, prefixes)]
        start = torch.full((B, 1), end, device=next(self.model.parameters()).device)
        rules: dict[str, Any] = {
            "min_length": [min_length for min_length, _ in limits],
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "prefixes": prefixes,
        }
        steps = make_stepper(self.model, state)
        if search.temperature:
            return sample_hypotheses(
                steps, start, max_length, search.sampling(), end, samples=best, generator=self.generator, **rules
            )
        return beam_search(steps, start, max_length, search.beam, search.length_penalty, end, nbest=best, **rules)

    def _to_text(self, hypothesis: Hypothesis) -> DecodedText:
        # The last token is the end token, or the one at the maximum length.
        text = self.task.decode_target(hypothesis.tokens[:-1])
        return DecodedText(text, hypothesis.score, hypothesis.log_probability)
