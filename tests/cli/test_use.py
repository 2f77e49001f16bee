"""Commands on a trained run, as a person types them: write text, go on another day."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.train import Run
from tests.commands import stairwell

SIZES = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trainings: `text` of characters, `bytes`, `walk` and `walk-xl` of the random walk."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    paths = {"task.path": str(folder / "text.txt")}
    fit(preset("lm/feedback").with_options({**SIZES, **paths, "task.unit": "characters"}), folder / "text", "cpu")
    fit(preset("lm/staircase").with_options({**SIZES, **paths}), folder / "bytes", "cpu")
    small = {**SIZES, "task.valid_episodes": "4", "train.valid_batch": "2"}
    fit(preset("random-walk/feedback").with_options(small), folder / "walk", "cpu")
    fit(preset("random-walk/transformer-xl").with_options(small), folder / "walk-xl", "cpu")
    return folder


@pytest.mark.parametrize("run", ["text", "bytes"])
def test_two_parts_of_a_text_are_the_text(place: Path, run: str) -> None:
    options = ["--temperature", "1.1", "--top-k", "20", "--repetition-penalty", "1.2", "--stop", "xyzxyz"]
    whole = stairwell(place, "generate", run, "--prompt", "the ", "--seed", "3", "--tokens", "60", *options)
    first = stairwell(
        place, "generate", run, "--prompt", "the ", "--seed", "3", "--tokens", "25", "--save-state", "s", *options
    )
    second = stairwell(place, "generate", run, "--state", "s", "--tokens", "35", "--save-state", "s", *options)
    assert whole.status == first.status == second.status == 0, (whole, first, second)
    # Held back at the end of a part is at most half a character or the beginning of a stop string.
    assert whole.out[:-1].startswith(first.out + second.out)
    assert len(whole.out) - 1 - len(first.out + second.out) <= 5
    assert stairwell(place, "generate", run, "--state", "s", "--prompt", "fox", "--samples", "2").status == 0


def test_several_samples_begin_with_what_one_would_be(place: Path) -> None:
    one = stairwell(place, "generate", "text", "--seed", "5", "--tokens", "30", "--temperature", "1")
    three = stairwell(
        place, "generate", "text", "--seed", "5", "--tokens", "30", "--samples", "3", "--temperature", "1"
    )
    parts = three.out.split("--- ")
    assert len(parts) == 4 and parts[1] == "1 ---\n" + one.out
    assert parts[2][6:] != parts[1][6:]


def test_a_prompt_that_is_no_utf8(place: Path) -> None:
    cut = os.fsdecode("é".encode()[:1])
    line = stairwell(place, "generate", "text", "--prompt", cut).error_line
    assert "not valid UTF-8 at byte 0" in line
    assert stairwell(place, "generate", "bytes", "--prompt", cut, "--tokens", "4").status == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["text", "--prompt", "Ж"], "the character 'Ж' (U+0416) is not in the training text"),
        (["text", "--samples", "2", "--save-state", "s"], "--save-state saves one stream"),
        (["text", "--state", "no-such-file"], "no-such-file"),
        (["text", "--state", "text.txt"], "text.txt is not a readable stream"),
        (["text", "--top-p", "2"], "top_p must be above 0 and at most 1"),
        (["walk"], "only runs of the task 'lm' generate text"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_mistakes_are_told_in_one_line(place: Path, arguments: list[str], told: str) -> None:
    assert told in stairwell(place, "generate", *arguments).error_line


def test_parameters_that_are_not_numbers_are_told_in_one_line(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "text", tmp_path / "text")
    run = Run(tmp_path / "text")
    tensors, note = run.load_model()
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    run.save_model(tensors, note)
    assert "NaN or infinity" in stairwell(tmp_path, "generate", "text").error_line


def test_two_runs_stand_on_one_page(place: Path) -> None:
    done = stairwell(place, "export", "walk", "walk-xl", "--html", "page.html")
    page = (place / "page.html").read_text()
    assert done.status == 0 and done.out.startswith("page.html: 0."), done
    assert "Feedback" in page and "Transformer-XL" in page
    assert stairwell(place, "export", "text", "--html", "text.html").status == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["walk"], "choose an output"),
        (["walk", "text", "--html", "x.html"], "was trained for something else"),
        (["nowhere", "--html", "x.html"], "nowhere"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_what_cannot_be_exported_is_told_in_one_line(place: Path, arguments: list[str], told: str) -> None:
    assert told in stairwell(place, "export", *arguments).error_line


def test_a_graph_is_written_by_name(place: Path) -> None:
    done = stairwell(place, "export", "text", "--onnx", "text.onnx")
    assert done.status == 0 and done.out == "text.onnx: token, count, memory -> logits, countN, memoryN\n", done
    assert done.err == ""
    assert "only an HTML page can contain several models" in stairwell(place, "export", "walk", "walk-xl", "--onnx", "x.onnx").error_line


def test_a_folder_for_hugging_face_is_written(place: Path) -> None:
    done = stairwell(place, "export", "text", "--hf", "hf")
    assert done.status == 0 and done.out.startswith("hf: import stairwell.hf"), done
    names = {path.name for path in (place / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "predicts its own 4 symbols, not 64 labels" in stairwell(place, "export", "walk", "--hf", "other").error_line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["walk"], "only runs of the task 'lm' generate text"),
        (["text", "--token-file", "nowhere"], "nowhere"),
        (["text", "--token-file", "text.txt"], "must have one token of at least 8"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_what_cannot_be_served_is_told_in_one_line(place: Path, arguments: list[str], told: str) -> None:
    assert told in stairwell(place, "serve", *arguments).error_line
