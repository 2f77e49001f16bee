"""Episodes of agents on a page: exact images, size limits, and the controls in a browser."""

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
from stairwell.report.compare import group_models
from stairwell.report.episode import PatchEncoder, RecordedEpisode, layer_names, png_url
from stairwell.report.page import collect_episodes
from stairwell.rl.evaluation import split_seed
from stairwell.rl.render import render_episodes
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from tests.export.test_page import BROWSER, open_page
from tests.report.test_report import Page
from tests.rl.small_runs import run_config

MAZE = {
    "task__env": "maze-navigation",
    "task__length": None,
    "task__side": 5,
    "task__targets": 2,
    "task__max_steps": 30,
}
RUNS: dict[str, dict[str, Any]] = {
    "feedback": MAZE,
    "lstm": MAZE,
    "staircase": {**MAZE, "core__chunk": 2, "core__passes": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for core, options in RUNS.items():
        config = run_config(f"rl/{core}", **options, train__steps=8, task__valid_episodes=1)
        fit(config, root / core, "cpu")
    return {core: root / core for core in RUNS}


@pytest.fixture(scope="module")
def runs(folders: dict[str, Path]) -> dict[str, RunReport]:
    return {core: gather(folder) for core, folder in folders.items()}


def pixels(url: str, file_format: str = "png") -> Any:
    start = f"data:image/{file_format};base64,"
    assert url.startswith(start)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix(start)))).convert("RGB"))


def images(episode: RecordedEpisode) -> list[Any]:
    """Return the images as the script of the page draws them, patch over patch."""
    canvas, drawn = np.zeros((episode.height, episode.width, 3), np.uint8), []
    for step in episode.steps:
        if step.patch is not None:
            patch = pixels(step.patch.image)
            canvas[step.patch.y : step.patch.y + len(patch), step.patch.x : step.patch.x + patch.shape[1]] = patch
        drawn.append(canvas.copy())
    return drawn


def episode_of(run: RunReport) -> RecordedEpisode:
    assert run.episode is not None
    return run.episode


def test_episode_is_the_first_of_the_test_split(runs: dict[str, RunReport], folders: dict[str, Path]) -> None:
    episode = episode_of(runs["feedback"])
    agent, task = load(folders["feedback"], "cpu")
    frames = list(render_episodes(agent, task, 1, split_seed(0, "test")))
    assert len(episode.steps) == len(frames) == 30 and episode.done
    assert episode.layers == ["layer 1"] and episode.first == 1
    for step, frame, image in zip(episode.steps, frames, images(episode), strict=True):
        assert (step.action, step.reward) == (frame.action, frame.reward)
        assert step.value == pytest.approx(frame.value, rel=1e-3)
        assert np.array_equal(image, frame.image)
        np.testing.assert_allclose(step.attention, np.stack(frame.attention) * 1000, atol=0.51)


def test_patch_is_the_rectangle_that_changed() -> None:
    first = np.full((20, 30, 3), 7, np.uint8)
    second = first.copy()
    second[4:6, 10:13] = 90
    encoder = PatchEncoder()
    patches = [encoder.encode(image) for image in (first, second, second)]
    assert patches[0] is not None and pixels(patches[0].image).shape == first.shape
    assert patches[1] is not None and (patches[1].x, patches[1].y) == (10, 4)
    assert np.array_equal(pixels(patches[1].image), second[4:6, 10:13])
    assert patches[2] is None and (encoder.width, encoder.height) == (30, 20)


def test_few_colors_are_exact_and_many_are_reduced() -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 256, (256, 3)).astype(np.uint8)[rng.integers(0, 256, (40, 50))]
    assert np.array_equal(pixels(png_url(few)), few)
    gray = np.linspace(0, 255, 900 * 481).astype(np.uint8).reshape(900, 481)
    patch = PatchEncoder().encode(np.stack([gray] * 3, -1))
    assert patch is not None and pixels(patch.image).shape == (450, 241, 3)
    encoder = PatchEncoder()
    patch = encoder.encode(rng.integers(0, 256, (300, 200, 3)).astype(np.uint8))
    assert patch is not None and pixels(patch.image, "jpeg").shape == (150, 100, 3)
    assert (encoder.width, encoder.height) == (100, 150)


def test_layers_are_named_by_pass_and_models_without_attention_have_none(
    runs: dict[str, RunReport],
) -> None:
    assert episode_of(runs["lstm"]).layers == [] and episode_of(runs["lstm"]).steps[5].attention == []
    episode = episode_of(runs["staircase"])
    assert episode.layers == ["pass 1, layer 1", "pass 2, layer 1"] and episode.first == 0
    assert all(len(step.attention) == 2 for step in episode.steps)
    assert layer_names(2, 2) == ["layer 1", "layer 2"]


def test_long_episode_is_cut_at_the_size_limits(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stairwell.report.episode.MAX_CHARACTERS", 6_000)
    short = episode_of(gather(folders["feedback"]))
    assert 1 < len(short.steps) < 30 and not short.done
    monkeypatch.setattr("stairwell.report.episode.MAX_STEPS", 2)
    assert len(episode_of(gather(folders["feedback"])).steps) == 2


def test_page_has_an_episode_of_each_model_and_all_curves(runs: dict[str, RunReport], tmp_path: Path) -> None:
    again = dataclasses.replace(runs["feedback"], seed=1, config=runs["feedback"].config)
    write_html(tmp_path / "page.html", "maze", [runs["feedback"], again, runs["lstm"]])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    data = json.loads(page.data)
    assert [episode["name"] for episode in data["episodes"]] == ["Feedback", "LSTM"]
    assert len(data["episodes"][0]["steps"]) == 30
    assert data["metrics"] == ["return", "length", "entropy", "loss"] and data["unit"] == "frames"
    assert [len(model["runs"]) for model in data["models"]] == [2, 1]
    curves = data["models"][0]["runs"][0]["curves"]
    assert len(curves["return"]) == len(curves["length"]) == len(curves["tokens"]) > 1 and "rl_metrics" not in curves
    assert "Episode" in page.texts and "frames trained on" in page.texts
    assert any(text.startswith("stairwell/MazeNavigation-v0 (side 5") for text in page.texts)
    assert not page.links and len(text) < 500_000
    write_png(tmp_path / "curves.png", [runs["feedback"], runs["lstm"]])


def test_episodes_beyond_the_size_limit_are_omitted_and_named(
    runs: dict[str, RunReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(json.dumps(dataclasses.asdict(episode_of(runs["lstm"]))))
    monkeypatch.setattr("stairwell.report.page.MAX_EPISODE_CHARACTERS", size)
    write_html(tmp_path / "page.html", "maze", [runs["lstm"], runs["feedback"]])
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [episode["name"] for episode in json.loads(page.data)["episodes"]] == ["LSTM"]
    assert any("Omitted to limit the size of the page: Feedback." in text for text in page.texts)


def test_a_too_large_episode_leaves_space_for_those_of_later_models(
    runs: dict[str, RunReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {name: dataclasses.asdict(episode_of(runs[name])) for name in ("feedback", "lstm")}
    sizes = {name: len(json.dumps(value, separators=(",", ":"))) for name, value in fields.items()}
    assert sizes["lstm"] < sizes["feedback"]
    monkeypatch.setattr("stairwell.report.page.MAX_EPISODE_CHARACTERS", sizes["lstm"])
    episodes, omitted = collect_episodes(group_models([runs["feedback"], runs["lstm"]]))
    assert [episode["name"] for episode in episodes] == ["LSTM"] and omitted == ["Feedback"]


def test_report_without_the_environment(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stairwell.errors import UserError

    def unavailable(*_: Any, **__: Any) -> Any:
        raise UserError("no such environment")

    monkeypatch.setattr("stairwell.rl.task.make_vec_env", unavailable)
    run = gather(folders["feedback"])
    assert run.episode is None and run.attention is None
    write_html(tmp_path / "page.html", "maze", [run])
    assert "<h2>Episode</h2>" not in (tmp_path / "page.html").read_text(encoding="utf-8")


# Chromium decodes images on another thread, which its virtual clock does not wait for. Loading an image delays the
# page's load event, and drawing a loaded image decodes it synchronously, so the probe below finds the canvas drawn.
LOADED = """<head><script>HTMLImageElement.prototype.decode = function () {
  return this.complete ? Promise.resolve() : new Promise((done) => this.addEventListener("load", done));
};</script>"""
PROBE = """<script>addEventListener("load", async () => {
  const root = document.querySelector("[data-episodes]"), slider = root.querySelector("input"), captions = [];
  const key = (target, name) => target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const record = () => captions.push([slider.value, root.querySelector(".attended figcaption").textContent]);
  for (const name of ["Home", "ArrowRight", "ArrowLeft", "ArrowLeft", "End"]) {
    key(root.querySelector("button"), name);
    record();
  }
  slider.value = 7;
  slider.dispatchEvent(new Event("input"));
  record();
  await new Promise((resolve) => setTimeout(resolve, 300));
  const canvas = root.querySelector("canvas");
  const { data: drawn } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  document.body.textContent = JSON.stringify({ captions, pixels: [...drawn].filter((_, i) => i % 4 < 3) });
});</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
def test_keys_and_slider_step_through_the_images(runs: dict[str, RunReport], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_html(path, "maze", [runs["feedback"]])
    page = path.read_text(encoding="utf-8").replace("<head>", LOADED).replace("</body>", PROBE)
    path.write_text(page, encoding="utf-8")
    result = json.loads(re.sub(r"<[^>]+>", "", open_page(path, "--dump-dom").partition("<body>")[2]))
    assert [step for step, _ in result["captions"]] == ["0", "1", "0", "0", "29", "7"]
    assert result["captions"][0][1] == "the memory is empty" and "step 0, 100%" in result["captions"][1][1]
    assert np.array_equal(np.array(result["pixels"]), images(episode_of(runs["feedback"]))[7].ravel())
