"""Vocabularies: encoding and decoding, saving, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell import text
from stairwell.errors import UserError

pytestmark = pytest.mark.quick

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
def test_bytes_and_bpe_decode_what_they_encode(any_text: str) -> None:
    for vocabulary in (text.Bytes(), ANY_BPE):
        ids = vocabulary.encode(any_text)
        assert vocabulary.decode(ids) == any_text
        assert ids.dtype == np.int64 and ((ids >= 0) & (ids < vocabulary.size)).all()


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1))
def test_characters_decode_the_text_they_were_built_from(any_text: str) -> None:
    vocabulary = text.Characters.build([any_text])
    assert vocabulary.decode(vocabulary.encode(any_text)) == any_text
    assert vocabulary.size == len(set(any_text))


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_encoding_line_by_line_equals_encoding_at_once(vocabulary: text.Vocabulary) -> None:
    lines = SAMPLE.splitlines(keepends=True)
    np.testing.assert_array_equal(
        np.concatenate([vocabulary.encode(line) for line in lines]), vocabulary.encode(SAMPLE)
    )


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_utf8_bytes_are_encoded_like_their_text(vocabulary: text.Vocabulary) -> None:
    np.testing.assert_array_equal(vocabulary.encode(SAMPLE.encode()), vocabulary.encode(SAMPLE))


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_a_saved_vocabulary_can_be_loaded(vocabulary: text.Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = text.load(tmp_path / "vocabulary.json")
    assert (loaded.type_name, loaded.size) == (vocabulary.type_name, vocabulary.size)
    np.testing.assert_array_equal(loaded.encode(SAMPLE), vocabulary.encode(SAMPLE))
    json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))


def test_the_id_of_a_byte_is_its_value() -> None:
    assert text.Bytes().encode(bytes(range(256))).tolist() == list(range(256))


def test_bytes_that_are_not_utf8_decode_to_the_replacement_character() -> None:
    assert text.Bytes().decode([0xFF, 0x61]) == "\ufffda"


def test_the_error_for_an_unknown_character_names_it() -> None:
    with pytest.raises(text.UnknownTokenError, match=r"'é' \(U\+00E9\)"):
        text.Characters.build(["cafe"]).encode("café")
    with pytest.raises(text.UnknownTokenError, match=r"'a' \(U\+0061\)"):
        text.Characters.build(["xyz"]).encode("xa")


def test_words_are_sorted_by_frequency_and_others_are_unknown() -> None:
    vocabulary = text.Words.build(["b a b c", " b a\n"])
    assert vocabulary.tokens == ("<unk>", "\n", "b", "a", "c")
    assert vocabulary.decode(vocabulary.encode("a zebra\nc")) == "a <unk>\nc"


def test_a_limit_keeps_the_most_frequent_words() -> None:
    vocabulary = text.Words.build(["b a b c b a\n"], limit=4)
    assert vocabulary.tokens == ("<unk>", "\n", "b", "a")
    with pytest.raises(ValueError, match="at least 3"):
        text.Words.build(["a"], limit=2)


def test_unk_in_the_text_is_the_unknown_token() -> None:
    vocabulary = text.Words.build(["a <unk> <unk>\n"])
    assert vocabulary.tokens == ("<unk>", "\n", "a")


def test_end_of_line_tokens_can_be_turned_off() -> None:
    with_ends = text.Words.build(["a b\n\nb\n"])
    without = text.Words.build(["a b\n\nb\n"], end_of_line=False)
    assert [with_ends.tokens[i] for i in with_ends.encode("a b\n\nb\n")] == ["a", "b", "\n", "\n", "b", "\n"]
    assert [without.tokens[i] for i in without.encode("a b\n\nb\n")] == ["a", "b", "b"]
    assert with_ends.tokens == without.tokens  # so a trained model can change this option


def test_separated_tokens_have_one_end_per_line() -> None:
    treebank = " t o _ b e \n o r \n"
    vocabulary = text.Separated.build([treebank])
    assert vocabulary.tokens == ("\n", "_", "b", "e", "o", "r", "t")
    assert vocabulary.decode(vocabulary.encode(treebank)) == "t o _ b e\no r\n"
    with pytest.raises(text.UnknownTokenError, match="'x'"):
        vocabulary.encode("t x")


def test_bpe_training_is_deterministic_and_has_limits() -> None:
    first, second = (text.BPE.build([SAMPLE], 290) for _ in range(2))
    assert first.dumps() == second.dumps()
    assert first.size == 290
    assert len(first.encode(SAMPLE)) < len(SAMPLE)
    with pytest.raises(ValueError, match="BPE of 1,000,000,000 tokens is too large; the limit is 10,000,000"):
        text.BPE.build(["abc"], 10**9)
    with pytest.raises(ValueError, match="at least 256 tokens, not 255"):
        text.BPE.build([SAMPLE], 255)


def test_no_bpe_token_continues_past_a_line_feed() -> None:
    vocabulary = text.BPE.build(["a\n\n\n    b\n\n\n    c\n" * 50], 280)
    tokens = [vocabulary.decode([i]) for i in range(vocabulary.size)]
    assert not [token for token in tokens if "\n" in token[:-1]]


def test_bpe_byte_lengths_add_up_to_the_text() -> None:
    ids = ANY_BPE.encode("zażółć 戦場 the question")
    assert ANY_BPE.byte_lengths[ids].sum() == len("zażółć 戦場 the question".encode())


def test_a_missing_or_damaged_vocabulary_is_rejected_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no vocabulary"):
        text.load(tmp_path / "none.json")
    path = tmp_path / "vocabulary.json"
    bpe = json.loads(text.BPE.build([SAMPLE], 256).dumps())
    bpe["tokenizer"]["model"] = 3
    damaged = [
        '{"format": "stairwell.vo',
        "[1]",
        '{"format": "stairwell.vocabulary.2", "type": "runes"}',
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


def test_a_vocabulary_of_another_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text('{"format": "stairwell.vocabulary.99", "type": "bytes"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"format 'stairwell\.vocabulary\.99'"):
        text.load(path)


def test_bpe_training_splits_very_long_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_WORD_LENGTH", 10)
    plain = "a plain line, and another 123456789.\n" * 3
    assert list(text._split_long_words([plain, plain])) == [plain, plain]
    for word in (" ", "x", "7", "!", "_"):
        parts = list(text._split_long_words([plain + word * 95]))
        assert "".join(parts) == plain + word * 95
        assert len(parts) == 10 and all(word * 11 not in part for part in parts)
    spaces = text.BPE.build([" " * 10_000], 300)
    assert spaces.byte_lengths.max() == 10 and spaces.decode(spaces.encode(" " * 77)) == " " * 77


@pytest.mark.parametrize("vocabulary", every_vocabulary(), ids=name)
def test_ids_outside_the_vocabulary_are_rejected(vocabulary: text.Vocabulary) -> None:
    for token in (-1, vocabulary.size, 99999, 10**30):
        with pytest.raises(UserError, match=rf"^token id {token} is not in 0\.\.{vocabulary.size - 1}$"):
            vocabulary.decode([0, token])
    with pytest.raises(UserError, match="token id -1"):
        vocabulary.decode(np.array([-1]))
    assert vocabulary.decode([]) == ""


@pytest.mark.parametrize("vocabulary", [text.Bytes(), ANY_BPE], ids=name)
def test_bytes_of_ids_outside_the_vocabulary_are_rejected(vocabulary: text.Vocabulary) -> None:
    for token in (-1, vocabulary.size):
        with pytest.raises(UserError, match=f"token id {token} is not in"):
            vocabulary.token_bytes(token)


@pytest.mark.parametrize(
    "build", [lambda: text.Characters("aba"), lambda: text.Words(("a", "b", "a")), lambda: text.Separated(("a", "a"))]
)
def test_duplicate_tokens_are_rejected(build: Callable[[], text.Vocabulary]) -> None:
    with pytest.raises(UserError, match="the vocabulary has the token 'a' 2 times; tokens must be distinct"):
        build()


@pytest.mark.parametrize("vocabulary", [text.Bytes(), ANY_BPE], ids=name)
def test_lone_surrogates_are_rejected(vocabulary: text.Vocabulary) -> None:
    with pytest.raises(UserError, match=r"the lone surrogate U\+D800 at position 4"):
        vocabulary.encode("abc\n\ud800d")


def test_characters_may_be_in_any_order() -> None:
    vocabulary = text.Characters("<&>a")
    assert vocabulary.encode("a&<>").tolist() == [3, 1, 0, 2]


def test_token_tables_have_the_tokens_in_the_order_of_their_ids() -> None:
    for vocabulary in every_vocabulary():
        table = vocabulary.token_table()
        assert table is not None and len(table["tokens"]) == (0 if vocabulary.reads_bytes else vocabulary.size)
    table = ANY_BPE.token_table()
    for first, second in table["merges"]:
        assert table["tokens"][first] + table["tokens"][second] in table["tokens"]
