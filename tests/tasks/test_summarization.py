"""Summarization: the words that are read of an article."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stairwell.tasks import make_task
from stairwell.tasks.summarization import SummarizationConfig, split_words


def test_names_are_split_into_words_and_punctuation_is_separate() -> None:
    program = "def getUserName(self, HTTPServer2): ⏎ return self._x.user_name['Käse']"
    assert " ".join(split_words(program)) == (
        "def get User Name ( self , HTTP Server2 ): ⏎ return self . x . user name [' Käse ']"
    )


@pytest.mark.parametrize("split", [False, True])
def test_the_split_words_names_are_counted_only_if_they_are_split(split: bool, tmp_path: Path) -> None:
    row = {"source": "def get_user_name(self): return self.name", "target": "Return the user name."}
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 10)
    config = SummarizationConfig(path=str(tmp_path), words=4, split_names=split, vocabulary=400)
    task: Any = make_task("summarization", config)
    assert task.normalize_source(row["source"]) == (
        " def get user name" if split else " def get_user_name(self): return self.name"
    )
    source, target = (set(ids.tolist()) for ids in task.splits["train"].pair(0))
    shared = {task.vocabulary.target.decode([i]) for i in source & target if i != task.end}
    assert ({" user", " name"} <= shared) == split
