"""Language modeling: splits, targets, starts, episodes, the cache, and errors of unreadable text."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell import text
from stairwell.data import cache, splits, text_files
from stairwell.data.packed import Encoded, Episodic, Packed
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.batch_sources import SequenceSource, split_batches
from stairwell.tasks.language import Language, LanguageConfig, LanguageScore

LINES = "".join(f"line {i} of a small book, {'x' * (i % 7)} it says\n" for i in range(100))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STAIRWELL_CACHE", str(folder))
    return folder


def write(folder: Path, content: str | bytes, name: str = "book.txt") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(folder / name)


def language(path: str, **options: Any) -> Language:
    """Return the task with its data opened."""
    return opened(Language(LanguageConfig(path=path, **options)))


def opened(task: Language) -> Language:
    assert task.splits
    return task


def ids(task: Language, split: str) -> list[int]:
    data = task.splits[split]
    return data.tokens(np.arange(len(data))).tolist()


def splits_of(task: Language) -> list[str]:
    return [task.vocabulary.decode(ids(task, split)) for split in ("train", "valid", "test")]


def read(data: Encoded, batch: int, segment: int) -> TokenBatch:
    """Return a split in one batch, read in segments."""
    batches = list(split_batches(data, batch, segment))
    assert all(batch.tokens.shape[1] == segment for batch in batches[:-1])
    starts = [
        torch.zeros_like(batch.tokens, dtype=torch.bool) if batch.start is None else batch.start for batch in batches
    ]
    return TokenBatch(
        torch.cat([batch.tokens for batch in batches], 1),
        torch.cat([batch.targets for batch in batches], 1),
        torch.cat(starts, 1),
    )


def in_order(batch: TokenBatch, present: int) -> TokenBatch:
    """Return the streams concatenated, without padding. Tokens count from 1, padding is 0."""
    mask = batch.tokens > 0
    assert int(mask.sum()) == present
    assert (batch.targets[~mask] == IGNORE_INDEX).all()
    assert batch.start is not None and not batch.start[~mask].any()
    return TokenBatch(batch.tokens[mask], batch.targets[mask], batch.start[mask])


N = 50
SIZES = [(streams, segment) for streams in (1, 2, 3, 7, 60) for segment in (1, 4, 7, 1000)]


@pytest.mark.parametrize(("streams", "segment"), SIZES)
def test_every_token_is_scored_once_at_any_batch_size_and_segment(streams: int, segment: int) -> None:
    batch = in_order(read(Packed(np.arange(1, N + 1)), streams, segment), N)
    assert batch.tokens.tolist() == list(range(1, N + 1))
    assert batch.targets.tolist() == [*range(2, N + 1), IGNORE_INDEX]


@pytest.mark.parametrize(("streams", "segment"), SIZES)
def test_documents_are_reset_and_their_first_token_is_not_a_target(streams: int, segment: int) -> None:
    starts = np.array([0, 3, 4, 20, 33, 40, 45, 48])
    batch = in_order(read(Packed(np.arange(1, N + 1), starts), streams, segment), N)
    assert batch.tokens.tolist() == list(range(1, N + 1))
    assert batch.start is not None and np.flatnonzero(batch.start).tolist() == starts.tolist()
    unscored = {*(starts - 1), N - 1}
    assert batch.targets.tolist() == [IGNORE_INDEX if i in unscored else i + 2 for i in range(N)]


@pytest.mark.parametrize("streams", [2, 3, 5, 8])
def test_with_enough_documents_every_stream_starts_with_one(streams: int) -> None:
    data = Packed(np.arange(1, N + 1), np.array([0, 3, 4, 20, 33, 40, 45, 48]))
    batch = read(data, streams, 1000)
    occupied = batch.tokens[:, 0] > 0
    assert batch.start is not None and batch.start[occupied, 0].all()
    assert int(occupied.sum()) > 1


def test_with_fewer_documents_than_streams_the_streams_have_equal_lengths() -> None:
    batch = read(Packed(np.arange(1, N + 1), np.array([0, 3])), 5, 1000)
    assert batch.tokens[:, 0].tolist() == [1, 11, 21, 31, 41]


def test_a_single_document_has_no_starts() -> None:
    assert next(split_batches(Packed(np.arange(5)), 2, 3)).start is None


def test_batch_size_and_segment_must_be_at_least_one() -> None:
    for streams, segment in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            split_batches(Packed(np.arange(5)), streams, segment)


def test_episodes_are_split_padded_and_reset() -> None:
    # Documents of 6, 1, 3 and 5 tokens in episodes of 4: the second document and the last token of the fourth have no
    # targets.
    data = Episodic(Packed(np.arange(1, 16), np.array([0, 6, 7, 10])), 4)
    batch = read(data, 1, 3)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 0, 0, 8, 9, 10, 0, 11, 12, 13, 14]]
    assert [t if t != IGNORE_INDEX else 0 for t in batch.targets[0].tolist()] == [
        *(2, 3, 4, 0),
        *(6, 0, 0, 0),
        *(9, 10, 0, 0),
        *(12, 13, 14, 0),
    ]
    assert batch.start is not None and np.flatnonzero(batch.start[0]).tolist() == [0, 4, 8, 12]


@pytest.mark.parametrize("streams", [2, 3, 4, 9])
def test_episodes_are_never_split_between_streams(streams: int) -> None:
    batch = read(Episodic(Packed(np.arange(1, 16), np.array([0, 6, 7, 10])), 4), streams, 5)
    assert batch.start is not None
    assert sorted(batch.tokens[batch.start].tolist()) == [1, 5, 8, 11]
    occupied = batch.tokens[:, 0] > 0
    assert batch.start[occupied, 0].all()
    assert int((batch.targets != IGNORE_INDEX).sum()) == 3 + 1 + 2 + 3


def test_a_single_document_is_split_into_episodes() -> None:
    assert read(Episodic(Packed(np.arange(1, 6)), 3), 1, 9).tokens.tolist() == [[1, 2, 3, 4, 5, 0]]


@pytest.mark.parametrize("episode", [0, 4])
def test_training_reads_what_evaluation_reads(episode: int) -> None:
    packed = Packed(np.arange(1, 16), np.array([0, 6, 7, 10]))
    data = Episodic(packed, episode) if episode else packed
    expected = read(data, 1, 1000)
    source = SequenceSource(data, range(1), 1)
    for _ in range(2):  # epochs
        batch = source.read(len(data))
        assert torch.equal(batch.tokens, expected.tokens)
        assert torch.equal(batch.targets, expected.targets)
        assert batch.start is not None and expected.start is not None and torch.equal(batch.start, expected.start)


def test_training_streams_are_independent_and_can_be_resumed(tmp_path: Path) -> None:
    task = language(write(tmp_path, LINES), documents="lines")
    together, alone = task.batch_source(range(4), 4, 0), task.batch_source(range(2, 3), 4, 0)
    assert torch.equal(together.read(30).tokens[2:3], alone.read(30).tokens)
    again = task.batch_source(range(4), 4, 0)
    again.seek(together.position())
    expected, resumed = together.read(11), again.read(11)
    assert torch.equal(expected.tokens, resumed.tokens) and torch.equal(expected.targets, resumed.targets)


def test_a_file_is_split_at_line_feeds_without_loss(tmp_path: Path) -> None:
    train, valid, test = splits_of(language(write(tmp_path, LINES)))
    assert train + valid + test == LINES
    assert train.endswith("\n") and valid.endswith("\n") and valid and test
    assert 0.9 <= len(train) / len(LINES) < 0.92 and 0.95 <= len(train + valid) / len(LINES) < 0.97


def test_a_split_at_a_line_feed_is_not_moved(tmp_path: Path) -> None:
    assert [len(split) for split in splits_of(language(write(tmp_path, "ten bytes\n" * 100)))] == [900, 50, 50]


@pytest.mark.parametrize(
    ("content", "separator"),
    [("word " * 100, " "), ("ż" * 200, "")],
    ids=["spaces", "characters"],
)
def test_a_file_without_line_feeds_is_split_between_words_or_characters(
    tmp_path: Path, content: str, separator: str
) -> None:
    train, valid, test = splits_of(language(write(tmp_path, content), unit="characters"))
    assert train + valid + test == content
    assert valid.startswith(separator) and test.startswith(separator) and valid and test


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_the_size_of_enwik8_has_its_customary_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(splits, "ENWIK8_SIZE", 1000)
    content = b"seven b\n" * 125
    path = write(tmp_path, gzip.compress(content), "small8.gz") if compressed else write(tmp_path, content, "small8")
    task = language(path)
    assert ids(task, "train") == list(content[:900])
    assert ids(task, "valid") == list(content[900:950])
    assert ids(task, "test") == list(content[950:])


def test_customary_splits_do_not_split_a_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "a" + "ż" * 499 + "b"
    monkeypatch.setattr(splits, "ENWIK8_SIZE", 1000)
    task = Language(LanguageConfig(path=write(tmp_path, content), unit="characters"), text.Characters.build([content]))
    assert "".join(splits_of(task)) == content
    assert len(ids(task, "valid")) == 25


def test_a_gzip_file_is_read_like_the_plain_one(tmp_path: Path) -> None:
    plain = language(write(tmp_path, LINES), unit="words")
    compressed = language(write(tmp_path, gzip.compress(LINES.encode()), "book.gz"), unit="words")
    assert splits_of(plain) == splits_of(compressed)


@pytest.mark.parametrize(
    "names",
    [
        ("ptb.char.train.txt", "ptb.char.valid.txt", "ptb.char.test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ("train.txt", "val.txt", "test.txt"),
        ("news-train", "news-dev", "news-test"),
    ],
    ids=lambda names: names[0],
)
def test_the_names_of_files_determine_their_split(tmp_path: Path, names: tuple[str, str, str]) -> None:
    for name, content in zip(names, ("to train", "to validate", "to test")):
        write(tmp_path, content, name)
    write(tmp_path, "read this first", "README")
    assert splits_of(language(str(tmp_path))) == ["to train", "to validate", "to test"]


def test_a_folder_of_several_corpora_needs_a_prefix(tmp_path: Path) -> None:
    for prefix in ("ptb", "ptb.char"):
        for split in ("train", "valid", "test"):
            write(tmp_path, f"{prefix} {split}", f"{prefix}.{split}.txt")
    with pytest.raises(ValueError, match=r"several corpora; prefix must be one of 'ptb\.char', 'ptb'"):
        language(str(tmp_path))
    with pytest.raises(ValueError, match=r"no corpus 'wiki'; prefix must be one of"):
        language(str(tmp_path), prefix="wiki")
    assert splits_of(language(str(tmp_path), prefix="ptb"))[0] == "ptb train"
    assert splits_of(language(str(tmp_path), prefix="ptb.char"))[2] == "ptb.char test"


def test_a_missing_split_is_an_error(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt"):
        write(tmp_path, "some text", name)
    task = language(str(tmp_path))
    with pytest.raises(ValueError, match="has no test split; it has train and valid"):
        task.batches("test", 1, 1)
    (tmp_path / "valid.txt").rename(tmp_path / "test.txt")
    with pytest.raises(ValueError, match=r"train\.txt and test\.txt but no valid file"):
        language(str(tmp_path))


def many_files(folder: Path, count: int = 40) -> str:
    for i in range(count):
        write(folder, f"document {i} ends here.\n", f"{i % 3}/{i}.txt")
    return str(folder)


def test_the_files_of_a_folder_are_documents_distributed_to_the_splits(tmp_path: Path) -> None:
    task = language(many_files(tmp_path))
    sizes = {
        split: 1 if data.start_positions is None else len(data.start_positions) for split, data in task.splits.items()
    }
    assert sizes == {"train": 36, "valid": 2, "test": 2}
    content = "".join(splits_of(task))
    assert all(f"document {i} ends here.\n" in content for i in range(40))
    data = task.splits["train"]
    assert data.start_positions is not None
    assert all(chr(token) == "d" for token in data.tokens(data.start_positions))


def test_the_splits_of_files_depend_on_their_names_only(tmp_path: Path) -> None:
    first, second = many_files(tmp_path / "first"), many_files(tmp_path / "second")
    write(Path(second), "changed", "0/0.txt")
    splits_of_first, splits_of_second = (
        {
            split: [part.file.relative_to(folder) for part in parts]
            for split, parts in splits.find_splits(folder).items()
        }
        for folder in (first, second)
    )
    assert splits_of_first == splits_of_second
    everything = sorted(name for names in splits_of_first.values() for name in names)
    assert splits_of_first["valid"] != everything[:2] and splits_of_first["train"] != everything[:36]


def test_few_files_are_each_split(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        write(tmp_path, LINES, name)
    train, valid, test = splits_of(language(str(tmp_path)))
    one = splits_of(language(str(tmp_path / "a.txt")))
    assert [train, valid, test] == [part * 2 for part in one]
    assert len(language(str(tmp_path)).splits["train"].start_positions) == 2  # type: ignore[arg-type]


def test_a_pattern_selects_files_and_hidden_and_empty_files_are_skipped(tmp_path: Path) -> None:
    many_files(tmp_path)
    write(tmp_path, b"\xff\xfe", "picture.png")
    write(tmp_path, b"\xff", ".hidden")
    write(tmp_path, b"", "empty.txt")
    assert len(ids(language(str(tmp_path), unit="words", files="*.txt"), "train")) == 36 * 5
    with pytest.raises(ValueError, match=r"has no file that matches '\*\.md'"):
        language(str(tmp_path), files="*.md")


def test_documents_can_be_lines_or_none(tmp_path: Path) -> None:
    path = many_files(tmp_path)
    assert language(path, documents="none").splits["train"].start_positions is None
    one = write(tmp_path, "one\ntwo\n\nthree\n" * 40, "lines.txt")
    task = language(one, documents="lines")
    starts = task.splits["train"].start_positions
    assert starts is not None
    tokens = ids(task, "train")
    assert all(i == 0 or tokens[i - 1] == ord("\n") for i in starts)
    assert len(starts) == splits_of(task)[0].count("\n")


def test_the_standard_library_is_a_corpus() -> None:
    task = language("stdlib")
    assert all(data.start_positions is not None and len(data.start_positions) > 5 for data in task.splits.values())
    assert "stdlib" in task.describe()
    assert sum(len(data) for data in task.splits.values()) > 1_000_000


def test_the_vocabulary_is_built_from_training_only(tmp_path: Path) -> None:
    for name, content in {"train.txt": "ab ab", "valid.txt": "ba cd", "test.txt": "a b"}.items():
        write(tmp_path, content, name)
    words = language(str(tmp_path), unit="words").vocabulary
    assert isinstance(words, text.Words) and words.tokens == ("<unk>", "\n", "ab")
    with pytest.raises(ValueError, match=r"valid\.txt \(valid split\): the character 'c' \(U\+0063\) .* unit=bytes"):
        language(str(tmp_path), unit="characters")


def test_separated_characters_have_one_end_per_line(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path, " t o _ b e \n b e \n", f"ptb.char.{split}.txt")
    task = language(str(tmp_path), unit="characters", separated=True)
    assert task.inputs == 6
    assert len(ids(task, "train")) == 9
    assert task.primary_metric == "bits_per_character"


def test_end_of_line_tokens_can_be_turned_on_for_a_trained_model(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    without = language(path, unit="words", end_of_line=False)
    with_ends = Language(LanguageConfig(path=path, unit="words"), without.vocabulary)
    assert with_ends.inputs == without.inputs
    lines = splits_of(language(path))[0].count("\n")
    assert lines > 50 and len(ids(with_ends, "train")) == len(ids(without, "train")) + lines


@pytest.mark.parametrize("unit", ["bytes", "characters", "words", "bpe"])
def test_tokens_do_not_depend_on_the_block_size(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    content = LINES + "a very   long line without any end   " * 30 + "\n" + LINES.replace("x", "ż")
    path = write(tmp_path, content)
    options: dict[str, Any] = {"unit": unit, "vocabulary": 300} if unit == "bpe" else {"unit": unit}
    if unit == "characters":
        options["documents"] = "lines"
    expected = language(path, **options)
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 64)
    monkeypatch.setenv("STAIRWELL_CACHE", str(cache_folder / "other"))
    again = language(path, **options)
    for split in ("train", "valid", "test"):
        assert ids(again, split) == ids(expected, split)
        np.testing.assert_array_equal(again.splits[split].start_positions, expected.splits[split].start_positions)


def test_a_text_without_line_feeds_and_spaces_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 64)
    monkeypatch.setattr(text_files, "MAX_LINE", 100)
    content = "żółw" * 200
    path = Path(write(tmp_path, content))
    blocks = [data for _, data in text_files.text_blocks(text_files.whole_file(path))]
    assert max(map(len, blocks)) <= 200
    assert "".join(text_files.read_texts([text_files.whole_file(path)], "")) == content


def test_bytes_encode_any_file(tmp_path: Path) -> None:
    content = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))
    task = language(write(tmp_path, content))
    assert bytes(ids(task, "train") + ids(task, "valid") + ids(task, "test")) == content


@pytest.mark.parametrize("unit", ["characters", "words", "bpe"])
def test_the_error_for_text_that_is_not_utf8_has_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 64)  # the position must be correct in later blocks too
    path = write(tmp_path, b"fine\n" * 100 + b"ab\xff\n" + b"fine\n" * 100)
    with pytest.raises(
        ValueError, match=r"book\.txt is not UTF-8 text: byte 0xff at position 502; unit=bytes reads any"
    ):
        language(path, unit=unit)


@pytest.mark.parametrize("content", [b"", b"a", b"ab\ncd\n"])
def test_an_empty_or_tiny_file_is_rejected_in_one_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"is empty|is too small") as raised:
        language(write(tmp_path, content))
    assert "\n" not in str(raised.value) and "book.txt" in str(raised.value)


def test_missing_damaged_and_empty_paths_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file or folder"):
        language(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="no path is given"):
        language("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no file that matches"):
        language(str(tmp_path / "empty"))
    path = write(tmp_path, gzip.compress(LINES.encode())[:-20], "cut.gz")
    with pytest.raises(ValueError, match="not a complete gzip file"):
        language(path)
    path = write(tmp_path, b"no gzip at all", "false.gz")
    with pytest.raises(ValueError, match="not a complete gzip file"):
        language(path)


def test_documents_of_one_token_have_no_episodes(tmp_path: Path) -> None:
    path = write(tmp_path, "word\n" * 60)
    with pytest.raises(ValueError, match=r"no document of the train split .* has more than one token"):
        language(path, unit="words", end_of_line=False, documents="lines", episode=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "runes"}, "unit must be 'bytes' or 'characters' or 'words' or 'bpe', not 'runes'"),
        ({"documents": "pages"}, "documents must be 'files' or 'lines'"),
        ({"separated": True}, "separated requires unit=characters"),
        ({"vocabulary": 10}, "vocabulary requires unit=words"),
        ({"vocabulary": -1}, "vocabulary must be 0 or more"),
        ({"episode": 1}, "episode must be 0 or at least 2"),
    ],
)
def test_incompatible_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageConfig(**options)


def test_a_cached_corpus_is_memory_mapped_and_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many_files(tmp_path)
    first = language(path, unit="words")

    def reject(*_: Any) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(text.Words, "encode", reject)
    monkeypatch.setattr(text.Words, "build", reject)
    again = language(path, unit="words")
    assert ids(again, "train") == ids(first, "train")
    data = again.splits["train"]
    assert isinstance(data, Packed) and isinstance(data.ids, np.memmap) and data.ids.dtype == np.uint8
    np.testing.assert_array_equal(data.start_positions, first.splits["train"].start_positions)


def test_changed_text_and_changed_options_are_encoded_again(tmp_path: Path) -> None:
    path = write(tmp_path, LINES)
    first = ids(language(path), "train")
    write(tmp_path, LINES.replace("small", "great"))
    assert bytes(ids(language(path), "train")) == bytes(first).replace(b"small", b"great")
    assert language(path, documents="lines").splits["train"].start_positions is not None
    assert language(path).splits["train"].start_positions is None


def test_the_same_text_in_other_documents_is_encoded_again(tmp_path: Path) -> None:
    path = many_files(tmp_path)
    before = language(path).splits["valid"]
    (first, second) = (part.file for part in splits.find_splits(path)["valid"])
    content = first.read_text() + second.read_text()
    first.write_text(content[:3])
    second.write_text(content[3:])
    after = language(path).splits["valid"]
    assert len(after) == len(before)
    assert before.start_positions is not None and before.start_positions.tolist() != [0, 3]
    assert after.start_positions is not None and after.start_positions.tolist() == [0, 3]


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    path.write_bytes(
        {"truncated": data[: len(data) // 2], "empty": b"", "garbage": b"garbage", "flipped": flipped}[how]
    )


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "flipped"])
@pytest.mark.parametrize("which", ["ids.npy", "starts.npy", "json"])
def test_a_damaged_cache_is_replaced(tmp_path: Path, cache_folder: Path, which: str, how: str) -> None:
    path = many_files(tmp_path)
    first = language(path)
    expected = [ids(first, split) for split in ("train", "valid", "test")]
    starts = first.splits["train"].start_positions
    damaged = list(cache_folder.glob(f"*.{which}"))
    assert len(damaged) == 3
    for entry in damaged:
        damage(entry, how)
    again = language(path)
    assert [ids(again, split) for split in ("train", "valid", "test")] == expected
    np.testing.assert_array_equal(again.splits["train"].start_positions, starts)


def test_a_damaged_cached_vocabulary_is_replaced(tmp_path: Path, cache_folder: Path) -> None:
    path = write(tmp_path, LINES)
    first = language(path, unit="bpe", vocabulary=300).vocabulary.dumps()
    (entry,) = cache_folder.glob("*.vocabulary.json")
    damage(entry, "truncated")
    assert language(path, unit="bpe", vocabulary=300).vocabulary.dumps() == first


def test_an_interrupted_encoding_leaves_no_cache_entry(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many_files(tmp_path)
    encode = text.Bytes.encode
    calls = iter(range(10))

    def interrupt(self: text.Bytes, content: str | bytes) -> np.ndarray:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return encode(self, content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(text.Bytes, "encode", interrupt)
        language(path)
    assert not list(cache_folder.iterdir())
    assert "document 1 ends" in "".join(splits_of(language(path)))


def test_an_empty_document_has_no_start() -> None:
    encoded = [([1, 2], True), ([], True), ([], True), ([3], False), ([4, 5], True), ([], True)]
    tokens, starts = cache.cached("key", 300, lambda: [(np.array(ids, np.int64), start) for ids, start in encoded])
    assert (tokens.tolist(), starts.tolist(), tokens.dtype) == ([1, 2, 3, 4, 5], [0, 2, 3], np.uint16)


def test_a_cache_that_cannot_be_created_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", write(tmp_path, "a file", "in the way"))
    with pytest.raises(ValueError, match="set STAIRWELL_CACHE to another folder"):
        language(write(tmp_path, LINES))


def test_the_cache_is_in_the_cache_folder_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAIRWELL_CACHE")
    assert cache.cache_folder().name == "stairwell"


def test_other_text_is_read_with_the_vocabulary_of_training(tmp_path: Path) -> None:
    task = language(write(tmp_path, "abc " * 100, "letters.txt"), unit="characters")
    other = task.with_data(write(tmp_path, "cab", "cab.txt"))
    assert other.vocabulary == task.vocabulary
    assert ids(other, "valid") == ids(other, "test") == task.vocabulary.encode("cab").tolist()
    with pytest.raises(ValueError, match="has no train split"):
        other.batch_source(range(1), 1, 0)
    with pytest.raises(ValueError, match=r"taxi\.txt .*the character 't'"):
        opened(task.with_data(write(tmp_path, "taxi", "taxi.txt")))
    with pytest.raises(UserError):
        opened(task.with_data(str(tmp_path / "nowhere")))


def test_a_folder_with_splits_is_evaluated_by_split(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path, f"to {split}", f"{split}.txt")
    other = language(write(tmp_path, LINES)).with_data(str(tmp_path))
    assert other.vocabulary.decode(ids(other, "test")) == "to test" and "train" not in other.splits


def test_a_vocabulary_of_another_unit_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has the type 'bytes', but the task needs 'words'"):
        Language(LanguageConfig(path=write(tmp_path, LINES), unit="words"), text.Bytes())


def scored(score: LanguageScore, targets: list[int], nll: list[float]) -> dict[str, float]:
    batch = TokenBatch(torch.zeros(1, len(targets), dtype=torch.int64), torch.tensor([targets]))
    score.add(batch, torch.tensor([nll]), torch.zeros_like(batch.tokens))
    return score.result()


def test_metrics_of_an_example() -> None:
    by_bytes = LanguageScore("bytes", text.Bytes())
    scored(by_bytes, [1, IGNORE_INDEX], [math.log(2), 99.0])
    assert scored(by_bytes, [1], [math.log(8)]) == pytest.approx(
        {"loss": 2 * math.log(2), "scored": 2, "bits_per_character": 2.0}
    )
    by_words = scored(LanguageScore("words", text.Words.build(["a"])), [1, 2], [math.log(2), math.log(8)])
    assert by_words == pytest.approx({"loss": 2 * math.log(2), "scored": 2, "perplexity": 4.0})


def test_bits_per_byte_count_the_bytes_of_the_scored_tokens() -> None:
    vocabulary = text.BPE.build(["aaaa bbbb " * 50], 270)
    targets = [*vocabulary.encode("aaaa bbbb").tolist(), IGNORE_INDEX]
    result = scored(LanguageScore("bpe", vocabulary), targets, [math.log(2)] * len(targets))
    assert result["scored"] == len(targets) - 1 < 9
    assert result["bits_per_byte"] == pytest.approx((len(targets) - 1) / 9)
    assert result["perplexity"] == pytest.approx(2)


def test_metrics_without_tokens_or_of_a_diverged_model_are_not_errors() -> None:
    assert math.isnan(LanguageScore("words", text.Words.build(["a"])).result()["perplexity"])
    assert scored(LanguageScore("words", text.Words.build(["a"])), [1], [1e4])["perplexity"] == math.inf


def test_a_task_scores_all_tokens_of_a_split(tmp_path: Path) -> None:
    task = language(many_files(tmp_path), unit="words")
    score = task.score()
    for batch in task.batches("test", 2, 3):
        score.add(batch, (batch.targets != IGNORE_INDEX).double(), batch.tokens)
    assert score.result()["scored"] == 2 * (5 - 1)


BITS = {"bits_per_character": 0.5 / math.log(2)}
PERPLEXITY = {"perplexity": math.exp(0.5)}
METRICS: dict[Any, dict[str, float]] = {"bytes": BITS, "characters": BITS, "words": PERPLEXITY, "bpe": PERPLEXITY}


def test_units_have_bits_per_character_or_perplexity() -> None:
    batch = TokenBatch(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64), None)
    for unit, expected in METRICS.items():
        score = LanguageScore(unit, text.Bytes())
        score.add(batch, torch.full((1, 2), 0.5), torch.zeros(1, 2, dtype=torch.int64))
        assert score.result() == {"loss": 0.5, "scored": 2, **expected}
