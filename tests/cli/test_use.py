"""`stairwell generate`, `export` and `serve` on trained runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.runs.run import Run
from tests.commands import stairwell

SIZES = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs: `text` of characters, `bytes`, `walk` and `walk-xl` of the random walk."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    paths = {"task.path": str(folder / "text.txt")}
    fit(preset("lm/feedback").with_options({**SIZES, **paths, "task.unit": "characters"}), folder / "text", "cpu")
    fit(preset("lm/staircase").with_options({**SIZES, **paths}), folder / "bytes", "cpu")
    small = {**SIZES, "task.valid_episodes": "4", "train.valid_batch": "2"}
    fit(preset("random-walk/feedback").with_options(small), folder / "walk", "cpu")
    fit(preset("random-walk/transformer-xl").with_options(small), folder / "walk-xl", "cpu")
    return folder


@pytest.mark.parametrize("run", ["text", "bytes"])
def test_a_saved_stream_continues_the_text(folder: Path, run: str) -> None:
    options = ["--temperature", "1.1", "--top-k", "20", "--repetition-penalty", "1.2", "--stop", "xyzxyz"]
    whole = stairwell(folder, "generate", run, "--prompt", "the ", "--seed", "3", "--tokens", "60", *options)
    first = stairwell(
        folder, "generate", run, "--prompt", "the ", "--seed", "3", "--tokens", "25", "--save-state", "s", *options
    )
    second = stairwell(folder, "generate", run, "--state", "s", "--tokens", "35", "--save-state", "s", *options)
    assert whole.status == first.status == second.status == 0, (whole, first, second)
    # At the end of a part at most an incomplete character or the start of a stop string is held back.
    assert whole.out[:-1].startswith(first.out + second.out)
    assert len(whole.out) - 1 - len(first.out + second.out) <= 5
    assert stairwell(folder, "generate", run, "--state", "s", "--prompt", "fox", "--samples", "2").status == 0


def test_the_prompt_is_printed_on_request(folder: Path) -> None:
    options = ["text", "--prompt", "the quick", "--seed", "3", "--tokens", "20"]
    plain, echoed = (stairwell(folder, "generate", *options, *more).out for more in ([], ["--echo"]))
    assert echoed == "the quick" + plain
    several = stairwell(folder, "generate", *options, "--echo", "--samples", "2").out
    assert several.startswith(f"--- 1 ---\n{echoed}--- 2 ---\nthe quick")
    stairwell(folder, "generate", *options, "--save-state", "echo-state")
    continued = stairwell(folder, "generate", "text", "--state", "echo-state", "--prompt", "fox", "--echo")
    assert continued.out.startswith("fox"), "the prompt of a state was printed before"


def test_the_first_of_several_samples_is_the_single_one(folder: Path) -> None:
    one = stairwell(folder, "generate", "text", "--seed", "5", "--tokens", "30", "--temperature", "1")
    three = stairwell(
        folder, "generate", "text", "--seed", "5", "--tokens", "30", "--samples", "3", "--temperature", "1"
    )
    parts = three.out.split("--- ")
    assert len(parts) == 4 and parts[1] == "1 ---\n" + one.out
    assert parts[2][6:] != parts[1][6:]


def test_a_prompt_with_invalid_utf8(folder: Path) -> None:
    cut = os.fsdecode("é".encode()[:1])
    line = stairwell(folder, "generate", "text", "--prompt", cut).error_line
    assert "not valid UTF-8 at byte 0" in line
    assert stairwell(folder, "generate", "bytes", "--prompt", cut, "--tokens", "4").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text", "--prompt", "Ж"], "--prompt: the character 'Ж' (U+0416) is not in the training text"),
        (["text", "--samples", "2", "--save-state", "s"], "--save-state saves one stream"),
        (["text", "--state", "no-such-file"], "no-such-file"),
        (["text", "--state", "text.txt"], "text.txt is not a readable stream"),
        (["text", "--top-p", "2"], ": --top-p must be above 0 and at most 1"),
        (["walk"], "only runs of the task 'lm' generate text"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_generate_rejects_mistakes_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    assert message in stairwell(folder, "generate", *arguments).error_line


def test_nan_parameters_are_rejected_in_one_line(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "text", tmp_path / "text")
    run = Run(tmp_path / "text")
    tensors, note = run.load_model()
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    run.save_model(tensors, note)
    assert "NaN or infinity" in stairwell(tmp_path, "generate", "text").error_line


def test_two_runs_are_exported_to_one_page(folder: Path) -> None:
    done = stairwell(folder, "export", "walk", "walk-xl", "--html", "page.html")
    page = (folder / "page.html").read_text()
    assert done.status == 0 and done.out.startswith("page.html: 0."), done
    assert "Feedback" in page and "Transformer-XL" in page
    assert stairwell(folder, "export", "text", "--html", "text.html").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walk"], "choose an output"),
        (["walk", "text", "--html", "x.html"], "were trained for different tasks or vocabularies"),
        (["nowhere", "--html", "x.html"], "nowhere"),
        (["walk", "--html", "x.html", "--weights", "int8"], "--weights is only read with --c, or with --html of a"),
        (["walk", "--html", "x.html", "--name", "walk"], "--name is only read with --c"),
        (["walk", "--c", "walk.cpp"], "--c walk.cpp does not end in .c"),
        (
            ["walk", "--c", "2 walk.c"],
            "--name is not given, and that of the file, '2_walk' cannot start the names of C",
        ),
        (["walk", "--c", "walk.c", "--name", "a-b"], "--name 'a-b' cannot start the names of C functions"),
        (["walk", "--c", "walk.c", "--weights", "bfloat16"], "--weights bfloat16: a C file has parameters in float32"),
        (["walk", "walk-xl", "--c", "walk.c"], "only an HTML page can contain several models"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_export_rejects_mistakes_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    assert message in stairwell(folder, "export", *arguments).error_line


def test_an_onnx_graph_has_named_inputs_and_outputs(folder: Path) -> None:
    done = stairwell(folder, "export", "text", "--onnx", "text.onnx")
    assert done.status == 0 and done.out == "text.onnx: token, count, memory -> logits, countN, memoryN\n", done
    assert done.err == ""
    assert (
        "only an HTML page can contain several models"
        in stairwell(folder, "export", "walk", "walk-xl", "--onnx", "x.onnx").error_line
    )


def test_an_agent_is_exported_as_a_graph(folder: Path) -> None:
    done = stairwell(folder, "export", "corridor-feedback", "--torch-export", "agent.pt2")
    assert done.status == 0 and done.err == "", done
    assert done.out == "agent.pt2: observation, start, count, memory -> action, logits, value, countN, memoryN\n", done
    rejected = stairwell(folder, "export", "corridor-feedback", "--onnx", "agent.onnx", "--hf", "hf")
    assert "--hf: Hugging Face transformers has no agents" in rejected.error_line
    assert not (folder / "agent.onnx").exists()


def test_a_c_file_and_its_header_are_exported(folder: Path) -> None:
    for weights in ("float32", "int8"):
        done = stairwell(folder, "export", "walk", "--c", "walk.c", "--name", "track", "--weights", weights)
        assert done.status == 0 and done.out.startswith("walk.c, walk.h: "), done
        assert f"bytes in {weights}" in (folder / "walk.h").read_text()
        assert "int track_step(" in (folder / "walk.c").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corridor-feedback", "--html", "x.html", "--episodes", "2"], "--episodes: the page plays this environment"),
        (["corridor-feedback", "--torch-export", "x.pt2", "--episodes", "2"], "--episodes is only read with --html"),
        (["walk", "--html", "x.html", "--episodes", "2"], "--episodes: only the page of an agent"),
        (["corridor-feedback", "walk", "--html", "x.html"], "the page of an agent expects a run of the family 'rl'"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_export_of_agents_names_mistakes(folder: Path, arguments: list[str], message: str) -> None:
    assert message in stairwell(folder, "export", *arguments).error_line
    assert not (folder / "x.html").exists() and not (folder / "x.pt2").exists()


def test_a_folder_for_hugging_face_is_exported(folder: Path) -> None:
    done = stairwell(folder, "export", "text", "--hf", "hf")
    assert done.status == 0 and done.out.startswith("hf: import stairwell.hf"), done
    names = {path.name for path in (folder / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert (
        "which does not predict its next input token" in stairwell(folder, "export", "walk", "--hf", "other").error_line
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walk"], "only runs of the task 'lm' generate text"),
        (["text", "--token-file", "nowhere"], "nowhere"),
        (["text", "--token-file", "text.txt"], "must have one token of at least 8"),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_serve_rejects_mistakes_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    assert message in stairwell(folder, "serve", *arguments).error_line


def test_parameters_with_fewer_bits(folder: Path) -> None:
    """`generate` and `eval` accept --weights. Results of rounded parameters are not written to the run folder."""
    generate = ["generate", "text", "--prompt", "the ", "--seed", "3", "--tokens", "20", "--temperature", "0"]
    for bits in ("float32", "bfloat16", "int8"):
        assert stairwell(folder, *generate, "--weights", bits).status == 0
    scores = [
        json.loads(stairwell(folder, "eval", "text", "--json", "--weights", bits).out) for bits in ("float32", "int8")
    ]
    exact, rounded = (score["loss"] for score in scores)
    assert exact != rounded and abs(exact - rounded) < 0.01
    assert json.loads((folder / "text/test_scores.json").read_text())["loss"] == exact
    assert stairwell(folder, "eval", "walk", "--horizon", "50", "--weights", "int8").status == 0
    assert not (folder / "walk/horizon.json").exists()
    wrong = stairwell(folder, "generate", "text", "--weights", "int4")
    assert wrong.status == 2 and "--weights must be float32, bfloat16 or int8, not 'int4'" in wrong.err
