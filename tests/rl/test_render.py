"""Rendered episodes, GIFs, `stairwell play` and reports of agents."""

from __future__ import annotations

import dataclasses
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stairwell.errors import UserError
from stairwell.report import gather, summary, write_html, write_png
from stairwell.rl.evaluation import EpisodeStats
from stairwell.rl.render import (
    STRIP_TITLE,
    attention_strip,
    compose_image,
    render_episodes,
    stack_images,
    text_image,
    to_ansi,
    write_gif,
)
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from tests.commands import TINY, stairwell
from tests.rl.small_runs import run_config

RUNS = {
    "corridor": {},
    "maze": {
        "task__env": "maze-navigation",
        "task__length": None,
        "task__side": 5,
        "task__targets": 2,
        "task__max_steps": 9,
    },
    "cart": {"task__env": "CartPole-v1", "task__length": None},
    "grid": {"task__env": "MiniGrid-Empty-5x5-v0", "task__length": None},
    "cards": {"task__env": "popgym-AutoencodeEasy-v0", "task__length": None},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that trains a run on its first call."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(name: str, core: str = "feedback") -> Path:
        options: dict[str, Any] = {**RUNS[name], "train__steps": 3, "task__valid_episodes": 1}
        fit(run_config(f"rl/{core}", **options), folder / f"{name}-{core}", "cpu")
        return folder / f"{name}-{core}"

    return run


@pytest.mark.parametrize("name", ["corridor", "maze", "grid"])
def test_every_step_has_an_image_and_attention(name: str, runs: Any) -> None:
    agent, task = load(runs(name), "cpu")
    stats = EpisodeStats()
    steps = list(render_episodes(agent, task, 2, seed=3, stats=stats))
    assert [step.done for step in steps].count(True) == 2 and steps[-1].done
    assert len(steps) == sum(episode.length for episode in stats.episodes)
    for step in steps:
        assert step.image is not None and step.image.dtype == np.uint8
        (weights,) = step.attention  # one layer
        # The memory is empty in the first step of an episode and has three positions.
        assert weights.sum() == pytest.approx(0 if step.step == 1 else 1, abs=1e-5) and len(weights) <= 3
        composed = compose_image(step)
        assert composed.shape[0] > step.image.shape[0] or composed.shape[1] > step.image.shape[1]
        assert np.array_equal(composed[: step.image.shape[0], : step.image.shape[1]], step.image)
    actions = [step.action for step in steps]
    assert [step.action for step in render_episodes(agent, task, 2, seed=3)] == actions
    assert [step.action for step in render_episodes(agent, task, 2, seed=4)] != actions


def test_a_gif_names_the_attention_strips(runs: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install pillow to run this")
    agent, task = load(runs("corridor"), "cpu")
    *_, step = render_episodes(agent, task, 1, seed=3)
    plain, labeled = compose_image(step), compose_image(step, labels=True)
    assert step.image is not None
    scale = -(-240 // max(step.image.shape[:2]))
    large = step.image.repeat(scale, 0).repeat(scale, 1)
    assert max(large.shape) >= 240 and np.array_equal(labeled[: large.shape[0], : large.shape[1]], large)
    strip = attention_strip(step.attention[0])
    text = [text_image(line) for line in (*STRIP_TITLE, "layer 1")]
    assert all(line.any() for line in text) and not np.array_equal(text[0], text[1])
    below = large.shape[1] > 2 * large.shape[0]
    beside = labeled[large.shape[0] + 8 :] if below else labeled[:, large.shape[1] + 8 :]
    for part, top in zip((*text, strip), (0, 14, 28 + 8, 28 + 8 + 14 + 2), strict=True):
        assert np.array_equal(beside[top : top + part.shape[0], : part.shape[1]], part)
    assert labeled.size > plain.size
    done = stairwell(tmp_path, "play", runs("corridor"), "--episodes", "1", "--gif", "x.gif", "--quiet")
    assert done.status == 0 and image.open(tmp_path / "x.gif").size[0] == labeled.shape[1], done


def test_a_core_without_attention_has_no_strips(runs: Any) -> None:
    agent, task = load(runs("corridor", "lstm"), "cpu")
    step = next(render_episodes(agent, task, 1, seed=0))
    assert step.attention == [] and step.image is not None
    assert np.array_equal(compose_image(step), step.image)


def test_an_environment_without_images_has_a_summary_of_observations(runs: Any, tmp_path: Path) -> None:
    pytest.importorskip("popgym")
    agent, task = load(runs("cards"), "cpu")
    first, second, *_ = render_episodes(agent, task, 1, seed=0)
    assert first.image is None and first.observation.startswith("0 1; 1 ")  # watch phase, and a suit
    assert compose_image(second).any()  # its attention
    # A GIF shows the observation as text, which changes from step to step, also without attention.
    texts = [compose_image(step._replace(attention=[]), labels=True) for step in (first, second)]
    assert texts[0].any() and texts[0].shape[1] >= 240 and not np.array_equal(*texts)
    episode = gather(runs("cards")).episode
    assert episode is not None and episode.width == 0 and episode.steps[0].observation.startswith("0 1; 1 ")
    assert stairwell(tmp_path, "play", runs("cards"), "--episodes", "1", "--json").status == 0


def test_actions_have_minigrids_names(runs: Any) -> None:
    agent, task = load(runs("grid"), "cpu")
    names = {step.action for step in render_episodes(agent, task, 1, seed=0)}
    assert len(names) > 1 and names <= {"left", "right", "forward", "pickup", "drop", "toggle", "done"}
    assert list(task.make_env(range(1), 0).action_names)[2] == "forward"


def test_a_gif_without_pillow_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match='needs pillow, which is not installed: pip install "pillow>=10"'):
        write_gif(tmp_path / "x.gif", [np.zeros((2, 2, 3), np.uint8)], 8)


def test_images_are_stacked_and_converted_for_a_terminal() -> None:
    image, strip = np.full((4, 6, 3), 200, np.uint8), attention_strip(np.array([0.5, 0.25]), size=4)
    both = stack_images([image, strip])
    assert both.shape == (4 + 8 + 4, 8, 3) and np.array_equal(both[:4, :6], image) and not both[4:12].any()
    # The first weight is that of the newest position, which is on the right as on pages.
    assert strip[2, 6].tolist() == [255, 196, 61] and strip[2, 2].tolist() < [255, 196, 61]
    text = to_ansi(np.array([[[1, 2, 3]], [[4, 5, 6]]], np.uint8), 10)
    assert text == "\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m▀\x1b[0m"
    assert len(to_ansi(np.zeros((40, 100, 3), np.uint8), 20).splitlines()) == 4


def test_play_prints_scores_and_writes_a_gif(runs: Any, tmp_path: Path) -> None:
    run = runs("maze")
    ended = stairwell(tmp_path, "play", run, "--episodes", "3", "--seed", "5", "--gif", "out.gif", "--json")
    scores = json.loads(ended.out)
    assert scores["episodes"] == 3 and scores["length"] == 9 and scores["seed"] == 5
    assert {"return", "return_std", "return_ci95"} <= set(scores)
    for i, line in enumerate(ended.err.splitlines(), start=1):
        assert line.startswith(f"episode {i}: return ") and line.endswith(" in 9 steps")
    assert len(ended.err.splitlines()) == 3
    from PIL import Image

    assert Image.open(tmp_path / "out.gif").n_frames == 27
    again = stairwell(tmp_path, "play", run, "--episodes", "3", "--seed", "5", "--json", "--quiet")
    assert json.loads(again.out) == scores and again.err == ""


def test_play_takes_agents_only_and_generate_takes_none(runs: Any, tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", "parity/lstm", *TINY, "--steps", "2", "--out", "lm", "--quiet").status == 0
    line = stairwell(tmp_path, "play", "lm").error_line
    assert "play expects a run of the family 'rl'; this run is of the family 'streams'" in line
    assert "is not a language model" in stairwell(tmp_path, "generate", runs("corridor")).error_line


@pytest.mark.parametrize("name", ["corridor", "cart"])
def test_a_report_has_learning_curves_and_attention(name: str, runs: Any, tmp_path: Path) -> None:
    report = gather(runs(name))
    assert report.metric == "return" and report.higher_is_better and report.score is not None
    assert report.validations[-1].scores["return"] is not None
    assert report.attention is not None and report.attention.layers == ["layer 1"]
    write_html(tmp_path / "page.html", "agents", [report, dataclasses.replace(report, seed=1)], [summary([report])])
    write_png(tmp_path / "page.png", [report])
    assert '"metrics":["return","length","entropy","loss"]' in (tmp_path / "page.html").read_text()
