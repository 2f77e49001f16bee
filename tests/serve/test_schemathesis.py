"""schemathesis generates valid and invalid requests from the OpenAPI description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import TOKEN, started

pytest.importorskip("schemathesis", reason="pip install schemathesis to run this")


@pytest.mark.slow
def test_schemathesis_finds_no_error(tiny_run: Path, tmp_path: Path) -> None:
    """No status 500, responses match their schemas, invalid data is rejected, valid data accepted, links work."""
    config = Path(__file__).with_name("schemathesis.toml")
    with started(tiny_run, "--max-tokens", "16", "--max-states", "100000") as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", address]
        command += ["--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "50", "--no-color"]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout
        assert "18 selected / 18 total" in completed.stdout and "Stateful" in completed.stdout
        assert "stairwell_failed_total 0" in server.get("/metrics").text
