"""Vocabularies: bytes, characters, words, space-separated tokens, byte pairs (BPE).

A vocabulary is built from training text, encodes text to token ids, decodes token ids to text, and is saved as JSON:

    vocabulary = Characters.build(["to be or not to be"])
    vocabulary.decode(vocabulary.encode("not bet")) == "not bet"

A text may be encoded in slices: slices that end after a line feed give the token ids of the whole text.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stairwell.errors import UserError
from stairwell.files import parse_json
from stairwell.outputs import OutputType, contains_bytes, write_output

FORMAT = "stairwell.vocabulary.2"
VOCABULARY = OutputType("a vocabulary of stairwell", contains_bytes(b'"format": "stairwell.vocabulary.'))
END_OF_LINE = "\n"
UNKNOWN = "<unk>"
BPE_SIZE = 8000
MAX_BPE_SIZE = 10_000_000
MAX_WORD_LENGTH = 10_000  # characters of one run of letters, digits, spaces or punctuation in BPE training

Ids = Sequence[int] | np.ndarray


class UnknownTokenError(UserError):
    """The text contains a token that the vocabulary does not have."""


class Vocabulary(ABC):
    types: ClassVar[dict[str, type[Vocabulary]]] = {}  # all subclasses by name, for `load`
    type_name: ClassVar[str]
    reads_bytes: ClassVar[bool] = False  # any bytes can be encoded, not only UTF-8 text

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Vocabulary.types[cls.type_name] = cls

    @property
    @abstractmethod
    def size(self) -> int:
        """Return the vocabulary size."""

    @property
    def byte_lengths(self) -> np.ndarray | None:
        """Return the bytes per token (size,) of a subword vocabulary; None for other vocabularies."""
        return None

    @abstractmethod
    def encode(self, text: str | bytes) -> np.ndarray:
        """Return token ids (n,) int64. Bytes are read as UTF-8."""

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """Return the text of token ids."""

    @property
    def max_token_length(self) -> int | None:
        """The most characters of a text that one token can stand for. None: no limit, as any number of spaces may
        separate words."""
        return None

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that may end inside a character; None if tokens are whole characters."""
        return None

    def fast_tokenizer(self) -> Tokenizer | None:
        """Return an equivalent tokenizer of the tokenizers library, or None if there is none."""
        return None

    def token_table(self) -> dict[str, Any] | None:
        """Return what an encoder in another language needs: `tokens` in the order of their ids, and the type's own
        options. None if this type of vocabulary cannot be exported."""
        return None

    def with_end_of_line(self, end_of_line: bool) -> Vocabulary:
        """Return the vocabulary with or without an end-of-line token, where that is an option."""
        return self

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Self: ...

    def dumps(self) -> str:
        return json.dumps(to_json(self), ensure_ascii=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_output(path, VOCABULARY, lambda temporary: temporary.write_text(self.dumps(), encoding="utf-8"))

    def check_ids(self, ids: Ids) -> list[int]:
        """Return the ids as integers; raise if one is not in the vocabulary."""
        integers, size = [index(i) for i in ids], self.size
        for i in integers:
            if not 0 <= i < size:
                raise UserError(f"token id {i} is not in 0..{size - 1}")
        return integers


def to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a vocabulary of any type as JSON; `from_json` reads it."""
    return {"format": FORMAT, "type": vocabulary.type_name, **vocabulary.to_json()}


def from_json(data: dict[str, Any], where: str) -> Vocabulary:
    """Return the vocabulary that `to_json` described; `where` names the file in errors."""
    try:
        if data["format"] != FORMAT:
            raise UserError(f"{where} has the format {data['format']!r}; this version reads {FORMAT!r}")
        return Vocabulary.types[data["type"]].from_json(data)
    except (KeyError, TypeError) as error:
        raise UserError(f"{where} is not a vocabulary, or is damaged: {error!r}") from error


def load(path: str | os.PathLike[str]) -> Vocabulary:
    """Return the vocabulary that `save` wrote."""
    if not Path(path).is_file():
        raise UserError(f"there is no vocabulary {path}")
    try:
        data = parse_json(Path(path).read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not a vocabulary, or is damaged: {error!r}") from error
    return from_json(data, str(path))


@dataclass(frozen=True)
class Bytes(Vocabulary):
    """The 256 bytes. Needs no training and encodes any file."""

    type_name: ClassVar[str] = "bytes"
    reads_bytes: ClassVar[bool] = True
    max_token_length = 1

    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str | bytes) -> np.ndarray:
        data = _utf8(text) if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """Return the text. Bytes that are not UTF-8, such as half a character, become the replacement character."""
        return bytes(self.check_ids(ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes(self.check_ids([token]))

    def fast_tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_OF_CHARACTER), merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def token_table(self) -> dict[str, Any]:
        return {"tokens": []}

    def to_json(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls()


@dataclass(frozen=True)
class Characters(Vocabulary):
    """The characters of the training text. Other characters raise an error."""

    type_name: ClassVar[str] = "characters"
    max_token_length = 1
    tokens: str

    def __post_init__(self) -> None:
        check_distinct(self.tokens)

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """Return a vocabulary of all characters of the texts, in the order of their code points."""
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return cls("".join(sorted(characters)))

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def _sorted_codes(self) -> tuple[np.ndarray, np.ndarray]:
        """Code points in ascending order, and their token ids."""
        codes = _code_points(self.tokens)
        ids = np.argsort(codes)
        return codes[ids], ids

    def encode(self, text: str | bytes) -> np.ndarray:
        codes = _code_points(_as_str(text))
        sorted_codes, sorted_ids = self._sorted_codes
        positions = np.searchsorted(sorted_codes, codes)
        known = positions < self.size
        known[known] = sorted_codes[positions[known]] == codes[known]
        if not known.all():
            character = chr(int(codes[int(np.argmin(known))]))
            code = f"U+{ord(character):04X}"
            raise UnknownTokenError(f"the character {character!r} ({code}) is not in the training text")
        return sorted_ids[positions].astype(np.int64)

    def decode(self, ids: Ids) -> str:
        return "".join(self.tokens[i] for i in self.check_ids(ids))

    def fast_tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(self.tokens)}))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return tokenizer

    def token_table(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["tokens"])


@dataclass(frozen=True)
class Words(Vocabulary):
    """The words between white space, the most frequent first. Other words are encoded as <unk>.

    White space is not encoded: decoding puts one space between words. Every vocabulary has the end-of-line token, so
    `end_of_line` can be turned on for a model that was trained without it.
    """

    type_name: ClassVar[str] = "words"
    tokens: tuple[str, ...]
    end_of_line: bool = True

    def __post_init__(self) -> None:
        check_distinct(self.tokens)

    @classmethod
    def build(cls, texts: Iterable[str], end_of_line: bool = True, limit: int = 0) -> Self:
        """Return a vocabulary of at most `limit` tokens, including <unk> and the end of line; 0: no limit."""
        if 0 < limit < 3:
            raise UserError(f"a vocabulary of words needs at least 3 tokens, not {limit}")
        counts = _count_tokens(texts)
        by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        words = [word for word in by_frequency if word not in (UNKNOWN, END_OF_LINE)]
        return cls((UNKNOWN, END_OF_LINE, *words[: limit - 2 if limit else None]), end_of_line)

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.tokens)}

    def encode(self, text: str | bytes) -> np.ndarray:
        text = _as_str(text)
        ids, unknown = self._ids, self._ids[UNKNOWN]
        words = _split_tokens(text) if self.end_of_line else text.split()
        return np.fromiter((ids.get(word, unknown) for word in words), np.int64, len(words))

    def decode(self, ids: Ids) -> str:
        return _join([self.tokens[i] for i in self.check_ids(ids)])

    def token_table(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "end_of_line": self.end_of_line}

    def with_end_of_line(self, end_of_line: bool) -> Words:
        return replace(self, end_of_line=end_of_line)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens), "end_of_line": self.end_of_line}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["tokens"]), data["end_of_line"])


@dataclass(frozen=True)
class Separated(Vocabulary):
    """Tokens separated by white space, with an end-of-line token: `t o _ b e`, the format of character-level Penn
    Treebank. Unlike an unknown word, an unknown token raises an error."""

    type_name: ClassVar[str] = "separated"
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        check_distinct(self.tokens)

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        return cls(tuple(sorted({END_OF_LINE, *_count_tokens(texts)})))

    @property
    def size(self) -> int:
        return len(self.tokens)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def encode(self, text: str | bytes) -> np.ndarray:
        tokens = _split_tokens(_as_str(text))
        try:
            return np.fromiter((self._ids[token] for token in tokens), np.int64, len(tokens))
        except KeyError as error:
            raise UnknownTokenError(f"the token {error.args[0]!r} is not in the training text") from error

    def decode(self, ids: Ids) -> str:
        return _join([self.tokens[i] for i in self.check_ids(ids)])

    def token_table(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["tokens"]))


@dataclass(frozen=True, eq=False)
class BPE(Vocabulary):
    """Byte-level byte pair encoding. Every text can be encoded, and decoding returns exactly that text."""

    type_name: ClassVar[str] = "bpe"
    tokenizer: Tokenizer

    @classmethod
    def build(cls, texts: Iterable[str], size: int = BPE_SIZE) -> Self:
        """Learn about `size` tokens, including the 256 bytes; a small text yields fewer."""
        if size < 256:
            raise UserError(f"BPE starts from the 256 bytes, so it needs at least 256 tokens, not {size}")
        if size > MAX_BPE_SIZE:  # beyond this the trainer aborts the process
            raise UserError(f"BPE of {size:,} tokens is too large; the limit is {MAX_BPE_SIZE:,}")
        tokenizer = Tokenizer(models.BPE())
        # No token continues past the end of a line, so a text can be encoded line by line.
        lines = pre_tokenizers.Split(Regex("\n"), "merged_with_previous")
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines, words])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(_split_long_words(texts), trainer)
        return cls(tokenizer)

    @property
    def size(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        # The byte-level alphabet writes every byte as one character.
        return np.array([len(self.tokenizer.id_to_token(i) or "") for i in range(self.size)], np.int64)

    @property
    def max_token_length(self) -> int:
        return max(int(self.byte_lengths.max()), 1)

    def encode(self, text: str | bytes) -> np.ndarray:
        lines = _as_str(text).split("\n")
        return np.concatenate(self.encode_each([line + "\n" for line in lines[:-1]] + lines[-1:]))

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the token ids of each of many short texts, encoded in parallel."""
        _utf8("".join(texts))
        return [np.array(encoding.ids, np.int64) for encoding in self.tokenizer.encode_batch_fast(list(texts))]

    def decode(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(self.check_ids(ids)))

    def token_bytes(self, token: int) -> bytes:
        self.check_ids([token])
        return bytes(BYTE_OF_CHARACTER[character] for character in self.tokenizer.id_to_token(token) or "")

    def fast_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def token_table(self) -> dict[str, Any]:
        """`merges` has the pairs of token ids that are merged, in the order in which they were learned."""
        model = self.to_json()["tokenizer"]["model"]
        pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
        return {
            "tokens": sorted(model["vocab"], key=model["vocab"].__getitem__),
            "merges": [[model["vocab"][token] for token in pair] for pair in pairs],
        }

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self.tokenizer.to_str())}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        text = json.dumps(data["tokenizer"])
        try:
            return cls(Tokenizer.from_str(text))
        except Exception as error:  # the library raises nothing more specific
            raise TypeError(f"the tokenizer cannot be read: {error}") from error


def check_distinct(tokens: Sequence[str]) -> None:
    if len(set(tokens)) < len(tokens):
        token, count = Counter(tokens).most_common(1)[0]
        raise UserError(f"the vocabulary has the token {token!r} {count} times; tokens must be distinct")


def _split_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Split very long words, because training time grows with the square of a word's length."""
    size = f"{{{MAX_WORD_LENGTH}}}"
    long_word = re.compile(rf"[^\W\d_]{size}|\d{size}|[^\S\n]{size}|(?:[^\w\s]|_){size}")
    for text in texts:
        start = 0
        if max(map(len, text.split("\n"))) > MAX_WORD_LENGTH:
            for match in long_word.finditer(text):
                yield text[start : match.end()]
                start = match.end()
        yield text[start:]


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for: printable ones stand for themselves, the others
    follow from U+0100 on (Radford et al., 2019)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_level_alphabet()


def _as_str(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise UserError(
            f"the text has the lone surrogate {code} at position {error.start:,}, which is not a character; remove it"
        ) from None


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32)


def _split_tokens(text: str) -> list[str]:
    """Return the words, and an END_OF_LINE for every line feed."""
    return re.findall(r"\n|\S+", text)


def _count_tokens(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_split_tokens(text))
    return counts


def _join(tokens: list[str]) -> str:
    """Join words by one space, without spaces around line feeds."""
    return re.sub(r" ?\n ?", "\n", " ".join(tokens))
