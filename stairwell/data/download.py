"""Fetching published corpora.

`get` downloads an archive (an interrupted download goes on where it stopped), verifies it, unpacks the corpus's own
files and nothing else, and puts them in place only when they are whole. Nothing here prints.
"""

from __future__ import annotations

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

from stairwell.data.checking import faults_of, measure
from stairwell.data.published import Corpus, File, find
from stairwell.data.text_files import BLOCK, existing, looks_packed, opened
from stairwell.errors import UserError
from stairwell.outputs import check_place, write_output_folder
from stairwell.version import __version__

TIMEOUT = 60.0  # seconds without a byte before a download is given up

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


def get(
    name: str,
    to: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Put a corpus into the folder `to` and return its path, a file or a folder, for a task to read. With `source`, a
    copy at hand (the archive, the text, or a folder of its files) takes the place of the download."""
    corpus = find(name)
    place = Path(to).expanduser() / corpus.name
    result = place / Path(corpus.files[0].name).name if len(corpus.files) == 1 else place
    if place.exists():
        _verify_present(corpus, place)
        return result
    check_place(place, "--to")
    place.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        _unpack(corpus, _verified_source(corpus, existing(source)), place)
        return result
    part = place.parent / f"{corpus.archive.name}.part"
    _download(corpus, part, progress)
    try:
        _unpack(corpus, part, place)
    finally:
        part.unlink()
    return result


def _verify_present(corpus: Corpus, place: Path) -> None:
    for file in corpus.files:
        path = place / Path(file.name).name
        faults = faults_of(measure(path), file) if path.is_file() else ["is missing"]
        if faults:
            raise UserError(f"{path} {', '.join(faults)}; move {place} away to get {corpus.name} anew")


def _download(corpus: Corpus, part: Path, progress: Progress | None) -> None:
    """The verified archive, in `part`. What came before an interruption is not fetched again."""
    failures = []
    for address in corpus.addresses:
        try:
            _fetch(address, part, corpus.archive.size, progress)
            break
        except (OSError, http.client.HTTPException, UserError) as error:
            failures.append(f"{address}: {error}")
    else:
        raise UserError(f"cannot download {corpus.name}: {'; '.join(failures)}")
    faults = faults_of(measure(part, unpacked=False), corpus.archive)
    if faults:
        part.unlink()
        raise UserError(
            f"the download of {corpus.name} is not what was published: {', '.join(faults)}; "
            "it was removed, run this again to download it anew"
        )


def _fetch(address: str, part: Path, size: int | None, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have >= size:
        return
    # Some servers refuse the name that urllib gives itself.
    headers = {"User-Agent": f"stairwell/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            return  # there is nothing beyond what is here
        raise
    with response:
        if response.status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise UserError("the server sent another part than was asked for")
        if response.status != 206:
            have = 0  # the server cannot go on in the middle and sends everything
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else size
        with open(part, "ab" if have else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                if progress is not None:
                    progress(have, total)
    if total is not None and have < total:
        raise UserError(f"the connection ended after {have:,} of {total:,} bytes; run this again to go on from there")


def _verified_source(corpus: Corpus, source: Path) -> Path:
    """A folder or a plain file is judged by its content, an archive as a whole."""
    if source.is_file() and zipfile.is_zipfile(source):
        faults = faults_of(measure(source, unpacked=False), corpus.archive)
        if faults:
            raise UserError(f"{source} is not the published {corpus.archive.name}: it {', '.join(faults)}")
    return source


def _unpack(corpus: Corpus, source: Path, place: Path) -> None:
    """Write the corpus's files into the folder `place`, all of them or none.

    Only files that the corpus is known to have are read, and they are written under their own last names: whatever
    paths an archive holds, nothing lands elsewhere.
    """

    def write(folder: Path) -> None:
        for file in corpus.files:
            copy = folder / Path(file.name).name
            with _content(corpus, file, source) as content, open(copy, "wb") as written:
                shutil.copyfileobj(content, written, BLOCK)
            faults = faults_of(measure(copy), file)
            if faults:
                raise UserError(f"{source} does not hold {corpus.name}: {file.name} {', '.join(faults)}")

    write_output_folder(place, write)


@contextmanager
def _content(corpus: Corpus, file: File, source: Path) -> Iterator[IO[bytes]]:
    """One file of a corpus out of an archive, a folder, or the file itself, packed or not."""
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
            with opened(source, looks_packed(source)) as content:
                yield content
    except FileNotFoundError as error:
        raise UserError(f"{source} has no file {Path(file.name).name}") from error
    except KeyError as error:
        raise UserError(f"{source} is not {corpus.archive.name}: it has no file {file.name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"{source} is damaged: {error}") from error
