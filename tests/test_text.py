"""Text and ids: what goes in comes out, whatever the unit, and what cannot be said is said plainly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell import text
from stairwell.errors import UserError

SAMPLE = """To be, or not to be, that is the question:
Whether 'tis nobler in the mind to suffer

The slings and arrows of outrageous fortune,\tor to take arms.
"""


def every_vocabulary() -> list[text.Vocabulary]:
    return [
        text.Bytes(),
        text.Characters.build([SAMPLE]),
        text.Words.build([SAMPLE]),
        text.Words.build([SAMPLE], end_of_line=False, limit=9),
        text.Separated.build([SAMPLE]),
        text.BPE.build([SAMPLE], 300),
    ]


def name(vocabulary: text.Vocabulary) -> str:
    return vocabulary.type_name


ANY_BPE = text.BPE.build([SAMPLE, "zażółć 戦場"], 400)


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_bytes_and_bpe_give_back_any_text(any_text: str) -> None:
    for vocabulary in (text.Bytes(), ANY_BPE):
        ids = vocabulary.encode(any_text)
        assert vocabulary.decode(ids) == any_text
        assert ids.dtype == np.int64 and ((ids >= 0) & (ids < vocabulary.size)).all()


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1))
def test_characters_give_back_the_text_they_were_built_from(any_text: str) -> None:
    vocabulary = text.Characters.build([any_text])
    assert vocabulary.decode(vocabulary.encode(any_text)) == any_text
    assert vocabulary.size == len(set(any_text))


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_lines_encoded_one_by_one_are_the_text_encoded_at_once(vocabulary: text.Vocabulary) -> None:
    lines = SAMPLE.splitlines(keepends=True)
    np.testing.assert_array_equal(
        np.concatenate([vocabulary.encode(line) for line in lines]), vocabulary.encode(SAMPLE)
    )


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_bytes_are_encoded_like_the_text_they_spell(vocabulary: text.Vocabulary) -> None:
    np.testing.assert_array_equal(vocabulary.encode(SAMPLE.encode()), vocabulary.encode(SAMPLE))


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_a_saved_vocabulary_comes_back_the_same(vocabulary: text.Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "vocabulary.json")
    again = text.load(tmp_path / "vocabulary.json")
    assert (again.type_name, again.size) == (vocabulary.type_name, vocabulary.size)
    np.testing.assert_array_equal(again.encode(SAMPLE), vocabulary.encode(SAMPLE))
    json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))


def test_bytes_are_themselves() -> None:
    assert text.Bytes().encode(bytes(range(256))).tolist() == list(range(256))


def test_bytes_that_spell_no_text_decode_to_the_replacement_character() -> None:
    assert text.Bytes().decode([0xFF, 0x61]) == "\ufffda"


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(text.UnknownTokenError, match=r"'é' \(U\+00E9\)"):
        text.Characters.build(["cafe"]).encode("café")
    with pytest.raises(text.UnknownTokenError, match=r"'a' \(U\+0061\)"):
        text.Characters.build(["xyz"]).encode("xa")


def test_words_are_numbered_by_frequency_and_others_are_unknown() -> None:
    vocabulary = text.Words.build(["b a b c", " b a\n"])
    assert vocabulary.words == ("<unk>", "\n", "b", "a", "c")
    assert vocabulary.decode(vocabulary.encode("a zebra\nc")) == "a <unk>\nc"


def test_a_limit_keeps_the_most_frequent_words() -> None:
    vocabulary = text.Words.build(["b a b c b a\n"], limit=4)
    assert vocabulary.words == ("<unk>", "\n", "b", "a")
    with pytest.raises(ValueError, match="at least 3"):
        text.Words.build(["a"], limit=2)


def test_the_unknown_word_of_the_text_is_the_unknown_word() -> None:
    vocabulary = text.Words.build(["a <unk> <unk>\n"])
    assert vocabulary.words == ("<unk>", "\n", "a")


def test_end_of_line_symbols_stand_for_line_ends_and_can_be_turned_off() -> None:
    with_ends = text.Words.build(["a b\n\nb\n"])
    without = text.Words.build(["a b\n\nb\n"], end_of_line=False)
    assert [with_ends.words[i] for i in with_ends.encode("a b\n\nb\n")] == ["a", "b", "\n", "\n", "b", "\n"]
    assert [without.words[i] for i in without.encode("a b\n\nb\n")] == ["a", "b", "b"]
    assert with_ends.words == without.words  # so that a model can go on with the other choice


def test_separated_symbols_count_one_end_for_each_line() -> None:
    treebank = " t o _ b e \n o r \n"
    vocabulary = text.Separated.build([treebank])
    assert vocabulary.symbols == ("\n", "_", "b", "e", "o", "r", "t")
    assert vocabulary.decode(vocabulary.encode(treebank)) == "t o _ b e\no r\n"
    with pytest.raises(text.UnknownTokenError, match="'x'"):
        vocabulary.encode("t x")


def test_bpe_learns_the_same_twice_and_no_more_than_asked() -> None:
    first, second = (text.BPE.build([SAMPLE], 290) for _ in range(2))
    assert first.dumps() == second.dumps()
    assert first.size == 290
    assert len(first.encode(SAMPLE)) < len(SAMPLE)
    with pytest.raises(ValueError, match="BPE of 1,000,000,000 symbols is beyond reason; ask for at most 10,000,000"):
        text.BPE.build(["abc"], 10**9)
    with pytest.raises(ValueError, match="at least 256 symbols, not 255"):
        text.BPE.build([SAMPLE], 255)


def test_no_bpe_symbol_goes_on_past_a_line_end() -> None:
    vocabulary = text.BPE.build(["a\n\n\n    b\n\n\n    c\n" * 50], 280)
    symbols = [vocabulary.decode([i]) for i in range(vocabulary.size)]
    assert not [symbol for symbol in symbols if "\n" in symbol[:-1]]


def test_bpe_knows_how_many_bytes_a_symbol_stands_for() -> None:
    ids = ANY_BPE.encode("zażółć 戦場 the question")
    assert ANY_BPE.lengths[ids].sum() == len("zażółć 戦場 the question".encode())


def test_a_missing_or_damaged_vocabulary_is_one_plain_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no vocabulary"):
        text.load(tmp_path / "none.json")
    path = tmp_path / "vocabulary.json"
    bpe = json.loads(text.BPE.build([SAMPLE], 256).dumps())
    bpe["tokenizer"]["model"] = 3
    damaged = [
        '{"format": "stairwell.vo',
        "[1]",
        '{"format": "stairwell.vocabulary.1", "kind": "runes"}',
        json.dumps(bpe),
    ]
    for content in damaged:
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="is not a vocabulary, or is damaged") as raised:
            text.load(path)
        assert "\n" not in str(raised.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="damaged"):
        text.load(path)


def test_a_vocabulary_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text('{"format": "stairwell.vocabulary.99", "kind": "bytes"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"format 'stairwell\.vocabulary\.99'"):
        text.load(path)


def test_byte_pairs_are_learned_from_words_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LONGEST_WORD", 10)
    plain = "a plain line, and another 123456789.\n" * 3
    assert list(text._break_long_words([plain, plain])) == [plain, plain]
    for word in (" ", "x", "7", "!", "_"):
        pieces = list(text._break_long_words([plain + word * 95]))
        assert "".join(pieces) == plain + word * 95
        assert len(pieces) == 10 and all(word * 11 not in piece for piece in pieces)
    spaces = text.BPE.build([" " * 10_000], 300)
    assert spaces.lengths.max() == 10 and spaces.decode(spaces.encode(" " * 77)) == " " * 77
