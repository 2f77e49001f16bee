"""An agent's episode on a page: what is stepped through is what was played, and it stays small."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stairwell.report import RunReport, gather, write_html, write_png
from stairwell.report.episode import Drawn, Episode, as_png, layer_names
from stairwell.rl.evaluation import split_seed
from stairwell.rl.render import render_episodes
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from tests.export.test_page import BROWSER, open_page
from tests.report.test_report import Page
from tests.rl.small_runs import run_config

MAZE = {"task__env": "maze-navigation", "task__length": None, "task__side": 5, "task__targets": 2, "task__steps": 30}
RUNS: dict[str, dict[str, Any]] = {
    "feedback": MAZE,
    "lstm": MAZE,
    "staircase": {**MAZE, "core__chunk": 2, "core__passes": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("played")
    for core, options in RUNS.items():
        made = run_config(f"rl/{core}", **options, train__steps=8, task__valid_episodes=1)
        fit(made, place / core, "cpu")
    return {core: place / core for core in RUNS}


@pytest.fixture(scope="module")
def runs(folders: dict[str, Path]) -> dict[str, RunReport]:
    return {core: gather(folder) for core, folder in folders.items()}


def pixels(address: str, form: str = "png") -> Any:
    start = f"data:image/{form};base64,"
    assert address.startswith(start)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.removeprefix(start)))).convert("RGB"))


def pictures(episode: Episode) -> list[Any]:
    """What the page's script draws: pieces, one over the other."""
    canvas, found = np.zeros((episode.height, episode.width, 3), np.uint8), []
    for step in episode.steps:
        if step.patch is not None:
            piece = pixels(step.patch.image)
            canvas[step.patch.y : step.patch.y + len(piece), step.patch.x : step.patch.x + piece.shape[1]] = piece
        found.append(canvas.copy())
    return found


def episode_of(run: RunReport) -> Episode:
    assert run.episode is not None
    return run.episode


def test_an_episode_is_the_first_of_the_test_split_as_it_was_played(
    runs: dict[str, RunReport], folders: dict[str, Path]
) -> None:
    episode = episode_of(runs["feedback"])
    agent, task = load(folders["feedback"], "cpu")
    shown = list(render_episodes(agent, task, 1, split_seed(0, "test")))
    assert len(episode.steps) == len(shown) == 30 and episode.ended
    assert episode.layers == ["layer 1"] and episode.first == 1
    for step, frame, picture in zip(episode.steps, shown, pictures(episode), strict=True):
        assert (step.action, step.reward) == (frame.action, frame.reward)
        assert step.value == pytest.approx(frame.value, rel=1e-3)
        assert np.array_equal(picture, frame.image)
        np.testing.assert_allclose(step.attention, np.stack(frame.attention) * 1000, atol=0.51)


def test_a_piece_holds_what_has_changed_and_nothing_where_nothing_has() -> None:
    first = np.full((20, 30, 3), 7, np.uint8)
    second = first.copy()
    second[4:6, 10:13] = 90
    drawn = Drawn()
    pieces = [drawn.next(picture) for picture in (first, second, second)]
    assert pieces[0] is not None and pixels(pieces[0].image).shape == first.shape
    assert pieces[1] is not None and (pieces[1].x, pieces[1].y) == (10, 4)
    assert np.array_equal(pixels(pieces[1].image), second[4:6, 10:13])
    assert pieces[2] is None and (drawn.width, drawn.height) == (30, 20)


def test_few_colors_are_exact_and_more_of_them_small() -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 256, (256, 3)).astype(np.uint8)[rng.integers(0, 256, (40, 50))]
    assert np.array_equal(pixels(as_png(few)), few)
    gray = np.linspace(0, 255, 900 * 481).astype(np.uint8).reshape(900, 481)
    piece = Drawn().next(np.stack([gray] * 3, -1))
    assert piece is not None and pixels(piece.image).shape == (450, 241, 3)
    many = Drawn()
    piece = many.next(rng.integers(0, 256, (300, 200, 3)).astype(np.uint8))
    assert piece is not None and pixels(piece.image, "jpeg").shape == (150, 100, 3)
    assert (many.width, many.height) == (100, 150)


def test_models_that_attend_several_times_say_so_and_one_without_attention_has_none(
    runs: dict[str, RunReport],
) -> None:
    assert episode_of(runs["lstm"]).layers == [] and episode_of(runs["lstm"]).steps[5].attention == []
    episode = episode_of(runs["staircase"])
    assert episode.layers == ["pass 1, layer 1", "pass 2, layer 1"] and episode.first == 0
    assert all(len(step.attention) == 2 for step in episode.steps)
    assert layer_names(2, 2) == ["layer 1", "layer 2"]


def test_a_long_episode_is_cut_where_its_room_ends(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stairwell.report.episode.ROOM", 6_000)
    short = episode_of(gather(folders["feedback"]))
    assert 1 < len(short.steps) < 30 and not short.ended
    monkeypatch.setattr("stairwell.report.episode.STEPS", 2)
    assert len(episode_of(gather(folders["feedback"])).steps) == 2


def test_a_page_has_an_episode_of_each_model_and_both_curves(runs: dict[str, RunReport], tmp_path: Path) -> None:
    again = dataclasses.replace(runs["feedback"], seed=1, config=runs["feedback"].config)
    write_html(tmp_path / "page.html", "maze", [runs["feedback"], again, runs["lstm"]])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    data = json.loads(page.data)
    assert [episode["name"] for episode in data["played"]] == ["Feedback", "LSTM"]
    assert len(data["played"][0]["steps"]) == 30
    assert data["metrics"] == ["return", "length", "entropy", "loss"] and data["unit"] == "frames"
    assert [len(model["runs"]) for model in data["models"]] == [2, 1]
    curves = data["models"][0]["runs"][0]["curves"]
    assert len(curves["return"]) == len(curves["length"]) == len(curves["tokens"]) > 1 and "measured" not in curves
    assert "An episode, step by step" in page.words and "frames trained on" in page.words
    assert any(words.startswith("stairwell/MazeNavigation-v0 (side 5") for words in page.words)
    assert not page.links and len(text) < 500_000
    write_png(tmp_path / "curves.png", [runs["feedback"], runs["lstm"]])


def test_episodes_beyond_a_pages_room_are_named_and_left_out(
    runs: dict[str, RunReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(json.dumps(dataclasses.asdict(episode_of(runs["lstm"]))))
    monkeypatch.setattr("stairwell.report.played_page.ROOM", size)
    write_html(tmp_path / "page.html", "maze", [runs["lstm"], runs["feedback"]])
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [episode["name"] for episode in json.loads(page.data)["played"]] == ["LSTM"]
    assert any("There is no room for Feedback." in words for words in page.words)


def test_a_report_is_made_where_the_environment_is_gone(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stairwell.errors import UserError

    def gone(*_: Any, **__: Any) -> Any:
        raise UserError("no such environment")

    monkeypatch.setattr("stairwell.rl.task.make_vec_env", gone)
    run = gather(folders["feedback"])
    assert run.episode is None and run.attention is None
    write_html(tmp_path / "page.html", "maze", [run])
    assert "An episode, step by step" not in (tmp_path / "page.html").read_text(encoding="utf-8")


# Chromium decodes images on another thread, which its virtual clock does not wait for. Loading an image delays the
# page's load event, and drawing a loaded image decodes it synchronously, so the probe below finds the canvas drawn.
LOADED = """<head><script>HTMLImageElement.prototype.decode = function () {
  return this.complete ? Promise.resolve() : new Promise((done) => this.addEventListener("load", done));
};</script>"""
PROBE = """<script>addEventListener("load", async () => {
  const root = document.querySelector("[data-played]"), slider = root.querySelector("input"), said = [];
  const key = (at, name) => at.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const see = () => said.push([slider.value, root.querySelector(".past figcaption").textContent]);
  for (const name of ["Home", "ArrowRight", "ArrowLeft", "ArrowLeft", "End"]) {
    key(root.querySelector("button"), name);
    see();
  }
  slider.value = 7;
  slider.dispatchEvent(new Event("input"));
  see();
  await new Promise((done) => setTimeout(done, 300));
  const scene = root.querySelector("canvas");
  const { data: drawn } = scene.getContext("2d").getImageData(0, 0, scene.width, scene.height);
  document.body.textContent = JSON.stringify({ said, pixels: [...drawn].filter((_, i) => i % 4 < 3) });
});</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
def test_a_page_is_stepped_through_by_keys_and_slider_and_draws_what_was_seen(
    runs: dict[str, RunReport], tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    write_html(path, "maze", [runs["feedback"]])
    page = path.read_text(encoding="utf-8").replace("<head>", LOADED).replace("</body>", PROBE)
    path.write_text(page, encoding="utf-8")
    found = json.loads(re.sub(r"<[^>]+>", "", open_page(path, "--dump-dom").partition("<body>")[2]))
    assert [step for step, _ in found["said"]] == ["0", "1", "0", "0", "29", "7"]
    assert found["said"][0][1] == "remembers nothing yet" and "step 0: 100%" in found["said"][1][1]
    assert np.array_equal(np.array(found["pixels"]), pictures(episode_of(runs["feedback"]))[7].ravel())
