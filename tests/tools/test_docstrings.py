"""The corpus of docstrings: its pairs, and that nothing is in two splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stairwell.errors import UserError
from tools import docstrings

MODULE = '''
import os


@decorated("# not a comment")
def area(width, height,
         unit="m"):
    """Return the area of a rectangle. It is never negative.

    More words."""
    # both sides
    if width < 0:  # a mistake
        return "#0"
    return width * height, unit


def docstring_only():
    """Have no body except for this docstring."""


def short(x): "Return what it was given, unchanged."; return x


class Box:
    async def open(self, key):
        """Open the box with
        a key that fits it."""
        return await self.lock.turn(key, times=2)

    def test_open(self):
        """Return whether this is a test of the box."""
        assert self.open(1) and self.close(2)
'''


def test_a_pair_is_a_function_on_one_line_and_the_first_sentence_of_its_docstring(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert list(docstrings.functions(path)) == [
        (
            "area",
            'def area(width, height, ⏎ unit="m"): ⏎ if width < 0: ⏎ return "#0" ⏎ return width * height, unit',
            "Return the area of a rectangle.",
        ),
        ("open", "async def open(self, key): ⏎ return await self.lock.turn(key, times=2)",
         "Open the box with a key that fits it."),
    ]  # fmt: skip


def test_files_that_are_not_programs_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def broken(:")
    (tmp_path / "b.py").write_bytes(b"\xff\xfe")
    assert [list(docstrings.functions(tmp_path / name)) for name in ("a.py", "b.py", "absent.py")] == [[], [], []]


def test_no_source_or_target_occurs_twice(tmp_path: Path) -> None:
    for name in ("one", "copy"):
        (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "other.py").write_text(MODULE.replace("width * height", "height * width"))
    files = [(path.stem, "1", [path]) for path in sorted(tmp_path.glob("*.py"))]
    examples, versions = docstrings.collect(files)
    assert [(example.package, example.name) for example in examples] == [("copy", "area"), ("copy", "open")]
    assert versions == {"copy": "1"}


def test_the_split_of_a_package_is_the_same_on_every_machine() -> None:
    assert [docstrings.split_of(name) for name in ("torch", "Torch", "json", "rich", "heapq")] == [
        docstrings.split_of(name) for name in ("torch", "torch", "json", "rich", "heapq")
    ]
    assert [docstrings.split_of(name) for name in ("bdb", "torch")] == ["test", "train"]
    splits = [docstrings.split_of(f"package-{i}") for i in range(2000)]
    assert 100 < splits.count("test") < 220 and 100 < splits.count("valid") < 220


def test_the_corpus_has_all_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = []
    for i in range(60):
        path = tmp_path / f"p{i}.py"
        path.write_text(f'def f{i}(a, b):\n    """Return the number {i} and more."""\n    return a + b + {i} - a\n')
        packages.append((f"p{i}", "2", [path]))
    monkeypatch.setattr(docstrings, "packages", lambda also: iter(packages))
    manifest = docstrings.write(tmp_path / "corpus")
    written = {
        split: [json.loads(line) for line in (tmp_path / "corpus" / f"{split}.jsonl").read_text().splitlines()]
        for split in docstrings.SPLITS
    }
    assert {split: len(pairs) for split, pairs in written.items()} == manifest["pairs"]
    assert sum(manifest["pairs"].values()) == 60
    assert all(docstrings.split_of(pair["package"]) == split for split, pairs in written.items() for pair in pairs)
    with pytest.raises(UserError, match="not empty"):
        docstrings.write(tmp_path / "corpus")


def install(folder: Path, name: str, version: str) -> Path:
    """Write a package as pip installs it, with one function whose docstring has the version."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n")
    path = folder / f"{name}.py"
    path.write_text(f'def f(a, b):\n    """Return the number of {version}."""\n    return a + b - a * {version[0]}\n')
    return path


def test_packages_of_other_folders_are_read_once(tmp_path: Path) -> None:
    installed = {name for name, _, _ in docstrings.packages()}
    one, other = tmp_path / "one", tmp_path / "other"
    first, second = install(one, "made_up", "1.0"), install(other, "second-made-up", "3.0")
    install(other, "Made-Up", "2.0")
    others = [package for package in docstrings.packages([one, other]) if package[0] not in installed]
    assert others == [("made_up", "1.0", [first]), ("second-made-up", "3.0", [second])]
    with pytest.raises(UserError, match=r"no folder .*absent"):
        docstrings.write(tmp_path / "corpus", [tmp_path / "absent"])
