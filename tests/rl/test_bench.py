"""The measurement of agents: all parts of all contestants, in turns, and a word where one is not installed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bench import agents

SETTING = agents.CORRIDOR["laptop"]
TINY = dataclasses.replace(
    SETTING, width=8, layers=1, heads=2, memory=3, lstm_layers=1,
    train=dataclasses.replace(SETTING.train, batch=4, segment=6, warmup=0),
)  # fmt: skip


def check(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert all(record[f"{part}_frames_per_second"] > 0 for part in agents.PARTS)
        assert all(len(record[f"{part}_ratios"]) == 2 for part in agents.PARTS)
    assert records[0]["what"] == "feedback" and records[0]["loop_feedback_over_this"] == 1


def test_our_agents_are_measured_and_a_missing_peer_is_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(setting: Any) -> Any:
        raise ImportError("No module named 'sb3_contrib'")

    monkeypatch.setattr(agents, "sb3_steps", missing)
    records = agents.measure_case("corridor", TINY, rounds=1)
    check(records)
    assert [record["what"] for record in records] == list(agents.CORES)
    assert "pip install 'stairwell[bench]'" in capsys.readouterr().err


def test_sb3_plays_and_learns_in_the_same_environment() -> None:
    pytest.importorskip("sb3_contrib")
    steps, weights = agents.sb3_steps(TINY)
    for part in agents.PARTS:
        steps[part]()
    assert weights > 0


def test_learning_is_measured_on_one_rollout_and_playing_changes_nothing(tmp_path: Any) -> None:
    steps, _ = agents.our_steps(TINY, "feedback", str(tmp_path))
    for part in agents.PARTS:
        steps[part]()
    assert not list(tmp_path.iterdir())
