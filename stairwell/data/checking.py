"""What a file or folder is: measured, and held against what is published."""

from __future__ import annotations

import codecs
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stairwell.data import published
from stairwell.data.published import File
from stairwell.data.text_files import BLOCK, existing, looks_packed, opened


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
    corpus: str | None  # its name among the published ones
    summary: str
    files: tuple[Verdict, ...] = ()

    @property
    def holds(self) -> bool | None:
        verdicts = [verdict.holds for verdict in self.files]
        return False if False in verdicts else True if verdicts and None not in verdicts else None


def check(path: str | os.PathLike[str]) -> Report:
    """Say what a file or folder is, and whether it is whole. A gzip file is judged by what it holds."""
    place = existing(path)
    return _check_folder(place) if place.is_dir() else _check_file(place)


def measure(path: Path, unpacked: bool = True) -> File:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    size = lines = 0
    with opened(path, unpacked and looks_packed(path)) as content:
        while block := content.read(BLOCK):
            md5.update(block)
            sha256.update(block)
            size += len(block)
            lines += block.count(b"\n")
    return File(path.name, size, md5.hexdigest(), sha256.hexdigest(), lines)


def faults_of(found: File, published: File) -> list[str]:
    """What differs from what is published."""
    faults = []
    for name in ("size", "lines", "md5", "sha256"):
        value, right = getattr(found, name), getattr(published, name)
        if right is not None and value != right:
            unit = {"size": " bytes", "lines": " lines"}.get(name)
            faults.append(f"has {value:,}{unit}, not {right:,}" if unit else f"has the {name} {value}, not {right}")
    return faults


def _check_file(path: Path) -> Report:
    found = measure(path)
    known = [(corpus, file) for corpus in published.CORPORA.values() for file in (corpus.archive, *corpus.files)]
    for corpus, file in known:
        if _has_checksum(file) and not faults_of(found, file):
            return Report(path, corpus.name, f"{file.name}, whole", (_verdict(path, found, file),))
    name = path.name.removesuffix(".gz")
    namesakes = [(corpus, file) for corpus, file in known if Path(file.name).name == name]
    if namesakes:
        fewest = min(len(faults_of(found, file)) for _, file in namesakes)
        nearest = [(corpus, file) for corpus, file in namesakes if len(faults_of(found, file)) == fewest]
        verdict = _verdict(path, found, nearest[0][1])
        names = " or ".join(corpus.name for corpus, _ in nearest)
        return Report(path, nearest[0][0].name, f"named like a file of {names}: {verdict.detail}", (verdict,))
    text = "UTF-8 text" if _is_text(path) else "not UTF-8 text, to be read by bytes"
    return Report(path, None, f"no published corpus: {found.size:,} bytes, {found.lines:,} lines, {text}")


def _check_folder(folder: Path) -> Report:
    reports = []
    for corpus in published.CORPORA.values():
        paths = [folder / Path(file.name).name for file in corpus.files]
        if all(path.is_file() for path in paths):
            measured = [measure(path) for path in paths]
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
    faults = faults_of(found, published)
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
        with opened(path, looks_packed(path)) as content:
            while block := content.read(BLOCK):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
