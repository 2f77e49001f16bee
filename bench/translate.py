"""Decoding speed of translators with random parameters: beam search, every contestant in one process, taking turns.

All read the same sources and write targets of the same length (the end is forbidden until then): our Feedback and
Transformer decoders, Hugging Face's Marian, and CTranslate2 with Marian's parameters, at several depths. Peers that are
missing are left out and said so (pip install "stairwell[bench]"). Ours have relative positions and norms before the
sublayers, Marian sinusoids and norms after them; sizes, ReLU and tied tables are the same.

Before anything is timed our beam search must find targets of the same probability as one that has no cache and reads
every target from its beginning, and CTranslate2 the same as Marian; nothing is printed otherwise. The encoder, and what
the output symbols cost (their scores, their logarithmic sum, the likeliest of them), are timed on their own as well:
they do not get shorter with the decoder.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.marian import END, Write, ctranslate2_writes, marian_model, marian_writes
from bench.speed import spread
from stairwell import FeedbackConfig, TransformerXLConfig
from stairwell.decode import beam, stepper
from stairwell.decode.beam import likeliest, log_sums
from stairwell.decode.products import symbol_scores
from stairwell.decode.stepper import Stepper, encoded
from stairwell.models import Seq2Seq, Seq2SeqConfig
from stairwell.state import RowNumbers, row_numbers

ROUNDS = 5
OURS = {"feedback": FeedbackConfig, "transformer": TransformerXLConfig}
ENCODER, SOFTMAX = "encoder", "softmax"
Turn = tuple[str, int]  # who, and how deep the decoder is


@dataclass(frozen=True)
class Case:
    name: str
    width: int
    heads: int
    depths: tuple[int, ...] = (1, 2, 6)
    encoder_layers: int = 6
    symbols: int = 8000
    sentences: int = 32
    shortest: int = 16  # source tokens
    longest: int = 24
    tokens: int = 24  # of every target
    memory: int = 128  # the longest target that would be in sight
    beam: int = 5


CASES = {case.name: case for case in (Case("width-256", 256, 4), Case("width-512", 512, 8))}


def make_model(case: Case, kind: str, depth: int) -> Seq2Seq:
    torch.manual_seed(0)
    core = OURS[kind](width=case.width, heads=case.heads, layers=depth, memory=case.memory)
    config = Seq2SeqConfig(
        core=core,
        sources=case.symbols,
        targets=case.symbols,
        encoder_layers=case.encoder_layers,
        encoder_heads=case.heads,
    )
    return Seq2Seq(config).eval()


def make_sources(case: Case) -> tuple[Tensor, Tensor]:
    """Source tokens (sentences, tokens) and which of them are there."""
    dice = torch.Generator().manual_seed(0)
    lengths = torch.randint(case.shortest, case.longest + 1, (case.sentences, 1), generator=dice)
    lengths[0] = case.longest
    source = torch.randint(END + 2, case.symbols - 1, (case.sentences, case.longest), generator=dice)
    mask = torch.arange(case.longest) < lengths
    return source.masked_fill(~mask, case.symbols - 1), mask


def search(case: Case, steps: Stepper) -> list[float]:
    """The log-probability of the best target of each source."""
    begin = torch.full((steps.batch, 1), case.symbols - 1)
    found = beam(steps, begin, case.tokens, case.beam, 0.0, END, best=1, shortest=case.tokens)
    assert all(len(hypotheses[0].tokens) == case.tokens for hypotheses in found)
    return [hypotheses[0].log_probability for hypotheses in found]


def our_writes(case: Case, model: Seq2Seq, source: Tensor, mask: Tensor) -> Write:
    return lambda: search(case, stepper(model, encoded(model, source, mask)))


class Uncached:
    """A stepper that keeps nothing but tokens, and reads each row from its beginning at every step."""

    def __init__(self, model: Seq2Seq, source: Tensor, mask: Tensor) -> None:
        self.model, self.source, self.mask = model, source, mask
        self.tokens = torch.zeros(len(source), 0, dtype=torch.int64)

    @property
    def batch(self) -> int:
        return len(self.source)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        self.tokens = torch.cat([self.tokens, tokens], 1)
        logits, _ = self.model(self.tokens, self.model.init_state(self.batch, self.source, self.mask))
        return logits[:, -1]

    def step(self, tokens: Tensor) -> Tensor:
        return self.read(tokens[:, None])

    def select(self, rows: RowNumbers) -> None:
        index = row_numbers(rows, self.batch, self.tokens.device)
        self.source, self.mask, self.tokens = self.source[index], self.mask[index], self.tokens[index]


def check_search(case: Case, model: Seq2Seq, source: Tensor, mask: Tensor, sentences: int = 2) -> None:
    """Our search against the same one without a cache, for the first few sentences."""
    few = source[:sentences], mask[:sentences]
    cached, uncached = our_writes(case, model, *few)(), search(case, Uncached(model, *few))
    check_same(case, cached, uncached, "our search", "one without a cache")


def check_same(case: Case, ours: list[float], theirs: list[float], us: str, them: str, tolerance: float = 1e-4) -> None:
    error = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    if not error < tolerance:
        sys.exit(f"{us} differs from {them} at '{case.name}' (relative error {error:.2g})")


@torch.no_grad()
def score_symbols(case: Case, model: Seq2Seq, x: Tensor) -> None:
    """What all steps of a search do with the output symbols. x (rows, D)"""
    score = symbol_scores(model.head)
    for _ in range(case.tokens):
        scores = score(x)
        log_sums(scores), likeliest(scores, 2 * case.beam)


def make_turns(case: Case, folder: Path) -> dict[Turn, Callable[[], Any]]:
    """Everybody who takes part, checked."""
    source, mask = make_sources(case)
    turns: dict[Turn, Callable[[], Any]] = {}
    for depth in case.depths:
        for kind in OURS:
            model = make_model(case, kind, depth)
            check_search(case, model, source, mask)
            turns[kind, depth] = our_writes(case, model, source, mask)
        try:
            marian = marian_model(case.width, case.heads, case.encoder_layers, depth, case.symbols)
            turns["marian", depth] = theirs = marian_writes(marian, source, mask, case.tokens, case.beam)
            place = folder / f"{case.name}-{depth}"
            faster = ctranslate2_writes(marian, place, source, mask, case.tokens, case.beam)
            # The end is forbidden before probabilities are normalized there, after that here.
            check_same(case, faster(), theirs(), "CTranslate2", "Marian", 1 / case.symbols)
            turns["ctranslate2", depth] = faster
        except ImportError as missing:
            print(f'left out: {missing}; pip install "stairwell[bench]"', file=sys.stderr)
    turns[ENCODER, 0] = partial(encoded, model, source, mask)
    turns[SOFTMAX, 0] = partial(score_symbols, case, model, torch.randn(case.sentences * case.beam, case.width))
    return turns


def measure_case(case: Case) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="stairwell-bench-") as folder:
        turns = make_turns(case, Path(folder))
        times: dict[Turn, list[float]] = {turn: [] for turn in turns}
        for round_number in range(ROUNDS + 1):  # in turns, so that a slow moment of the machine hits everyone
            for turn, write in turns.items():
                began = time.perf_counter()
                write()
                if round_number:  # until then everything was warmed up
                    times[turn].append(time.perf_counter() - began)
    tokens = case.sentences * case.tokens
    records: list[dict[str, Any]] = [
        {
            "case": case.name,
            "what": what,
            "depth": depth,
            "seconds": round(statistics.median(taken), 4),
            "tokens_per_second": round(tokens / statistics.median(taken), 1),
            "spread": spread(taken),
            "rounds": ROUNDS,
        }
        for (what, depth), taken in times.items()
    ]
    return records + ratios(case, times)


def ratios(case: Case, times: dict[Turn, list[float]]) -> list[dict[str, Any]]:
    """How many times as fast, round by round: the median, the lowest and the highest."""
    encoder, softmax = times[ENCODER, 0], times[SOFTMAX, 0]
    first, last = case.depths[0], case.depths[-1]
    shallow, deep = times["feedback", first], times["feedback", last]
    depths = f"Feedback, depth {first} over depth {last}"
    pairs: dict[str, tuple[list[float], list[float]]] = {depths: (deep, shallow)}
    pairs[f"{depths}, without the encoder"] = less(deep, encoder), less(shallow, encoder)
    both = [a + b for a, b in zip(encoder, softmax)]
    pairs[f"{depths}, without encoder and softmax"] = less(deep, both), less(shallow, both)
    for depth in case.depths:
        ours = times["feedback", depth]
        for them, name in (("transformer", "our Transformer"), ("marian", "Marian"), ("ctranslate2", "CTranslate2")):
            if (them, depth) in times:
                pairs[f"Feedback over {name}, depth {depth}"] = times[them, depth], ours
    records = []
    for name, (slower, faster) in pairs.items():
        found = [a / b for a, b in zip(slower, faster)]
        middle, low, high = (round(of(found), 2) for of in (statistics.median, min, max))
        records.append({"case": case.name, "what": "ratio", "of": name, "ratio": middle, "low": low, "high": high})
    return records


def less(times: list[float], parts: list[float]) -> list[float]:
    return [whole - part for whole, part in zip(times, parts)]


def measure(cases: Sequence[str] = tuple(CASES)) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(CASES[name])]
