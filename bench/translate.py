"""Decoding speed of translators with random parameters: beam search, all models interleaved in one process.

All translate the same sources to targets of the same length (the end token is forbidden before): our Feedback and
Transformer decoders, Hugging Face's Marian, and CTranslate2 with Marian's parameters, at several depths. Missing peers
are skipped with a message (pip install ".[bench]"). Ours use relative positions and pre-norm, Marian sinusoidal
positions and post-norm; sizes, ReLU and tied embeddings are the same.

Before timing, our beam search must find targets of the same probability as one without a cache, which reads every
target from its start, and CTranslate2 the same as Marian; otherwise the benchmark stops. The encoder and the operations
on the vocabulary (scores, log-sum-exp, top k) are also timed separately, because they do not depend on the depth.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.marian import END, Translate, ctranslate2_translate, marian_model, marian_translate
from bench.speed import spread, time_interleaved
from stairwell import FeedbackConfig, TransformerXLConfig
from stairwell.decode import beam_search, make_stepper
from stairwell.decode.beam import log_sum_exp, top_scores
from stairwell.decode.program import cached_program
from stairwell.decode.stepper import Stepper, encode_source
from stairwell.errors import install_command
from stairwell.models import Seq2Seq, Seq2SeqConfig
from stairwell.state import BatchIndices, batch_indices

ROUNDS = 5
OURS = {"feedback": FeedbackConfig, "transformer": TransformerXLConfig}
ENCODER, SOFTMAX = "encoder", "softmax"
Timed = tuple[str, int]  # name, depth of the decoder


@dataclass(frozen=True)
class Case:
    name: str
    width: int
    heads: int
    depths: tuple[int, ...] = (1, 2, 6)
    encoder_layers: int = 6
    vocabulary: int = 8000
    sentences: int = 32
    min_source: int = 16  # source tokens
    max_source: int = 24
    tokens: int = 24  # target tokens
    memory: int = 128  # at least the number of target tokens
    beam: int = 5


CASES = {case.name: case for case in (Case("width-256", 256, 4), Case("width-512", 512, 8))}


def make_model(case: Case, name: str, depth: int) -> Seq2Seq:
    torch.manual_seed(0)
    core = OURS[name](width=case.width, heads=case.heads, layers=depth, memory=case.memory)
    config = Seq2SeqConfig(
        core=core,
        sources=case.vocabulary,
        targets=case.vocabulary,
        encoder_layers=case.encoder_layers,
        encoder_heads=case.heads,
    )
    return Seq2Seq(config).eval()


def make_sources(case: Case) -> tuple[Tensor, Tensor]:
    """Return source tokens (sentences, tokens) and their mask."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(case.min_source, case.max_source + 1, (case.sentences, 1), generator=generator)
    lengths[0] = case.max_source
    source = torch.randint(END + 2, case.vocabulary - 1, (case.sentences, case.max_source), generator=generator)
    mask = torch.arange(case.max_source) < lengths
    return source.masked_fill(~mask, case.vocabulary - 1), mask


def search(case: Case, steps: Stepper) -> list[float]:
    """Return the log-probability of the best target of each source."""
    start = torch.full((steps.batch, 1), case.vocabulary - 1)
    results = beam_search(steps, start, case.tokens, case.beam, 0.0, END, nbest=1, min_length=case.tokens)
    assert all(len(hypotheses[0].tokens) == case.tokens for hypotheses in results)
    return [hypotheses[0].log_probability for hypotheses in results]


def our_translate(case: Case, model: Seq2Seq, source: Tensor, mask: Tensor) -> Translate:
    return lambda: search(case, make_stepper(model, encode_source(model, source, mask)))


class Uncached:
    """A stepper without a cache: it reads each target from its start at every step."""

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

    def select(self, indices: BatchIndices) -> None:
        index = batch_indices(indices, self.batch, self.tokens.device)
        self.source, self.mask, self.tokens = self.source[index], self.mask[index], self.tokens[index]


def check_search(case: Case, model: Seq2Seq, source: Tensor, mask: Tensor, sentences: int = 2) -> None:
    """Compare our search with the same search without a cache, for the first few sentences."""
    few = source[:sentences], mask[:sentences]
    cached, uncached = our_translate(case, model, *few)(), search(case, Uncached(model, *few))
    check_same(case, cached, uncached, "our search", "one without a cache")


def check_same(case: Case, ours: list[float], theirs: list[float], us: str, them: str, tolerance: float = 1e-4) -> None:
    error = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    if not error < tolerance:
        sys.exit(f"{us} differs from {them} at '{case.name}' (relative error {error:.2g})")


@torch.no_grad()
def score_vocabulary(case: Case, model: Seq2Seq, x: Tensor) -> None:
    """Run the vocabulary operations of all steps of a search. x (hypotheses, D)"""
    score = cached_program(model).head
    for _ in range(case.tokens):
        scores = score(x)
        log_sum_exp(scores), top_scores(scores, 2 * case.beam)


def make_steps(case: Case, folder: Path) -> dict[Timed, Callable[[], Any]]:
    """Return what is timed, after checking it."""
    source, mask = make_sources(case)
    steps: dict[Timed, Callable[[], Any]] = {}
    for depth in case.depths:
        for name in OURS:
            model = make_model(case, name, depth)
            check_search(case, model, source, mask)
            steps[name, depth] = our_translate(case, model, source, mask)
        try:
            marian = marian_model(case.width, case.heads, case.encoder_layers, depth, case.vocabulary)
            steps["marian", depth] = theirs = marian_translate(marian, source, mask, case.tokens, case.beam)
            model_folder = folder / f"{case.name}-{depth}"
            faster = ctranslate2_translate(marian, model_folder, source, mask, case.tokens, case.beam)
            # CTranslate2 forbids the end token before normalization, Marian after it.
            check_same(case, faster(), theirs(), "CTranslate2", "Marian", 1 / case.vocabulary)
            steps["ctranslate2", depth] = faster
        except ImportError as missing:
            print(f"peer skipped: {missing}; {install_command('transformers>=5', 'ctranslate2>=4.5')}", file=sys.stderr)
    steps[ENCODER, 0] = partial(encode_source, model, source, mask)
    steps[SOFTMAX, 0] = partial(score_vocabulary, case, model, torch.randn(case.sentences * case.beam, case.width))
    return steps


def measure_case(case: Case) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="stairwell-bench-") as folder:
        steps = make_steps(case, Path(folder))
        times = time_interleaved(steps, ROUNDS, warm_up=1)
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


def ratios(case: Case, times: dict[Timed, list[float]]) -> list[dict[str, Any]]:
    """Return speed ratios per round: median, minimum and maximum."""
    encoder, softmax = times[ENCODER, 0], times[SOFTMAX, 0]
    first, last = case.depths[0], case.depths[-1]
    shallow, deep = times["feedback", first], times["feedback", last]
    depths = f"Feedback, depth {first} over depth {last}"
    pairs: dict[str, tuple[list[float], list[float]]] = {depths: (deep, shallow)}
    pairs[f"{depths}, without the encoder"] = subtract(deep, encoder), subtract(shallow, encoder)
    both = [a + b for a, b in zip(encoder, softmax)]
    pairs[f"{depths}, without encoder and softmax"] = subtract(deep, both), subtract(shallow, both)
    for depth in case.depths:
        ours = times["feedback", depth]
        for them, name in (("transformer", "our Transformer"), ("marian", "Marian"), ("ctranslate2", "CTranslate2")):
            if (them, depth) in times:
                pairs[f"Feedback over {name}, depth {depth}"] = times[them, depth], ours
    records = []
    for name, (slower, faster) in pairs.items():
        values = [a / b for a, b in zip(slower, faster)]
        median, low, high = (round(reduce(values), 2) for reduce in (statistics.median, min, max))
        records.append({"case": case.name, "what": "ratio", "of": name, "ratio": median, "low": low, "high": high})
    return records


def subtract(times: list[float], parts: list[float]) -> list[float]:
    return [whole - part for whole, part in zip(times, parts)]


def measure(cases: Sequence[str] = tuple(CASES)) -> list[dict[str, Any]]:
    return [record for name in cases for record in measure_case(CASES[name])]
