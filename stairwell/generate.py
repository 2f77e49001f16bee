"""Generate text with a trained language model, token by token: `stairwell generate RUN`.

for part in generate_text("runs/lm-feedback", "Once upon a time", 500):
    print(part, end="", flush=True)

A `TextGenerator` is a stream of text with everything needed to continue it: the sampling options, the random generator
and an incomplete character. It can be saved after any token and resumes bit for bit.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

from stairwell import text
from stairwell.decode import Sampling
from stairwell.decode.sampling import make_generator
from stairwell.decode.weights import Weights
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.runs.load import load
from stairwell.stream import Stream, encode
from stairwell.tasks.file_task import vocabularies

MAX_CHARACTER_BYTES = 4  # of UTF-8


class Detokenizer:
    """Converts tokens to text one by one. A token may end inside a character, which is held back until it is complete.
    `previous` is the token before the first one."""

    def __init__(self, vocabulary: text.Vocabulary, previous: int | None = None) -> None:
        self.vocabulary, self.previous = vocabulary, previous
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, token: int) -> str:
        previous, self.previous = self.previous, token
        data = self.vocabulary.token_bytes(token)
        if data is not None:
            return self.decoder.decode(data)
        if previous is None:
            return self.vocabulary.decode([token])
        # The separator between two words depends on both.
        return self.vocabulary.decode([previous, token])[len(self.vocabulary.decode([previous])) :]

    def skip(self, tokens: Sequence[int]) -> None:
        """Note the tokens that precede the next one, without text; the next token may complete their last character."""
        for token in tokens[-MAX_CHARACTER_BYTES:]:
            self(token)

    def flush(self) -> str:
        """Return the text of a character that stays incomplete."""
        return self.decoder.decode(b"", final=True)

    def state(self) -> dict[str, Any]:
        return {"before": self.previous, "half": self.decoder.getstate()[0].hex()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.previous = state["before"]
        self.decoder.setstate((bytes.fromhex(state["half"]), 0))


class StopStrings:
    """Passes text through up to the first stop string. Text that may be the start of one is held back."""

    def __init__(self, strings: Sequence[str] = (), held: str = "") -> None:
        if any(not string for string in strings):
            raise UserError("a stop string must not be empty")
        self.strings, self.held, self.stopped = tuple(strings), held, False

    def __call__(self, new: str) -> str:
        content = self.held + new
        positions = [position for string in self.strings if (position := content.find(string)) >= 0]
        if positions:
            self.held, self.stopped = "", True
            return content[: min(positions)]
        held = max((overlap(content, string) for string in self.strings), default=0)
        self.held = content[len(content) - held :]
        return content[: len(content) - held]


def overlap(content: str, string: str) -> int:
    """Return the length of the longest suffix of `content` that is a proper prefix of `string`."""
    longest = min(len(content), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if string.startswith(content[-n:])), 0)


class TextGenerator:
    """A stream that samples its own next tokens and converts them to text."""

    def __init__(
        self, stream: Stream, sampling: Sampling | None = None, stop: Sequence[str] = (), seed: int | None = None
    ) -> None:
        assert stream.vocabulary is not None
        self.stream, self.sampling = stream, sampling or Sampling()
        self.generator = make_generator(next(stream.model.parameters()).device, seed)
        self.detokenizer = Detokenizer(stream.vocabulary)
        self.detokenizer.skip(stream.recent)
        self.stops = StopStrings(stop)

    def generate(self, tokens: int) -> Iterator[str]:
        """Generate tokens, fewer if a stop string occurs, and yield their text; `flush` returns what is held back."""
        for _ in range(tokens):
            token = self.sampling(self.stream.next_logits(), self.stream.recent, self.generator)
            self.stream.feed(token)
            yield self.stops(self.detokenizer(token))
            if self.stops.stopped:
                return

    def generate_all(self, tokens: int) -> Iterator[str]:
        """Generate tokens and yield all of their text."""
        yield from self.generate(tokens)
        yield self.flush()

    def flush(self) -> str:
        """Return the text held back: an incomplete character, or a part of a stop string."""
        if self.stops.stopped:
            return ""
        held, self.stops.held = self.stops.held + self.detokenizer.flush(), ""
        return held

    def feed(self, prompt: str | bytes) -> str:
        """Read more of a prompt; return the text held back before it."""
        assert self.stream.vocabulary is not None
        held, ids = self.flush(), encode(self.stream.vocabulary, prompt)
        self.stream.feed(ids)
        self.detokenizer.skip(ids.tolist())
        return held

    def fork(self) -> Self:
        """Return an independent generator in the same state, which shares the random generator."""
        fork = type(self)(self.stream.fork(), self.sampling, self.stops.strings)
        fork.generator = self.generator
        fork.detokenizer.load_state(self.detokenizer.state())
        fork.stops.held = self.stops.held
        return fork

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the stream, the random generator and the text held back to one file."""
        note = {**self.detokenizer.state(), "held": self.stops.held}
        self.stream.save(path, note, generator=self.generator.get_state())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: LanguageModel,
        vocabulary: text.Vocabulary,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Self:
        """Load what `save` wrote. The random generator continues unless a seed is given."""
        stream, note, tensors = Stream.load_with(path, model, vocabulary)
        if "generator" not in tensors or not {"before", "half", "held"} <= note.keys():
            raise UserError(
                f"{os.fspath(path)} is a stream without a text generator; save one with `stairwell generate "
                "--save-state`"
            )
        loaded = cls(stream, sampling, stop, seed)
        if seed is None:
            loaded.generator.set_state(tensors["generator"])
        loaded.detokenizer.load_state(note)
        loaded.stops.held = note["held"]
        return loaded


def read_prompt(stream: Stream, prompt: str | bytes) -> None:
    """Feed a prompt to a stream. A prediction requires a token, so an empty prompt stands for a newline, or for the
    first token of a vocabulary that has none."""
    assert stream.vocabulary is not None
    ids = encode(stream.vocabulary, prompt)
    if not len(ids) and not stream.count:
        try:
            ids = encode(stream.vocabulary, "\n")
        except text.UnknownTokenError:
            ids = ids[:0]
        stream.feed(ids if len(ids) else 0)
    else:
        stream.feed(ids)


def load_language_model(
    run: str | os.PathLike[str], device: str = "auto", weights: Weights = "float32"
) -> tuple[LanguageModel, text.Vocabulary]:
    """Return the language model of a run folder and its vocabulary."""
    model, task = load(run, device, weights=weights)
    if not (vocabulary := vocabularies(task).get("text")):
        raise UserError(f"{os.fspath(run)} is not a language model: only runs of the task 'lm' generate text")
    return model, vocabulary


def generate_text(
    run: str | os.PathLike[str],
    prompt: str | bytes,
    tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
) -> Iterator[str]:
    """Return an iterator over the text that a run's language model generates after the prompt. Errors are raised before
    the first text. Without a seed, every call generates a different text."""
    model, vocabulary = load_language_model(run, device)
    return generate(model, vocabulary, prompt, tokens, sampling, stop, seed)


def generate(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    prompt: str | bytes,
    tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Iterator[str]:
    """Return an iterator over the text that a model generates after the prompt."""
    if tokens < 1:
        raise UserError(f"the number of tokens to generate must be at least 1, not {tokens}")
    stream = Stream(model, vocabulary)
    read_prompt(stream, prompt)
    return TextGenerator(stream, sampling, stop, seed).generate_all(tokens)
