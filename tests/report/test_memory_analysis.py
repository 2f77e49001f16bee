"""Memory analysis: windows, distances, probe, noise and attention."""

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
from stairwell.report.memory_analysis import (
    REFERENCE,
    MemoryWindow,
    analyze_memory,
    class_means,
    distances,
    fit_probe,
    follow_windows,
    nearest_mean_distance,
    read_analysis,
)
from stairwell.report.memory_plots import memory_figure
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.tasks.base import IGNORE_INDEX
from stairwell.tasks.endless import BLOCK, StreamId, endless_batches
from tests.commands import stairwell

STREAM_IDS = [StreamId(0, row) for row in range(4)]


def untrained(name: str, **options: str) -> tuple[Any, Any]:
    config = preset(name).with_options({"core.width": "8", **options})
    task = config.make_tasks()[0]
    return config.make_model(task).eval(), task.endless_stream()  # type: ignore[attr-defined]


@torch.no_grad()
@pytest.mark.parametrize("core", [core for core in CORES if core != "global-cached-staircase"])
def test_windows_are_those_of_one_call_over_the_whole_stream(core: str) -> None:
    model, task = untrained(f"s5/{core}")
    positions = (10, 31)
    windows, before, last = follow_windows(model, task, STREAM_IDS, positions, window=5)
    (whole,) = endless_batches(task, STREAM_IDS, 31, 31)
    predictions = model(whole.tokens, model.init_state(4))[0].argmax(-1)
    for position, window in zip(positions, windows):
        assert window.states.equal(whole.targets[:, position - 5 : position])
        assert window.predictions.equal(predictions[:, position - 5 : position])
        _, state = model(whole.tokens[:, : position - 2], model.init_state(4))
        torch.testing.assert_close(window.vectors[:, -3], memory_analysis.newest_vector(state))
    assert before.count.tolist() == [26] * 4 and last.equal(whole.tokens[:, 26:])


def test_window_across_a_block_boundary_is_complete() -> None:
    model, task = untrained("parity/lstm")
    with torch.no_grad():
        (window,), before, last = follow_windows(model, task, STREAM_IDS[:2], (BLOCK + 3,), window=8)
    *_, tail = endless_batches(task, STREAM_IDS[:2], BLOCK + 3, BLOCK)
    assert window.vectors.shape[:2] == (2, 8) and window.states[:, -3:].equal(tail.targets)
    assert before.count.tolist() == [BLOCK] * 2 and last.equal(tail.tokens)


def test_newest_vector_of_feedback_is_its_newest_slot() -> None:
    model, _ = untrained("parity/feedback")
    _, state = model(torch.tensor([[1, 0, 1]]), model.init_state(1))
    assert memory_analysis.newest_vector(state).equal(state.memory[:, -1, 0])


def test_distances_to_the_means_of_states() -> None:
    vectors = torch.tensor([[0.0, 0], [2, 0], [10, 0], [10, 4]])
    labels, means = class_means(vectors, torch.tensor([3, 3, 7, 7]))
    assert labels.tolist() == [3, 7] and means.tolist() == [[1, 0], [10, 2]]
    assert nearest_mean_distance(means) == pytest.approx(85**0.5)
    own, other = distances(torch.tensor([[1.0, 0], [10, 0], [0, 0]]), torch.tensor([7, 7, 5]), labels, means)
    torch.testing.assert_close(own, torch.tensor([85**0.5, 2]))  # a state without a mean is left out
    torch.testing.assert_close(other, torch.tensor([0.0, 9]))


def test_probe_is_linear() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(0, 4, (400,), generator=generator)
    corners = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    vectors = 3 * corners[states] + torch.randn(400, 2, generator=generator) / 4
    probe = fit_probe(vectors[:200], states[:200], outputs=5)
    assert (probe(vectors[200:]) == states[200:]).all()
    # Whether the signs differ is not linearly separable.
    xor = (corners[states].prod(1) > 0).long()
    probe = fit_probe(vectors[:200], xor[:200], outputs=2)
    assert (probe(vectors[200:]) == xor[200:]).double().mean() < 0.75


def test_only_scored_tokens_count() -> None:
    window = MemoryWindow(
        torch.arange(8.0).view(2, 2, 2), torch.tensor([[1, IGNORE_INDEX], [0, 2]]), torch.tensor([[1, 1], [1, 2]])
    )
    vectors, states, predictions = window.scored(REFERENCE)
    assert vectors.tolist() == [[0, 1]] and states.tolist() == [1] and predictions.tolist() == [1]


@pytest.mark.parametrize("core", ["feedback", "staircase", "lstm", "deltanet"])
def test_analysis_is_deterministic_and_can_be_plotted(core: str) -> None:
    model, task = untrained(f"parity/{core}")
    analysis, again = (analyze_memory(model, task, (12, 40), streams=8, window=6) for _ in range(2))
    assert asdict(analysis) == asdict(again)
    assert analysis.positions == [12, 40] and len(analysis.own_distance) == len(analysis.probe_accuracy) == 2
    assert analysis.states == 2
    assert (analysis.attention is None) == (core in ("lstm", "deltanet"))
    if analysis.attention is not None:
        sums = [sum(head) for layer in analysis.attention.weights for head in layer]
        assert sums == pytest.approx([1] * len(sums), abs=2e-3)
    json.dumps(asdict(analysis), allow_nan=False)
    assert len(memory_figure(analysis, core, 0).axes) == 4


@torch.no_grad()
def test_attention_is_that_of_the_last_tokens() -> None:
    model, task = untrained("parity/feedback")
    analysis = analyze_memory(model, task, (12, 40), streams=4, window=6)
    (whole,) = endless_batches(task, STREAM_IDS, 40, 40)
    with inspect(model) as recorder:
        model(whole.tokens, model.init_state(4))
    expected = recorder.attention[1][:, :, -6:].mean((0, 2))
    assert analysis.attention is not None
    torch.testing.assert_close(torch.tensor(analysis.attention.weights[1]), expected, atol=1e-4, rtol=0)


def test_noise_decays_in_a_memory_that_forgets() -> None:
    model, task = untrained("parity/transformer-xl", **{"core.memory": "2", "core.layers": "1"})
    analysis = analyze_memory(model, task, (12, 40), streams=4, window=24)
    # The newest slot of this Transformer-XL is the embedding of the token, which the noise does not reach.
    assert all(line[0] == 0 for line in analysis.noise_distance)
    model, task = untrained("parity/lstm")
    with torch.no_grad():
        for parameter in model.core.parameters():
            parameter.mul_(0.1)
    analysis = analyze_memory(model, task, (12, 40), streams=4, window=24)
    small, large = analysis.noise_distance[0], analysis.noise_distance[2]
    assert small[0] > 20 * small[-1] and large[0] > small[0]


def test_report_shows_the_analysis_of_a_run(tmp_path: Path) -> None:
    small = {"core.width": "8", "train.batch": "4", "train.steps": "2", "train.segment": "8", "train.curriculum": ""}
    fit(preset("parity/feedback").with_options({**small, "task.valid_episodes": "4"}), tmp_path / "run", "cpu")
    assert read_analysis(tmp_path / "run") is None and gather(tmp_path / "run").memory_analysis is None
    analysis = memory_analysis.analyze_run(tmp_path / "run", "cpu", positions=(12, 40), streams=8)
    assert read_analysis(tmp_path / "run") == analysis
    result = stairwell(tmp_path, "report", "run", "--out", "page.html")
    assert result.status == 0 and (tmp_path / "page.memory-1.png").exists()
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Memory analysis</h2>" in page and page.count('class="figure"') == 1
    assert "#0072b2" not in page.split("</style>")[1].split("<script")[0]  # plots use the colors of the theme
    (tmp_path / "run" / "memory_analysis.json").write_text("{}")
    assert read_analysis(tmp_path / "run") is None
