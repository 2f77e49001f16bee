"""Getting and checking corpora, against a real server on this machine that misbehaves on purpose."""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stairwell import data
from stairwell.data import published
from stairwell.errors import UserError

TEXT = b"".join(b"line %d of the corpus\n" % i for i in range(20_000))
EXTRA = b"not part of the corpus"


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # not compressed, so that the archive is large enough to interrupt
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


ARCHIVE = zipped(**{"little/little": TEXT, "../escaped": EXTRA, "little/../../escaped": EXTRA, "little/notes": EXTRA})


def measured(name: str, content: bytes) -> published.File:
    checksums = hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()
    return published.File(name, len(content), *checksums, lines=content.count(b"\n"))


@dataclass
class Server:
    """What the server has, how it behaves, and what it was asked."""

    address: str = ""
    content: bytes = ARCHIVE
    ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)  # bytes of the next answers, after which the line goes dead
    status: int = 200
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            size = len(state.content)
            if begin >= size:
                self.send_error(416)
                return
            if state.status != 200:
                self.send_error(state.status)
                return
            self.send_response(206 if wanted and state.ranges else 200)
            if wanted and state.ranges:
                self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - begin))
            self.end_headers()
            body = state.content[begin:]
            self.wfile.write(body[: state.breaks_after.pop(0)] if state.breaks_after else body)

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{listener.server_port}/little.zip"
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def little(server: Server, monkeypatch: pytest.MonkeyPatch) -> published.Corpus:
    corpus = published.Corpus(
        "little",
        "a little corpus",
        "free",
        (server.address,),
        measured("little.zip", ARCHIVE),
        (measured("little/little", TEXT),),
    )
    monkeypatch.setattr(published, "CORPORA", {"little": corpus})
    return corpus


def change(monkeypatch: pytest.MonkeyPatch, corpus: published.Corpus, **changes: object) -> None:
    monkeypatch.setattr(published, "CORPORA", {"little": replace(corpus, **changes)})  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("little")
def test_a_corpus_is_downloaded_verified_and_unpacked_and_nothing_else_is_left(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = data.get("little", tmp_path / "data", progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == TEXT
    assert names(tmp_path) == ["data/little/little"]  # no archive, nothing that its paths pointed at
    assert seen[-1] == (len(ARCHIVE), len(ARCHIVE)) and seen == sorted(seen) and len(seen) > 1


@pytest.mark.usefixtures("little")
def test_an_interrupted_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks_after = [100_000, 50_000]
    for had in (100_000, 150_000):
        with pytest.raises(UserError, match=rf"ended after {had:,} of {len(ARCHIVE):,} bytes; run this again to go on"):
            data.get("little", tmp_path)
        assert (tmp_path / "little.zip.part").stat().st_size == had
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    assert names(tmp_path) == ["little/little"]


@pytest.mark.usefixtures("little")
def test_a_server_that_cannot_go_on_in_the_middle_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.breaks_after = [100_000]
    with pytest.raises(UserError, match="ended after"):
        data.get("little", tmp_path)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.asked == [None, "bytes=100000-"]


@pytest.mark.usefixtures("little")
def test_a_truncated_archive_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.content = ARCHIVE[:-1000]
    message = f"not what was published: has {len(ARCHIVE) - 1000:,} bytes, not {len(ARCHIVE):,}"
    with pytest.raises(UserError, match=message) as raised:
        data.get("little", tmp_path)
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("little")
def test_a_wrong_checksum_is_refused_and_the_next_download_begins_anew(server: Server, tmp_path: Path) -> None:
    server.content = ARCHIVE[:5000] + bytes([ARCHIVE[5000] ^ 1]) + ARCHIVE[5001:]
    with pytest.raises(UserError, match=r"has the md5 .*, has the sha256 .*; it was removed, run this again"):
        data.get("little", tmp_path)
    assert names(tmp_path) == []
    server.content = ARCHIVE
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.asked == [None, None]


@pytest.mark.usefixtures("little")
def test_a_part_of_something_else_does_not_survive(server: Server, tmp_path: Path) -> None:
    (tmp_path / "little.zip.part").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="not what was published"):
        data.get("little", tmp_path)
    assert data.get("little", tmp_path).read_bytes() == TEXT


@pytest.mark.usefixtures("little")
def test_a_complete_part_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "little.zip.part").write_bytes(ARCHIVE)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.asked == []


def test_a_complete_part_of_unknown_size_is_recognized_by_the_server(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, little, archive=replace(little.archive, size=None))
    (tmp_path / "little.zip.part").write_bytes(ARCHIVE)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.asked == [f"bytes={len(ARCHIVE)}-"]


def test_another_address_is_tried_and_every_failure_told(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = "http://127.0.0.1:9/little.zip"
    change(monkeypatch, little, addresses=(closed, server.address))
    server.status = 403
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/.*; .*403"):
        data.get("little", tmp_path)
    server.status = 200
    assert data.get("little", tmp_path).read_bytes() == TEXT


def test_an_archive_without_the_corpus_is_refused_and_leaves_nothing(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = published.File("little.zip")  # nothing is published about it
    change(monkeypatch, little, archive=unknown)
    for content, message in (
        (zipped(other=TEXT), "has no file little/little"),
        (zipped(**{"little/little": TEXT[:-1]}), "does not hold little"),
        (b"no archive" * 1000, "does not hold little"),
        (ARCHIVE[:100] + b"!" * 50 + ARCHIVE[150:], "is damaged"),
    ):
        server.content = content
        with pytest.raises(UserError, match=message) as raised:
            data.get("little", tmp_path)
        assert "\n" not in str(raised.value)
        assert names(tmp_path) == []


@pytest.mark.usefixtures("little")
def test_a_corpus_that_is_there_is_not_fetched_again_unless_it_is_damaged(server: Server, tmp_path: Path) -> None:
    path = data.get("little", tmp_path)
    assert data.get("little", tmp_path) == path
    assert len(server.asked) == 1
    path.write_bytes(TEXT[:-1])
    with pytest.raises(UserError, match=r"has .* bytes, not .*; move .* away"):
        data.get("little", tmp_path)
    assert path.read_bytes() == TEXT[:-1]  # it is the user's to remove


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", ["zip", "gz", "text", "folder"])
def test_a_copy_at_hand_takes_the_place_of_the_download(server: Server, tmp_path: Path, kind: str) -> None:
    (tmp_path / "copy").mkdir()
    copies = {"zip": ("little.zip", ARCHIVE), "gz": ("some.gz", gzip.compress(TEXT)), "text": ("some.txt", TEXT)}
    name, content = copies.get(kind, ("little", TEXT))
    (tmp_path / "copy" / name).write_bytes(content)
    source = tmp_path / "copy" if kind == "folder" else tmp_path / "copy" / name
    assert data.get("little", tmp_path / "data", source=source).read_bytes() == TEXT
    assert server.asked == []
    assert source.exists()


@pytest.mark.usefixtures("little")
def test_a_copy_that_is_something_else_is_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("little.zip", ARCHIVE + b"!", r"is not the published little\.zip: it has"),
        ("text", TEXT[:-1], "does not hold little"),
        ("cut.gz", gzip.compress(TEXT)[:-50], "not a whole gzip file|is damaged"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            data.get("little", tmp_path / "data", source=tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no file little"):
        data.get("little", tmp_path / "data", source=tmp_path / "empty")
    with pytest.raises(UserError, match="no file or folder"):
        data.get("little", tmp_path / "data", source=tmp_path / "nowhere")
    assert names(tmp_path / "data") == []


def test_an_unknown_corpus_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown corpus 'wikitext2'; did you mean 'wikitext-2'"):
        data.get("wikitext2", tmp_path)
    with pytest.raises(UserError, match="there are: enwik8, wikitext-103"):
        data.get("qqq", tmp_path)


def test_every_published_corpus_can_be_verified() -> None:
    for corpus in published.CORPORA.values():
        assert corpus.archive.sha256 is not None and len(corpus.archive.sha256) == 64
        assert all(address.endswith(corpus.archive.name) for address in corpus.addresses)
        assert corpus.files and all(file.lines or file.sha256 for file in corpus.files)


@pytest.mark.usefixtures("little")
def test_checking_says_what_a_path_is(tmp_path: Path) -> None:
    for name, content in {"any": TEXT, "any.gz": gzip.compress(TEXT), "little.zip": ARCHIVE}.items():
        (tmp_path / name).write_bytes(content)
        report = data.check(tmp_path / name)
        assert (report.corpus, report.holds) == ("little", True)
        assert report.files[0].size in (len(TEXT), len(ARCHIVE))
    (tmp_path / "little").write_bytes(TEXT + b"more\n")
    report = data.check(tmp_path / "little")
    assert (report.corpus, report.holds) == ("little", False)
    assert f"has {len(TEXT) + 5:,} bytes, not {len(TEXT):,}" in report.summary


@pytest.mark.usefixtures("little")
def test_checking_a_folder_holds_its_files_against_the_published_ones(tmp_path: Path) -> None:
    folder = data.get("little", tmp_path).parent
    assert (data.check(folder).corpus, data.check(folder).holds) == ("little", True)
    (folder / "little").write_bytes(TEXT[1:])
    assert data.check(folder).holds is False
    assert data.check(tmp_path).summary.startswith("no published corpus: a folder of 1 files")


def test_files_without_a_published_checksum_are_counted_and_not_vouched_for(tmp_path: Path) -> None:
    for split, lines in {"train": 36_718, "valid": 3_760, "test": 4_358}.items():
        (tmp_path / f"wiki.{split}.tokens").write_bytes(b"\n" * lines)
    report = data.check(tmp_path)
    assert (report.corpus, report.holds) == ("wikitext-2", None)
    assert data.check(tmp_path / "wiki.train.tokens").corpus == "wikitext-2"
    assert "wikitext-103 or wikitext-2" in data.check(tmp_path / "wiki.test.tokens").summary


def test_checking_ones_own_text_tells_its_size_and_whether_it_is_text(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("zażółć\ngęślą\n", encoding="utf-8")
    assert data.check(tmp_path / "mine.txt").summary == "no published corpus: 20 bytes, 2 lines, UTF-8 text"
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    assert "to be read by bytes" in data.check(tmp_path / "binary").summary
    assert data.check(tmp_path / "binary").holds is None
    with pytest.raises(UserError, match="no file or folder"):
        data.check(tmp_path / "nowhere")
