"""Watching an agent: pictures with attention beside them, GIFs, the mean return with its spread, and its report."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stairwell.errors import UserError
from stairwell.report import gather, summary, write_html, write_png
from stairwell.rl.episodes import Episode, Played
from stairwell.rl.render import as_text, beside, frames, stacked, strip, write_gif
from stairwell.runs.launch import fit, load
from tests.commands import TINY, stairwell
from tests.rl.test_rollouts import experiment

RUNS = {
    "corridor": {},
    "maze": {
        "task__env": "maze-navigation",
        "task__length": None,
        "task__side": 5,
        "task__targets": 2,
        "task__steps": 9,
    },
    "cart": {"task__env": "CartPole-v1", "task__length": None},
    "grid": {"task__env": "MiniGrid-Empty-5x5-v0", "task__length": None},
    "cards": {"task__env": "popgym-AutoencodeEasy-v0", "task__length": None},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(name: str, core: str = "feedback") -> Path:
        if (name, core) not in made:
            options: dict[str, Any] = {**RUNS[name], "train__steps": 3, "task__valid_episodes": 1}
            fit(experiment(f"rl/{core}", **options), folder / f"{name}-{core}", "cpu")
            made[name, core] = folder / f"{name}-{core}"
        return made[name, core]

    return run


@pytest.mark.parametrize("name", ["corridor", "maze", "grid"])
def test_every_frame_has_a_picture_and_the_attention_to_each_slot_beside_it(name: str, runs: Any) -> None:
    agent, task = load(runs(name), "cpu")
    played = Played()
    shown = list(frames(agent, task, 2, seed=3, played=played))
    assert [frame.over for frame in shown].count(True) == 2 and shown[-1].over
    assert len(shown) == sum(episode.length for episode in played.episodes)
    for frame in shown:
        assert frame.picture is not None and frame.picture.dtype == np.uint8
        (weights,) = frame.attention  # one layer
        # An episode's first frame has nothing to remember; later ones share 1 among at most three slots.
        assert weights.sum() == pytest.approx(0 if frame.step == 1 else 1, abs=1e-5) and len(weights) <= 3
        whole = beside(frame)
        assert whole.shape[0] > frame.picture.shape[0] or whole.shape[1] > frame.picture.shape[1]
        assert np.array_equal(whole[: frame.picture.shape[0], : frame.picture.shape[1]], frame.picture)
    again = list(frames(agent, task, 2, seed=3))
    assert [frame.action for frame in again] == [frame.action for frame in shown]
    assert [frame.action for frame in frames(agent, task, 2, seed=4)] != [frame.action for frame in shown]


def test_a_core_without_attention_is_shown_without_it(runs: Any) -> None:
    agent, task = load(runs("corridor", "lstm"), "cpu")
    frame = next(frames(agent, task, 1, seed=0))
    assert frame.attention == [] and frame.picture is not None
    assert np.array_equal(beside(frame), frame.picture)


def test_an_environment_without_pictures_is_shown_in_words(runs: Any, tmp_path: Path) -> None:
    pytest.importorskip("popgym")
    agent, task = load(runs("cards"), "cpu")
    first, second, *_ = frames(agent, task, 1, seed=0)
    assert first.picture is None and first.observed.startswith("0 1; 1 ")  # watching, and a suit
    assert beside(second).any()  # its attention
    episode = gather(runs("cards")).episode
    assert episode is not None and episode.width == 0 and episode.steps[0].observed.startswith("0 1; 1 ")
    assert stairwell(tmp_path, "play", runs("cards"), "--episodes", "1", "--json").status == 0


def test_actions_have_the_names_that_their_environment_gives_them(runs: Any) -> None:
    agent, task = load(runs("grid"), "cpu")
    known = {"left", "right", "forward", "pickup", "drop", "toggle", "done"}
    words = {frame.action for frame in frames(agent, task, 1, seed=0)}
    assert len(words) > 1 and words <= known
    assert list(task.open(range(1), 0).action_names)[2] == "forward"


def test_who_has_no_pillow_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="which writes GIFs: pip install 'stairwell\\[rl\\]'"):
        write_gif(tmp_path / "x.gif", [np.zeros((2, 2, 3), np.uint8)], 8)


def episode(*rewards: float) -> Episode:
    played = Episode()
    for reward in rewards:
        played.add(reward, idle=False)
    return played


@pytest.mark.parametrize(
    ("episodes", "success"),
    [
        ([(0, 0, 1), (0,), (0, -1), (0, 0.5)], 0.5),  # paid at the end, as in a corridor
        ([(-0.1, -0.1, 1), (-0.1, 0), (-0.1,), (1,)], 0.5),  # with a penalty for every step, as in a T-maze
        ([(0, 0), (0, 0, 0)], 0.0),  # nobody succeeded
        ([(1, 1, 1), (1,)], None),  # a reward for every step, as in CartPole
        ([(0, 1, 0, 0), (0, 0)], None),  # rewards along the way, as in a maze
        ([(-1, -1), (-1, -16)], None),  # penalties only, as in Pendulum
    ],
)
def test_success_is_told_only_where_rewards_tell_it(episodes: list[Any], success: float | None) -> None:
    scores = Played([episode(*rewards) for rewards in episodes]).scores()
    assert scores.get("success") == success
    assert scores["return"] == pytest.approx(sum(map(sum, episodes)) / len(episodes))
    assert scores["length"] == pytest.approx(sum(map(len, episodes)) / len(episodes))


def test_pictures_are_put_together_and_drawn_for_a_terminal() -> None:
    one, other = np.full((4, 6, 3), 200, np.uint8), strip(np.array([0.5, 0.25]), size=4)
    both = stacked([one, other])
    assert both.shape == (4 + 8 + 4, 8, 3) and np.array_equal(both[:4, :6], one) and not both[4:12].any()
    assert other[2, 2].tolist() == [255, 196, 61] and other[2, 6].tolist() < [255, 196, 61]
    text = as_text(np.array([[[1, 2, 3]], [[4, 5, 6]]], np.uint8), 10)
    assert text == "\x1b[38;2;1;2;3m\x1b[48;2;4;5;6m▀\x1b[0m"
    assert len(as_text(np.zeros((40, 100, 3), np.uint8), 20).splitlines()) == 4


def test_play_tells_the_mean_return_with_its_spread_and_writes_a_gif(runs: Any, tmp_path: Path) -> None:
    run = runs("maze")
    done = stairwell(tmp_path, "play", run, "--episodes", "3", "--seed", "5", "--gif", "out.gif", "--json")
    scores = json.loads(done.out)
    assert scores["episodes"] == 3 and scores["length"] == 9 and scores["seed"] == 5
    assert {"return", "return_deviation", "return_interval"} <= set(scores)
    assert done.err.splitlines() == [f"episode {i}: return {r} in 9 steps" for i, r in returns(done.err)]
    from PIL import Image

    assert Image.open(tmp_path / "out.gif").n_frames == 27
    again = stairwell(tmp_path, "play", run, "--episodes", "3", "--seed", "5", "--json", "--quiet")
    assert json.loads(again.out) == scores and again.err == ""


def returns(lines: str) -> list[tuple[int, str]]:
    return [(i, line.split("return ")[1].split()[0]) for i, line in enumerate(lines.splitlines(), start=1)]


def test_play_takes_agents_only_and_generate_does_not(runs: Any, tmp_path: Path) -> None:
    assert stairwell(tmp_path, "train", "parity/lstm", *TINY, "--steps", "2", "--out", "lm", "--quiet").status == 0
    line = stairwell(tmp_path, "play", "lm").line
    assert "play takes the run of a model of the kind 'agent'; this one is of the kind 'language'" in line
    assert "is no language model" in stairwell(tmp_path, "generate", runs("corridor")).line


@pytest.mark.parametrize("name", ["corridor", "cart"])
def test_a_report_shows_learning_curves_of_returns_and_attention(name: str, runs: Any, tmp_path: Path) -> None:
    report = gather(runs(name))
    assert report.metric == "return" and report.higher_is_better and report.score is not None
    assert report.validations[-1].scores["return"] is not None
    assert report.attention is not None and report.attention.layers == ["layer 1"]
    write_html(tmp_path / "page.html", "agents", [report, dataclasses.replace(report, seed=1)], [summary([report])])
    write_png(tmp_path / "page.png", [report])
    assert '"metrics":["return","length","entropy","loss"]' in (tmp_path / "page.html").read_text()
