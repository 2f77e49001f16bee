"""Exported pages are accessible: names for screen readers, landmarks, and visible keyboard focus."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stairwell import text
from stairwell.export import PageModel, export_html
from tests.export.test_engine import node
from tests.export.test_html import make_task, task_model, text_model
from tests.export.test_page import BROWSER, FLAGS

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
SCRIPT = Path(__file__).parent / "accessibility.js"
CONTROLS = {"button", "textbox", "slider", "combobox", "option", "link", "DisclosureTriangle"}


def inspect_page(models: list[PageModel], script: str, folder: Path) -> dict[str, Any]:
    """Run a script in a page of the models. Return its accessibility tree and Tab stops."""
    export_html(models, folder / "page.html")
    return inspect_file(folder, script)


def inspect_file(folder: Path, script: str) -> dict[str, Any]:
    """Run a script in `page.html`. Return its accessibility tree and Tab stops."""
    flags = [flag for flag in FLAGS if "virtual-time" not in flag]
    command = [
        str(BROWSER),
        *flags,
        f"--user-data-dir={folder / 'profile'}",
        "--remote-debugging-port=0",
        "about:blank",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stderr is not None
            socket = next(filter(None, (re.search(r"ws://\S+", line) for line in browser.stderr)))[0]
            arguments = [str(node()), str(SCRIPT), socket, (folder / "page.html").as_uri(), script]
            result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        finally:
            browser.terminate()
    assert result.returncode == 0, result.stderr
    page: dict[str, Any] = json.loads(result.stdout)
    return page


def names(page: dict[str, Any], role: str) -> list[str]:
    return [node["name"] for node in page["tree"] if node["role"] == role]


def check(page: dict[str, Any]) -> None:
    unnamed = [node for node in page["tree"] if node["role"] in CONTROLS | {"image"} and not node["name"].strip()]
    assert unnamed == []
    for landmark in ("banner", "main", "contentinfo"):
        assert landmark in {node["role"] for node in page["tree"]}
    assert {node["live"] for node in page["tree"] if node["role"] == "status"} == {"polite"}
    assert page["stops"] and all(stop["focusVisible"] for stop in page["stops"])


def test_tracking_page_is_accessible(tmp_path: Path) -> None:
    task = make_task("random-walk")
    models = [task_model(task), task_model(task, "LSTM", "lstm")]
    page = inspect_page(models, "page.press(0); page.press(2);", tmp_path)
    check(page)
    stops = [stop["name"] for stop in page["stops"]]
    assert stops[0] == "Change between light and dark"
    assert stops[1:6] == ["↺ left", "↑ forward", "↻ right", "Play 50 random actions", "Reset"]
    assert stops[6].startswith("Attention and memory composition")
    assert {"where the agent is", "where Feedback predicts the agent"} <= set(names(page, "image"))


def test_text_page_is_accessible(tmp_path: Path) -> None:
    script = (
        'page.prompt.value = "bad"; page.prompt.dispatchEvent(new Event("input")); page.generate(); page.select(1);'
    )
    page = inspect_page([text_model(text.Characters("\n abcd"))], script, tmp_path)
    check(page)
    tags = [stop["tag"] for stop in page["stops"]]
    assert tags[:6] == ["button", "textarea", "button", "button", "button", "input"]
    # One stop for the whole text, where the arrow keys move on, then the layers.
    assert [stop["name"] for stop in page["stops"]][6:] == ["a", "all layers", "layer 1", "layer 2"]
    assert names(page, "option") == ["b", "a", "d", *names(page, "option")[3:]] and len(names(page, "option")) == 4
    assert any("layer 1, head 1: " in name for name in names(page, "image"))
