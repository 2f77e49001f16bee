"""The benchmark of the server: its records fit the tables, and memory does not grow over ten thousand requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import serve, table

LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc is needed")


@LINUX
def test_the_records_fit_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "TOKENS", 4)
    records = serve.measure_throughput("small", serve.TINY, rounds=1, texts=3) + serve.measure_memory(20, step=10)
    assert [record["what"] for record in records[:4]] == ["loop", "1", "4", "16"] and records[0]["over_loop"] == 1
    provenance = {"command": "python -m bench serve", "commit": "abc", "torch": "2", "cpu": "some", "threads": 1}
    markdown = "\n".join(table.serve([{**record, **provenance} for record in records]))
    assert "| 1 layers, width 16, memory 16 |" in markdown and "after 20 requests" in markdown


@LINUX
@pytest.mark.slow
def test_memory_is_flat_over_ten_thousand_requests() -> None:
    memory = {record["after"]: record["megabytes"] for record in serve.measure_memory(10_000)}
    # Caches and memory arenas of threads fill up in the first thousands.
    assert max(memory[after] for after in memory if after >= 5_000) - memory[4_000] < 8, memory
