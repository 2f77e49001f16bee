"""The code of the tutorials and of the notebooks runs from top to bottom, with fewer steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import stairwell
from tools.run_page import Block, blocks, run, shell_lines

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial_runs_from_top_to_bottom(page: Path, folder: Path) -> None:
    def command(arguments: list[str]) -> None:
        completed = stairwell(folder, *arguments)
        assert completed.status == 0, f"stairwell {' '.join(arguments)}\n{completed.err}"

    ran: list[Block] = []
    run(page, command, short=True, done=lambda block, seconds: ran.append(block))
    skipped = [block for block in blocks(page) if block.skipped]
    assert len(ran) + len(skipped) == len(list(blocks(page)))
    assert len(ran) > len(skipped)


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebook_runs_from_top_to_bottom(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(page.parent)])
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(page.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for old, new in cell["metadata"].get("test", {}).items():
                assert old in code, f"cell {number} has no text {old!r} to replace"
                code = code.replace(old, new)
            exec(compile(code, f"{page.name}, cell {number}", "exec", dont_inherit=True), namespace)


def test_there_are_four_tutorials_and_two_notebooks() -> None:
    assert len(TUTORIALS) == 4 and len(NOTEBOOKS) == 2


def test_a_comment_that_fits_no_text_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- test: replace 600 => 20 -->\n```sh\nstairwell info\n```\n")
    with pytest.raises(ValueError, match="no text '600'"):
        run(page, lambda arguments: None, short=True, done=lambda block, seconds: None)


def test_other_commands_than_stairwell_are_rejected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nrm -r runs\n```\n")
    (block,) = blocks(page)
    with pytest.raises(ValueError, match="it runs rm"):
        list(shell_lines(block, page))
