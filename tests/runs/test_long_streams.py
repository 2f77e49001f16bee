"""Long-stream evaluation: reading in segments equals one call, and no mistake is missed."""

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
from stairwell.runs.long_streams import EDGES, MistakeCounts, measure, read_streams
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from stairwell.tasks.base import IGNORE_INDEX
from stairwell.tasks.endless import StreamId, endless_batches
from stairwell.train import Interrupted
from tests.commands import stairwell

STREAMS = [StreamId(0, 0), StreamId(0, 1), StreamId(1, 0)]
SMALL = {"core.width": "8", "train.batch": "8", "train.segment": "8", "train.curriculum": "", "train.warmup": "1"}


def untrained(name: str) -> tuple[Any, Any]:
    config = preset(name).with_options({"core.width": "8"})
    task = config.make_tasks()[0]
    return config.make_model(task).eval(), task.endless_stream()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has hardly been trained."""
    folder = tmp_path_factory.mktemp("runs") / "poor"
    few = {"train.steps": "30", "train.learning_rate": "0.01", "task.valid_episodes": "8"}
    fit(preset("parity/feedback").with_options({**SMALL, **few}), folder, "cpu")
    return folder


@torch.no_grad()
@pytest.mark.parametrize("core", list(CORES))
def test_reading_in_segments_equals_one_call(core: str) -> None:
    model, task = untrained(f"s5/{core}")
    *_, counts = read_streams(model, task, STREAMS, 333, segment=50)
    (whole,) = endless_batches(task, STREAMS, 333, 333)
    predictions = model(whole.tokens, model.init_state(3))[0].argmax(-1)
    wrong = (predictions != whole.targets).numpy()
    assert 0 < wrong.sum() < wrong.size and counts.tokens == 333
    assert counts.mistakes.tolist() == wrong.sum(1).tolist()
    assert counts.first.tolist() == (wrong.argmax(1) + 1).tolist()


def test_no_mistake_is_missed(run: Path) -> None:
    """One token at a time, in plain Python: positions, counts and the curve."""
    model, task = load(run, "cpu", "reference")
    result = measure(run, 500, streams=2, seeds=2, segment=77, device="cpu")
    ids = [StreamId(s["seed"], s["stream"]) for s in result["streams"]]
    assert ids == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (whole,) = endless_batches(task.endless_stream(), ids, 500, 500)  # type: ignore[attr-defined]
    scored, missed = {}, {}
    for stream, tokens, targets in zip(result["streams"], whole.tokens, whole.targets):
        state, mistakes = model.init_state(1), []
        for position, (token, target) in enumerate(zip(tokens.tolist(), targets.tolist()), start=1):
            logits, state = model(torch.tensor([[token]]), state)
            start = max(edge for edge in result["curve"]["positions"] if edge <= position)
            scored[start] = scored.get(start, 0) + 1
            if int(logits.argmax()) != target:
                mistakes.append(position)
                missed[start] = missed.get(start, 0) + 1
        assert stream["mistakes"] == len(mistakes) > 0 and stream["first_mistake"] == mistakes[0]
    starts = result["curve"]["positions"]
    assert result["curve"]["scored"] == [scored[start] for start in starts]
    assert result["curve"]["wrong"] == [missed.get(start, 0) for start in starts]


@pytest.mark.parametrize("group", ["Z7", "D6", "S3xZ2", "(0 1)(2 3), (0 1 2 3 4)"])
def test_every_kind_of_group_has_a_horizon(group: str, tmp_path: Path) -> None:
    few = {"train.steps": "1", "task.valid_episodes": "8", "task.label": "every", "task.generators": "3"}
    fit(preset("group-words/feedback").with_options({**SMALL, **few, "task.group": group}), tmp_path, "cpu")
    result = measure(tmp_path, 300, streams=2, device="cpu")
    assert sum(result["curve"]["scored"]) == 600 and f"products in {group} of 3 generators" in result["task"]


def test_only_labels_are_scored_and_the_first_mistake_is_kept() -> None:
    targets = np.array([[1, IGNORE_INDEX, 1, 1], [1, IGNORE_INDEX, 1, 1]])
    counts = MistakeCounts.empty(2).add_segment(np.array([[1, 0, 1, 1], [1, 5, 1, 1]]), targets)
    assert counts.first.tolist() == [0, 0] and counts.scored.sum() == 6
    counts = counts.add_segment(np.array([[1, 0, 0, 0], [1, 0, 1, 1]]), targets)
    counts = counts.add_segment(np.array([[0, 0, 1, 1], [1, 0, 1, 0]]), targets)
    assert (counts.tokens, counts.first.tolist(), counts.mistakes.tolist()) == (12, [7, 12], [3, 1])
    in_bin = EDGES == 7  # positions 7, 8 and 9
    assert counts.scored[in_bin].tolist() == [6] and counts.wrong[in_bin].tolist() == [3]
    assert counts.wrong.sum() == 4 and counts.scored.sum() == 18


def test_the_longest_training_episode_is_that_of_the_stage_that_a_curriculum_reached(tmp_path: Path) -> None:
    task: Any = preset("s5/feedback").make_tasks()[0]
    length = task.config.length
    (tmp_path / "with").mkdir()
    records = [{"step": step, "tokens": 1, "seconds": 1, "loss": 1.0, "stage": {"length": step}} for step in (2, 3)]
    (tmp_path / "with/metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert long_streams.trained_on(task, Run(tmp_path / "with")) == 3 < length
    assert long_streams.trained_on(task, Run(tmp_path / "without")) == length


def test_the_curve_has_a_point_at_every_power_of_ten() -> None:
    assert set(10 ** np.arange(12)) <= set(EDGES) and (np.diff(EDGES) > 0).all()


def test_the_result_is_written_with_its_provenance(run: Path) -> None:
    ended = stairwell(run.parent, "eval", "poor", "--horizon", "1_000", "--streams", "3", "--json")
    assert ended.status == 0 and ended.err == ""
    printed, written = json.loads(ended.out), json.loads((run / "horizon.json").read_text())
    assert printed.pop("saved") and printed == written
    assert written["provenance"]["command"] == "stairwell eval poor --horizon 1_000 --streams 3 --json"
    assert {"commit", "time", "cpu"} <= set(written["provenance"]) and written["interrupted"] is False
    assert written["tokens"] == 1000 and written["trained_on"] == 40 and len(written["streams"]) == 3
    horizon = long_streams.read(run)
    assert horizon is not None and horizon.streams[0].mistakes == written["streams"][0]["mistakes"]
    assert long_streams.read(run.parent) is None

    again = stairwell(run.parent, "eval", "poor", "--horizon", "1000", "--streams", "3", "--segment", "9")
    assert (
        f"without mistake  0 of 3\nmistakes         {sum(s['mistakes'] for s in printed['streams']):,}\n" in again.out
    )
    assert "3 streams of 1,000 tokens" in again.out and "100 to 999 " in again.out
    assert "1,000 of 1,000 tokens of each stream" in again.err and "tokens/s" in again.err


def test_an_interruption_prints_and_saves_the_result_so_far(
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
    with pytest.raises(Interrupted, match="interrupted at 300 of 1,000 tokens; an earlier, longer result is kept"):
        evaluate_long_streams(run, 1000, 2, 1, 100, "cpu", "auto", as_json=False)
    assert "2 streams of 300 tokens" in capsys.readouterr().out
    assert json.loads((run / "horizon.json").read_text())["tokens"] == 400
    (run / "horizon.json").unlink()
    events = iter(range(10))
    with pytest.raises(Interrupted, match="interrupted at 300 of 1,000 tokens; the result so far is saved"):
        evaluate_long_streams(run, 1000, 2, 1, 100, "cpu", "auto", as_json=False)
    written = json.loads((run / "horizon.json").read_text())
    assert written["interrupted"] is True and (written["tokens"], written["requested_tokens"]) == (300, 1000)
    monkeypatch.setattr(long_streams, "progress", lambda *given: next(iter(())))
    monkeypatch.setattr(long_streams, "endless_batches", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # before the first segment
        measure(run, 1000, device="cpu")


def test_unsupported_evaluations_are_rejected_in_one_line(run: Path, tmp_path: Path) -> None:
    line = stairwell(run.parent, "eval", "poor", "--horizon", "10", "--split", "valid").error_line
    assert line == "stairwell: --horizon generates the streams of this task; leave out --data and --split"
    assert "--seeds needs --horizon" in stairwell(run.parent, "eval", "poor", "--seeds", "2").error_line
    fit(preset("copy/lstm").with_options({**SMALL, "train.steps": "1", "task.valid_episodes": "2"}), tmp_path / "c")
    assert "this task has no endless streams" in stairwell(tmp_path, "eval", "c", "--horizon", "10").error_line
    with pytest.raises(UserError, match="this task has no endless streams"):
        long_streams.stream_of(object())
    model, task = untrained("parity/global-cached-staircase")
    with pytest.raises(UserError, match="the state of this model grows"):
        next(read_streams(model, task, STREAMS, 200_000))
    next(read_streams(model, task, STREAMS, 20))


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of labeled data that has hardly been trained. Sequences have 4 to 20 tokens; the last token has no
    label."""
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
def test_new_sequences_are_labeled(labeled: Path) -> None:
    (labeled / "new.tokens").write_text("1 0 1\n\n0 1\n")
    model, task = load(labeled / "run", "cpu", "reference")
    done = stairwell(labeled, "label", "run", "new.tokens")
    expected = []
    for line in ("1 0 1", "0 1"):
        ids = torch.from_numpy(task.vocabulary.encode(line))
        logits, _ = model(ids[None], model.init_state(1))
        expected.append(" ".join(task.vocabulary.labels[i] for i in logits[0].argmax(-1).tolist()))
    assert done.out == f"{expected[0]}\n\n{expected[1]}\n"
    (labeled / "new.tokens").write_text("1 0\n1 7\n")
    line = stairwell(labeled, "label", "run", "new.tokens").error_line
    assert "line 2 of new.tokens: '7' was not in the training data, so the model cannot read it" in line
    assert "there is no file of tokens none" in stairwell(labeled, "label", "run", "none").error_line


def test_labeled_sequences_are_read_separately_up_to_the_horizon(labeled: Path) -> None:
    """One sequence at a time, in plain Python: no state of the previous one, nothing after the end."""
    model, _ = load(labeled / "run", "cpu", "reference")
    result = measure(labeled / "run", 150, segment=64, device="cpu", data=str(labeled / "long.tokens"))
    scored, mistakes = 0, 0
    lines = (labeled / "long.tokens").read_text().splitlines()
    for line, stream in zip(lines, result["streams"], strict=True):
        bits = [int(bit) for bit in line.split()]
        tokens = bits[:150]
        predictions = model(torch.tensor([tokens]), model.init_state(1))[0].argmax(-1)[0].tolist()
        labels = (np.cumsum(tokens) % 2).tolist()[: len(bits) - 1]  # the last token has no label
        wrong = [i for i, (prediction, label) in enumerate(zip(predictions, labels), start=1) if prediction != label]
        assert (stream["tokens"], stream["mistakes"]) == (len(tokens), len(wrong))
        assert stream["first_mistake"] == (wrong[0] if wrong else None)
        scored, mistakes = scored + len(labels), mistakes + len(wrong)
    assert sum(result["curve"]["scored"]) == scored
    assert sum(result["curve"]["wrong"]) == mistakes > 0
    keys = ("tokens", "requested_tokens", "trained_on", "split")
    assert [result[key] for key in keys] == [150, 150, 20, "test"]


def test_labeled_sequences_are_not_read_beyond_their_ends(labeled: Path) -> None:
    ended = stairwell(labeled, "eval", "run", "--horizon", "1000")
    assert ended.status == 0 and "none of these sequences has more than 16 tokens" in ended.out, ended
    assert "10 streams of " in ended.out, "the run's own test split: 5% of 200"
    horizon = long_streams.read(labeled / "run")
    assert horizon is not None and not horizon.equal and horizon.tokens <= 20
    options = ["--horizon", "9", "--split", "valid", "--streams", "3", "--json"]
    some = json.loads(stairwell(labeled, "eval", "run", *options).out)
    assert len(some["streams"]) == 3 and some["tokens"] <= 9 and some["split"] == "valid"
    assert (
        "--seeds is for tasks that generate"
        in stairwell(labeled, "eval", "run", "--horizon", "9", "--seeds", "2").error_line
    )


def test_an_interruption_keeps_the_sequences_that_were_read(labeled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_streams, "GROUP", 32)
    events: list[dict[str, Any]] = []

    def ctrl_c(event: dict[str, Any]) -> None:
        events.append(event)
        if event["streams"] > 32:
            raise KeyboardInterrupt

    result = measure(labeled / "run", 10**6, segment=50, callback=ctrl_c, data=str(labeled / "long.tokens"))
    assert result["interrupted"] and len(result["streams"]) == 64
    assert max(stream["tokens"] for stream in result["streams"][32:]) == 50, "the second 32 had just started"
    assert events[-1]["tokens"] == sum(stream["tokens"] for stream in result["streams"]) < events[-1]["of"]


def test_progress_shows_speed_and_time_left_and_the_result_shows_one_mistake_in_a_million() -> None:
    event = {"tokens": 5_000, "of": 10_000, "rate": 1234.4, "left": 3725.0, "error_free": 3, "streams": 4}
    expected = "5,000 of 10,000 tokens of each stream, 1,234 tokens/s, 1:02:05 left; 3 of 4 streams without a mistake"
    assert progress_line(event) == expected
    streams = [{"seed": 0, "stream": 0, "first_mistake": 1_000_000, "mistakes": 1}]
    curve = {"positions": [1, 10, 1_000_000], "scored": [9, 90, 1_000_000], "wrong": [0, 0, 1]}
    text = horizon_text({"streams": streams, "tokens": 1_000_001, "tokens_per_second": 5, "curve": curve})
    assert "first at      1,000,000  (stream 0, 1 mistake in all)" in text and "99.9999%" in text
    assert "not scored" in text
