"""The measurements of the server: what they record can be shown, and ten thousand requests later it holds no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import serve, table

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel tells it on Linux")


@LINUX
def test_the_measurements_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "TOKENS", 4)
    found = serve.measure_throughput("small", serve.TINY, rounds=1, texts=3) + serve.measure_memory(20, step=10)
    assert [record["what"] for record in found[:4]] == ["loop", "1", "4", "16"] and found[0]["over_loop"] == 1
    about = {"command": "python -m bench serve", "commit": "abc", "torch": "2", "cpu": "some", "threads": 1}
    shown = "\n".join(table.serve([{**record, **about} for record in found]))
    assert "| 1 layers, width 16, memory 16 |" in shown and "after 20 requests" in shown


@LINUX
@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_requests() -> None:
    held = {record["after"]: record["megabytes"] for record in serve.measure_memory(10_000)}
    # The first thousands fill caches and the arenas of threads.
    assert max(held[after] for after in held if after >= 5_000) - held[4_000] < 8, held
