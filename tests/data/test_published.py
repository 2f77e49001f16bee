"""Download of corpora from a local server that can misbehave."""

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


def info(name: str, content: bytes) -> published.FileInfo:
    checksums = hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()
    return published.FileInfo(name, len(content), *checksums, lines=content.count(b"\n"))


@dataclass
class Server:
    """The content, behavior and requests of the server."""

    url: str = ""
    content: bytes = ARCHIVE
    ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)  # bytes after which the next responses are interrupted
    status: int = 200
    requests: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested = self.headers.get("Range")
            state.requests.append(requested)
            start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and state.ranges else 0
            size = len(state.content)
            if start >= size:
                self.send_error(416)
                return
            if state.status != 200:
                self.send_error(state.status)
                return
            self.send_response(206 if requested and state.ranges else 200)
            if requested and state.ranges:
                self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            body = state.content[start:]
            self.wfile.write(body[: state.breaks_after.pop(0)] if state.breaks_after else body)

        def log_message(self, *_: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{listener.server_port}/little.zip"
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
        (server.url,),
        info("little.zip", ARCHIVE),
        (info("little/little", TEXT),),
    )
    monkeypatch.setattr(published, "CORPORA", {"little": corpus})
    return corpus


def change(monkeypatch: pytest.MonkeyPatch, corpus: published.Corpus, **changes: object) -> None:
    monkeypatch.setattr(published, "CORPORA", {"little": replace(corpus, **changes)})  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("little")
def test_a_corpus_is_downloaded_verified_and_unpacked_without_other_files(tmp_path: Path) -> None:
    reported: list[tuple[int, int | None]] = []
    path = data.get("little", tmp_path / "data", progress=lambda done, total: reported.append((done, total)))
    assert path.read_bytes() == TEXT
    assert names(tmp_path) == ["data/little/little"]  # no archive, and nothing outside the folder
    assert reported[-1] == (len(ARCHIVE), len(ARCHIVE)) and reported == sorted(reported) and len(reported) > 1


@pytest.mark.usefixtures("little")
def test_an_interrupted_download_is_resumed(server: Server, tmp_path: Path) -> None:
    server.breaks_after = [100_000, 50_000]
    for received in (100_000, 150_000):
        with pytest.raises(
            UserError, match=rf"ended after {received:,} of {len(ARCHIVE):,} bytes; run this again to resume"
        ):
            data.get("little", tmp_path)
        assert (tmp_path / "little.zip.part").stat().st_size == received
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.requests == [None, "bytes=100000-", "bytes=150000-"]
    assert names(tmp_path) == ["little/little"]


@pytest.mark.usefixtures("little")
def test_a_server_without_ranges_sends_the_whole_file_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.breaks_after = [100_000]
    with pytest.raises(UserError, match="ended after"):
        data.get("little", tmp_path)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.requests == [None, "bytes=100000-"]


@pytest.mark.usefixtures("little")
def test_a_truncated_archive_is_rejected_and_removed(server: Server, tmp_path: Path) -> None:
    server.content = ARCHIVE[:-1000]
    message = f"differs from the published archive: it has {len(ARCHIVE) - 1000:,} bytes, not {len(ARCHIVE):,}"
    with pytest.raises(UserError, match=message) as raised:
        data.get("little", tmp_path)
    assert "\n" not in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.usefixtures("little")
def test_a_wrong_checksum_is_rejected_and_the_next_download_starts_over(server: Server, tmp_path: Path) -> None:
    server.content = ARCHIVE[:5000] + bytes([ARCHIVE[5000] ^ 1]) + ARCHIVE[5001:]
    with pytest.raises(UserError, match=r"has the md5 .*, has the sha256 .*; it was removed, run this again"):
        data.get("little", tmp_path)
    assert names(tmp_path) == []
    server.content = ARCHIVE
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.requests == [None, None]


@pytest.mark.usefixtures("little")
def test_a_partial_download_of_another_file_is_removed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "little.zip.part").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="differs from the published archive"):
        data.get("little", tmp_path)
    assert data.get("little", tmp_path).read_bytes() == TEXT


@pytest.mark.usefixtures("little")
def test_a_complete_download_is_not_requested_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "little.zip.part").write_bytes(ARCHIVE)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.requests == []


def test_a_complete_download_of_unknown_size_is_recognized_by_the_server(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, little, archive=replace(little.archive, size=None))
    (tmp_path / "little.zip.part").write_bytes(ARCHIVE)
    assert data.get("little", tmp_path).read_bytes() == TEXT
    assert server.requests == [f"bytes={len(ARCHIVE)}-"]


def test_all_urls_are_tried_and_every_failure_is_reported(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = "http://127.0.0.1:9/little.zip"
    change(monkeypatch, little, urls=(closed, server.url))
    server.status = 403
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/.*; .*403"):
        data.get("little", tmp_path)
    server.status = 200
    assert data.get("little", tmp_path).read_bytes() == TEXT


def test_an_archive_without_the_corpus_is_rejected_and_leaves_nothing(
    server: Server, little: published.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unverified = published.FileInfo("little.zip")  # without published size and checksum
    change(monkeypatch, little, archive=unverified)
    for content, message in (
        (zipped(other=TEXT), "has no file little/little"),
        (zipped(**{"little/little": TEXT[:-1]}), "does not contain little"),
        (b"no archive" * 1000, "does not contain little"),
        (ARCHIVE[:100] + b"!" * 50 + ARCHIVE[150:], "is damaged"),
    ):
        server.content = content
        with pytest.raises(UserError, match=message) as raised:
            data.get("little", tmp_path)
        assert "\n" not in str(raised.value)
        assert names(tmp_path) == []


@pytest.mark.usefixtures("little")
def test_an_existing_corpus_is_verified_and_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    path = data.get("little", tmp_path)
    assert data.get("little", tmp_path) == path
    assert len(server.requests) == 1
    path.write_bytes(TEXT[:-1])
    with pytest.raises(UserError, match=r"has .* bytes, not .*; move .* away"):
        data.get("little", tmp_path)
    assert path.read_bytes() == TEXT[:-1]  # only the user may remove it


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("form", ["zip", "gz", "text", "folder"])
def test_a_local_copy_replaces_the_download(server: Server, tmp_path: Path, form: str) -> None:
    (tmp_path / "copy").mkdir()
    copies = {"zip": ("little.zip", ARCHIVE), "gz": ("some.gz", gzip.compress(TEXT)), "text": ("some.txt", TEXT)}
    name, content = copies.get(form, ("little", TEXT))
    (tmp_path / "copy" / name).write_bytes(content)
    source = tmp_path / "copy" if form == "folder" else tmp_path / "copy" / name
    assert data.get("little", tmp_path / "data", source=source).read_bytes() == TEXT
    assert server.requests == []
    assert source.exists()


@pytest.mark.usefixtures("little")
def test_a_wrong_local_copy_is_rejected(tmp_path: Path) -> None:
    for name, content, message in (
        ("little.zip", ARCHIVE + b"!", r"is not the published little\.zip: it has"),
        ("text", TEXT[:-1], "does not contain little"),
        ("cut.gz", gzip.compress(TEXT)[:-50], "not a complete gzip file|is damaged"),
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


def test_the_error_for_an_unknown_corpus_suggests_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown corpus 'wikitext2'; did you mean 'wikitext-2'"):
        data.get("wikitext2", tmp_path)
    with pytest.raises(UserError, match="there are: enwik8, wikitext-103"):
        data.get("qqq", tmp_path)


def test_every_published_corpus_can_be_verified() -> None:
    for corpus in published.CORPORA.values():
        assert corpus.archive.sha256 is not None and len(corpus.archive.sha256) == 64
        assert all(url.endswith(corpus.archive.name) for url in corpus.urls)
        assert corpus.files and all(file.lines or file.sha256 for file in corpus.files)
