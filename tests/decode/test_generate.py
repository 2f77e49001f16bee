"""Text is written as it is decoded, and reads the same as if it had been decoded at the end."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.decode import Session, greedy
from stairwell.errors import UserError
from stairwell.generate import Choice, Stops, Writer, generate_text, penalized, read_prompt, spell, write
from stairwell.runs.launch import fit, load
from stairwell.runs.presets import preset
from stairwell.stream import Stream
from stairwell.text import BPE, Bytes, Characters, Separated, Vocabulary, Words

TEXT = "Hoch über den Wolken, 無限 — naïve 🙂🙃!\nEine zweite Zeile ohne Ende\n" * 3
LETTERS = "t o _ b e\no r _ n o t\n"


VOCABULARIES = [Bytes(), BPE.build([TEXT], 300), BPE.build(["abc"], 256), Characters.build([TEXT]), Words.build([TEXT])]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda vocabulary: vocabulary.kind)
def test_pieces_add_up_to_the_text(vocabulary: Vocabulary) -> None:
    first, *ids = vocabulary.encode(TEXT).tolist()
    pieces = list(spell(ids, vocabulary, first))
    assert vocabulary.decode([first]) + "".join(pieces) == vocabulary.decode([first, *ids])
    assert "�" not in "".join(pieces[1:])


def test_symbols_that_spaces_separate_add_up_too() -> None:
    vocabulary = Separated.build([LETTERS])
    first, *ids = vocabulary.encode(LETTERS).tolist()
    assert "t" + "".join(spell(ids, vocabulary, first)) == LETTERS


def test_bytes_that_are_no_text_are_replaced_and_nothing_is_lost() -> None:
    ids = [*"é".encode(), 0xFF, *b"a", 0xC3]
    pieces = list(spell(ids, Bytes(), 0))
    assert pieces[:2] == ["", "é"]  # half a character waits for its other half
    assert "".join(pieces) == Bytes().decode(ids)


def small_model(vocabulary: Vocabulary) -> LanguageModel:
    torch.manual_seed(0)
    core = FeedbackConfig(width=8, heads=2, layers=2, memory=6)
    return LanguageModel(LanguageModelConfig(core=core, inputs=vocabulary.size), "reference").eval()


def test_a_seed_fixes_the_text() -> None:
    vocabulary = Characters.build([TEXT])
    model = small_model(vocabulary)

    def text(seed: int | None) -> str:
        return "".join(write(model, vocabulary, "Eine", 40, seed=seed))

    assert len(text(1)) == 40
    assert text(1) == text(1) != text(2)
    assert text(None) != text(None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt": "§"}, "not in the training text"),
        ({"prompt": b"a\xc3"}, "not valid UTF-8 at byte 1"),
        ({"tokens": 0}, "at least 1"),
        ({"stop": ["a", ""]}, "must not be empty"),
    ],
    ids=str,
)
def test_a_mistake_is_told_before_the_first_piece(options: dict[str, Any], told: str) -> None:
    vocabulary = Characters.build([TEXT])
    with pytest.raises(UserError, match=told):
        write(small_model(vocabulary), vocabulary, **{"prompt": "Eine", "tokens": 5, **options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": -1}, "0 or more"),
        ({"top_k": 0}, "at least 1"),
        ({"top_p": 1.5}, "at most 1"),
        ({"temperature": math.nan}, "a finite number, 0 or more"),
        ({"temperature": math.inf}, "a finite number, 0 or more"),
        ({"repetition_penalty": 0}, "from 0.01 to 100"),
        ({"repetition_penalty": math.nan}, "from 0.01 to 100"),
        ({"repetition_penalty": 1e-320}, "from 0.01 to 100"),
        ({"repetition_penalty": math.inf}, "from 0.01 to 100"),
    ],
    ids=str,
)
def test_a_choice_that_makes_no_sense_is_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Choice(**options)


@pytest.mark.parametrize("options", [{"temperature": 1e-320}, {"top_p": 1e-300}], ids=str)
def test_numbers_that_single_precision_takes_for_0_are_greedy(options: dict[str, Any]) -> None:
    model = small_model(Bytes())
    greedy = "".join(write(model, Bytes(), "a", 20, Choice(temperature=0)))
    assert "".join(write(model, Bytes(), "a", 20, Choice(**options))) == greedy


@pytest.mark.parametrize(
    ("vocabulary", "first"),
    [
        (Bytes(), 10),
        (Characters.build(["a\nb"]), 0),
        (Characters.build(["xyz"]), 0),
        (Words.build(["one two"], end_of_line=False), 0),
        (Words.build(["one two"]), 1),
    ],
    ids=["bytes", "characters", "no line end", "words alone", "words"],
)
def test_an_empty_prompt_is_a_line_end_or_the_first_symbol(vocabulary: Vocabulary, first: int) -> None:
    stream = Stream(small_model(vocabulary), vocabulary)
    read_prompt(stream, "")
    assert stream.recent == [first]
    assert len(list(write(small_model(vocabulary), vocabulary, "", 3))) == 4


@pytest.mark.parametrize("vocabulary", [Bytes(), BPE.build(["abc"], 256)], ids=["bytes", "bpe"])
@pytest.mark.parametrize("character", ["é", "無", "🙂"])
def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_first_token(
    vocabulary: Vocabulary, character: str
) -> None:
    model = small_model(vocabulary)
    *half, last = vocabulary.encode(character).tolist()
    with torch.no_grad():
        model.head.bias[last] += 100  # type: ignore[union-attr]
    stream = Stream(model, vocabulary)
    stream.feed([*vocabulary.encode("a").tolist(), *half])
    writer = Writer(stream, Choice(temperature=0))
    assert list(writer.write(1)) == [character]
    # The same after a prompt in between; what was whole before is not written again.
    assert writer.read("b") == "" and list(writer.write(1)) == ["\ufffd"]
    if isinstance(vocabulary, Bytes):
        assert writer.read(b"c" + character.encode()[:-1]) == "" and list(writer.write(1)) == [character]


def test_an_unknown_word_is_read_as_unknown() -> None:
    vocabulary = Words.build(["one two"])
    stream = Stream(small_model(vocabulary), vocabulary)
    read_prompt(stream, "one three")
    assert stream.recent == vocabulary.encode("one <unk>").tolist()


def test_a_penalty_makes_repetitions_less_likely() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0])
    assert penalized(logits, [0, 1, 0], 2.0).tolist() == [1.0, -4.0, 1.0]
    model = small_model(Bytes())
    plain, varied = (
        "".join(write(model, Bytes(), "a", 60, Choice(temperature=0, repetition_penalty=penalty)))
        for penalty in (1.0, 3.0)
    )
    assert len(set(varied)) > len(set(plain))


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("strings", "shown"),
    [
        (["ccd"], "abcab"),
        (["ca", "ccd"], "ab"),
        (["abcabccx"], "abcabccdab"),
        (["abcabccdabc"], "abcabccdab"),
        (["b", "ab"], ""),
        ([], "abcabccdab"),
    ],
    ids=str,
)
def test_text_ends_before_a_stop_string_however_it_is_cut(strings: list[str], shown: str, size: int) -> None:
    stops, text = Stops(strings), "abcabccdab"
    pieces = [stops(text[i : i + size]) for i in range(0, len(text), size)]
    upto = "".join(pieces) + stops.held
    assert upto.startswith(shown) and (upto == shown or stops.stopped)
    assert stops.stopped == (shown != text)


def test_a_text_stops_at_a_stop_string() -> None:
    model, vocabulary = small_model(Bytes()), Bytes()
    whole = "".join(write(model, vocabulary, "a", 60, seed=3))
    stop = whole[20:23]
    stopped = "".join(write(model, vocabulary, "a", 60, stop=[stop], seed=3))
    assert stopped == whole[: whole.index(stop)]


@pytest.mark.parametrize("vocabulary", [Bytes(), BPE.build([TEXT], 300), Words.build([TEXT])], ids=lambda one: one.kind)
def test_writing_that_stops_for_days_is_never_noticed(vocabulary: Vocabulary, tmp_path: Path) -> None:
    choice = Choice(temperature=1.2, top_k=50, top_p=0.95, repetition_penalty=1.3)

    def begin() -> Writer:
        stream = Stream(small_model(vocabulary), vocabulary)
        read_prompt(stream, "Eine")
        return Writer(stream, choice, ["no such text", "\ufffd§", "e§", " §"], seed=4)

    whole, stopped = begin(), begin()
    wanted = "".join(whole.write(90))
    found = ""
    for _ in range(9):
        found += "".join(stopped.write(10))
        stopped.save(tmp_path / "a.stream")
        stopped = Writer.load(tmp_path / "a.stream", small_model(vocabulary), vocabulary, choice, whole.stops.strings)
    assert found + stopped.end() == wanted + whole.end()
    assert torch.equal(stopped.stream.probabilities(), whole.stream.probabilities())


def test_half_a_character_waits_in_the_file(tmp_path: Path) -> None:
    model = small_model(Bytes())
    stream = Stream(model, Bytes())
    read_prompt(stream, "a")
    writer = Writer(stream)
    assert writer.speller(0xC3) == ""
    writer.save(tmp_path / "a.stream")
    writer = Writer.load(tmp_path / "a.stream", model, Bytes())
    assert writer.speller(0xA9) == "é"
    plain = Stream(model, Bytes())
    plain.save(tmp_path / "plain.stream")
    with pytest.raises(UserError, match="writes no text"):
        Writer.load(tmp_path / "plain.stream", model, Bytes())


def trained(folder: Path, name: str, **options: str) -> Path:
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}
    fit(preset(name).with_options({**sizes, **options}), folder / "run", "cpu")
    return folder / "run"


def test_a_run_writes_what_its_model_says(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    run = trained(tmp_path, "lm/feedback", **{"task.path": str(tmp_path / "text.txt")})
    pieces = list(generate_text(run, "Eine", 30, Choice(temperature=0)))
    model, task = load(run)
    vocabulary = task.vocabularies["text"]
    prompt = torch.from_numpy(vocabulary.encode("Eine"))[None]
    said = greedy(Session(model, model.init_state(1)), prompt, 30)[0]
    assert "".join(pieces) == vocabulary.decode(said.numpy())


def test_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, "random-walk/lstm")
    with pytest.raises(UserError, match="only runs of the task 'lm' write text"):
        generate_text(run, "a", 3)


MILLION = """
import resource, sys, torch
from stairwell import LSTMConfig, FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.generate import Choice, Writer, read_prompt
from stairwell.stream import Stream
from stairwell.text import Bytes
torch.set_num_threads(1)
model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(width=8, heads=1, layers=1, memory=8), inputs=256)).eval()
stream = Stream(model, Bytes(), max_crop=8)
read_prompt(stream, "a")
writer = Writer(stream, Choice(repetition_penalty=1.1), ["no such text"], seed=0)
for part in range(10):
    for piece in writer.write(100_000):
        pass
    print(stream.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_tokens_take_no_more_memory_than_a_hundred_thousand() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert lines[-1][0] == 1_000_001
    assert lines[-1][1] <= lines[0][1] + 2000  # kilobytes
