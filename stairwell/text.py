"""Text and ids: bytes, characters, words, symbols that spaces separate, byte pairs (BPE).

Every vocabulary is built from training text only, turns text into ids and back, and is kept as JSON:

    vocabulary = Characters.build(["to be or not to be"])
    vocabulary.decode(vocabulary.encode("not bet")) == "not bet"

A text may be encoded piece by piece: pieces that end after a line end give the ids of the whole.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.outputs import Kind, marked, write_output

FORMAT = "stairwell.vocabulary.1"
VOCABULARY = Kind("a vocabulary of stairwell", marked(b'"format": "stairwell.vocabulary.'))
END_OF_LINE = "\n"
UNKNOWN = "<unk>"
BPE_SIZE = 8000
LARGEST = 10_000_000  # symbols of a BPE
LONGEST_WORD = 10_000  # characters of a run of letters, digits, spaces or signs that merges are learned from at once

Ids = Sequence[int] | np.ndarray


class UnknownSymbolError(UserError):
    """A symbol that the vocabulary does not have."""


class Vocabulary(ABC):
    kinds: ClassVar[dict[str, type[Vocabulary]]] = {}  # every kind by name, for `load`
    kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Vocabulary.kinds[cls.kind] = cls

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ids there are."""

    @abstractmethod
    def encode(self, text: str | bytes) -> np.ndarray:
        """Ids (n,) int64. Bytes are read as UTF-8."""

    @abstractmethod
    def decode(self, ids: Ids) -> str: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self: ...

    def dumps(self) -> str:
        return json.dumps(to_json(self), ensure_ascii=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_output(path, VOCABULARY, lambda temporary: temporary.write_text(self.dumps(), encoding="utf-8"))


def to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """A vocabulary of any kind; `from_json` gives it back."""
    return {"format": FORMAT, "kind": vocabulary.kind, **vocabulary.to_json()}


def from_json(data: dict[str, Any], where: str) -> Vocabulary:
    try:
        if data["format"] != FORMAT:
            raise UserError(f"{where} has the format {data['format']!r}; this version reads {FORMAT!r}")
        return Vocabulary.kinds[data["kind"]].from_json(data)
    except (KeyError, TypeError) as error:
        raise UserError(f"{where} is not a vocabulary, or is damaged: {error!r}") from error


def load(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary that `save` wrote."""
    if not Path(path).is_file():
        raise UserError(f"there is no vocabulary {path}")
    try:
        data = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not a vocabulary, or is damaged: {error!r}") from error
    return from_json(data, str(path))


@dataclass(frozen=True)
class Bytes(Vocabulary):
    """The 256 bytes: needs no training and takes anything."""

    kind: ClassVar[str] = "bytes"

    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str | bytes) -> np.ndarray:
        data = text.encode("utf-8") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """Bytes that are not UTF-8, such as half a character, become the replacement character."""
        return np.asarray(ids, dtype=np.uint8).tobytes().decode("utf-8", errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()


@dataclass(frozen=True)
class Characters(Vocabulary):
    """The characters of the training text; another one is an error."""

    kind: ClassVar[str] = "characters"
    symbols: str  # in the order of their code points

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return cls("".join(sorted(characters)))

    @property
    def size(self) -> int:
        return len(self.symbols)

    @cached_property
    def _codes(self) -> np.ndarray:
        return _code_points(self.symbols)

    def encode(self, text: str | bytes) -> np.ndarray:
        codes = _code_points(_as_str(text))
        ids = np.searchsorted(self._codes, codes)
        known = ids < self.size
        known[known] = self._codes[ids[known]] == codes[known]
        if not known.all():
            symbol = chr(int(codes[int(np.argmin(known))]))
            raise UnknownSymbolError(f"the character {symbol!r} (U+{ord(symbol):04X}) is not in the training text")
        return ids.astype(np.int64)

    def decode(self, ids: Ids) -> str:
        return "".join(self.symbols[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"symbols": self.symbols}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["symbols"])


@dataclass(frozen=True)
class Words(Vocabulary):
    """The words between white space, the most frequent first; other words are <unk>.

    White space itself is not kept: decoding puts one space between words. The end of a line is in every vocabulary,
    so `end_of_line` can be turned on for a model that was trained without it.
    """

    kind: ClassVar[str] = "words"
    words: tuple[str, ...]
    end_of_line: bool = True

    @classmethod
    def build(cls, texts: Iterable[str], end_of_line: bool = True, limit: int = 0) -> Self:
        """`limit` keeps that many symbols, <unk> and the end of line included; 0 keeps all."""
        if 0 < limit < 3:
            raise UserError(f"a vocabulary of words needs at least 3 symbols, not {limit}")
        counts = _count_symbols(texts)
        words = [word for word in _most_frequent(counts) if word not in (UNKNOWN, END_OF_LINE)]
        return cls((UNKNOWN, END_OF_LINE, *words[: limit - 2 if limit else None]), end_of_line)

    @property
    def size(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def encode(self, text: str | bytes) -> np.ndarray:
        text = _as_str(text)
        ids, unknown = self._ids, self._ids[UNKNOWN]
        words = _symbols_of(text) if self.end_of_line else text.split()
        return np.fromiter((ids.get(word, unknown) for word in words), np.int64, len(words))

    def decode(self, ids: Ids) -> str:
        return _join([self.words[i] for i in ids])

    def to_json(self) -> dict[str, Any]:
        return {"words": list(self.words), "end_of_line": self.end_of_line}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["words"]), data["end_of_line"])


@dataclass(frozen=True)
class Separated(Vocabulary):
    """Symbols that white space separates, with an end of line: `t o _ b e`, the format of character-level Penn
    Treebank. Unlike a word, an unknown symbol is an error."""

    kind: ClassVar[str] = "separated"
    symbols: tuple[str, ...]

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        return cls(tuple(sorted({END_OF_LINE, *_count_symbols(texts)})))

    @property
    def size(self) -> int:
        return len(self.symbols)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}

    def encode(self, text: str | bytes) -> np.ndarray:
        symbols = _symbols_of(_as_str(text))
        try:
            return np.fromiter((self._ids[symbol] for symbol in symbols), np.int64, len(symbols))
        except KeyError as error:
            raise UnknownSymbolError(f"the symbol {error.args[0]!r} is not in the training text") from error

    def decode(self, ids: Ids) -> str:
        return _join([self.symbols[i] for i in ids])

    def to_json(self) -> dict[str, Any]:
        return {"symbols": list(self.symbols)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["symbols"]))


@dataclass(frozen=True, eq=False)
class BPE(Vocabulary):
    """Byte pairs merged by frequency; every text can be encoded and comes back exactly."""

    kind: ClassVar[str] = "bpe"
    tokenizer: Tokenizer

    @classmethod
    def build(cls, texts: Iterable[str], size: int = BPE_SIZE) -> Self:
        """Learn about `size` symbols, the 256 bytes among them; a small text yields fewer."""
        if size < 256:
            raise UserError(f"BPE starts from the 256 bytes, so it needs at least 256 symbols, not {size}")
        if size > LARGEST:  # whose trainer would end the whole process
            raise UserError(f"BPE of {size:,} symbols is beyond reason; ask for at most {LARGEST:,}")
        tokenizer = Tokenizer(models.BPE())
        # No symbol goes on past the end of a line, so that a text can be encoded line by line.
        lines = pre_tokenizers.Split(Regex("\n"), "merged_with_previous")
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines, words])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(_break_long_words(texts), trainer)
        return cls(tokenizer)

    @property
    def size(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @cached_property
    def lengths(self) -> np.ndarray:
        """How many bytes each symbol stands for, (size,) int64."""
        # The byte-level alphabet writes every byte as one character.
        return np.array([len(self.tokenizer.id_to_token(i) or "") for i in range(self.size)], np.int64)

    def encode(self, text: str | bytes) -> np.ndarray:
        lines = _as_str(text).split("\n")
        lines = [line + "\n" for line in lines[:-1]] + lines[-1:]
        parts = [np.array(part.ids, np.int64) for part in self.tokenizer.encode_batch_fast(lines)]
        return np.concatenate(parts)

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of many short texts, each apart; all cores take part."""
        return [np.array(part.ids, np.int64) for part in self.tokenizer.encode_batch_fast(list(texts))]

    def decode(self, ids: Ids) -> str:
        return str(self.tokenizer.decode([int(i) for i in ids]))

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self.tokenizer.to_str())}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        text = json.dumps(data["tokenizer"])
        try:
            return cls(Tokenizer.from_str(text))
        except Exception as error:  # the library raises nothing more specific
            raise TypeError(f"the tokenizer cannot be read: {error}") from error


def _break_long_words(texts: Iterable[str]) -> Iterator[str]:
    """The same text in more pieces, where words are absurdly long: learning takes time that grows with the square of a
    word's length."""
    size = f"{{{LONGEST_WORD}}}"
    long_word = re.compile(rf"[^\W\d_]{size}|\d{size}|[^\S\n]{size}|(?:[^\w\s]|_){size}")
    for text in texts:
        begin = 0
        if max(map(len, text.split("\n"))) > LONGEST_WORD:
            for found in long_word.finditer(text):
                yield text[begin : found.end()]
                begin = found.end()
        yield text[begin:]


def _as_str(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8")


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32)


def _symbols_of(text: str) -> list[str]:
    """Words, and an END_OF_LINE for every line end."""
    return re.findall(r"\n|\S+", text)


def _count_symbols(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_symbols_of(text))
    return counts


def _most_frequent(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda word: (-counts[word], word))


def _join(symbols: list[str]) -> str:
    """One space between words, none beside a line end."""
    return re.sub(r" ?\n ?", "\n", " ".join(symbols))
