"""A corpus that everyone has: the functions of the installed Python packages, and what their docstrings say they do.

    pairs, manifest = gather()          or, on the command line: stairwell data docstrings --to FOLDER

The source is the function without its docstring, on one line, its own line ends written as `⏎`; the target is the
docstring's first sentence. A split has whole packages of its own, and neither a source nor a target comes twice in the
whole corpus: vendored copies and phrases that everyone uses teach nothing about summarizing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import io
import json
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stairwell.errors import UserError
from stairwell.outputs import FOLDER, check, write_output_folder

LINE_END = "⏎"
SPLITS = ("train", "valid", "test")
HELD_BACK = 0.08  # share of the packages for valid, and for test
MOST_HELD_BACK = 2000  # pairs of either
SOURCE_WORDS = (6, 150)  # fewest and most
TARGET_WORDS = (3, 30)
LARGEST = 1 << 20  # bytes of a file; larger ones are tables, not programs
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Pair:
    package: str
    name: str
    source: str
    target: str


def packages(also: Sequence[Path] = ()) -> Iterator[tuple[str, str, list[Path]]]:
    """Name, version and files of every package: each module of the standard library, what is installed, and what other
    folders have besides, such as another environment's site-packages."""
    library = Path(sysconfig.get_path("stdlib"))
    version = sysconfig.get_python_version()
    for module in sorted(library.iterdir()):
        if module.suffix == ".py":
            yield module.stem, version, [module]
        elif (module / "__init__.py").exists() and module.name not in ("test", "site-packages", "dist-packages"):
            yield module.name, version, sorted(module.rglob("*.py"))
    seen: set[str] = set()
    for path in (sys.path, *([str(folder)] for folder in also)):
        for found in sorted(importlib.metadata.distributions(path=path), key=name_of):
            files = [Path(str(found.locate_file(file))) for file in found.files or () if file.suffix == ".py"]
            if files and name_of(found) not in seen:  # of two versions the first, since most of it is the same
                yield str(found.metadata["Name"]), found.version, sorted(files)
                seen.add(name_of(found))


def name_of(package: importlib.metadata.Distribution) -> str:
    return str(package.metadata["Name"]).lower().replace("_", "-")


def functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Name, source on one line and summary of every function of a file that has a docstring."""
    try:
        if path.stat().st_size > LARGEST:
            return
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's programs
            tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("test"):
            said = ast.get_docstring(node)
            source = without_docstring(node, lines) if said else None
            if said and source:
                yield node.name, source, summary(said)


def without_docstring(node: Function, lines: list[str]) -> str | None:
    """The function on one line, without decorators, docstring and comments; nothing where nothing else is left."""
    docstring = node.body[0]
    if len(node.body) < 2 or docstring.lineno == node.lineno:
        return None
    own = lines[node.lineno - 1 : docstring.lineno - 1] + lines[docstring.end_lineno : node.end_lineno]
    kept = [without_comment(line).strip() for line in own]
    return f" {LINE_END} ".join(" ".join(line.split()) for line in kept if line)


def without_comment(line: str) -> str:
    if "#" not in line:
        return line
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]]
    except (tokenize.TokenError, IndentationError):
        pass  # a part of a statement over several lines
    return line


def summary(docstring: str) -> str:
    """The first sentence of the first paragraph."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", paragraph, maxsplit=1)[0]


def useful(source: str, target: str) -> bool:
    words, said = len(source.split()), len(target.split())
    fits = SOURCE_WORDS[0] <= words <= SOURCE_WORDS[1] and TARGET_WORDS[0] <= said <= TARGET_WORDS[1]
    return fits and target.isascii() and not target.startswith((":", "@", ">>>", "..")) and "::" not in target


def gather(
    found: Iterable[tuple[str, str, list[Path]]] | None = None, tell: Callable[[str, int], None] = lambda *_: None
) -> tuple[list[Pair], dict[str, str]]:
    """Every pair of the packages, none twice, and the packages' versions. `tell` hears each package's name as it
    begins, and how many pairs there are so far."""
    pairs: list[Pair] = []
    sources: set[str] = set()
    targets: set[str] = set()
    versions: dict[str, str] = {}
    for package, version, files in packages() if found is None else found:
        tell(package, len(pairs))
        for path in files:
            for name, source, target in functions(path):
                if not useful(source, target) or source in sources or target.lower() in targets:
                    continue
                sources.add(source)
                targets.add(target.lower())
                versions[package] = version
                pairs.append(Pair(package, name, source, target))
    return pairs, versions


def split_of(package: str) -> str:
    """Train, valid or test, by a hash of the package's name: the same on every machine that has it."""
    share = int.from_bytes(hashlib.blake2b(package.lower().encode(), digest_size=4).digest()) / 2**32
    return "test" if share < HELD_BACK else "valid" if share < 2 * HELD_BACK else "train"


def write(
    folder: Path, also: Sequence[Path] = (), tell: Callable[[str, int], None] = lambda *_: None
) -> dict[str, Any]:
    """train.jsonl, valid.jsonl, test.jsonl and manifest.json; how many pairs and packages there are."""
    check(folder, FOLDER, "--to")
    for place in also:
        if not place.is_dir():
            raise UserError(f"there is no folder {place} to read packages from; --also wants such as a site-packages")
    pairs, versions = gather(packages(also), tell)
    by_split: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for pair in pairs:
        by_split[split_of(pair.package)].append(pair)
    for split in ("valid", "test"):
        # Every so many: as many of each package as its share.
        step = -(-len(by_split[split]) // MOST_HELD_BACK)
        by_split[split] = by_split[split][:: max(1, step)]
    if not all(by_split.values()):
        raise UserError("too few Python packages are installed to make a corpus of their docstrings")
    counts = {split: len(chosen) for split, chosen in by_split.items()}
    names = {split: len({pair.package for pair in chosen}) for split, chosen in by_split.items()}
    manifest = {"pairs": counts, "packages": names, "versions": versions}

    def write_files(place: Path) -> None:
        for split, chosen in by_split.items():
            lines = (json.dumps(vars(pair), ensure_ascii=False) for pair in chosen)
            (place / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (place / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    write_output_folder(folder, write_files)
    return {"folder": str(folder), "pairs": counts, "packages": names}
