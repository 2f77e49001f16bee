"""Labeled streams: two parallel files, and the errors for files that do not match."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stairwell import text
from stairwell.errors import UserError
from stairwell.tasks.base import IGNORE_INDEX, TokenBatch
from stairwell.tasks.labeled import Labeled, LabeledConfig


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write(folder: Path, **files: str) -> Path:
    """Write files: write(folder, train_tokens="a b") makes train.tokens."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    return folder


def simple(folder: Path, **files: str) -> Path:
    """Write a folder with valid splits, except for the given files."""
    valid = {"tokens": "a b\nb a a\n", "labels": "- 1\n0 - 1\n"}
    defaults = {f"{split}_{side}": content for split in ("train", "valid") for side, content in valid.items()}
    return write(folder, **(defaults | files))


def opened(task: Labeled) -> Labeled:
    assert task.splits
    return task


def read(task: Labeled, split: str, batch: int, segment: int) -> TokenBatch:
    batches = list(task.batches(split, batch, segment))  # type: ignore[arg-type]
    return TokenBatch(
        torch.cat([batch.tokens for batch in batches], 1),
        torch.cat([batch.targets for batch in batches], 1),
        torch.cat([batch.start for batch in batches if batch.start is not None], 1),
    )


def test_labels_are_aligned_with_tokens_and_every_line_is_reset(tmp_path: Path) -> None:
    task = Labeled(LabeledConfig(path=str(simple(tmp_path))))
    assert (task.vocabulary.tokens, task.vocabulary.labels) == (("a", "b"), ("0", "1"))
    assert (task.inputs, task.outputs) == (2, 2)
    batch = read(task, "valid", 1, 2)
    assert batch.tokens.tolist() == [[0, 1, 1, 0, 0]]
    assert batch.targets.tolist() == [[IGNORE_INDEX, 1, 0, IGNORE_INDEX, 1]]
    assert batch.start is not None and batch.start.tolist() == [[True, False, True, False, False]]


def test_training_repeats_the_training_split(tmp_path: Path) -> None:
    task = Labeled(LabeledConfig(path=str(simple(tmp_path))))
    batch = task.batch_source(range(2), 2, seed=0).read(6)
    assert batch.tokens.tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1]]
    assert batch.targets[0].tolist() == [IGNORE_INDEX, 1, 0, IGNORE_INDEX, 1, IGNORE_INDEX]
    assert batch.start is not None and batch.start[0].tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize("streams", [1, 2, 3, 7])
@pytest.mark.parametrize("segment", [1, 3, 100])
def test_every_episode_is_read_once_and_never_split(tmp_path: Path, streams: int, segment: int) -> None:
    lines = [" ".join("ab"[(i + j) % 2] for j in range(1 + i % 4)) for i in range(5)]
    content = {"valid_tokens": "\n".join(lines), "valid_labels": "\n".join(lines).replace("a", "1").replace("b", "0")}
    task = Labeled(LabeledConfig(path=str(simple(tmp_path, **content))))
    batch = read(task, "valid", streams, segment)
    assert batch.start is not None
    assert int(batch.start.sum()) == len(lines)
    assert int((batch.targets != IGNORE_INDEX).sum()) == sum(len(line.split()) for line in lines)
    tokens = []
    for b in range(streams):
        scored = batch.targets[b] != IGNORE_INDEX
        assert not bool(scored[0]) or bool(batch.start[b, 0])
        tokens += batch.tokens[b][scored].tolist()
    assert tokens == ["ab".index(token) for line in lines for token in line.split()]


def test_metrics_are_of_tokens_and_of_whole_episodes(tmp_path: Path) -> None:
    task = Labeled(LabeledConfig(path=str(simple(tmp_path))))
    score = task.score()
    for batch in task.batches("valid", 2, 2):
        predictions = torch.where(batch.targets == IGNORE_INDEX, 0, batch.targets)
        predictions[batch.start] = 1 - predictions[batch.start]  # wrong at the first token of an episode
        score.add(batch, torch.ones(batch.tokens.shape) * (batch.targets != IGNORE_INDEX), predictions)
    result = score.result()
    assert (result["scored"], result["loss"]) == (3, 1.0)
    assert result["accuracy"] == pytest.approx(200 / 3)
    assert result["error"] == pytest.approx(100 / 3)
    assert result["sequence_accuracy"] == pytest.approx(50)


def test_one_pair_of_files_is_split_by_lines(tmp_path: Path) -> None:
    lines = "\n".join("a b" if i < 38 else "b b" for i in range(40))
    write(tmp_path, walk_tokens=lines, walk_labels=lines.replace("a", "x").replace("b", "y"))
    task = Labeled(LabeledConfig(path=str(tmp_path / "walk.tokens")))
    assert {split: data.episodes for split, data in task.splits.items()} == {"train": 36, "valid": 2, "test": 2}
    assert read(task, "valid", 1, 9).tokens.tolist() == [[0, 1, 0, 1]]
    assert read(task, "test", 1, 9).tokens.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("side", ["token", "label"])
def test_a_rare_name_in_the_last_lines_of_one_pair_explains_the_split(side: str, tmp_path: Path) -> None:
    plain = "\n".join(["a b"] * 40)
    rare = "\n".join(["a b"] * 38 + ["meteor b"] * 2)
    write(tmp_path, day_tokens=rare if side == "token" else plain, day_labels=rare if side == "label" else plain)
    with pytest.raises(UserError) as raised:
        opened(Labeled(LabeledConfig(path=str(tmp_path / "day.tokens"))))
    assert str(raised.value).endswith(
        f"day.{side}s: the {side} 'meteor' is not in the training split: the last 10% of the lines are validation and "
        "test, and it occurs only there; shuffle the lines, or give a folder with train.tokens, valid.tokens and "
        "test.tokens"
    )


def test_the_label_file_and_the_unscored_label_are_options(tmp_path: Path) -> None:
    write(tmp_path, in_txt="a b\n" * 3, out_txt="? -\n" * 3)
    task = Labeled(LabeledConfig(path=str(tmp_path / "in.txt"), labels=str(tmp_path / "out.txt"), unscored="?"))
    assert task.vocabulary.labels == ("-",)
    assert read(task, "test", 1, 9).targets.tolist() == [[IGNORE_INDEX, 0]]


def test_empty_lines_are_skipped_and_the_last_line_needs_no_line_feed(tmp_path: Path) -> None:
    content = {"valid_tokens": "\na b\n\n\nb\n\n", "valid_labels": "\n1 0\n\n\n1"}
    task = Labeled(LabeledConfig(path=str(simple(tmp_path, **content))))
    assert task.splits["valid"].episodes == 2


def test_other_data_is_read_with_the_vocabulary_of_training(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    task = Labeled(LabeledConfig(path=str(simple(tmp_path / "folder"))))
    write(tmp_path, more_tokens="b\n", more_labels="0\n", odd_tokens="c\n", odd_labels="0\n")
    other = task.with_data(str(tmp_path / "more.tokens"))
    assert read(other, "valid", 1, 5).tokens.tolist() == read(other, "test", 1, 5).tokens.tolist() == [[1]]
    with pytest.raises(ValueError, match="has no train split"):
        other.batch_source(range(1), 1, 0)
    match = r"line 1 of .*odd\.tokens: the token 'c' was not in the training data; there are: a, b$"
    with pytest.raises(ValueError, match=match):
        opened(task.with_data(str(tmp_path / "odd.tokens")))
    write(tmp_path / "folder", train_tokens="start stop\n", train_labels="0 0\n")
    named = Labeled(LabeledConfig(path=str(tmp_path / "folder")))
    write(tmp_path, odd_tokens="stert\n")
    with pytest.raises(ValueError, match=r"'stert' was not in the training data; did you mean 'start'\?$"):
        opened(named.with_data(str(tmp_path / "odd.tokens")))


def test_the_vocabulary_can_be_saved_and_loaded(tmp_path: Path) -> None:
    task = Labeled(LabeledConfig(path=str(simple(tmp_path))))
    task.vocabulary.save(tmp_path / "vocabulary.json")
    again = Labeled(task.config, text.load(tmp_path / "vocabulary.json"))
    assert again.vocabulary == task.vocabulary
    with pytest.raises(ValueError, match="not one of type 'bytes'"):
        Labeled(task.config, text.Bytes())


def test_the_description_has_all_sizes(tmp_path: Path) -> None:
    line = Labeled(LabeledConfig(path=str(simple(tmp_path)))).describe()
    assert "train 2, valid 2 sequences" in line and "vocabulary size 2, 2 labels" in line


MISTAKES = {
    "no labels": ({"valid_labels": None}, UserError, r"no file of labels .*valid\.labels"),
    "no valid": ({"valid_tokens": None}, UserError, r"no valid\.tokens in"),
    "too few labels": (
        {"valid_labels": "- 1\n0 -\n"},
        ValueError,
        r"line 2 has 3 tokens in .*valid\.tokens, but 2 labels",
    ),
    "a line too few": ({"train_labels": "- 1\n"}, ValueError, r"line 2 has 3 tokens in .*train\.tokens, but 0 labels"),
    "a line too many": ({"train_labels": "- 1\n0 - 1\n1\n"}, ValueError, r"line 3 has 0 tokens .* 1 labels"),
    "unknown token": ({"valid_tokens": "a b\nb a c\n"}, ValueError, r"line 2 of .*valid\.tokens: the token 'c'"),
    "unknown label": ({"valid_labels": "- 1\n0 - 7\n"}, ValueError, r"line 2 of .*valid\.labels: the label '7'"),
    "empty train": ({"train_tokens": "", "train_labels": ""}, ValueError, r"train\.tokens is empty"),
    "empty valid": ({"valid_tokens": "\n", "valid_labels": ""}, ValueError, r"valid\.tokens is empty"),
    "nothing scored": ({"train_labels": "- -\n- - -\n"}, ValueError, r"no label but '-'"),
}


@pytest.mark.parametrize(("files", "error", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_an_error_is_one_line(tmp_path: Path, files: dict[str, str | None], error: type, message: str) -> None:
    simple(tmp_path, **{name: content for name, content in files.items() if content is not None})
    for name, content in files.items():
        if content is None:
            (tmp_path / name.replace("_", ".")).unlink()
    with pytest.raises(error, match=message) as raised:
        opened(Labeled(LabeledConfig(path=str(tmp_path))))
    assert "\n" not in str(raised.value)


def test_the_error_for_text_that_is_not_utf8_has_its_position(tmp_path: Path) -> None:
    simple(tmp_path)
    (tmp_path / "valid.labels").write_bytes(b"- 1\n0 \xff 1\n")
    with pytest.raises(ValueError, match=r"valid\.labels is not UTF-8 text: byte 0xff at position 6"):
        opened(Labeled(LabeledConfig(path=str(tmp_path))))


def test_invalid_paths_and_options_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no path is given"):
        opened(Labeled(LabeledConfig()))
    with pytest.raises(UserError, match="no file of tokens"):
        opened(Labeled(LabeledConfig(path=str(tmp_path / "nowhere"))))
    write(tmp_path, two_tokens="a\nb\n", two_labels="1\n2\n")
    with pytest.raises(ValueError, match="has 2 episodes; a split needs at least 3"):
        opened(Labeled(LabeledConfig(path=str(tmp_path / "two.tokens"))))
    with pytest.raises(ValueError, match="name two different files"):
        opened(Labeled(LabeledConfig(path=str(tmp_path / "two.tokens"), labels=str(tmp_path / "two.tokens"))))
    with pytest.raises(ValueError, match="requires a single file"):
        opened(Labeled(LabeledConfig(path=str(tmp_path), labels="x")))
    with pytest.raises(ValueError, match="one label"):
        LabeledConfig(unscored="a b")
    with pytest.raises(ValueError, match="has no test split; it has train and valid"):
        Labeled(LabeledConfig(path=str(simple(tmp_path)))).batches("test", 1, 1)


def test_a_model_without_labels_is_not_built(tmp_path: Path) -> None:
    simple(tmp_path, train_labels="- -\n- - -\n")
    with pytest.raises(UserError, match=r"train\.labels has no label but '-', so nothing is scored"):
        _ = Labeled(LabeledConfig(path=str(tmp_path))).outputs
