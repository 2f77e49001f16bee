"""Text from a trained run, as it is being written: `stairwell generate RUN`.

for piece in generate_text("runs/lm-feedback", "FirstOrderFunction upon a time", 500):
    print(piece, end="", flush=True)

A `Writer` is a stream of text with all that going on needs: how it chooses, its random numbers, half a character that
waits for its other half. It can be saved at any token and goes on as if it had never stopped, bit for bit.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from stairwell import text
from stairwell.decode import sampler
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.runs.launch import load
from stairwell.stream import RECENT, Stream, encode

PENALTY = (0.01, 100.0)  # the least and the greatest repetition penalty


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the next token is chosen."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0  # above 1: the last 64 tokens become less likely to come again

    def __post_init__(self) -> None:
        sampler(self.temperature, self.top_k, self.top_p)  # refuses what makes no sense
        least, most = PENALTY
        if not least <= self.repetition_penalty <= most:
            raise UserError(
                f"the repetition penalty must be from {least:g} to {most:g} (1 is none), not {self.repetition_penalty}"
            )

    def __call__(self, logits: Tensor, recent: Sequence[int], generator: torch.Generator) -> int:
        """logits (V,), the last tokens -> a token"""
        if self.repetition_penalty != 1 and recent:
            logits = penalized(logits, recent[-RECENT:], self.repetition_penalty)
        return int(sampler(self.temperature, self.top_k, self.top_p, generator)(logits[None]))


def penalized(logits: Tensor, recent: Sequence[int], penalty: float) -> Tensor:
    """Scores of recent tokens divided by the penalty, or times it where they are negative (Keskar et al., 2019)."""
    index = torch.tensor(sorted(set(recent)), device=logits.device)
    scores = logits[index]
    return logits.index_copy(0, index, torch.where(scores > 0, scores / penalty, scores * penalty))


class Speller:
    """Ids as text, each as soon as it can be read: a token may end inside a character, which then waits until it is
    whole. `before` is the id that the first one follows."""

    def __init__(self, vocabulary: text.Vocabulary, before: int | None = None) -> None:
        self.vocabulary, self.before = vocabulary, before
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, token: int) -> str:
        before, self.before = self.before, token
        if isinstance(self.vocabulary, text.Bytes | text.BPE):
            return self.decoder.decode(bytes_of(self.vocabulary, token))
        if before is None:
            return self.vocabulary.decode([token])
        # What stands between two words depends on both.
        return self.vocabulary.decode([before, token])[len(self.vocabulary.decode([before])) :]

    def read(self, tokens: Sequence[int]) -> None:
        """Note what comes before the next id: half a character at its end, of four bytes at most, is completed then."""
        for token in tokens[-4:]:
            self(token)

    def end(self) -> str:
        """Half a character that stays half."""
        return self.decoder.decode(b"", final=True)

    def position(self) -> dict[str, Any]:
        return {"before": self.before, "half": self.decoder.getstate()[0].hex()}

    def seek(self, position: dict[str, Any]) -> None:
        self.before = position["before"]
        self.decoder.setstate((bytes.fromhex(position["half"]), 0))


class Stops:
    """Lets text through up to a stop string; what may be the beginning of one is held back until it is known."""

    def __init__(self, strings: Sequence[str] = (), held: str = "") -> None:
        if any(not string for string in strings):
            raise UserError("a stop string must not be empty")
        self.strings, self.held, self.stopped = tuple(strings), held, False

    def __call__(self, piece: str) -> str:
        known = self.held + piece
        places = [place for string in self.strings if (place := known.find(string)) >= 0]
        if places:
            self.held, self.stopped = "", True
            return known[: min(places)]
        waits = max((overlap(known, string) for string in self.strings), default=0)
        self.held = known[len(known) - waits :]
        return known[: len(known) - waits]


def overlap(known: str, string: str) -> int:
    """How many characters at the end of `known` begin `string`."""
    return next((n for n in range(min(len(known), len(string) - 1), 0, -1) if string.startswith(known[-n:])), 0)


class Writer:
    """A stream that chooses its own next tokens and spells them out."""

    def __init__(
        self, stream: Stream, choice: Choice | None = None, stop: Sequence[str] = (), seed: int | None = None
    ) -> None:
        assert stream.vocabulary is not None
        self.stream, self.choice = stream, choice or Choice()
        self.generator = torch.Generator(next(stream.model.parameters()).device)
        self.seed(seed)
        self.speller = Speller(stream.vocabulary)
        self.speller.read(stream.recent)
        self.stops = Stops(stop)

    def seed(self, seed: int | None) -> None:
        """The same seed writes the same; none writes something else each time."""
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def write(self, tokens: int) -> Iterator[str]:
        """So many tokens, or fewer if a stop string comes, as pieces of text; `end` gives what was held back."""
        for _ in range(tokens):
            token = self.choice(self.stream._known(), self.stream.recent, self.generator)
            self.stream.feed(token)
            yield self.stops(self.speller(token))
            if self.stops.stopped:
                return

    def end(self) -> str:
        """What is left when nothing more will come: half a character, or the beginning of no stop string."""
        if self.stops.stopped:
            return ""
        left, self.stops.held = self.stops.held + self.speller.end(), ""
        return left

    def read(self, prompt: str | bytes) -> str:
        """Let the stream read what someone else says; what had been held back until then."""
        assert self.stream.vocabulary is not None
        left, ids = self.end(), encode(self.stream.vocabulary, prompt)
        self.stream.feed(ids)
        self.speller.read(ids.tolist())
        return left

    def fork(self) -> Self:
        """Another writer from the same place, who draws from the same random numbers."""
        twin = type(self)(self.stream.fork(), self.choice, self.stops.strings)
        twin.generator = self.generator
        twin.speller.seek(self.speller.position())
        twin.stops.held = self.stops.held
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """The stream, the random numbers, and what is held back, in one file."""
        note = {**self.speller.position(), "held": self.stops.held}
        self.stream.save(path, note, generator=self.generator.get_state())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: LanguageModel,
        vocabulary: text.Vocabulary,
        choice: Choice | None = None,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Self:
        """Go on where `save` stopped, with the same random numbers unless there is a seed."""
        stream, note, tensors = Stream.load_with(path, model, vocabulary)
        if "generator" not in tensors or not {"before", "half", "held"} <= note.keys():
            raise UserError(f"{os.fspath(path)} is a stream that writes no text; --save-state makes one that does")
        writer = cls(stream, choice, stop, seed)
        if seed is None:
            writer.generator.set_state(tensors["generator"])
        writer.speller.seek(note)
        writer.stops.held = note["held"]
        return writer


def read_prompt(stream: Stream, prompt: str | bytes) -> None:
    """Let a stream read a prompt. Nothing is known before the first token, so an empty one stands for a line end, or
    for the vocabulary's first symbol where it has none."""
    assert stream.vocabulary is not None
    ids = encode(stream.vocabulary, prompt)
    if not len(ids) and not stream.count:
        try:
            ids = encode(stream.vocabulary, "\n")
        except text.UnknownSymbolError:
            ids = ids[:0]
        stream.feed(ids if len(ids) else 0)
    else:
        stream.feed(ids)


def load_language_model(run: str | os.PathLike[str], device: str = "auto") -> tuple[LanguageModel, text.Vocabulary]:
    """The language model of a run folder and its vocabulary."""
    model, task = load(run, device)
    if "text" not in task.vocabularies:
        raise UserError(f"{os.fspath(run)} is no language model: only runs of the task 'lm' write text")
    return model, task.vocabularies["text"]


def generate_text(
    run: str | os.PathLike[str],
    prompt: str | bytes,
    tokens: int,
    choice: Choice | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
) -> Iterator[str]:
    """What the language model of a run folder writes after the prompt, piece by piece; everything that can be wrong is
    found out before the first piece. Without a seed every call writes something else."""
    model, vocabulary = load_language_model(run, device)
    return write(model, vocabulary, prompt, tokens, choice, stop, seed)


def write(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    prompt: str | bytes,
    tokens: int,
    choice: Choice | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Iterator[str]:
    """The same for a model and its vocabulary."""
    if tokens < 1:
        raise UserError(f"the number of tokens to write must be at least 1, not {tokens}")
    stream = Stream(model, vocabulary)
    read_prompt(stream, prompt)
    return to_the_end(Writer(stream, choice, stop, seed), tokens)


def to_the_end(writer: Writer, tokens: int) -> Iterator[str]:
    yield from writer.write(tokens)
    yield writer.end()


def spell(ids: Iterable[int], vocabulary: text.Vocabulary, before: int | None = None) -> Iterator[str]:
    """Ids as text, each as soon as it can be read; `before` is the id that they follow."""
    speller = Speller(vocabulary, before)
    yield from map(speller, ids)
    yield speller.end()


def bytes_of(vocabulary: text.Bytes | text.BPE, i: int) -> bytes:
    if isinstance(vocabulary, text.Bytes):
        return bytes([i])
    return bytes(BYTE_OF[letter] for letter in vocabulary.tokenizer.id_to_token(i) or "")


def byte_level_alphabet() -> dict[str, int]:
    """The letters in which byte-level BPE writes the 256 bytes: printable ones as themselves, the others in order from
    U+0100 on (Radford et al., 2019)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = byte_level_alphabet()
