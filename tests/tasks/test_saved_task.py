"""Saved tasks: a run folder is self-contained, and changed data or vocabularies are rejected."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stairwell.errors import UserError
from stairwell.tasks import TASKS, RestorableTask, load_tasks, make_task, saved_task, task_type

TEXT = "".join(f"line {i} says {'x' * (i % 7)}\n" for i in range(200))
UNITS: list[tuple[str, dict[str, Any]]] = [
    ("lm", {"unit": "bytes"}),
    ("lm", {"unit": "characters", "documents": "lines"}),
    ("lm", {"unit": "words", "end_of_line": False}),
    ("lm", {"unit": "bpe", "vocabulary": 280}),
    ("labeled", {}),
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STAIRWELL_CACHE", str(folder))
    return folder


def write_and_make(folder: Path, name: str, options: dict[str, Any]) -> tuple[Any, Path]:
    """Return a task that reads a file, and that file."""
    path = folder / ("text.txt" if name == "lm" else "mine.tokens")
    path.write_text(TEXT if name == "lm" else "a b a\nb b a\n" * 20)
    (folder / "mine.labels").write_text("0 1 -\n1 1 1\n" * 20)
    return make_task(name, task_type(name)[0](path=str(path), **options)), path


def load(name: str, config: Any, folder: Path) -> Any:
    (task,) = load_tasks(name, [config], folder)
    return task


@pytest.mark.parametrize(("name", "options"), UNITS, ids=str)
def test_a_loaded_task_needs_neither_its_files_nor_a_cache(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, path = write_and_make(tmp_path, name, options)
    saved_task.write(tmp_path, name, [task])
    for file in (path, tmp_path / "mine.labels"):
        file.unlink()
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "no cache"))
    loaded = load(name, task.config, tmp_path)
    assert (loaded.inputs, loaded.outputs, loaded.primary_metric) == (task.inputs, task.outputs, task.primary_metric)
    assert loaded.describe() == task.describe() and loaded.score().result().keys() == task.score().result().keys()
    assert {key: v.dumps() for key, v in loaded.vocabularies.items()} == {
        key: v.dumps() for key, v in task.vocabularies.items()
    }
    assert not (tmp_path / "no cache").exists()
    with pytest.raises(UserError, match=r"there is no .*: restore it, or evaluate other data \(--data\)"):
        loaded.batch_source(range(1), 1, 0)


@pytest.mark.parametrize("name", [name for name in TASKS if not issubclass(task_type(name)[1], RestorableTask)])
def test_a_generated_task_needs_no_file(name: str, tmp_path: Path) -> None:
    config = task_type(name)[0]()
    loaded = load(name, config, tmp_path)
    assert loaded.config == config
    saved_task.write(tmp_path, name, [loaded])
    assert json.loads((tmp_path / "task.json").read_text())["phases"][0]["primary_metric"] == loaded.primary_metric


@pytest.mark.parametrize(("name", "options"), UNITS, ids=str)
def test_changed_files_are_rejected_and_unchanged_ones_are_read(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    task, path = write_and_make(tmp_path, name, options)
    saved_task.write(tmp_path, name, [task])
    content = path.read_text()
    loaded = load(name, task.config, tmp_path)
    assert (
        loaded.batch_source(range(2), 2, 0).read(9).tokens.tolist()
        == task.batch_source(range(2), 2, 0).read(9).tokens.tolist()
    )
    path.write_text(content + content[-30 if name == "lm" else -6 :])
    if name == "labeled":
        (tmp_path / "mine.labels").write_text("0 1 -\n1 1 1\n" * 20 + "1 1 1\n")
    for read in (lambda task: task.batch_source(range(1), 1, 0), lambda task: task.batches("test", 1, 5)):
        loaded = load(name, task.config, tmp_path)
        with pytest.raises(UserError, match=r"has changed since the run started \(in train and valid and test\)"):
            read(loaded)
    changed = load(name, task.config, tmp_path).with_data(str(path))
    assert next(iter(changed.batches("test", 1, 5))).tokens.shape == (1, 5)


def test_only_the_splits_that_changed_are_named(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(TEXT)
    task = make_task("lm", task_type("lm")[0](path=str(tmp_path)))
    saved_task.write(tmp_path, "lm", [task])
    (tmp_path / "test.txt").write_text(TEXT.replace("line 7", "line 8"))
    with pytest.raises(UserError, match=r"has changed since the run started \(in test\)"):
        load("lm", task.config, tmp_path).batches("valid", 1, 5)


def test_other_options_keep_the_vocabulary_and_the_check_of_files(tmp_path: Path) -> None:
    task, path = write_and_make(tmp_path, "lm", {"unit": "words", "end_of_line": False})
    saved_task.write(tmp_path, "lm", [task])
    path.write_text(TEXT.replace("line", "word"))
    loaded = load("lm", task.config, tmp_path)
    other = loaded.with_config(dataclasses.replace(task.config, end_of_line=True))
    assert other.inputs == task.inputs
    with pytest.raises(UserError, match="has changed since"):
        other.batches("test", 1, 5)
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text(TEXT)
    moved = loaded.with_config(dataclasses.replace(task.config, path=str(elsewhere)))
    assert moved.inputs == task.inputs and next(iter(moved.batches("test", 1, 5))).tokens.numel()


def test_the_files_of_every_phase_are_checked(tmp_path: Path) -> None:
    task, path = write_and_make(tmp_path, "lm", {"unit": "characters"})
    (tmp_path / "second.txt").write_text(TEXT * 2)
    second = task.with_config(dataclasses.replace(task.config, path=str(tmp_path / "second.txt")))
    saved_task.write(tmp_path, "lm", [task, second])
    (tmp_path / "second.txt").write_text(TEXT)
    loaded: list[Any] = load_tasks("lm", [task.config, second.config], tmp_path)
    first, last = loaded
    assert first.describe() == task.describe() and last.describe() == second.describe()
    assert first.batch_source(range(1), 1, 0)
    with pytest.raises(UserError, match=r"second\.txt has changed since"):
        last.batch_source(range(1), 1, 0)


def delete(path: Path) -> None:
    path.unlink()


def swap_two_tokens(path: Path) -> None:
    content = json.loads(path.read_text())
    tokens = content["vocabularies"]["text"]["tokens"]
    content["vocabularies"]["text"]["tokens"] = tokens[1] + tokens[0] + tokens[2:]
    path.write_text(json.dumps(content))


def remove_the_hash(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["hash"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (delete, r"task\.json is missing, which has the vocabulary of the model"),
        (swap_two_tokens, r"task\.json was changed or damaged after the run wrote it"),
        (remove_the_hash, r"task\.json was changed or damaged"),
        (lambda path: path.write_text("[]"), r"task\.json was changed or damaged"),
        (lambda path: path.write_bytes(b"\xff{"), r"task\.json is not readable JSON"),
    ],
)
def test_a_missing_or_changed_file_is_rejected_even_if_the_data_is_there(
    damage: Any, message: str, tmp_path: Path
) -> None:
    task, _ = write_and_make(tmp_path, "lm", {"unit": "characters"})
    saved_task.write(tmp_path, "lm", [task])
    damage(tmp_path / "task.json")
    with pytest.raises(UserError, match=message) as raised:
        load_tasks("lm", [task.config], tmp_path)
    assert "restore it from a copy of the run" in str(raised.value) and "\n" not in str(raised.value)


def test_the_file_of_another_task_is_rejected(tmp_path: Path) -> None:
    task, _ = write_and_make(tmp_path, "labeled", {})
    saved_task.write(tmp_path, "labeled", [task])
    with pytest.raises(UserError, match=r"is of the task 'labeled', but config\.json is of 'lm'"):
        load_tasks("lm", [task_type("lm")[0]()], tmp_path)


def test_making_a_task_opens_no_file(tmp_path: Path) -> None:
    for name in TASKS:
        config = task_type(name)[0]
        nowhere = {"path": str(tmp_path / "nowhere")} if "path" in config.__dataclass_fields__ else {}
        assert make_task(name, config(**nowhere)).primary_metric
