"""Pages for people who do not use a pointer or do not see: what a screen reader is told, and where Tab leads."""

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
from tests.export.test_html import make_task, shown, shown_text
from tests.export.test_page import BROWSER, FLAGS

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
SCRIPT = Path(__file__).parent / "accessible.js"
CONTROLS = {"button", "textbox", "slider", "combobox", "option", "link", "DisclosureTriangle"}


def look(models: list[PageModel], use: str, folder: Path) -> dict[str, Any]:
    """The tree that a screen reader gets after a script has used the page, and the stops of Tab."""
    export_html(models, folder / "page.html")
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
            asked = [str(node()), str(SCRIPT), socket, (folder / "page.html").as_uri(), use]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=120)
        finally:
            browser.terminate()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(found: dict[str, Any], role: str) -> list[str]:
    return [node["name"] for node in found["told"] if node["role"] == role]


def check(found: dict[str, Any]) -> None:
    nameless = [node for node in found["told"] if node["role"] in CONTROLS | {"image"} and not node["name"].strip()]
    assert nameless == []
    for landmark in ("banner", "main", "contentinfo"):
        assert landmark in {node["role"] for node in found["told"]}
    assert {node["live"] for node in found["told"] if node["role"] == "status"} == {"polite"}
    assert found["stops"] and all(stop["seen"] for stop in found["stops"]), "one cannot see where the focus is"


def test_who_drives_by_ear_hears_and_reaches_everything(tmp_path: Path) -> None:
    task = make_task("random-walk")
    models = [shown(task), shown(task, "LSTM", "lstm")]
    found = look(models, "page.own(0); page.own(2);", tmp_path)
    check(found)
    stops = [stop["words"] for stop in found["stops"]]
    assert stops[0] == "Change between light and dark"
    assert stops[1:6] == ["↺ left", "↑ forward", "↻ right", "Play 50 random actions", "Reset"]
    assert stops[6].startswith("Look inside")
    assert {"where the agent is", "where Feedback believes the agent to be"} <= set(named(found, "image"))


def test_who_writes_by_ear_hears_and_reaches_everything(tmp_path: Path) -> None:
    use = 'page.prompt.value = "bad"; page.prompt.dispatchEvent(new Event("input")); page.write(); page.pick(1);'
    found = look([shown_text(text.Characters("\n abcd"))], use, tmp_path)
    check(found)
    tags = [stop["tag"] for stop in found["stops"]]
    assert tags[:6] == ["button", "textarea", "button", "button", "button", "input"]
    # One stop for the whole text, from which the arrow keys lead on, and then the layers.
    assert [stop["words"] for stop in found["stops"]][6:] == ["a", "all layers", "layer 1", "layer 2"]
    assert named(found, "option") == ["b", "a", "d", *named(found, "option")[3:]] and len(named(found, "option")) == 4
    assert any("head 1: most of it" in name for name in named(found, "image"))
