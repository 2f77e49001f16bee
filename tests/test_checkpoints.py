"""The trained models that the package ships: they load by name, and their stored parameters have the stated scores."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import stairwell
from stairwell import checkpoints
from stairwell.checkpoints import FOLDER, SAMPLE
from stairwell.errors import UserError
from stairwell.runs.load import find_result, open_run, results_folder
from stairwell.runs.long_streams import measure
from tests.commands import stairwell as command
from tools import checkpoints as tool

NAMES = checkpoints.names()
ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 1_000_000
OTHER = "s5-32-feedback"


def hash_of(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def equal(found: Any, stated: Any) -> bool:
    """Compare scores. Other processors round differently in the last digits."""
    return math.isclose(found, stated, rel_tol=1e-4, abs_tol=1e-6) if isinstance(stated, float) else found == stated


def test_every_model_is_shipped() -> None:
    assert sorted(tool.MODELS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_parameters_have_the_scores_of_the_sample(name: str) -> None:
    if name == "memory-s9-feedback":
        pytest.importorskip("minigrid")
    sample = json.loads((FOLDER / name / SAMPLE).read_text(encoding="utf-8"))
    found = tool.sample_scores(FOLDER / name, sample)
    assert found.keys() == sample["scores"].keys()
    assert {key: value for key, value in sample["scores"].items() if not equal(found[key], value)} == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_loads_by_its_name_in_float32(name: str) -> None:
    model, task = stairwell.load(name, device="cpu")
    card = checkpoints.read_card(name)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(parameter.numel() for parameter in model.parameters()) == card["training"]["parameters"]
    assert task.primary_metric in card["scores"]["test"]


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_generated_and_has_a_valid_header(name: str) -> None:
    text = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    assert text == tool.card_text(name)
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["license"] and header["library_name"] == "stairwell" and header["pipeline_tag"]
    (index,) = header["model-index"]
    assert index["name"] == name and index["results"][0]["metrics"]
    for section in ("## Use", "## Scores", "## Training", "## Training data", "## Limits"):
        assert section in text


def test_sizes() -> None:
    sizes = [checkpoints.size_of(name) for name in NAMES]
    assert all(0.1 * MEGABYTE <= size <= 2 * MEGABYTE for size in sizes)
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 8 * MEGABYTE


def test_no_card_or_config_names_a_private_folder() -> None:
    for path in FOLDER.glob("*/*.*"):
        if path.suffix != ".safetensors":
            text = path.read_text(encoding="utf-8")
            assert "/root" not in text and "/work" not in text and "/home" not in text, path


def test_the_files_are_installed_with_the_package(tmp_path: Path) -> None:
    target = str(tmp_path / "lib")
    build = ["setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", target]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True, timeout=120)
    assert hash_of(tmp_path / "lib" / "stairwell" / "checkpoints") == hash_of(FOLDER)


def test_a_clone_of_a_folder_loads_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub adds .gitattributes and git its own folder."""
    clone = tmp_path / "a-clone"
    shutil.copytree(FOLDER / "corridor-feedback", clone)
    (clone / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", str(clone)], check=True, timeout=60)
    monkeypatch.setattr(socket, "socket", None)
    loaded, _ = stairwell.load(clone, device="cpu")
    shipped, _ = stairwell.load("corridor-feedback", device="cpu")
    for name, tensor in shipped.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_local_folder_outranks_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_run("corridor-feedback").path == FOLDER / "corridor-feedback"
    shutil.copytree(FOLDER / OTHER, "corridor-feedback")
    assert open_run("corridor-feedback").path == Path("corridor-feedback")
    assert stairwell.load("corridor-feedback")[1].primary_metric == "accuracy"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coridor-feedback", "did you mean 'corridor-feedback'?"),
        ("nothing-like-it", "`stairwell list models` lists the models that have a name"),
        ("runs/coridor-feedback", "runs/coridor-feedback is not a run folder: it has no config.json"),
        ("../corridor-feedback", "is not a run folder"),
        ("__pycache__", "is not a run folder"),
    ],
)
def test_a_name_that_does_not_exist(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        stairwell.load(name)
    assert message in str(error.value)


def test_results_about_a_shipped_model_are_written_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = hash_of(FOLDER)
    shipped = find_result(OTHER, "horizon.json")
    measure(OTHER, 64, 1, device="cpu")
    assert results_folder(OTHER) == Path("runs/shipped", OTHER)
    own = find_result(OTHER, "horizon.json")
    assert own != shipped and json.loads(own.read_text(encoding="utf-8"))["tokens"] == 64
    assert hash_of(FOLDER) == before


def test_the_list_of_models(tmp_path: Path) -> None:
    lines = command(tmp_path, "list", "models").out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *NAMES]
    for name, line in zip(NAMES, lines[1:]):
        card = checkpoints.read_card(name)
        assert card["task"] in line and line.endswith(card["score"]) and " MB " in line


COMMANDS = (
        ("eval", "s5-feedback", "--horizon", 1000, "--streams", 1, "--json"),
        ("play", "corridor-feedback", "--episodes", 1, "--quiet", "--json"),
        ("report", OTHER, "corridor-feedback", "--out", "report.html"),
        ("generate", "shakespeare-feedback", "--prompt", "ROMEO:", "--tokens", 5),
        ("export", "s5-feedback", "--html", "page.html"),
        ("export", "multi30k-de-en", "--hf", "exported"),
        ("translate", "multi30k-de-en", "german.txt"),
        ("compare", "multi30k-de-en", "multi30k-de-en"),
        ("tune", "multi30k-de-en"),
        ("serve", "s5-feedback"),
)  # fmt: skip


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: "-".join(map(str, arguments[:2])))
def test_commands_take_names_and_leave_the_shipped_folder_alone(arguments: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "german.txt").write_text("ein hund rennt durch den schnee .\n", encoding="utf-8")
    before = hash_of(FOLDER)
    done = command(tmp_path, *arguments)
    assert hash_of(FOLDER) == before
    if arguments[0] in ("compare", "tune"):  # the data of Multi30k is not shipped
        assert done.error_line.endswith("multi30k-de-en/README.md says where to get it"), done
        assert "https://github.com/multi30k/dataset" in (FOLDER / "multi30k-de-en/README.md").read_text()
    if arguments[0] in ("compare", "tune"):
        assert "multi30k" in done.error_line and "not a run folder" not in done.error_line
    elif arguments[0] == "serve":
        assert "s5-feedback is not a language model" in done.error_line
    else:
        assert done.status == 0, done
    if arguments[0] == "translate":
        assert done.out == "a dog runs through the snow.\n"


def test_a_misspelled_name_on_the_command_line(tmp_path: Path) -> None:
    line = command(tmp_path, "eval", "s5-32-fedback").error_line
    assert line.endswith("s5-32-fedback is not a run folder: it has no config.json; did you mean 's5-32-feedback'?")
