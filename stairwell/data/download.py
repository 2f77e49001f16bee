"""Download of published corpora.

`get` downloads an archive (and resumes an interrupted download), verifies it, and unpacks the corpus's own files. The
folder appears only when all of its files are verified. Nothing is printed here. pooch does not resume a download, try
several addresses, or verify the files of an archive, so most of this module would remain with it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stairwell.data.published import Corpus, FileInfo, find_corpus
from stairwell.data.text_files import BLOCK, existing_path, is_gzip, open_file
from stairwell.errors import UserError
from stairwell.outputs import check_location, write_output_folder
from stairwell.version import __version__

TIMEOUT = 60.0  # seconds without data

Progress = Callable[[int, int | None], None]  # bytes so far, total bytes if known


def get(
    name: str,
    to: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Put a corpus into the folder `to` and return the path of its file or folder. `source` is a local copy to use
    instead of a download: the archive, the text, or a folder of the files."""
    corpus = find_corpus(name)
    folder = Path(to).expanduser() / corpus.name
    result = folder / Path(corpus.files[0].name).name if len(corpus.files) == 1 else folder
    if folder.exists():
        _verify_folder(corpus, folder)
        return result
    check_location(folder, "--to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        _unpack(corpus, _verified_source(corpus, existing_path(source)), folder)
        return result
    partial = folder.parent / f"{corpus.archive.name}.part"
    _download(corpus, partial, progress)
    try:
        _unpack(corpus, partial, folder)
    finally:
        partial.unlink()
    return result


def file_info(path: Path, decompress: bool = True) -> FileInfo:
    """Return the size, checksums and line count of a file, by default of the content of a gzip file."""
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    size = lines = 0
    with open_file(path, decompress and is_gzip(path)) as content:
        while block := content.read(BLOCK):
            md5.update(block)
            sha256.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return FileInfo(path.name, size, md5.hexdigest(), sha256.hexdigest(), lines)


def differences(actual: FileInfo, published: FileInfo) -> str:
    """Return how a file differs from the published one; empty if it does not."""
    faults = []
    for name in ("size", "lines", "md5", "sha256"):
        value, expected = getattr(actual, name), getattr(published, name)
        if expected is not None and value != expected:
            unit = {"size": "bytes", "lines": "lines"}.get(name)
            faults.append(
                f"has {value:,} {unit}, not {expected:,}" if unit else f"has the {name} {value}, not {expected}"
            )
    return ", ".join(faults)


def _verify_folder(corpus: Corpus, folder: Path) -> None:
    for file in corpus.files:
        path = folder / Path(file.name).name
        faults = differences(file_info(path), file) if path.is_file() else "is missing"
        if faults:
            raise UserError(f"{path} {faults}; move {folder} away to download {corpus.name} again")


def _download(corpus: Corpus, partial: Path, progress: Progress | None) -> None:
    """Download the archive to `partial` and verify it. What an interrupted download left is not downloaded again."""
    failures = []
    for url in corpus.urls:
        try:
            _fetch(url, partial, corpus.archive.size, progress)
            break
        except (OSError, http.client.HTTPException, UserError) as error:
            failures.append(f"{url}: {error}")
    else:
        raise UserError(f"cannot download {corpus.name}: {'; '.join(failures)}")
    if faults := differences(file_info(partial, decompress=False), corpus.archive):
        partial.unlink()
        raise UserError(
            f"the download of {corpus.name} differs from the published archive: it {faults}; "
            "it was removed, run this again to download it again"
        )


def _fetch(url: str, partial: Path, size: int | None, progress: Progress | None) -> None:
    received = partial.stat().st_size if partial.exists() else 0
    if size is not None and received >= size:
        return
    # Some servers reject urllib's own user agent.
    headers = {"User-Agent": f"stairwell/{__version__}"}
    if received:
        headers["Range"] = f"bytes={received}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and received:
            return  # the download is complete
        raise
    with response:
        if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {received}-"):
            raise UserError("the server sent another range than requested")
        if response.status != 206:
            received = 0  # the server does not support ranges and sends the whole file
        length = response.headers.get("Content-Length")
        total = received + int(length) if length else size
        with open(partial, "ab" if received else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                received += len(block)
                if progress is not None:
                    progress(received, total)
    if total is not None and received < total:
        raise UserError(f"the connection ended after {received:,} of {total:,} bytes; run this again to resume")


def _verified_source(corpus: Corpus, source: Path) -> Path:
    """Verify a zip archive as a whole; the contents of other sources are verified when they are copied."""
    is_archive = source.is_file() and zipfile.is_zipfile(source)
    if is_archive and (faults := differences(file_info(source, decompress=False), corpus.archive)):
        raise UserError(f"{source} is not the published {corpus.archive.name}: it {faults}")
    return source


def _unpack(corpus: Corpus, source: Path, folder: Path) -> None:
    """Write all files of the corpus into the folder, or none.

    Only files that belong to the corpus are read, and they are written under the last part of their names: whatever
    paths an archive has, nothing is written elsewhere.
    """

    def write(folder: Path) -> None:
        for file in corpus.files:
            copy = folder / Path(file.name).name
            with _open_content(corpus, file, source) as content, open(copy, "wb") as written:
                shutil.copyfileobj(content, written, BLOCK)
            if faults := differences(file_info(copy), file):
                raise UserError(f"{source} does not contain {corpus.name}: {file.name} {faults}")

    write_output_folder(folder, write)


@contextmanager
def _open_content(corpus: Corpus, file: FileInfo, source: Path) -> Iterator[IO[bytes]]:
    """Open one file of a corpus in an archive, in a folder, or as the source itself, compressed or not."""
    try:
        if source.is_dir():
            with open(source / Path(file.name).name, "rb") as content:
                yield content
        elif zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive, archive.open(file.name) as member:
                yield member
        elif len(corpus.files) > 1:
            raise UserError(f"{source} is neither {corpus.archive.name} nor a folder with the files of {corpus.name}")
        else:
            with open_file(source, is_gzip(source)) as content:
                yield content
    except FileNotFoundError as error:
        raise UserError(f"{source} has no file {Path(file.name).name}") from error
    except KeyError as error:
        raise UserError(f"{source} is not {corpus.archive.name}: it has no file {file.name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"{source} is damaged: {error}") from error
