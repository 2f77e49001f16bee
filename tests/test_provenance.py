"""Where a result comes from: its command."""

from __future__ import annotations

import sys

import pytest

from stairwell.provenance import provenance


@pytest.mark.parametrize("program", ["/anywhere/bin/stairwell", "/anywhere/stairwell/__main__.py"])
def test_the_command_in_a_result_has_no_local_paths(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [program, "reproduce", "extra.s5", "--out", "/home/me/runs", "--only", "Cached Staircase"]
    monkeypatch.setattr(sys, "argv", given)
    assert provenance()["command"] == "stairwell reproduce extra.s5 --only 'Cached Staircase'"
