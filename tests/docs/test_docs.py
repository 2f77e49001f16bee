"""The docs match the code: quoted lines are in the files, code runs, commands parse, links resolve."""

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
from stairwell.cli.help import ORDER
from stairwell.experiments.papers import CATALOG
from stairwell.rl.algorithms import ALGORITHMS
from stairwell.tasks import TASKS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
QUOTED = re.compile(r"\[`(?P<file>[\w/.]+\.py)`\]\([\w/.]+\):")
names = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, its first line number, and the line of text before it."""

    language: str
    lines: list[str]
    line_number: int
    before: str

    @property
    def code(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def quotes(self) -> Path | None:
        """The file that the block quotes, if any."""
        match = QUOTED.fullmatch(self.before)
        return ROOT / match["file"] if match else None


def blocks(page: Path, language: str = "python") -> Iterator[Block]:
    """Yield the fenced blocks of a page in a language."""
    before, block = "", None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```") and block is None:
            block = Block(line[3:].strip(), [], number, before)
        elif line.startswith("```") and block is not None:
            if block.language == language:
                yield block
            block = None
        elif block is not None:
            block.lines.append(line)
        elif line.strip():
            before = line.strip()
    assert block is None, f"{page.name}: the block that starts on line {block and block.line_number} has no end"


def test_reference_pages_say_how_to_read_them_without_the_site() -> None:
    pages = sorted((ROOT / "docs/reference").glob("*.md"))
    assert len(pages) >= 4
    for page in pages:
        sentence = page.read_text(encoding="utf-8").split("\n\n")[1]
        assert "`make docs`" in sentence and "](../../stairwell/" in sentence, page


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_quoted_lines_are_in_the_named_file(page: Path) -> None:
    for block in blocks(page):
        if block.quotes is None:
            continue
        source = iter(block.quotes.read_text(encoding="utf-8").splitlines())
        for line in block.lines:
            if line.strip() in ("", "..."):
                continue
            # One iterator for the whole block: the lines must also come in the order of the file.
            assert line in source, (
                f"{page.name}, line {block.line_number}: {block.quotes.name} has no such line: {line}"
            )


def test_models_quotes_every_file_of_a_core() -> None:
    quoted = {block.quotes.name for block in blocks(ROOT / "docs/models.md") if block.quotes}
    assert quoted >= {"layers.py", "feedback.py", "transformer_xl.py", "staircase.py", "universal.py", "language.py"}


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a temporary folder; undo what the code registers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", sys.argv)
    registries: list[dict[str, Any]] = [CORES, State.classes, CATALOG, ALGORITHMS, TASKS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, contents in zip(registries, before, strict=True):
        registry.clear()
        registry.update(contents)
    sys.modules.pop("toy_core", None)


@pytest.mark.parametrize("command", ORDER)
def test_a_page_shows_every_command(command: str) -> None:
    assert any(f"stairwell {command}" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("score", ["accuracy", "error", "sequence_accuracy", "last_accuracy"])
def test_training_explains_every_score_of_labeled_data(score: str) -> None:
    assert f"`{score}`" in (ROOT / "docs/training.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130 and max(map(len, lines)) <= 120


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
    """Run all blocks of a page in order, in one namespace."""
    page, namespace = ROOT / name, {"__name__": name}
    toy = (ROOT / "examples/toy_core.py").read_text(encoding="utf-8")
    for block in blocks(page):
        if block.quotes is None and block.code != toy:
            # The empty lines make tracebacks show line numbers of the page.
            exec(compile("\n" * block.line_number + block.code, str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.usefixtures("playground")
def test_the_code_of_agents_runs_without_the_blocks_before() -> None:
    """Blocks of several libraries: only those of Stable-Baselines3 build on the one before."""
    pytest.importorskip("sb3_contrib")
    page, namespace = ROOT / "docs/agents.md", dict[str, Any]()
    for block in blocks(page):
        if block.quotes is None:
            namespace = namespace if "RecurrentPPO" in block.code and "RecurrentPPO" in namespace else {}
            exec(compile("\n" * block.line_number + block.code, str(page), "exec", dont_inherit=True), namespace)


def commands() -> list[str]:
    """Return every command that starts a run."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.lines]
    train = [line for line in lines if "stairwell train " in line]
    return [line for line in train if "--resume" not in line and "--config" not in line]


@pytest.mark.usefixtures("playground")
@pytest.mark.parametrize("command", commands())
def test_train_commands_are_valid(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Parse the command with --show; nothing is trained."""
    from stairwell import cli

    arguments = shlex.split(command, comments=True)
    arguments = arguments[arguments.index("stairwell") + 1 :]
    monkeypatch.setattr(sys, "argv", ["stairwell", *arguments, "--show"])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["name"] in command


def test_extending_shows_the_whole_toy_core() -> None:
    toy = (ROOT / "examples/toy_core.py").read_text(encoding="utf-8")
    assert toy in [block.code for block in blocks(ROOT / "docs/extending.md")]


def state_sizes() -> dict[str, str]:
    """Return the size of each core's state as given in models.md."""
    table = re.findall(r"^\| `([\w-]+)`[^|]*\| `([^`]+)` \|", (ROOT / "docs/models.md").read_text(), re.MULTILINE)
    return dict(table)


@pytest.mark.parametrize("name", sorted(CORES))
def test_state_sizes_in_the_table_are_correct(name: str) -> None:
    sizes: dict[str, Any] = {"width": 8, "layers": 3}
    fields = CORES[name].config.__dataclass_fields__
    options = {"heads": 2, "memory": 5, "chunk": 4, "passes": 6, "compute": 2}
    if name in ("multi-vector-rnn", "memory-network"):
        options = {"heads": 2}
    config = CORES[name].config(**sizes, **{key: value for key, value in options.items() if key in fields})
    core, tokens = build(config), 7
    with torch.no_grad():
        _, state = core(torch.randn(1, tokens, 8), core.init_state(1))
    letters = {"D": 8, "H": 2, "L": 3, "S": 5, "G": 1, "C": 4, "M": 2, "tokens": tokens}
    letters["N"] = getattr(config, "passes", 0)
    size = sum(tensor.numel() for _, tensor in state.tensors() if tensor.is_floating_point())
    assert size == eval(state_sizes()[name], {}, letters)
    # Two 64-bit integers: count and croppable.
    assert state.map(torch.clone).nbytes == 4 * size + 2 * 8


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, heading = target.partition("#")
        assert (page.parent / path).exists(), f"{page.name}: {target}"
        assert path or heading in headings, f"{page.name}: {target}"


def anchor(heading: str) -> str:
    """Return the anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_streaming_example_prints_small_differences(capsys: Any) -> None:
    runpy.run_path(str(ROOT / "examples/streaming.py"), run_name="__main__")
    output = capsys.readouterr().out
    differences = [float(number) for number in re.findall(r"\d+e[+-]\d+", output)]
    assert len(differences) == 4
    assert max(differences) < 1e-12
    assert "[12, 14, 17]" in output
    assert "[12, 0, 12]" in output
