"""The horizon: a stream that is followed segment by segment is the stream at once, and no mistake is missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.cli.long_streams import horizon_text, progress_line
from stairwell.cli.train import evaluate_long_streams
from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.runs import long_streams
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.long_streams import EDGES, Tally, follow, measure
from stairwell.runs.presets import preset
from stairwell.tasks.base import IGNORE
from stairwell.tasks.endless import StreamId, endless_batches
from stairwell.train import Interrupted
from tests.commands import stairwell

STREAMS = [StreamId(0, 0), StreamId(0, 1), StreamId(1, 0)]
SMALL = {"core.width": "8", "train.batch": "8", "train.segment": "8", "train.curriculum": "", "train.warmup": "1"}


def untrained(name: str) -> tuple[Any, Any]:
    experiment = preset(name).with_options({"core.width": "8"})
    task = experiment.make_tasks()[0]
    return experiment.make_model(task).eval(), task.endless_stream()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned next to nothing."""
    folder = tmp_path_factory.mktemp("runs") / "poor"
    few = {"train.steps": "30", "train.learning_rate": "0.01", "task.valid_episodes": "8"}
    fit(preset("parity/feedback").with_options({**SMALL, **few}), folder, "cpu")
    return folder


@torch.no_grad()
@pytest.mark.parametrize("core", list(CORES))
def test_a_followed_stream_is_one_call_of_the_whole(core: str) -> None:
    model, task = untrained(f"s5/{core}")
    *_, tally = follow(model, task, STREAMS, 333, segment=50)
    (whole,) = endless_batches(task, STREAMS, 333, 333)
    answers = model(whole.tokens, model.init_state(3))[0].argmax(-1)
    wrong = (answers != whole.targets).numpy()
    assert 0 < wrong.sum() < wrong.size and tally.tokens == 333
    assert tally.mistakes.tolist() == wrong.sum(1).tolist()
    assert tally.first.tolist() == (wrong.argmax(1) + 1).tolist()


def test_no_mistake_is_missed(run: Path) -> None:
    """Each token by itself, in plain Python: places, counts and the curve."""
    model, task = load(run, "cpu", "reference")
    result = measure(run, 500, streams=2, seeds=2, segment=77, device="cpu")
    names = [StreamId(s["seed"], s["row"]) for s in result["streams"]]
    assert names == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (whole,) = endless_batches(task.endless_stream(), names, 500, 500)  # type: ignore[attr-defined]
    asked, missed = {}, {}
    for found, tokens, targets in zip(result["streams"], whole.tokens, whole.targets):
        state, mistakes = model.init_state(1), []
        for place, (token, target) in enumerate(zip(tokens.tolist(), targets.tolist()), start=1):
            logits, state = model(torch.tensor([[token]]), state)
            begin = max(edge for edge in result["curve"]["places"] if edge <= place)
            asked[begin] = asked.get(begin, 0) + 1
            if int(logits.argmax()) != target:
                mistakes.append(place)
                missed[begin] = missed.get(begin, 0) + 1
        assert found["mistakes"] == len(mistakes) > 0 and found["first_mistake"] == mistakes[0]
    places = result["curve"]["places"]
    assert result["curve"]["asked"] == [asked[place] for place in places]
    assert result["curve"]["wrong"] == [missed.get(place, 0) for place in places]


def test_a_tally_counts_what_is_asked_and_keeps_the_first_mistake() -> None:
    targets = np.array([[1, IGNORE, 1, 1], [1, IGNORE, 1, 1]])
    tally = Tally.empty(2).plus(np.array([[1, 0, 1, 1], [1, 5, 1, 1]]), targets)
    assert tally.first.tolist() == [0, 0] and tally.asked.sum() == 6
    tally = tally.plus(np.array([[1, 0, 0, 0], [1, 0, 1, 1]]), targets)
    tally = tally.plus(np.array([[0, 0, 1, 1], [1, 0, 1, 0]]), targets)
    assert (tally.tokens, tally.first.tolist(), tally.mistakes.tolist()) == (12, [7, 12], [3, 1])
    in_bin = EDGES == 7  # the places 7, 8 and 9
    assert tally.asked[in_bin].tolist() == [6] and tally.wrong[in_bin].tolist() == [3]
    assert tally.wrong.sum() == 4 and tally.asked.sum() == 18


def test_the_curve_has_a_point_at_every_power_of_ten() -> None:
    assert set(10 ** np.arange(12)) <= set(EDGES) and (np.diff(EDGES) > 0).all()


def test_what_was_found_is_written_with_where_it_comes_from(run: Path) -> None:
    ended = stairwell(run.parent, "eval", "poor", "--horizon", "1_000", "--streams", "3", "--json")
    assert ended.status == 0 and ended.err == ""
    told, written = json.loads(ended.out), json.loads((run / "horizon.json").read_text())
    assert told.pop("kept") and told == written
    assert written["provenance"]["command"] == "stairwell eval poor --horizon 1_000 --streams 3 --json"
    assert {"commit", "time", "cpu"} <= set(written["provenance"]) and written["interrupted"] is False
    assert written["tokens"] == 1000 and written["trained_on"] == 40 and len(written["streams"]) == 3
    known = long_streams.read(run)
    assert known is not None and known.streams[0].mistakes == written["streams"][0]["mistakes"]
    assert long_streams.read(run.parent) is None

    again = stairwell(run.parent, "eval", "poor", "--horizon", "1000", "--streams", "3", "--segment", "9")
    assert f"without mistake  0 of 3\nmistakes         {sum(s['mistakes'] for s in told['streams']):,}\n" in again.out
    assert "3 streams of 1,000 tokens" in again.out and "100 to 999 " in again.out
    assert "1,000 of 1,000 tokens of each stream" in again.err and "tokens/s" in again.err


def test_whoever_interrupts_gets_what_was_seen(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(run, 400, streams=2, segment=100, device="cpu")
    events = iter(range(10))
    real = long_streams.progress

    def ctrl_c(*given: Any) -> dict[str, Any]:
        if next(events) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(long_streams, "progress", ctrl_c)
    with pytest.raises(
        Interrupted, match="interrupted at 300 of 1,000 tokens; an earlier, longer result is kept"
    ):
        evaluate_long_streams(run, 1000, 2, 1, 100, "cpu", "auto", as_json=False)
    assert "2 streams of 300 tokens" in capsys.readouterr().out
    assert json.loads((run / "horizon.json").read_text())["tokens"] == 400
    (run / "horizon.json").unlink()
    events = iter(range(10))
    with pytest.raises(Interrupted, match="interrupted at 300 of 1,000 tokens; the result so far is saved"):
        evaluate_long_streams(run, 1000, 2, 1, 100, "cpu", "auto", as_json=False)
    written = json.loads((run / "horizon.json").read_text())
    assert written["interrupted"] is True and (written["tokens"], written["wanted"]) == (300, 1000)
    monkeypatch.setattr(long_streams, "progress", lambda *given: next(iter(())))
    monkeypatch.setattr(long_streams, "endless_batches", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # before there was anything to see
        measure(run, 1000, device="cpu")


def test_what_cannot_be_followed_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    line = stairwell(run.parent, "eval", "poor", "--horizon", "10", "--split", "valid").error_line
    assert line == "stairwell: --horizon makes its own streams; leave out --data and --split"
    assert "--seeds needs --horizon" in stairwell(run.parent, "eval", "poor", "--seeds", "2").error_line
    fit(preset("copy/lstm").with_options({**SMALL, "train.steps": "1", "task.valid_episodes": "2"}), tmp_path / "c")
    assert "this task has no endless streams" in stairwell(tmp_path, "eval", "c", "--horizon", "10").error_line
    with pytest.raises(UserError, match="this task has no endless streams"):
        long_streams.stream_of(object())
    model, task = untrained("parity/global-cached-staircase")
    with pytest.raises(UserError, match="keeps all of its past"):
        next(follow(model, task, STREAMS, 200_000))
    next(follow(model, task, STREAMS, 20))


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of labeled data that has learned next to nothing. Sequences of 4 to 20 tokens; the last has no label."""
    folder, random = tmp_path_factory.mktemp("labeled"), np.random.default_rng(0)
    for name, count, most in (("short", 200, 20), ("long", 70, 300)):
        bits = [random.integers(0, 2, random.integers(4, most + 1)) for _ in range(count)]
        labels = [[*map(str, row.cumsum()[:-1] % 2), "-"] for row in bits]
        (folder / f"{name}.tokens").write_text("".join(" ".join(map(str, row)) + "\n" for row in bits))
        (folder / f"{name}.labels").write_text("".join(" ".join(row) + "\n" for row in labels))
    given = {**SMALL, "task.path": str(folder / "short.tokens"), "train.steps": "30"}
    fit(preset("labeled/feedback").with_options(given), folder / "run", "cpu")
    return folder


@torch.no_grad()
def test_labeled_sequences_are_followed_one_by_one_up_to_the_horizon(labeled: Path) -> None:
    """Each sequence by itself, in plain Python: no memory of the one before, nothing behind its end."""
    model, _ = load(labeled / "run", "cpu", "reference")
    result = measure(labeled / "run", 150, segment=64, device="cpu", data=str(labeled / "long.tokens"))
    asked, mistakes = 0, 0
    lines = (labeled / "long.tokens").read_text().splitlines()
    for line, found in zip(lines, result["streams"], strict=True):
        bits = [int(bit) for bit in line.split()]
        tokens = bits[:150]
        answers = model(torch.tensor([tokens]), model.init_state(1))[0].argmax(-1)[0].tolist()
        wanted = (np.cumsum(tokens) % 2).tolist()[: len(bits) - 1]  # the last token has no label
        wrong = [place for place, (said, label) in enumerate(zip(answers, wanted), start=1) if said != label]
        assert (found["tokens"], found["mistakes"]) == (len(tokens), len(wrong))
        assert found["first_mistake"] == (wrong[0] if wrong else None)
        asked, mistakes = asked + len(wanted), mistakes + len(wrong)
    assert sum(result["curve"]["asked"]) == asked
    assert sum(result["curve"]["wrong"]) == mistakes > 0
    assert (result["tokens"], result["wanted"], result["trained_on"], result["split"]) == (150, 150, 20, "test")


def test_labeled_sequences_are_not_followed_beyond_their_ends(labeled: Path) -> None:
    ended = stairwell(labeled, "eval", "run", "--horizon", "1000")
    assert ended.status == 0 and "none of these sequences has more than 16 tokens" in ended.out, ended
    assert "10 streams of " in ended.out, "the run's own test split: 5% of 200"
    known = long_streams.read(labeled / "run")
    assert known is not None and not known.equal and known.tokens <= 20
    options = ["--horizon", "9", "--split", "valid", "--streams", "3", "--json"]
    some = json.loads(stairwell(labeled, "eval", "run", *options).out)
    assert len(some["streams"]) == 3 and some["tokens"] <= 9 and some["split"] == "valid"
    assert "--seeds is for tasks that make" in stairwell(labeled, "eval", "run", "--horizon", "9", "--seeds", "2").error_line


def test_an_interruption_keeps_the_sequences_that_were_followed(labeled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_streams, "TOGETHER", 32)
    events: list[dict[str, Any]] = []

    def ctrl_c(event: dict[str, Any]) -> None:
        events.append(event)
        if event["streams"] > 32:
            raise KeyboardInterrupt

    found = measure(labeled / "run", 10**6, segment=50, callback=ctrl_c, data=str(labeled / "long.tokens"))
    assert found["interrupted"] and len(found["streams"]) == 64
    assert max(stream["tokens"] for stream in found["streams"][32:]) == 50, "the second 32 had just begun"
    assert events[-1]["tokens"] == sum(stream["tokens"] for stream in found["streams"]) < events[-1]["of"]


def test_people_are_told_the_rate_the_time_left_and_one_mistake_in_a_million() -> None:
    event = {"tokens": 5_000, "of": 10_000, "rate": 1234.4, "left": 3725.0, "faultless": 3, "streams": 4}
    words = "5,000 of 10,000 tokens of each stream, 1,234 tokens/s, 1:02:05 left; 3 of 4 streams without a mistake"
    assert progress_line(event) == words
    streams = [{"seed": 0, "row": 0, "first_mistake": 1_000_000, "mistakes": 1}]
    curve = {"places": [1, 10, 1_000_000], "asked": [9, 90, 1_000_000], "wrong": [0, 0, 1]}
    told = horizon_text({"streams": streams, "tokens": 1_000_001, "tokens_per_second": 5, "curve": curve})
    assert "first at      1,000,000  (stream 0, 1 mistake in all)" in told and "99.9999%" in told
    assert "not scored" in told
