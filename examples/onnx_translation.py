"""Translate greedily with onnxruntime and NumPy, without PyTorch, stairwell or a tokenizer library.

stairwell export multi30k-de-en --onnx de-en
python examples/onnx_translation.py de-en "ein mann sitzt auf einer bank im park ."

The encoder reads the source once and returns its keys and values. The decoder reads one token per call, beginning with
the end token. The initial state is zeros; each output `...N` is the next input of that name.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
CONTRACTIONS = re.compile("'(?:s|t|re|ve|m|ll|d)")
PRINTABLE = {*range(33, 127), *range(161, 256)} - {173}
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
# Byte-level BPE writes each byte as a character: printable ones as themselves, the others from U+0100 on.
CHARACTERS = {byte: chr(byte if byte in PRINTABLE else 256 + OTHERS.index(byte)) for byte in range(256)}
BYTES = {character: byte for byte, character in CHARACTERS.items()}


def words(text: str) -> Iterator[str]:
    """Split text with single spaces into runs of letters, of numbers and of other characters, each with the space
    before it, and contractions such as 's."""

    def character_class(character: str) -> str:
        category = unicodedata.category(character)[0]
        return category if category in "LN" else "other"

    i = 0
    while i < len(text):
        if match := CONTRACTIONS.match(text, i):
            end = match.end()
        else:
            end = i + 1 + (text[i] == " ")
            while end < len(text) and text[end] != " " and character_class(text[end]) == character_class(text[end - 1]):
                end += 1
        yield text[i:end]
        i = end


class BytePairs:
    """Encodes and decodes text."""

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self.tokens = vocabulary["tokens"]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(vocabulary["merges"])}

    def encode(self, text: str) -> list[int]:
        return [i for word in words(text) for i in self.encode_word(word)]

    def encode_word(self, word: str) -> list[int]:
        ids = [self.ids[CHARACTERS[byte]] for byte in word.encode()]
        while pairs := [(self.ranks[pair], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in self.ranks]:
            _, i = min(pairs)
            ids[i : i + 2] = [self.ids[self.tokens[ids[i]] + self.tokens[ids[i + 1]]]]
        return ids

    def decode(self, ids: list[int]) -> str:
        characters = "".join(self.tokens[i] for i in ids)
        return bytes(BYTES[character] for character in characters).decode("utf-8", errors="replace")


class Translator:
    def __init__(self, folder: str) -> None:
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(Path(folder) / f"{name}.onnx") for name in ("encoder", "decoder")
        )
        self.task = json.loads(self.decoder.get_modelmeta().custom_metadata_map["task"])
        vocabularies = self.task["vocabularies"]
        self.source = BytePairs(vocabularies.get("joint") or vocabularies["source"])
        self.target = BytePairs(vocabularies.get("joint") or vocabularies["target"])

    def translate(self, text: str) -> str:
        text = " ".join((text.lower() if self.task["lowercase"] else text).split())
        source = self.source.encode(f" {text}")[: self.task["max_source_length"]]
        target = self.greedy([*source, len(self.source.tokens)]) if text else []
        return " ".join(self.target.decode(target).split())

    def greedy(self, source: list[int]) -> list[int]:
        """Return the most probable token at each step, until the end token or the maximum length."""
        ids = np.array([source])
        mask = np.ones_like(ids, bool)
        projected = self.encoder.run(None, {"source": ids, "source_mask": mask})
        names = [output.name for output in self.encoder.get_outputs()]
        constant = {"source_mask": mask, **dict(zip(names, projected))}
        sizes = {"batch": 1, "tokens": 1}  # a cache that grows starts with one masked position
        state = {
            given.name: np.zeros([sizes.get(size, size) for size in given.shape], TYPES[given.type])
            for given in self.decoder.get_inputs()
            if given.name not in ("token", *constant)
        }
        outputs = [output.name.removesuffix("N") for output in self.decoder.get_outputs()]
        end, tokens = len(self.target.tokens), []
        token = end
        for _ in range(self.max_length(len(source) - 1)):
            logits, *after = self.decoder.run(None, {"token": np.array([token]), **state, **constant})
            state = dict(zip(outputs[1:], after))
            token = int(logits[0].argmax())
            if token == end:
                break
            tokens.append(token)
        return tokens

    def max_length(self, source: int) -> int:
        search, longest = self.task["search"], self.task["max_target_length"]
        longest = min(search["max_length"] or longest, longest)
        ratio = search["max_length_ratio"]
        return max(1, min(longest, int(ratio * source) + 10) if ratio else longest)


if __name__ == "__main__":
    translator = Translator(sys.argv[1])
    for line in sys.argv[2:] or sys.stdin:
        print(translator.translate(line))
