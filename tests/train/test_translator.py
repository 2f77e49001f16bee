"""The translator: its search, and the length of its targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell import FeedbackConfig, text
from stairwell.errors import UserError
from stairwell.models import Seq2Seq, Seq2SeqConfig
from stairwell.tasks.translation import TranslationConfig
from stairwell.train.pair_objective import GREEDY
from stairwell.train.translator import SEARCH, Search, Translator, load_search


def test_search_defaults_are_the_documented_ones() -> None:
    assert Search().lengths(5, 100) == (0, 25) and Search().beam == 5 and GREEDY.beam == 1


def test_a_damaged_search_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / SEARCH).write_text(json.dumps({"beam": "many"}))
    with pytest.raises(UserError, match="tune the run again"):
        load_search(tmp_path, type("Task", (), {"search_defaults": {}})())  # type: ignore[arg-type]


@pytest.mark.parametrize("max_length", [1, 3])
def test_a_target_has_at_most_max_length_tokens(max_length: int) -> None:
    """The end token is not counted."""
    vocabulary: Any = type("Vocabulary", (), {"target": text.Bytes(), "source": text.Bytes()})()
    decoded: list[list[int]] = []
    task: Any = type("Task", (), {
        "end": 3, "vocabulary": vocabulary, "config": TranslationConfig(max_target_length=50),
        "normalize": staticmethod(str),
        "encode_sources": staticmethod(lambda texts: ([np.array([1, 2, 3])] * len(texts), 0)),
        "decode_target": staticmethod(lambda tokens: decoded.append(list(tokens)) or ""),
    })()  # fmt: skip
    config = Seq2SeqConfig(
        core=FeedbackConfig(width=8, heads=2, layers=2, memory=3),
        sources=4,
        targets=4,
        encoder_layers=1,
        encoder_heads=2,
        tied="none",
    )
    model = Seq2Seq(config)
    with torch.no_grad():
        model.head.bias[3] = -100.0  # type: ignore[index]
    list(Translator(model, task, Search(beam=1, max_length=max_length)).translate(["x"]))
    assert [len(tokens) for tokens in decoded] == [max_length]
