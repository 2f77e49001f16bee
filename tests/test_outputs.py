"""Output paths: no command or function replaces files of the user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stairwell import LanguageModel, LanguageModelConfig, LSTMConfig, outputs, text
from stairwell.errors import UserError
from stairwell.export import GRAPH, ONNX, PAGE, PageModel, export_html, export_onnx, export_torch
from stairwell.files import write_atomically, write_folder, write_text
from stairwell.outputs import OutputType
from stairwell.report import write_html, write_png
from stairwell.report.page import REPORT
from stairwell.report.plots import FIGURE
from stairwell.rl.render import GIF, write_gif
from stairwell.runs.run import Run
from stairwell.state import STATE
from stairwell.stream import STREAM, Stream
from stairwell.text import VOCABULARY
from tests.commands import TINY, Completed, stairwell

BOOK = "the quick brown fox\n" * 60
OPTIONS = [*TINY[: TINY.index("--train.curriculum")], "--task.path", "book.txt", "--steps", "20", "--quiet"]
CORPUS, RUN = "book.txt", "run"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    (folder / CORPUS).write_text(BOOK)
    ended = stairwell(folder, "train", "lm/lstm", *OPTIONS, "--out", RUN)
    assert ended.status == 0, ended
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(f"{RUN}/config.json")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "folder" / "mine.txt").write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, object]:
    """Return every file with its content, and the type of everything else."""
    paths = [path for path in folder.rglob("*") if path.suffix not in (".out", ".err") and path.name != ".lock"]
    return {str(path): path.read_bytes() if path.is_file() else stat.S_IFMT(path.lstat().st_mode) for path in paths}


WRITERS = {
    "export --html": ["export", RUN, "--html"],
    "export --onnx": ["export", RUN, "--onnx"],
    "export --torch-export": ["export", RUN, "--torch-export"],
    "export --hf": ["export", RUN, "--hf"],
    "report --out": ["report", RUN, "--out"],
    "generate --save-state": ["generate", RUN, "--tokens", "3", "--save-state"],
}
REJECTED = [RUN, f"{RUN}/config.json", f"{RUN}/checkpoints/new", f"{RUN}/horizon.json", CORPUS, "link", "pipe",
           "folder", f"{CORPUS}/inside", "loop", "x" * 300, "/dev/null", ".", ""]  # fmt: skip


@pytest.mark.parametrize("command", WRITERS)
def test_commands_reject_paths_that_would_replace_something(command: str, workspace: Path) -> None:
    before = contents(workspace)
    for path in REJECTED:
        line = stairwell(workspace, *WRITERS[command], path).error_line
        assert line.endswith(("choose another path", "or an empty one", "choose a new folder", "or move it away")) or (
            path == "" and "is empty; name a file or a folder" in line
        ), line
    assert contents(workspace) == before


TWICE = [
    (["export", RUN, "--html", "x", "--onnx", "x"], "--html and --onnx both name x"),
    (["export", RUN, "--html", "x", "--hf", "./x"], "--html and --hf both name x"),
    (["export", RUN, "--hf", "x", "--html", "x/page.html"], "one of --html and --hf is inside the other"),
    (["report", RUN, "--out", "page.png"], "--out and its plot of the curves both name page.png"),
]


@pytest.mark.parametrize("arguments, message", TWICE)
def test_a_command_never_writes_to_a_path_twice(arguments: list[str], message: str, workspace: Path) -> None:
    before = contents(workspace)
    assert message in stairwell(workspace, *arguments).error_line
    assert contents(workspace) == before


Write = Callable[[Path], object]


@pytest.fixture(scope="module")
def writers() -> dict[OutputType, Write]:
    """Return a function per output type that writes such a file."""
    core = LSTMConfig(width=4, layers=1)
    model = LanguageModel(LanguageModelConfig(core=core, inputs=256, outputs=256)).eval()
    stream = Stream(model, text.Bytes())
    stream.feed("a")
    return {
        PAGE: lambda path: export_html([PageModel("LSTM", model, text.Bytes())], path),
        ONNX: lambda path: export_onnx(model, path),
        GRAPH: lambda path: export_torch(model, path),
        REPORT: lambda path: write_html(path, "title", []),
        FIGURE: lambda path: write_png(path, []),
        GIF: lambda path: write_gif(path, [np.zeros((4, 4, 3), np.uint8)] * 2, 8),
        STREAM: stream.save,
        STATE: stream.state().save,
        VOCABULARY: text.Bytes().save,
    }


def test_a_file_is_replaced_only_by_one_of_its_type(writers: dict[OutputType, Write], tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"{number}" for number, kind in enumerate(writers)}
    for kind, write in writers.items():
        paths[kind].touch()  # an empty file, such as one of mktemp, may be replaced
        write(paths[kind])
        write(paths[kind])
    for kind in writers:
        for other, path in paths.items():
            if other is not kind:
                with pytest.raises(UserError, match=f"exists and is not {kind.name}"):
                    outputs.check(path, kind)


def test_no_function_replaces_an_unknown_file(writers: dict[OutputType, Write], tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("mine")
    for kind, write in writers.items():
        with pytest.raises(UserError, match=f"mine exists and is not {kind.name}"):
            write(mine)
    assert mine.read_text() == "mine"


def test_run_files_lists_everything_that_commands_write_to_a_run(tmp_path: Path) -> None:
    options = [*TINY, "--train.average", "2", "--steps", "20", "--quiet"]
    assert stairwell(tmp_path, "train", "parity/lstm", *options, "--out", RUN).status == 0
    assert stairwell(tmp_path, "eval", RUN, "--horizon", "50").status == 0
    assert stairwell(tmp_path, "report", RUN, "--inside").status == 0
    assert {path.name for path in (tmp_path / RUN).iterdir()} <= set(outputs.RUN_FILES)
    for name in outputs.RUN_FILES:
        with pytest.raises(UserError, match="belongs to the run"):
            outputs.check(tmp_path / RUN / name, PAGE)
    outputs.check(tmp_path / RUN / "report.html", PAGE)  # users may put new files there


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file"):
        write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_links_and_permissions_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_file_name_of_maximum_length_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("x" * 255), "text")
    assert (tmp_path / ("x" * 255)).read_text() == "text"


def test_an_error_names_the_output_path(tmp_path: Path) -> None:
    def full(temporary: Path) -> None:
        raise OSError("100 requested and 0 written")  # the message of numpy

    with pytest.raises(OSError, match="page: 100 requested"):
        write_atomically(tmp_path / "page", full)
    with pytest.raises(OSError, match="corpus: 100 requested"):
        write_folder(tmp_path / "corpus", full)
    with pytest.raises(FileNotFoundError, match="missing"):  # an error about an input is not changed
        write_atomically(tmp_path / "page", lambda temporary: (tmp_path / "missing").read_text())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_is_written_atomically(exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    if exists:
        folder.mkdir()

    def write(workspace: Path, fails: bool) -> None:
        (workspace / "first").write_text("1")
        (workspace / "below").mkdir()
        (workspace / "below" / "second").write_text("2")
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(folder, lambda workspace: write(workspace, fails=True))
    assert not list(tmp_path.rglob("*")) or list(tmp_path.rglob("*")) == [folder]
    write_folder(folder, lambda workspace: write(workspace, fails=False))
    assert sorted(path.name for path in folder.rglob("*")) == ["below", "first", "second"]
    assert folder.stat().st_mode & 0o555 == 0o555


def test_a_full_disk_is_reported_with_the_path(workspace: Path) -> None:
    for option, *command in (("--save-state", "generate", RUN, "--tokens", "3"), ("--hf", "export", RUN)):
        ended = stairwell(workspace, *command, option, "full", TEST_FILE_LIMIT="300")
        assert ended.status == 1 and ended.err.endswith("stairwell: full: File too large\n"), ended
        assert not list(workspace.glob("full*")) and not list(workspace.glob(".full*"))


def test_missing_permissions_are_found_before_anything_is_measured(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.access is replaced, because root may write everywhere."""
    run = Run(workspace / RUN)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for check in (run.check_writable, run.load_model, lambda: outputs.check(workspace / "new", PAGE)):
        with pytest.raises(UserError, match="no permission"):
            check()


def resume(workspace: Path, *options: str) -> Completed:
    return stairwell(workspace, "train", "--resume", "--out", RUN, *options, "--quiet")


def test_a_run_folder_cannot_contain_other_runs(workspace: Path) -> None:
    before = contents(workspace)
    for command in (["reproduce", "demo", "--updates", "1"], ["train", "parity/lstm", "--seeds", "2"]):
        stairwell(workspace, *command, "--out", RUN).error_line  # noqa: B018  asserts that there is one line
    assert contents(workspace) == before


def test_a_run_that_lost_its_checkpoints_is_not_overwritten(workspace: Path) -> None:
    (workspace / RUN / "checkpoints").rename(workspace / "checkpoints")
    before = contents(workspace)
    for options in ([], ["--steps", "5"], ["--steps", "40"]):
        assert "has no checkpoint to resume from, but a model or metrics" in resume(workspace, *options).error_line
    assert contents(workspace) == before
    (workspace / "checkpoints").rename(workspace / RUN / "checkpoints")
    assert resume(workspace).status == 0


def test_a_run_that_lost_its_config_is_not_overwritten(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / CORPUS).write_text(BOOK)
    for name in ("model.safetensors", "task.json", "metrics.jsonl"):
        (tmp_path / "lost").mkdir(exist_ok=True)
        (tmp_path / "lost" / name).write_bytes((workspace / RUN / name).read_bytes())
    before = contents(tmp_path)
    line = stairwell(tmp_path, "train", "lm/lstm", *OPTIONS, "--out", "lost").error_line
    assert "metrics.jsonl and model.safetensors and task.json, which a run would" in line
    assert contents(tmp_path) == before
    (tmp_path / "lost" / "model.safetensors").unlink()
    (tmp_path / "lost" / "metrics.jsonl").unlink()
    # A run that was killed at its start leaves only task.json, and the same command starts it again.
    assert stairwell(tmp_path, "train", "lm/lstm", *OPTIONS, "--out", "lost").status == 0


def test_an_empty_run_folder_name_is_not_the_current_folder(tmp_path: Path) -> None:
    line = stairwell(tmp_path, "train", "parity/lstm", *TINY, "--out", "").error_line
    assert "the path is empty" in line
    assert contents(tmp_path) == {}


def test_a_run_inside_the_folder_of_its_corpus_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / CORPUS).write_text(BOOK)
    options = [*OPTIONS, "--task.path", "texts/.", "--out", "texts/runs/mine"]
    for command in (
        ["train", "lm/lstm", *options],
        ["train", "--resume", "--out", "texts/runs/mine", "--steps", "21", "--quiet"],
        ["eval", "texts/runs/mine"],
    ):
        ended = stairwell(tmp_path, *command)
        assert ended.status == 0, ended
    assert "language modeling on texts by" in ended.out
