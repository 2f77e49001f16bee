"""The documents tell the truth: quoted lines are where they are said to be, code runs, links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import CORES, State, build
from stairwell.experiments.papers import CATALOG

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
QUOTED = re.compile(r"\[`(?P<file>[\w/.]+\.py)`\]\([\w/.]+\):")
names = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, where it begins, and the line of text before it."""

    language: str
    lines: list[str]
    place: int
    before: str

    @property
    def code(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def quotes(self) -> Path | None:
        """The file that the block quotes, if it does."""
        found = QUOTED.fullmatch(self.before)
        return ROOT / found["file"] if found else None


def blocks(page: Path, language: str = "python") -> Iterator[Block]:
    before, inside = "", None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```") and inside is None:
            inside = Block(line[3:].strip(), [], number, before)
        elif line.startswith("```") and inside is not None:
            if inside.language == language:
                yield inside
            inside = None
        elif inside is not None:
            inside.lines.append(line)
        elif line.strip():
            before = line.strip()
    assert inside is None, f"{page.name}: a block that begins on line {inside and inside.place} has no end"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_quoted_lines_are_in_the_file_that_is_named(page: Path) -> None:
    for block in blocks(page):
        if block.quotes is None:
            continue
        source = iter(block.quotes.read_text(encoding="utf-8").splitlines())
        for line in block.lines:
            if line.strip() in ("", "..."):
                continue
            # One iterator for the whole block: the lines must also come in the order of the file.
            assert line in source, f"{page.name}, line {block.place}: {block.quotes.name} has no such line: {line}"


def test_models_quotes_every_file_of_a_core() -> None:
    quoted = {block.quotes.name for block in blocks(ROOT / "docs/models.md") if block.quotes}
    assert quoted >= {"layers.py", "feedback.py", "transformer_xl.py", "staircase.py", "universal.py", "language.py"}


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place to run code that registers cores and writes files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    registries: list[dict[str, Any]] = [CORES, State.classes, CATALOG]
    before = [dict(registry) for registry in registries]
    yield
    for registry, contents in zip(registries, before, strict=True):
        registry.clear()
        registry.update(contents)
    sys.modules.pop("toy_core", None)


@pytest.mark.usefixtures("playground")
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/models.md",
        "docs/extending.md",
        "docs/training.md",
        "docs/environments.md",
        "docs/streams.md",
        "docs/translation.md",
        "docs/hugging-face.md",
    ],
)
def test_code_runs(name: str) -> None:
    """All blocks of a page, one after the other, in one namespace."""
    page, namespace = ROOT / name, {"__name__": name}
    toy = (ROOT / "examples/toy_core.py").read_text(encoding="utf-8")
    for block in blocks(page):
        if block.quotes is None and block.code != toy:
            # Empty lines in front make errors name the lines of the page.
            exec(compile("\n" * block.place + block.code, str(page), "exec"), namespace)


def commands() -> list[str]:
    """Every command that begins a training."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.lines]
    begun = [line for line in lines if "stairwell train " in line]
    return [line for line in begun if "--resume" not in line and "--config" not in line]


@pytest.mark.usefixtures("playground")
@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """RunConfig, options and values are what the command line knows; nothing is trained."""
    from stairwell import cli

    arguments = shlex.split(command, comments=True)
    arguments = arguments[arguments.index("stairwell") + 1 :]
    monkeypatch.setattr(sys, "argv", ["stairwell", *arguments, "--show"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["experiment"] in command


def test_extending_shows_the_whole_toy_core() -> None:
    toy = (ROOT / "examples/toy_core.py").read_text(encoding="utf-8")
    assert toy in [block.code for block in blocks(ROOT / "docs/extending.md")]


def numbers_in_the_table() -> dict[str, str]:
    """Core: what models.md says its state holds."""
    table = re.findall(r"^\| `([\w-]+)`[^|]*\| `([^`]+)` \|", (ROOT / "docs/models.md").read_text(), re.MULTILINE)
    return dict(table)


@pytest.mark.parametrize("name", sorted(CORES))
def test_the_table_says_how_much_a_state_holds(name: str) -> None:
    sizes: dict[str, Any] = {"width": 8, "layers": 3}
    fields = CORES[name].config.__dataclass_fields__
    wanted = {"heads": 2, "memory": 5, "chunk": 4, "passes": 6, "compute": 2}
    if name in ("multi-vector-rnn", "memory-network"):
        wanted = {"heads": 2}
    config = CORES[name].config(**sizes, **{key: value for key, value in wanted.items() if key in fields})
    core, tokens = build(config), 7
    with torch.no_grad():
        _, state = core(torch.randn(1, tokens, 8), core.init_state(1))
    letters = {"D": 8, "H": 2, "L": 3, "S": 5, "G": 1, "C": 4, "M": 2, "tokens": tokens}
    letters["N"] = getattr(config, "passes", 0)
    held = sum(tensor.numel() for _, tensor in state.tensors() if tensor.is_floating_point())
    assert held == eval(numbers_in_the_table()[name], {}, letters)
    # What the tensors say is what the memory really holds, and two integers.
    assert state.map(torch.clone).nbytes == 4 * held + 2 * 8


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, heading = target.partition("#")
        assert (page.parent / path).exists(), f"{page.name}: {target}"
        assert path or heading in headings, f"{page.name}: {target}"


def anchor(heading: str) -> str:
    """A heading as GitHub links to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_streaming_example_shows_what_it_says(capsys: Any) -> None:
    runpy.run_path(str(ROOT / "examples/streaming.py"), run_name="__main__")
    shown = capsys.readouterr().out
    differences = [float(number) for number in re.findall(r"\d+e[+-]\d+", shown)]
    assert len(differences) == 4
    assert max(differences) < 1e-12
    assert "[12, 14, 17]" in shown
    assert "[12, 0, 12]" in shown
