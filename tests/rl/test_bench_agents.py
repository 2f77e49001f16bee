"""The benchmark of agents times all parts of all agents, and skips packages that are not installed."""

from __future__ import annotations

from typing import Any

import pytest

from bench import agents

OPTIONS = {
    "core.width": "8", "core.layers": "1", "core.heads": "2", "core.memory": "3",
    "train.batch": "4", "train.segment": "6", "train.warmup": "0",
}  # fmt: skip
CONFIGS = {
    core: config.with_options(
        {
            name: value
            for name, value in OPTIONS.items()
            if not name.startswith("core.") or hasattr(config.core, name[5:])
        }
    )
    for core, config in agents.CONFIGS["corridor"].items()
}


def check(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert all(record[f"{part}_frames_per_second"] > 0 for part in agents.PARTS)
        assert all(len(record[f"{part}_ratios"]) == 2 for part in agents.PARTS)
    assert records[0]["what"] == "feedback" and records[0]["loop_feedback_over_this"] == 1


def test_our_agents_are_timed_and_a_missing_package_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(config: Any) -> Any:
        raise ImportError("No module named 'sb3_contrib'")

    monkeypatch.setattr(agents, "sb3_steps", missing)
    records = agents.measure_case("corridor", CONFIGS, rounds=1)
    check(records)
    assert [record["what"] for record in records] == list(agents.CORES)
    assert 'pip install "sb3-contrib>=2.6"' in capsys.readouterr().err


def test_sb3_runs_in_the_same_environment() -> None:
    pytest.importorskip("sb3_contrib")
    steps, parameters = agents.sb3_steps(CONFIGS["lstm"])
    for part in agents.PARTS:
        steps[part]()
    assert parameters > 0


def test_the_timed_steps_write_no_files(tmp_path: Any) -> None:
    steps, _ = agents.our_steps(CONFIGS["feedback"], str(tmp_path))
    for part in agents.PARTS:
        steps[part]()
    assert not list(tmp_path.iterdir())
