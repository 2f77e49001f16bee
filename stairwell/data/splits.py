"""Where text lies and how it falls into train, valid and test: a file, a folder, the sources of Python itself.

- Files that carry their split in their names (`ptb.char.train.txt`, `wiki.valid.tokens`, `test.txt`) keep it.
- A file of exactly 100,000,000 bytes (enwik8, text8) is cut after 90 and 95 million bytes, as is the custom.
- Any other file is cut after 90% and 95% of its bytes, each cut moved on to the next line edge (or space, or character
  if the part has no line edge).
- A folder of 20 files or more deals whole files, in the order of a hash of their names: 5% to valid, 5% to test.
  With fewer files each of them is cut like a single one.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path

from stairwell.data.text_files import Part, Parts, existing, pieces, read, size_of, whole
from stairwell.errors import UserError

STDLIB = "stdlib"
CUSTOMARY_SIZE = 100_000_000
FEWEST_TO_DEAL = 20

_SPLIT_WORDS = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
_SPLIT_IN_NAME = re.compile(rf"(?:^|(?<=[._-]))({'|'.join(_SPLIT_WORDS)})(?=[._-]|$)", re.IGNORECASE)


Splits = dict[str, Parts]


def find(path: str, prefix: str = "", files: str = "*", whole_characters: bool = True) -> Splits:
    """The parts of every split. `prefix` chooses among several corpora of a folder, `files` is a pattern for the files
    of a folder; without `whole_characters` a customary cut may fall inside a character."""
    if path == STDLIB:
        return _deal(_standard_library(), Path(sysconfig.get_paths()["stdlib"]))
    place = _place(path)
    if place.is_file():
        return _cut_file(place, whole_characters)
    if family := _named_splits(place, prefix):
        return {split: (whole(family[split]),) for split in ("train", "valid", "test") if split in family}
    if prefix:
        raise UserError(f"{place} has no train and valid files that begin with {prefix!r}")
    return _deal(_files_of(place, files), place)


def find_all(path: str, prefix: str = "", files: str = "*") -> Splits:
    """For evaluation only: named splits are kept, anything else is as a whole both valid and test."""
    if path == STDLIB:
        everything = _standard_library()
    else:
        place = _place(path)
        if place.is_dir() and (family := _named_splits(place, prefix)):
            return {split: (whole(file),) for split, file in family.items() if split != "train"}
        everything = [place] if place.is_file() else _files_of(place, files)
    parts = tuple(whole(file) for file in everything)
    return {"valid": parts, "test": parts}


def _place(path: str) -> Path:
    if not path:
        raise UserError(f"no path is given; it must name a text file, a folder, or {STDLIB!r}")
    return existing(path)


def _cut_file(file: Path, whole_characters: bool) -> Splits:
    size = size_of(file)
    if size == 0:
        raise UserError(f"{file} is empty")
    first, second = size * 90 // 100, size * 95 // 100
    if size != CUSTOMARY_SIZE:
        first, second = _edge(file, first, second), _edge(file, second, size)
    elif whole_characters:
        first, second = _character_edge(file, first, second), _character_edge(file, second, size)
    return {
        "train": (Part(file, 0, first),),
        "valid": (Part(file, first, second),),
        "test": (Part(file, second, size),),
    }


def _edge(file: Path, at: int, limit: int) -> int:
    """The first line edge from `at` on and before `limit`; if there is none, the first space, or character."""
    if at == 0 or at >= limit:
        return at
    space = None
    # A line end just before `at` makes `at` itself a line edge; one just before `limit` would leave nothing.
    for begin, data in pieces(Part(file, at - 1, limit - 1)):
        line = data.find(b"\n")
        if line >= 0:
            return begin + line + 1
        if space is None and (found := data.find(b" ", max(at - begin, 0))) >= 0:
            space = begin + found
    return space if space is not None else _character_edge(file, at, limit)


def _character_edge(file: Path, at: int, limit: int) -> int:
    following = read(file, at, min(at + 4, limit))
    # In UTF-8 the bytes 10xxxxxx go on with a character.
    inside = 0
    while inside < len(following) and following[inside] & 0xC0 == 0x80:
        inside += 1
    return at + inside if inside < len(following) else at


def _named_splits(folder: Path, prefix: str) -> dict[str, Path]:
    """The files of a folder that carry their split in their names, if there are any: one family of them."""
    families: dict[tuple[str, str], dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        found = list(_SPLIT_IN_NAME.finditer(file.name))
        if not found or not file.is_file() or file.name.startswith("."):
            continue
        lead, word, tail = file.name[: found[-1].start()], found[-1][0].lower(), file.name[found[-1].end() :]
        family = families.setdefault((lead, tail), {})
        split = _SPLIT_WORDS[word]
        if split in family:
            raise UserError(f"{folder} has two {split} files, {family[split].name} and {file.name}; leave one")
        family[split] = file
    families = {names: family for names, family in families.items() if "train" in family and len(family) > 1}
    leads = [lead.rstrip("._-") for lead, _ in families]
    # A family goes by what stands before the split, or by its whole pattern where that says too little.
    named = {
        lead if lead and leads.count(lead) == 1 else f"{names[0]}*{names[1]}": family
        for lead, (names, family) in zip(leads, families.items())
    }
    choices = ", ".join(repr(name) for name in named)
    chosen = {name: family for name, family in named.items() if prefix in ("", name)}
    if named and not chosen:
        raise UserError(f"{folder} has no corpus {prefix!r}; prefix must be one of {choices}")
    if len(chosen) > 1:
        raise UserError(f"{folder} holds several corpora; prefix must be one of {choices}")
    for family in chosen.values():
        if "valid" not in family:
            raise UserError(
                f"{folder} has {family['train'].name} and {family['test'].name} but no valid file beside them"
            )
        return family
    return {}


def _files_of(folder: Path, pattern: str) -> list[Path]:
    """Every file below a folder that is not hidden, not empty and matches; a file of several names once, by its own
    name or else the first."""
    found: dict[tuple[int, int], Path] = {}
    for file in sorted(folder.rglob("*"), key=lambda file: (file.is_symlink(), file)):
        name = file.relative_to(folder)
        if name.match(pattern) and file.is_file() and not any(part.startswith(".") for part in name.parts):
            status = file.stat()
            if status.st_size > 0:
                found.setdefault((status.st_dev, status.st_ino), file)
    if not found:
        raise UserError(f"{folder} has no file that matches {pattern!r} and is not empty")
    return sorted(found.values())


def _standard_library() -> list[Path]:
    """The modules of the running Python's standard library, without their tests and without installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
    found = []
    for file in sorted(root.rglob("*.py")):
        if left_out.isdisjoint(file.relative_to(root).parts) and file.stat().st_size > 0:
            try:
                file.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
            found.append(file)
    if not found:
        raise UserError(f"the sources of the standard library are not installed in {root}")
    return found


def _deal(files: list[Path], folder: Path) -> Splits:
    """Whole files to the splits, by a hash of their names, so that neighbors do not end up together; few files are
    cut one by one."""
    if len(files) < FEWEST_TO_DEAL:
        shares = [_cut_file(file, whole_characters=True) for file in files]
        return {split: tuple(part for share in shares for part in share[split]) for split in ("train", "valid", "test")}

    def order(file: Path) -> bytes:
        return hashlib.blake2b(file.relative_to(folder).as_posix().encode()).digest()

    held_out = len(files) // 20
    dealt = sorted(files, key=order)
    splits = {"train": dealt[2 * held_out :], "valid": dealt[:held_out], "test": dealt[held_out : 2 * held_out]}
    return {split: tuple(whole(file) for file in sorted(share)) for split, share in splits.items()}
