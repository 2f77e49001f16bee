"""Published corpora: where they are, what they must weigh, how to get them and how to check a copy.

`get` downloads an archive (an interrupted download goes on where it stopped), verifies it, unpacks the corpus's own
files and nothing else, and puts them in place only when they are whole. `check` says what a file or folder is. Nothing
here prints; what went wrong is a `DataError` of one line.

A checksum that is not published is None. Where the figures come from:
- enwik8: size, md5 and sha1 of the text by Matt Mahoney (mattmahoney.net/dc/textdata.html); the sha256 of the text was
  computed from a copy that has this md5. Size and sha256 of the archive: Hugging Face's dataset card for enwik8, and
  the DataDeps of Transformers.jl.
- WikiText: md5 of the archives and the line counts from torchtext (datasets/wikitext2.py, wikitext103.py); sizes and
  sha256 from Hugging Face datasets (datasets/wikitext/dataset_infos.json). No checksums are published for single files.
  The original address, the bucket research.metamind.io, has refused downloads since 2024; Stephen Merity, the corpus's
  first author, serves the same archives, so his address comes first.
"""

from __future__ import annotations

import codecs
import difflib
import gzip
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from stairwell import __version__

BLOCK = 1 << 18
TIMEOUT = 60.0  # seconds without a byte before a download is given up

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if known


class DataError(ValueError):
    """A corpus that cannot be had, or is not what it should be."""


@dataclass(frozen=True)
class File:
    """What is known of a file; None is not known."""

    name: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    lines: int | None = None


@dataclass(frozen=True)
class Corpus:
    name: str
    about: str
    licence: str
    addresses: tuple[str, ...]  # of the archive, tried in this order
    archive: File
    files: tuple[File, ...]  # named as in the archive


def _wikitext(name: str, about: str, extension: str, archive: File, train_lines: int) -> Corpus:
    lines = {"train": train_lines, "valid": 3_760, "test": 4_358}
    return Corpus(
        name,
        about,
        "CC BY-SA",
        (
            f"https://wikitext.smerity.com/{archive.name}",
            f"https://s3.amazonaws.com/research.metamind.io/wikitext/{archive.name}",
        ),
        archive,
        tuple(File(f"{name}/wiki.{split}.{extension}", lines=count) for split, count in lines.items()),
    )


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "enwik8",
            "the first 100 million bytes of the English Wikipedia of 2006, for bytes",
            "CC BY-SA",
            ("https://mattmahoney.net/dc/enwik8.zip", "http://mattmahoney.net/dc/enwik8.zip"),
            File("enwik8.zip", 36_445_475, sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"),
            (
                File(
                    "enwik8",
                    100_000_000,
                    "a1fa5ffddb56f4953e226637dabbb36a",
                    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                ),
            ),
        ),
        _wikitext(
            "wikitext-103",
            "good Wikipedia articles, 103 million words, rare ones replaced by <unk>",
            "tokens",
            File(
                "wikitext-103-v1.zip",
                190_229_076,
                "9ddaacaf6af0710eda8c456decff7832",
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            ),
            1_801_350,
        ),
        _wikitext(
            "wikitext-2",
            "good Wikipedia articles, 2 million words, rare ones replaced by <unk>",
            "tokens",
            File(
                "wikitext-2-v1.zip",
                4_475_746,
                "542ccefacc6c27f945fb54453812b3cd",
                "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            ),
            36_718,
        ),
        _wikitext(
            "wikitext-103-raw",
            "WikiText-103 with every word kept, for bytes, characters and byte pairs",
            "raw",
            File(
                "wikitext-103-raw-v1.zip",
                191_984_949,
                sha256="91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            ),
            1_801_350,
        ),
        _wikitext(
            "wikitext-2-raw",
            "WikiText-2 with every word kept, for bytes, characters and byte pairs",
            "raw",
            File(
                "wikitext-2-raw-v1.zip",
                4_721_645,
                sha256="ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            ),
            36_718,
        ),
    )
}


def find(name: str) -> Corpus:
    if name in CORPORA:
        return CORPORA[name]
    near = difflib.get_close_matches(name, CORPORA, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CORPORA)}"
    raise DataError(f"unknown corpus {name!r}; {hint}")


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
    place.parent.mkdir(parents=True, exist_ok=True)
    if source is not None:
        _unpack(corpus, _verified_source(corpus, _existing(source)), place)
        return result
    part = place.parent / f"{corpus.archive.name}.part"
    _download(corpus, part, progress)
    try:
        _unpack(corpus, part, place)
    finally:
        part.unlink()
    return result


@dataclass(frozen=True)
class Verdict:
    """What one file is. `holds`: True if it has the published checksum, False if anything differs, None if there is no
    checksum to hold it against."""

    file: Path
    size: int
    lines: int
    holds: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    path: Path
    corpus: str | None  # its name in CORPORA
    summary: str
    files: tuple[Verdict, ...] = ()

    @property
    def holds(self) -> bool | None:
        verdicts = [verdict.holds for verdict in self.files]
        return False if False in verdicts else True if verdicts and None not in verdicts else None


def check(path: str | os.PathLike[str]) -> Report:
    """Say what a file or folder is, and whether it is whole. A gzip file is judged by what it holds."""
    place = _existing(path)
    return _check_folder(place) if place.is_dir() else _check_file(place)


def _download(corpus: Corpus, part: Path, progress: Progress | None) -> None:
    """The verified archive, in `part`. What came before an interruption is not fetched again."""
    failures = []
    for address in corpus.addresses:
        try:
            _fetch(address, part, corpus.archive.size, progress)
            break
        except (OSError, http.client.HTTPException, DataError) as error:
            failures.append(f"{address}: {error}")
    else:
        raise DataError(f"cannot download {corpus.name}: {'; '.join(failures)}")
    faults = _faults(_measure(part, unpacked=False), corpus.archive)
    if faults:
        part.unlink()
        raise DataError(
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
            raise DataError("the server sent another part than was asked for")
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
        raise DataError(f"the connection ended after {have:,} of {total:,} bytes; run this again to go on from there")


def _verified_source(corpus: Corpus, source: Path) -> Path:
    """A folder or a plain file is judged by its content, an archive as a whole."""
    if source.is_file() and zipfile.is_zipfile(source):
        faults = _faults(_measure(source, unpacked=False), corpus.archive)
        if faults:
            raise DataError(f"{source} is not the published {corpus.archive.name}: it {', '.join(faults)}")
    return source


def _unpack(corpus: Corpus, source: Path, place: Path) -> None:
    """Write the corpus's files into the folder `place`, all of them or none.

    Only files that the corpus is known to have are read, and they are written under their own last names: whatever
    paths an archive holds, nothing lands elsewhere.
    """
    folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    try:
        for file in corpus.files:
            copy = folder / Path(file.name).name
            with _content(corpus, file, source) as content, open(copy, "wb") as written:
                shutil.copyfileobj(content, written, BLOCK)
            faults = _faults(_measure(copy), file)
            if faults:
                raise DataError(f"{source} does not hold {corpus.name}: {file.name} {', '.join(faults)}")
        folder.chmod(0o755)  # mkdtemp makes folders that only their owner can read
        os.replace(folder, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
            raise DataError(f"{source} is neither {corpus.archive.name} nor a folder with the files of {corpus.name}")
        else:
            with _opened(source) as content:
                yield content
    except FileNotFoundError as error:
        raise DataError(f"{source} has no file {Path(file.name).name}") from error
    except KeyError as error:
        raise DataError(f"{source} is not {corpus.archive.name}: it has no file {file.name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{source} is damaged: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file's content, unpacked if it is a gzip file."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if packed else open(path, "rb") as content:
            yield cast(IO[bytes], content)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}") from error


def _existing(path: str | os.PathLike[str]) -> Path:
    place = Path(path).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"there is no file or folder {place}")
    return place


def _measure(path: Path, unpacked: bool = True) -> File:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    size = lines = 0
    with _opened(path) if unpacked else open(path, "rb") as content:
        while block := content.read(BLOCK):
            md5.update(block)
            sha256.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return File(path.name, size, md5.hexdigest(), sha256.hexdigest(), lines)


def _faults(found: File, published: File) -> list[str]:
    """What differs from what is published."""
    faults = []
    for name in ("size", "lines", "md5", "sha256"):
        value, right = getattr(found, name), getattr(published, name)
        if right is not None and value != right:
            unit = {"size": " bytes", "lines": " lines"}.get(name)
            faults.append(f"has {value:,}{unit}, not {right:,}" if unit else f"has the {name} {value}, not {right}")
    return faults


def _verify_present(corpus: Corpus, place: Path) -> None:
    for file in corpus.files:
        path = place / Path(file.name).name
        faults = _faults(_measure(path), file) if path.is_file() else ["is missing"]
        if faults:
            raise DataError(f"{path} {', '.join(faults)}; move {place} away to get {corpus.name} anew")


def _check_file(path: Path) -> Report:
    found = _measure(path)
    known = [(corpus, file) for corpus in CORPORA.values() for file in (corpus.archive, *corpus.files)]
    for corpus, file in known:
        if _has_checksum(file) and not _faults(found, file):
            return Report(path, corpus.name, f"{file.name}, whole", (_verdict(path, found, file),))
    name = path.name.removesuffix(".gz")
    namesakes = [(corpus, file) for corpus, file in known if Path(file.name).name == name]
    if namesakes:
        fewest = min(len(_faults(found, file)) for _, file in namesakes)
        nearest = [(corpus, file) for corpus, file in namesakes if len(_faults(found, file)) == fewest]
        verdict = _verdict(path, found, nearest[0][1])
        names = " or ".join(corpus.name for corpus, _ in nearest)
        return Report(path, nearest[0][0].name, f"named like a file of {names}: {verdict.detail}", (verdict,))
    text = "UTF-8 text" if _is_text(path) else "not UTF-8 text, to be read by bytes"
    return Report(path, None, f"no published corpus: {found.size:,} bytes, {found.lines:,} lines, {text}")


def _check_folder(folder: Path) -> Report:
    reports = []
    for corpus in CORPORA.values():
        paths = [folder / Path(file.name).name for file in corpus.files]
        if all(path.is_file() for path in paths):
            measured = [_measure(path) for path in paths]
            verdicts = tuple(_verdict(*each) for each in zip(paths, measured, corpus.files))
            wrong = sum(verdict.holds is False for verdict in verdicts)
            summary = f"{corpus.name}, but {wrong} of its files differ" if wrong else f"the files of {corpus.name}"
            reports.append((wrong, Report(folder, corpus.name, summary, verdicts)))
    if reports:
        return min(reports, key=lambda ranked: ranked[0])[1]
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Report(folder, None, f"no published corpus: a folder of {len(files):,} files, {size:,} bytes in all")


def _verdict(path: Path, found: File, published: File) -> Verdict:
    faults = _faults(found, published)
    if faults:
        holds, detail = False, ", ".join(faults)
    elif _has_checksum(published):
        holds, detail = True, "the checksum is right"
    else:
        holds, detail = None, f"{found.lines:,} lines, as published; no checksum is published"
    return Verdict(path, cast(int, found.size), cast(int, found.lines), holds, detail)


def _has_checksum(file: File) -> bool:
    return file.md5 is not None or file.sha256 is not None


def _is_text(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with _opened(path) as content:
            while block := content.read(BLOCK):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
