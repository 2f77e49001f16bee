"""A look inside: what is measured is what the model has in its memory there and then."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.cores import CORES
from stairwell.models import inspect
from stairwell.report import gather, memory_analysis
from stairwell.report.compare import models
from stairwell.report.memory_analysis import (
    FITTED,
    Window,
    analyze_memory,
    class_means,
    distances,
    fit_probe,
    follow_windows,
    nearest_other,
    read_analysis,
)
from stairwell.report.memory_plots import drift_figure, drift_section
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.tasks.base import IGNORE
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from tests.commands import stairwell

NAMES = [StreamId(0, row) for row in range(4)]


def untrained(name: str, **options: str) -> tuple[Any, Any]:
    experiment = preset(name).with_options({"core.width": "8", **options})
    task = experiment.make_tasks()[0]
    return experiment.make_model(task).eval(), task.endless_stream()  # type: ignore[attr-defined]


@torch.no_grad()
@pytest.mark.parametrize("core", [core for core in CORES if core != "global-cached-staircase"])
def test_what_is_seen_at_a_place_is_what_one_call_of_the_whole_comes_to(core: str) -> None:
    model, task = untrained(f"s5/{core}")
    places = (10, 31)
    seen, before, last = follow_windows(model, task, NAMES, places, window=5)
    (whole,) = endless_batches(task, NAMES, 31, 31)
    answers = model(whole.tokens, model.init_state(4))[0].argmax(-1)
    for place, found in zip(places, seen):
        assert found.states.equal(whole.targets[:, place - 5 : place])
        assert found.answers.equal(answers[:, place - 5 : place])
        _, state = model(whole.tokens[:, : place - 2], model.init_state(4))
        torch.testing.assert_close(found.vectors[:, -3], memory_analysis.newest(state))
    assert before.count.tolist() == [26] * 4 and last.equal(whole.tokens[:, 26:])


def test_a_window_over_the_edge_of_a_block_is_whole() -> None:
    model, task = untrained("parity/lstm")
    with torch.no_grad():
        (found,), before, last = follow_windows(model, task, NAMES[:2], (BLOCK + 3,), window=8)
    *_, tail = endless_batches(task, NAMES[:2], BLOCK + 3, BLOCK)
    assert found.vectors.shape[:2] == (2, 8) and found.states[:, -3:].equal(tail.targets)
    assert before.count.tolist() == [BLOCK] * 2 and last.equal(tail.tokens)


def test_the_newest_vector_of_feedback_is_its_newest_slot() -> None:
    model, _ = untrained("parity/feedback")
    _, state = model(torch.tensor([[1, 0, 1]]), model.init_state(1))
    assert memory_analysis.newest(state).equal(state.memory[:, -1, 0])


def test_distances_are_to_the_means_of_the_states() -> None:
    vectors = torch.tensor([[0.0, 0], [2, 0], [10, 0], [10, 4]])
    labels, means = class_means(vectors, torch.tensor([3, 3, 7, 7]))
    assert labels.tolist() == [3, 7] and means.tolist() == [[1, 0], [10, 2]]
    assert nearest_other(means) == pytest.approx(85**0.5)
    own, other = distances(torch.tensor([[1.0, 0], [10, 0], [0, 0]]), torch.tensor([7, 7, 5]), labels, means)
    torch.testing.assert_close(own, torch.tensor([85**0.5, 2]))  # a state without a mean is left out
    torch.testing.assert_close(other, torch.tensor([0.0, 9]))


def test_the_probe_reads_what_can_be_read_by_a_line_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(0, 4, (400,), generator=generator)
    corners = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    vectors = 3 * corners[states] + torch.randn(400, 2, generator=generator) / 4
    reads = fit_probe(vectors[:200], states[:200], outputs=5)
    assert (reads(vectors[200:]) == states[200:]).all()
    # Whether the signs differ cannot be read by a line.
    crossed = (corners[states].prod(1) > 0).long()
    guess = fit_probe(vectors[:200], crossed[:200], outputs=2)
    assert (guess(vectors[200:]) == crossed[200:]).double().mean() < 0.75


def test_only_what_is_asked_counts() -> None:
    window = Window(
        torch.arange(8.0).view(2, 2, 2), torch.tensor([[1, IGNORE], [0, 2]]), torch.tensor([[1, 1], [1, 2]])
    )
    vectors, states, answers = window.of(FITTED)
    assert vectors.tolist() == [[0, 1]] and states.tolist() == [1] and answers.tolist() == [1]


@pytest.mark.parametrize("core", ["feedback", "staircase", "lstm", "deltanet"])
def test_a_look_inside_is_the_same_every_time_and_can_be_drawn(core: str) -> None:
    model, task = untrained(f"parity/{core}")
    looked = [analyze_memory(model, task, (12, 40), streams=8, window=6) for _ in range(2)]
    assert asdict(looked[0]) == asdict(looked[1])
    found = looked[0]
    assert found.places == [12, 40] and len(found.own) == len(found.probe) == 2 and found.states == 2
    assert (found.attention is None) == (core in ("lstm", "deltanet"))
    if found.attention is not None:
        shares = [sum(head) for layer in found.attention.weights for head in layer]
        assert shares == pytest.approx([1] * len(shares), abs=2e-3)
    json.dumps(asdict(found), allow_nan=False)
    assert len(drift_figure(found, core, 0).axes) == 4


@torch.no_grad()
def test_attention_is_that_of_the_last_tokens() -> None:
    model, task = untrained("parity/feedback")
    found = analyze_memory(model, task, (12, 40), streams=4, window=6)
    (whole,) = endless_batches(task, NAMES, 40, 40)
    with inspect(model) as seen:
        model(whole.tokens, model.init_state(4))
    wanted = seen.attention[1][:, :, -6:].mean((0, 2))
    assert found.attention is not None
    torch.testing.assert_close(torch.tensor(found.attention.weights[1]), wanted, atol=1e-4, rtol=0)


def test_a_memory_that_is_pushed_and_forgets_comes_back() -> None:
    """A Transformer-XL that sees two tokens cannot feel a push once these have left its sight."""
    model, task = untrained("parity/transformer-xl", **{"core.memory": "2", "core.layers": "1"})
    found = analyze_memory(model, task, (12, 40), streams=4, window=24)
    assert all(line[0] == 0 for line in found.pushed)  # its newest slot is the token's own vector
    model, task = untrained("parity/lstm")
    with torch.no_grad():
        for parameter in model.core.parameters():
            parameter.mul_(0.1)
    found = analyze_memory(model, task, (12, 40), streams=4, window=24)
    small, large = found.pushed[0], found.pushed[2]
    assert small[0] > 20 * small[-1] and large[0] > small[0]


def test_a_report_looks_inside_and_keeps_what_it_saw(tmp_path: Path) -> None:
    small = {"core.width": "8", "train.batch": "4", "train.steps": "2", "train.segment": "8", "train.curriculum": ""}
    fit(preset("parity/feedback").with_options({**small, "task.valid_episodes": "4"}), tmp_path / "run", "cpu")
    assert read_analysis(tmp_path / "run") is None and drift_section(models([gather(tmp_path / "run")])) == ""
    made = memory_analysis.analyze_run(tmp_path / "run", "cpu", places=(12, 40), streams=8)
    assert read_analysis(tmp_path / "run") == made
    ended = stairwell(tmp_path, "report", "run", "--out", "page.html")
    assert ended.status == 0 and (tmp_path / "page.inside-1.png").exists()
    page = (tmp_path / "page.html").read_text()
    assert "Why it drifts, or does not" in page and page.count('class="figure"') == 1
    assert "#0072b2" not in page.split("</style>")[1].split("<script")[0]  # figures take the page's colors
    (tmp_path / "run" / "inside.json").write_text("{}")
    assert read_analysis(tmp_path / "run") is None
