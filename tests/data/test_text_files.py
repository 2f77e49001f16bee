"""Text files: blocks, byte-order marks and links do not change what is read."""

from __future__ import annotations

import errno
import os
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stairwell.data import cache as cache_module
from stairwell.data import download, splits, text_files
from stairwell.errors import UserError
from stairwell.tasks import labeled, language

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path_factory.mktemp("cache")))


def executed_lines(path: Path, count: int) -> int:
    """Return how many lines of Python are executed to read `count` spaces."""
    path.write_bytes(b" " * count)
    executed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal executed
        executed += event == "line" and frame.f_code.co_filename == text_files.__file__
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        assert sum(len(data) for _, data in text_files.text_blocks(text_files.whole_file(path))) == count
    finally:
        sys.settrace(previous)
    return executed


def test_the_work_of_reading_spaces_is_linear_in_the_number_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 1 << 14)
    monkeypatch.setattr(text_files, "MAX_LINE", 1 << 16)
    assert executed_lines(tmp_path / "spaces", 1 << 16) < 150
    assert executed_lines(tmp_path / "spaces", 1 << 18) < 600


def test_a_block_ends_before_the_last_single_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 16)
    (tmp_path / "text").write_bytes(b"ab cd  ef\t gh  ij kl   mn")
    assert [data for _, data in text_files.text_blocks(text_files.whole_file(tmp_path / "text"))] == [
        b"ab",
        b" cd  ef\t gh  ij",
        b" kl   mn",
    ]


MARK = "\ufeff"


@pytest.mark.parametrize("unit", ["characters", "words", "bpe"])
def test_a_byte_order_mark_is_not_a_token(tmp_path: Path, unit: Any) -> None:
    content = "a rose is a rose\n" * 40
    for name, mark in (("plain.txt", ""), ("marked.txt", MARK)):
        (tmp_path / name).write_text(mark + content, encoding="utf-8")
    plain, marked = (
        language.Language(
            language.LanguageConfig(path=str(tmp_path / name), unit=unit, vocabulary=260 * (unit == "bpe"))
        )
        for name in ("plain.txt", "marked.txt")
    )
    assert marked.vocabulary.dumps() == plain.vocabulary.dumps()
    assert (
        marked.batch_source(range(1), 1, 0).read(5).tokens.tolist()
        == plain.batch_source(range(1), 1, 0).read(5).tokens.tolist()
    )
    other = plain.with_data(str(tmp_path / "marked.txt"))
    assert len(other.splits["test"]) == len(plain.with_data(str(tmp_path / "plain.txt")).splits["test"])


def test_a_byte_order_mark_is_kept_inside_a_text_and_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "inside.txt").write_text("a" + MARK + "b\n" * 40, encoding="utf-8")
    assert MARK in "".join(text_files.read_texts([text_files.whole_file(tmp_path / "inside.txt")], ""))
    (tmp_path / "bytes.txt").write_text(MARK + "ab\n" * 40, encoding="utf-8")
    task = language.Language(language.LanguageConfig(path=str(tmp_path / "bytes.txt")))
    assert bytes(task.batch_source(range(1), 1, 0).read(4).tokens[0].tolist()) == MARK.encode() + b"a"


def test_labeled_files_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    for name in ("walk.tokens", "walk.labels"):
        (tmp_path / name).write_text(MARK + "a b\n" * 4, encoding="utf-8")
    assert labeled.Labeled(labeled.LabeledConfig(path=str(tmp_path / "walk.tokens"))).vocabulary.tokens == ("a", "b")


def test_a_long_line_of_labels_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "TEXT_BLOCK", 64)
    for name in ("walk.tokens", "walk.labels"):
        (tmp_path / name).write_text(("a b " * 100 + "\n") * 3, encoding="utf-8")
    task = labeled.Labeled(labeled.LabeledConfig(path=str(tmp_path / "walk.tokens")))
    assert [len(data) for data in task.splits.values()] == [200, 200, 200]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_with_two_links_is_read_once(tmp_path: Path, link: Any) -> None:
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"file {i}\n" * 40)
    expected = splits.find_splits(str(tmp_path))
    link(tmp_path / "1.txt", tmp_path / "again.txt")
    assert splits.find_splits(str(tmp_path)) == expected
    everything = splits.find_evaluation_splits(str(tmp_path))["test"]
    assert [part.file.name for part in everything] == ["0.txt", "1.txt", "2.txt"]


def test_a_link_to_a_file_elsewhere_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere.txt").write_text("elsewhere\n" * 40)
    (tmp_path / "folder" / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert [part.file.name for part in splits.find_evaluation_splits(str(tmp_path / "folder"))["test"]] == ["link.txt"]


def test_devices_and_pipes_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, Path("/dev/zero")):
        get = partial(download.get, "enwik8", tmp_path)
        for read in (get, splits.find_splits, splits.find_evaluation_splits):
            with pytest.raises(UserError, match=f"{path} is neither a file nor a folder but a device or a pipe"):
                read(str(path))


def test_the_error_for_a_full_disk_names_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, key: str, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / f"{key}.ids.npy"))

    monkeypatch.setattr(cache_module, "_write", full)
    with pytest.raises(OSError, match=r"key.ids.npy: No space left on device; set STAIRWELL_CACHE to another folder"):
        cache_module.cached("key", 2, list)
