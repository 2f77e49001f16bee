"""Text from a trained run, as it is being written: `stairwell generate RUN`.

for piece in generate_text("runs/lm-feedback", "Once upon a time", 500):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator

import torch

from stairwell import text
from stairwell.decode import Session, sampler, stream
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.runs.trainings import load


def generate_text(
    run: str | os.PathLike[str],
    prompt: str,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    device: str = "auto",
    engine: str = "auto",
) -> Iterator[str]:
    """What the language model of a run folder writes after the prompt, piece by piece; everything that can be wrong is
    found out before the first piece. Without a seed every call writes something else."""
    model, task = load(run, device, engine)
    if "text" not in task.vocabularies:
        raise UserError(f"{os.fspath(run)} is no language model: only runs of the task 'lm' write text")
    return write(model, task.vocabularies["text"], prompt, tokens, temperature, top_k, top_p, seed)


def write(
    model: LanguageModel,
    vocabulary: text.Vocabulary,
    prompt: str,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Iterator[str]:
    """The same for a model and its vocabulary."""
    like = next(model.parameters())
    ids = torch.from_numpy(vocabulary.encode(prompt)).to(like.device)
    if not len(ids):
        raise UserError("the prompt is empty: give the model something to go on from")
    if tokens < 1:
        raise UserError(f"the number of tokens to write must be at least 1, not {tokens}")
    generator = torch.Generator(like.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    choose = sampler(temperature, top_k, top_p, generator)
    said = stream(Session(model, model.init_state(1)), ids[None], tokens, choose)
    return spell((int(token) for token in said), vocabulary, int(ids[-1]))


def spell(ids: Iterable[int], vocabulary: text.Vocabulary, before: int) -> Iterator[str]:
    """Ids as text, each as soon as it can be read; `before` is the id that they follow."""
    if isinstance(vocabulary, text.Bytes | text.BPE):
        # A token may end inside a character, which is then kept until it is whole.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for i in ids:
            yield decoder.decode(bytes_of(vocabulary, i))
        yield decoder.decode(b"", final=True)
        return
    for i in ids:
        # What stands between two words depends on both.
        yield vocabulary.decode([before, i])[len(vocabulary.decode([before])) :]
        before = i


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
