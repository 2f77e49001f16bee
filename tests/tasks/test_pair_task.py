"""Pairs of texts: splits, skipped pairs, batches of similar lengths, and positions of batch sources."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell.data import parallel
from stairwell.errors import UserError
from stairwell.tasks import IGNORE_INDEX, load_tasks, make_task, saved_task
from stairwell.tasks.pair_task import PairBatch, PairSource, PairTask, buckets
from tests import language_pair

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAIRWELL_CACHE", str(tmp_path / "cache"))


def translation(folder: Path, **options: Any) -> PairTask:
    from stairwell.tasks.translation import TranslationConfig

    options = {"path": str(folder), "source": "xx", "target": "yy", "vocabulary": 300, **options}
    return make_task("translation", TranslationConfig(**options))  # type: ignore[return-value]


def summarization(folder: Path, **options: Any) -> PairTask:
    from stairwell.tasks.summarization import SummarizationConfig

    return make_task("summarization", SummarizationConfig(path=str(folder), vocabulary=300, **options))  # type: ignore[return-value]


def write_lines(file: Path, *lines: str) -> None:
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def test_a_pair_is_encoded_and_decoded(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data"))
    batch = next(iter(task.batches("valid", 1, 100)))
    source = batch.source[0, batch.source_mask[0]].tolist()
    assert source[-1] == task.source_end and batch.targets[0, -1] == task.end
    pair = task.vocabulary.source.decode(source[:-1]).strip(), task.decode_target(batch.targets[0].tolist())
    assert pair in list(task.texts("valid"))
    assert batch.tokens[0, 0] == task.end and torch.equal(batch.tokens[0, 1:], batch.targets[0, :-1])


def test_the_files_of_splits_have_the_usual_names(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data", 30, 7))
    assert {split: len(data) for split, data in task.splits.items()} == {"train": 30, "valid": 7, "test": 7}
    write_lines(tmp_path / "data/test_2021.xx", "ba")
    with pytest.raises(UserError, match=r"test_2020.xx and test_2021.xx; --task.test may select one"):
        translation(tmp_path / "data").describe()
    assert len(translation(tmp_path / "data", test="test_2020").splits["test"]) == 7


def test_without_splits_some_pairs_are_held_out_and_no_source_is_in_two_splits(tmp_path: Path) -> None:
    pairs = language_pair.sentences(2000, 0)
    write_lines(tmp_path / "talks.xx", *(source for source, _ in pairs))
    write_lines(tmp_path / "talks.yy", *(target for _, target in pairs))
    for path, source, target in ((tmp_path / "talks", "xx", "yy"), (tmp_path, "talks.xx", "talks.yy")):
        splits = parallel.find_splits(str(path), source, target)
        sources = {split: {text for text, _ in files.pairs()} for split, files in splits.items()}
        assert all(sources.values()) and sum(map(len, sources.values())) == len({text for text, _ in pairs})
        assert sum(len(list(files.pairs())) for files in splits.values()) == 2000
        assert len(list(splits["train"].pairs())) > 1500


def test_tables_have_named_columns(tmp_path: Path) -> None:
    rows = [("a b c", "c"), ('d "e",\nf', "f")]
    with open(tmp_path / "train.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "article", "highlights"), *((i, *row) for i, row in enumerate(rows))])
    lists = {"article": ["one.", "two."], "highlights": ["first", "second"]}
    write_lines(tmp_path / "dev.jsonl", json.dumps(lists))
    splits = parallel.find_splits(str(tmp_path), "article", "highlights")
    assert list(splits["train"].pairs()) == rows
    assert list(splits["valid"].pairs()) == [("one. two.", "first")]
    with pytest.raises(UserError, match=r"row 1 has no column 'text'; it has id, article, highlights"):
        list(parallel.find_splits(str(tmp_path / "train.csv"), "text", "highlights")["train"].pairs())


def test_the_error_for_a_folder_with_one_table_suggests_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "news.jsonl", *(json.dumps({"a": f"one {i}", "b": "two"}) for i in range(200)))
    with pytest.raises(UserError, match=r"no training pairs.*which is then split: --task.path .*news\.jsonl$"):
        parallel.find_splits(str(tmp_path), "a", "b")
    assert set(parallel.find_splits(str(tmp_path / "news.jsonl"), "a", "b")) == {"train", "valid", "test"}


def test_only_the_first_words_of_an_article_are_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", *(json.dumps({"source": "a b " * 300, "target": "c"}) for _ in range(50)))
    task = summarization(tmp_path)
    assert task.vocabulary.source.decode(task.splits["train"].pair(0)[0][:-1]).split() == ["a", "b"] * 200


def test_skipped_pairs_are_counted_and_reported(tmp_path: Path) -> None:
    folder = language_pair.write(tmp_path / "data", 20, 5)
    with open(folder / "train.xx", "a", encoding="utf-8") as source, open(folder / "train.yy", "a") as target:
        source.write("ba\n\n  \t\n" + "ba " * 40 + "\nke\nke\n")  # two without a counterpart
        target.write("\none\none\n" + "one " * 40 + "\n")
    task = translation(folder, max_source_length=30, max_target_length=30)
    assert len(task.splits["train"]) == 20
    assert "left out of train: 5 empty, 1 too long; " in task.describe()
    assert task.describe().endswith(
        "train.xx has 26 lines and train.yy 24, so 2 have no counterpart (are the files parallel?)"
    )


def two_files(folder: Path) -> tuple[str, str]:
    """Write a source and a target file of any name, without splits."""
    pairs = language_pair.sentences(300, 0)
    write_lines(folder / "english.txt", *(source for source, _ in pairs))
    write_lines(folder / "french.txt", *(target for _, target in pairs))
    return "english.txt", "french.txt"


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"a": "x", "b": "\\ud800"}', r"\\ud800 is half of a surrogate pair"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "it is nested too deeply"),
    ],
)
def test_invalid_rows_of_json_are_rejected(line: str, message: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "pairs.jsonl", '{"a": "x", "b": "y"}', line)
    with pytest.raises(UserError, match=f"pairs.jsonl, line 2 is not valid JSON: {message}"):
        list(parallel.table_pairs(tmp_path / "pairs.jsonl", "a", "b"))


def test_a_folder_or_a_pipe_instead_of_a_file_is_an_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "english.txt", "a")
    (tmp_path / "french").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for target, file_type in (("french", "a folder"), ("./french", "a folder"), ("pipe.txt", "a device or a pipe")):
        with pytest.raises(
            UserError, match=f"{Path(target).name} is {file_type}, not a file; --task.source and --task.tar"
        ):
            parallel.find_splits(str(tmp_path), "english.txt", target)
    with pytest.raises(UserError, match=r"pipe.txt is neither a file nor a folder but a device or a pipe"):
        parallel.find_splits(str(tmp_path / "pipe.txt"), "a", "b")


def test_two_files_need_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = two_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("", "."):
        task = translation(tmp_path, path=path, source=source, target=target)
        assert task.describe().startswith("translate english.txt to french.txt: train 2")
    (tmp_path / "french.txt").rename(tmp_path / "franch.txt")
    with pytest.raises(UserError, match=r"there is no file /.*/french.txt; did you mean franch.txt\?"):
        translation(tmp_path, path="", source=source, target=target).describe()
    with pytest.raises(UserError, match=r"name the pairs to translate: two files, --task.source FILE"):
        translation(tmp_path, path="").describe()


def test_the_errors_for_wrong_names_suggest_the_right_ones(tmp_path: Path) -> None:
    source, target = two_files(tmp_path)
    folder = str(tmp_path)
    with pytest.raises(UserError, match=r"there is no file /.*/englsh.txt; did you mean english.txt\?"):
        parallel.find_splits(folder, "englsh.txt", target)
    with pytest.raises(UserError, match=r"there is no file /.*/somewhere/french.txt$"):
        parallel.find_splits(folder, source, "somewhere/french.txt")
    with pytest.raises(UserError, match=r"source and target are both 'english.txt'"):
        parallel.find_splits(folder, source, source)
    with pytest.raises(UserError, match=r"english.txt is neither a table .*--task.source FILE --task.target FILE"):
        parallel.find_splits(f"{folder}/{source}", source, target)
    with pytest.raises(UserError, match=r"has no training pairs: it needs train.de and train.en"):
        parallel.find_splits(folder, "de", "en")


def test_too_few_pairs_for_validation_are_rejected_before_training(tmp_path: Path) -> None:
    write_lines(tmp_path / "few.xx", "ba", "ke")
    write_lines(tmp_path / "few.yy", "one", "two")
    task = translation(tmp_path / "few")
    with pytest.raises(UserError, match=r"few has no complete pairs for validation; add pairs"):
        task.batch_source(range(1), 1, 0)
    with pytest.raises(UserError, match=r"the test split of .*few has no pairs"):
        task.sources_and_targets("test")


def test_absolute_file_names_do_not_override_other_data(tmp_path: Path) -> None:
    source, target = (str(tmp_path / name) for name in two_files(tmp_path))
    task = translation(tmp_path, source=source, target=target)
    other = tmp_path / "other"
    other.mkdir()
    write_lines(other / "english.txt", "ba")
    write_lines(other / "french.txt", "one")
    assert list(task.with_data(str(other)).texts("test")) == [("ba", "one")]


def test_the_error_for_text_that_is_not_utf8_has_its_line(tmp_path: Path) -> None:
    folder = language_pair.write(tmp_path / "data", 3, 3)
    (folder / "train.xx").write_bytes(b"ba\nk\xe9\nli\n")
    with pytest.raises(UserError, match=r"train.xx is not UTF-8 text: line 2"):
        translation(folder).describe()


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", "one\u2028still one\x85\x0c", "two\r")
    assert list(parallel.lines(tmp_path / "a")) == ["one\u2028still one\x85\x0c", "two"]
    assert parallel.count_lines(tmp_path / "a") == 2


def test_batches_have_every_pair_once_within_the_limit_of_tokens(tmp_path: Path) -> None:
    data = translation(language_pair.write(tmp_path / "data", 200, 5, longest=9)).splits["train"]
    lengths = data.lengths()
    for max_pairs in (1000, 7):
        batches = buckets(lengths, np.random.default_rng(0).permutation(200), 100, max_pairs)
        assert sorted(np.concatenate(batches).tolist()) == list(range(200))
        assert all(lengths[batch].max() * len(batch) <= 100 and len(batch) <= max_pairs for batch in batches)
    assert len(buckets(lengths, np.arange(200), 1, 5)) == 200, (
        "a pair that is too long for a batch is a batch of its own"
    )


def test_a_limit_of_tokens_below_the_longest_pair_is_rejected(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data", 60, 5))
    longest = int(task.splits["train"].lengths().max())
    task.batch_source(range(8), 8, 0, tokens=longest)
    with pytest.raises(UserError, match=rf"--train.batch_tokens 1: the longest training pair has {longest} tokens"):
        task.batch_source(range(8), 8, 0, tokens=1)


def read(batch_source: PairSource, count: int) -> list[tuple[Any, Any]]:
    return [(batch.source.tolist(), batch.targets.tolist()) for batch in (batch_source.read(1) for _ in range(count))]


def test_an_epoch_depends_on_the_seed_and_its_number_only(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data", 60, 5))
    batch_source = task.batch_source(range(8), 8, 3, tokens=64)
    epoch = len(batch_source.batches)
    first = read(batch_source, epoch)
    assert read(batch_source, 1) != first[:1] and batch_source.epoch == 1
    assert read(task.batch_source(range(8), 8, 3, tokens=64), epoch) == first
    assert read(task.batch_source(range(8), 8, 4, tokens=64), epoch) != first


def test_a_batch_source_can_be_resumed(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data", 60, 5))
    batch_source, other = (task.batch_source(range(8), 8, 3, tokens=64) for _ in range(2))
    read(batch_source, len(batch_source.batches) + 3)
    other.seek(json.loads(json.dumps(batch_source.position())))
    assert read(other, 5) == read(batch_source, 5)


def test_processes_share_every_batch(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data", 61, 5))
    single = task.batch_source(range(9), 9, 0, tokens=64)
    shares = [task.batch_source(range(first, first + 3), 9, 0, tokens=64) for first in (0, 3, 6)]
    for _ in range(len(single.batches)):
        batch, parts = single.read(1), [batch_source.read(1) for batch_source in shares]
        assert sum(part.terms for part in parts) == batch.terms
        assert sorted(targets(batch)) == sorted(target for part in parts for target in targets(part))


def targets(batch: PairBatch) -> list[list[int]]:
    unpadded = [[i for i in target if i != IGNORE_INDEX] for target in batch.targets.tolist()]
    return [target for target in unpadded if target]


def test_a_saved_task_needs_no_files(tmp_path: Path) -> None:
    for joint in (True, False):
        task = translation(language_pair.write(tmp_path / "data"), joint=joint)
        folder = tmp_path / f"run-{joint}"
        folder.mkdir()
        saved_task.write(folder, "translation", [task])
        (loaded,) = load_tasks("translation", [task.config], folder)
        assert isinstance(loaded, PairTask) and loaded.joint is joint
        assert (loaded.inputs, loaded.outputs, loaded.describe()) == (task.inputs, task.outputs, task.describe())
        ids, _ = loaded.encode_sources(["ba ke"])
        assert ids[0].tolist() == task.encode_sources(["ba ke"])[0][0].tolist()
    language_pair.write(tmp_path / "data", 10)
    with pytest.raises(UserError, match="has changed since the run started"):
        loaded.batch_source(range(1), 1, 0)


def test_sources_that_are_too_long_are_truncated_and_counted(tmp_path: Path) -> None:
    task = translation(language_pair.write(tmp_path / "data"), max_source_length=5)
    sources, truncated = task.encode_sources(["ba " * 20, "ba", ""])
    assert len(sources[0]) == 6 and sources[2].tolist() == [task.source_end] and truncated == 1


def test_without_a_path_the_error_names_the_options() -> None:
    from stairwell.tasks.translation import TranslationConfig

    with pytest.raises(UserError, match=r"--task.path FOLDER"):
        make_task("translation", TranslationConfig()).describe()
    with pytest.raises(UserError, match=r"the primary metric bleu requires --task\.decode_examples"):
        TranslationConfig(primary_metric="bleu", decode_examples=0)


def test_a_batch_of_pairs_is_as_large_as_possible() -> None:
    lengths = np.array([[4, 3]] * 10)
    assert [len(batch) for batch in buckets(lengths, np.arange(10), max_tokens=12, max_pairs=99)] == [3, 3, 3, 1]
    assert [len(batch) for batch in buckets(lengths, np.arange(10), max_tokens=11, max_pairs=99)] == [2, 2, 2, 2, 2]
