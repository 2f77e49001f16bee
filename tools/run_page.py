"""Run the code of a tutorial from top to bottom in a folder: its Python blocks in one namespace, and its commands.

    python -m tools.run_page docs/tutorials/event-log.md --folder /tmp/tutorial

This runs a page as its reader would, prints what every block prints and how long it takes; the numbers in the tutorials
come from it. Comments before a block:

    <!-- test: replace A => B -->         with --short, and in tests: another text, such as fewer steps
    <!-- test: optional onnxruntime -->   skip the block where a module is not installed
    <!-- test: skip, needs a corpus -->   skip the block
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMENT = re.compile(r"<!-- test: (?P<word>replace|optional|skip)\b,? ?(?P<rest>.*?) ?-->")
RUN = ("python", "sh")


@dataclass(frozen=True)
class Block:
    """A block of code, the number of its first line, and the comments before it."""

    language: str
    code: str
    line: int
    comments: tuple[tuple[str, str], ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The modules without which the block is skipped."""
        return tuple(name for word, rest in self.comments if word == "optional" for name in rest.split())

    @property
    def skipped(self) -> bool:
        return any(word == "skip" for word, _ in self.comments) or not all(map(importlib.util.find_spec, self.needs))

    def shortened(self) -> Block:
        """Return the block as tests run it."""
        code = self.code
        for word, rest in self.comments:
            if word == "replace":
                old, arrow, new = rest.partition(" => ")
                if not arrow or old not in code:
                    raise ValueError(f"line {self.line}: the block has no text {old!r} to replace")
                code = code.replace(old, new)
        return Block(self.language, code, self.line, self.comments)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that can be run."""
    comments: list[tuple[str, str]] = []
    language, lines, start = None, [], 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is None and line.startswith("```"):
            language, lines, start = line[3:].strip(), [], number
        elif language is not None and line.startswith("```"):
            if language in RUN:
                yield Block(language, "\n".join(lines) + "\n", start, tuple(comments))
            language, comments = None, []
        elif language is not None:
            lines.append(line)
        elif match := COMMENT.fullmatch(line.strip()):
            comments.append((match["word"], match["rest"]))
        elif line.strip():
            comments = []


def run(page: Path, command: Callable[[list[str]], None], short: bool, done: Callable[[Block, float], None]) -> None:
    """Run a page in the current folder. `command` runs the arguments of `stairwell`."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for full in blocks(page):
        if full.skipped:
            continue
        block = full.shortened() if short else full
        began = time.perf_counter()
        if block.language == "python":
            # The empty lines make tracebacks show line numbers of the page.
            exec(compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True), namespace)
        else:
            for words in shell_lines(block, page):
                command(words)
        done(block, time.perf_counter() - began)


def shell_lines(block: Block, page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every `stairwell` command. Other commands must be marked as skipped."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] != "stairwell":
            raise ValueError(f"{page.name}, line {block.line}: mark the block as skipped; it runs {words[0]}")
        if words:
            yield words[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the code of a tutorial in a folder and time its blocks.")
    parser.add_argument("page", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--short", action="store_true", help="Replace texts, as the tests do.")
    given = parser.parse_args()
    page = given.page.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(given.folder)

    def command(arguments: list[str]) -> None:
        print(f"$ {shlex.join(['stairwell', *arguments])}", flush=True)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "stairwell", *arguments], check=True)
        print(f"({time.perf_counter() - began:.1f} s)")

    run(page, command, given.short, lambda block, seconds: print(f"[line {block.line}: {seconds:.1f} s]", flush=True))


if __name__ == "__main__":
    main()
