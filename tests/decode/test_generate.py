"""Text generation: text is yielded token by token and equals the text of all tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.decode import Sampling, Session, greedy
from stairwell.errors import UserError
from stairwell.generate import Detokenizer, StopStrings, TextGenerator, generate, generate_text, read_prompt
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.stream import Stream
from stairwell.text import BPE, Bytes, Characters, Separated, Vocabulary, Words

pytestmark = pytest.mark.quick

TEXT = "Hoch über den Wolken, 無限 — naïve 🙂🙃!\nEine zweite Zeile ohne Ende\n" * 3
LETTERS = "t o _ b e\no r _ n o t\n"


VOCABULARIES = [Bytes(), BPE.build([TEXT], 300), BPE.build(["abc"], 256), Characters.build([TEXT]), Words.build([TEXT])]


def detokenize(ids: list[int], vocabulary: Vocabulary, previous: int | None = None) -> list[str]:
    """Return the text of each token, then the text held back."""
    detokenizer = Detokenizer(vocabulary, previous)
    return [*map(detokenizer, ids), detokenizer.flush()]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda vocabulary: vocabulary.type_name)
def test_texts_of_tokens_add_up_to_the_text_of_all(vocabulary: Vocabulary) -> None:
    first, *ids = vocabulary.encode(TEXT).tolist()
    parts = detokenize(ids, vocabulary, first)
    assert vocabulary.decode([first]) + "".join(parts) == vocabulary.decode([first, *ids])
    assert "�" not in "".join(parts[1:])


def test_texts_of_space_separated_tokens_add_up() -> None:
    vocabulary = Separated.build([LETTERS])
    first, *ids = vocabulary.encode(LETTERS).tolist()
    assert "t" + "".join(detokenize(ids, vocabulary, first)) == LETTERS


def test_invalid_utf8_is_replaced() -> None:
    ids = [*"é".encode(), 0xFF, *b"a", 0xC3]
    parts = detokenize(ids, Bytes(), 0)
    assert parts[:2] == ["", "é"]  # an incomplete character is held back
    assert "".join(parts) == Bytes().decode(ids)


def small_model(vocabulary: Vocabulary) -> LanguageModel:
    torch.manual_seed(0)
    core = FeedbackConfig(width=8, heads=2, layers=2, memory=6)
    return LanguageModel(LanguageModelConfig(core=core, inputs=vocabulary.size), "reference").eval()


def test_a_seed_determines_the_text() -> None:
    vocabulary = Characters.build([TEXT])
    model = small_model(vocabulary)

    def text(seed: int | None) -> str:
        return "".join(generate(model, vocabulary, "Eine", 40, seed=seed))

    assert len(text(1)) == 40
    assert text(1) == text(1) != text(2)
    assert text(None) != text(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "§"}, "not in the training text"),
        ({"prompt": b"a\xc3"}, "not valid UTF-8 at byte 1"),
        ({"tokens": 0}, "at least 1"),
        ({"stop": ["a", ""]}, "must not be empty"),
    ],
    ids=str,
)
def test_errors_are_raised_before_the_first_text(options: dict[str, Any], message: str) -> None:
    vocabulary = Characters.build([TEXT])
    with pytest.raises(UserError, match=message):
        generate(small_model(vocabulary), vocabulary, **{"prompt": "Eine", "tokens": 5, **options})


@pytest.mark.parametrize("options", [{"temperature": 1e-320}, {"top_p": 1e-300}], ids=str)
def test_options_that_underflow_are_greedy(options: dict[str, Any]) -> None:
    model = small_model(Bytes())
    expected = "".join(generate(model, Bytes(), "a", 20, Sampling(temperature=0)))
    assert "".join(generate(model, Bytes(), "a", 20, Sampling(**options))) == expected


@pytest.mark.parametrize(
    ("vocabulary", "first"),
    [
        (Bytes(), 10),
        (Characters.build(["a\nb"]), 0),
        (Characters.build(["xyz"]), 0),
        (Words.build(["one two"], end_of_line=False), 0),
        (Words.build(["one two"]), 1),
    ],
    ids=["bytes", "characters", "no newline", "words without newline", "words"],
)
def test_an_empty_prompt_is_a_newline_or_the_first_token(vocabulary: Vocabulary, first: int) -> None:
    stream = Stream(small_model(vocabulary), vocabulary)
    read_prompt(stream, "")
    assert stream.recent == [first]
    assert len(list(generate(small_model(vocabulary), vocabulary, "", 3))) == 4


@pytest.mark.parametrize("vocabulary", [Bytes(), BPE.build(["abc"], 256)], ids=["bytes", "bpe"])
@pytest.mark.parametrize("character", ["é", "無", "🙂"])
def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_first_token(
    vocabulary: Vocabulary, character: str
) -> None:
    model = small_model(vocabulary)
    *incomplete, last = vocabulary.encode(character).tolist()
    with torch.no_grad():
        model.head.bias[last] += 100  # type: ignore[union-attr]
    stream = Stream(model, vocabulary)
    stream.feed([*vocabulary.encode("a").tolist(), *incomplete])
    generator = TextGenerator(stream, Sampling(temperature=0))
    assert list(generator.generate(1)) == [character]
    # The same after another prompt; complete characters are not repeated.
    assert generator.feed("b") == "" and list(generator.generate(1)) == ["\ufffd"]
    if isinstance(vocabulary, Bytes):
        assert generator.feed(b"c" + character.encode()[:-1]) == "" and list(generator.generate(1)) == [character]


def test_an_unknown_word_is_read_as_unknown() -> None:
    vocabulary = Words.build(["one two"])
    stream = Stream(small_model(vocabulary), vocabulary)
    read_prompt(stream, "one three")
    assert stream.recent == vocabulary.encode("one <unk>").tolist()


def test_a_repetition_penalty_gives_more_varied_text() -> None:
    model = small_model(Bytes())
    plain, varied = (
        "".join(generate(model, Bytes(), "a", 60, Sampling(temperature=0, repetition_penalty=penalty)))
        for penalty in (1.0, 3.0)
    )
    assert len(set(varied)) > len(set(plain))


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("strings", "expected"),
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
def test_text_ends_before_a_stop_string_however_it_is_split(strings: list[str], expected: str, size: int) -> None:
    stops, text = StopStrings(strings), "abcabccdab"
    passed = "".join(stops(text[i : i + size]) for i in range(0, len(text), size)) + stops.held
    assert passed.startswith(expected) and (passed == expected or stops.stopped)
    assert stops.stopped == (expected != text)


def test_generation_ends_at_a_stop_string() -> None:
    model, vocabulary = small_model(Bytes()), Bytes()
    whole = "".join(generate(model, vocabulary, "a", 60, seed=3))
    stop = whole[20:23]
    stopped = "".join(generate(model, vocabulary, "a", 60, stop=[stop], seed=3))
    assert stopped == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    "vocabulary", [Bytes(), BPE.build([TEXT], 300), Words.build([TEXT])], ids=lambda one: one.type_name
)
def test_a_saved_generator_resumes_bit_for_bit(vocabulary: Vocabulary, tmp_path: Path) -> None:
    sampling = Sampling(temperature=1.2, top_k=50, top_p=0.95, repetition_penalty=1.3)

    def start() -> TextGenerator:
        stream = Stream(small_model(vocabulary), vocabulary)
        read_prompt(stream, "Eine")
        return TextGenerator(stream, sampling, ["no such text", "\ufffd§", "e§", " §"], seed=4)

    whole, resumed = start(), start()
    expected = "".join(whole.generate(90))
    text = ""
    for _ in range(9):
        text += "".join(resumed.generate(10))
        resumed.save(tmp_path / "a.stream")
        resumed = TextGenerator.load(
            tmp_path / "a.stream", small_model(vocabulary), vocabulary, sampling, whole.stops.strings
        )
    assert text + resumed.flush() == expected + whole.flush()
    assert torch.equal(resumed.stream.probabilities(), whole.stream.probabilities())


def test_an_incomplete_character_is_saved(tmp_path: Path) -> None:
    model = small_model(Bytes())
    stream = Stream(model, Bytes())
    read_prompt(stream, "a")
    generator = TextGenerator(stream)
    assert generator.detokenizer(0xC3) == ""
    generator.save(tmp_path / "a.stream")
    generator = TextGenerator.load(tmp_path / "a.stream", model, Bytes())
    assert generator.detokenizer(0xA9) == "é"
    plain = Stream(model, Bytes())
    plain.save(tmp_path / "plain.stream")
    with pytest.raises(UserError, match="without a text generator"):
        TextGenerator.load(tmp_path / "plain.stream", model, Bytes())


def trained(folder: Path, name: str, **options: str) -> Path:
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}
    fit(preset(name).with_options({**sizes, **options}), folder / "run", "cpu")
    return folder / "run"


def test_the_text_of_a_run_is_that_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    run = trained(tmp_path, "lm/feedback", **{"task.path": str(tmp_path / "text.txt")})
    text = "".join(generate_text(run, "Eine", 30, Sampling(temperature=0)))
    model, task = load(run)
    vocabulary = task.vocabularies["text"]
    prompt = torch.from_numpy(vocabulary.encode("Eine"))[None]
    tokens = greedy(Session(model, model.init_state(1)), prompt, 30)[0]
    assert text == vocabulary.decode(tokens.numpy())


def test_a_run_of_another_task_raises(tmp_path: Path) -> None:
    run = trained(tmp_path, "random-walk/lstm")
    with pytest.raises(UserError, match="only runs of the task 'lm' generate text"):
        generate_text(run, "a", 3)


MILLION = """
import resource, sys, torch
from stairwell import LSTMConfig, FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.decode import Sampling
from stairwell.generate import TextGenerator, read_prompt
from stairwell.stream import Stream
from stairwell.text import Bytes
torch.set_num_threads(1)
model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(width=8, heads=1, layers=1, memory=8), inputs=256)).eval()
stream = Stream(model, Bytes(), max_crop=8)
read_prompt(stream, "a")
generator = TextGenerator(stream, Sampling(repetition_penalty=1.1), ["no such text"], seed=0)
for part in range(10):
    for text in generator.generate(100_000):
        pass
    print(stream.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_over_a_million_tokens() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert lines[-1][0] == 1_000_001
    assert lines[-1][1] <= lines[0][1] + 2000  # kilobytes
