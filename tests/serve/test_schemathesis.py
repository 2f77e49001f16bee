"""schemathesis, which nobody here wrote, asks whatever the description allows and much that it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import TOKEN, started

pytest.importorskip("schemathesis", reason="pip install schemathesis to run this")


@pytest.mark.slow
def test_schemathesis_finds_nothing_wrong(tiny_run: Path, tmp_path: Path) -> None:
    """No status of 500, answers as described, wrong data refused, right data taken; states followed by their links."""
    config = Path(__file__).with_name("schemathesis.toml")
    with started(tiny_run, "--max-tokens", "16", "--max-states", "100000") as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", address]
        command += ["--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "50", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert "17 selected / 17 total" in done.stdout and "Stateful" in done.stdout
        assert "stairwell_failed_total 0" in server.get("/metrics").text
