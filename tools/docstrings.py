"""Make a corpus of the installed Python packages: functions, and the first sentences of their docstrings.

    python -m tools.docstrings FOLDER [--also SITE_PACKAGES ...]

The source is the function without its docstring, on one line, with `⏎` for its line ends. The target is the first
sentence of the docstring. Every package is in one split only, and no source or target occurs twice: vendored copies and
common phrases teach nothing about summarization.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stairwell.errors import UserError
from stairwell.outputs import FOLDER, check, write_output_folder
from stairwell.tasks.baselines import LINE_END

SPLITS = ("train", "valid", "test")
HELD_OUT_SHARE = 0.08  # of the packages for valid, and for test
MAX_HELD_OUT = 2000  # pairs of valid, and of test
SOURCE_WORDS = (6, 150)  # minimum and maximum
TARGET_WORDS = (3, 30)
MAX_FILE_SIZE = 1 << 20  # bytes; larger files are tables, not programs
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Example:
    package: str
    name: str
    source: str
    target: str


def packages(also: Sequence[Path] = ()) -> Iterator[tuple[str, str, list[Path]]]:
    """Yield the name, version and files of every package: each module of the standard library, every installed package,
    and the packages of other folders, such as another environment's site-packages."""
    library = Path(sysconfig.get_path("stdlib"))
    version = sysconfig.get_python_version()
    for module in sorted(library.iterdir()):
        if module.suffix == ".py":
            yield module.stem, version, [module]
        elif (module / "__init__.py").exists() and module.name not in ("test", "site-packages", "dist-packages"):
            yield module.name, version, sorted(module.rglob("*.py"))
    seen: set[str] = set()
    for path in (sys.path, *([str(folder)] for folder in also)):
        for package in sorted(importlib.metadata.distributions(path=path), key=normalized_name):
            files = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".py"]
            if files and normalized_name(package) not in seen:  # two versions share most of their code
                yield str(package.metadata["Name"]), package.version, sorted(files)
                seen.add(normalized_name(package))


def normalized_name(package: importlib.metadata.Distribution) -> str:
    return str(package.metadata["Name"]).lower().replace("_", "-")


def functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the source on one line and the summary of every function of a file that has a docstring."""
    try:
        if path.stat().st_size > MAX_FILE_SIZE:
            return
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other people's programs
            tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, Function) and not node.name.startswith("test"):
            docstring = ast.get_docstring(node)
            source = without_docstring(node, lines) if docstring else None
            if docstring and source:
                yield node.name, source, summary(docstring)


def without_docstring(node: Function, lines: list[str]) -> str | None:
    """Return the function on one line, without decorators, docstring and comments; None if it has no other body."""
    docstring = node.body[0]
    if len(node.body) < 2 or docstring.lineno == node.lineno:
        return None
    code = lines[node.lineno - 1 : docstring.lineno - 1] + lines[docstring.end_lineno : node.end_lineno]
    stripped = [without_comment(line).strip() for line in code]
    return f" {LINE_END} ".join(" ".join(line.split()) for line in stripped if line)


def without_comment(line: str) -> str:
    if "#" not in line:
        return line
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]]
    except (tokenize.TokenError, IndentationError):
        pass  # one line of a longer statement
    return line


def summary(docstring: str) -> str:
    """Return the first sentence of the first paragraph."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", paragraph, maxsplit=1)[0]


def is_useful(source: str, target: str) -> bool:
    source_words, target_words = len(source.split()), len(target.split())
    fits = SOURCE_WORDS[0] <= source_words <= SOURCE_WORDS[1] and TARGET_WORDS[0] <= target_words <= TARGET_WORDS[1]
    return fits and target.isascii() and not target.startswith((":", "@", ">>>", "..")) and "::" not in target


def collect(sources: Iterable[tuple[str, str, list[Path]]]) -> tuple[list[Example], dict[str, str]]:
    """Return the examples of packages, without duplicates, and the packages' versions."""
    examples: list[Example] = []
    seen_sources: set[str] = set()
    seen_targets: set[str] = set()
    versions: dict[str, str] = {}
    for package, version, files in sources:
        for path in files:
            for name, source, target in functions(path):
                if not is_useful(source, target) or source in seen_sources or target.lower() in seen_targets:
                    continue
                seen_sources.add(source)
                seen_targets.add(target.lower())
                versions[package] = version
                examples.append(Example(package, name, source, target))
    return examples, versions


def split_of(package: str) -> str:
    """Return the split of a package, by a hash of its name: the same on every machine."""
    fraction = int.from_bytes(hashlib.blake2b(package.lower().encode(), digest_size=4).digest()) / 2**32
    return "test" if fraction < HELD_OUT_SHARE else "valid" if fraction < 2 * HELD_OUT_SHARE else "train"


def write(folder: Path, also: Sequence[Path] = ()) -> dict[str, Any]:
    """Write train.jsonl, valid.jsonl, test.jsonl and manifest.json; return the manifest."""
    check(folder, FOLDER, "FOLDER")
    for other in also:
        if not other.is_dir():
            raise UserError(f"there is no folder {other}; --also expects a folder of packages, such as site-packages")
    examples, versions = collect(packages(also))
    by_split: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for example in examples:
        by_split[split_of(example.package)].append(example)
    for split in ("valid", "test"):
        # Every n-th example, so that every package has its share.
        step = -(-len(by_split[split]) // MAX_HELD_OUT)
        by_split[split] = by_split[split][:: max(1, step)]
    if not all(by_split.values()):
        raise UserError("too few Python packages are installed for a corpus of docstrings")
    manifest = {
        "pairs": {split: len(chosen) for split, chosen in by_split.items()},
        "packages": {split: len({example.package for example in chosen}) for split, chosen in by_split.items()},
        "versions": versions,
    }

    def write_files(folder: Path) -> None:
        for split, chosen in by_split.items():
            lines = (json.dumps(vars(example), ensure_ascii=False) for example in chosen)
            (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    write_output_folder(folder, write_files)
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="New folder to write to.")
    parser.add_argument("--also", type=Path, action="append", default=[], help="Another folder of packages to read.")
    arguments = parser.parse_args()
    try:
        manifest = write(arguments.folder, arguments.also)
    except UserError as error:
        parser.error(str(error))
    for split, pairs in manifest["pairs"].items():
        print(f"{split}: {pairs:,} functions of {manifest['packages'][split]:,} packages")


if __name__ == "__main__":
    main()
