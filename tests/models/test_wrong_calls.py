"""Calls of the library that cannot be meant, and messages that name what is wrong."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.cli.main import WRONG_NAMES, what_to_lower
from stairwell.errors import UserError
from stairwell.serve.running import bind
from stairwell.state import State
from stairwell.stream import Stream
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Search, Translator

MODEL = LanguageModel(LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=1, memory=3), inputs=9)).eval()


@pytest.mark.parametrize("name", ["longest_ratio", "shortest_ratio"])
def test_huge_ratios_are_refused(name: str) -> None:
    for value in (1e300, math.inf, math.nan):
        with pytest.raises(UserError, match=name):
            Search(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"longest": 5, "shortest": 10}, {"longest_ratio": 1.0, "shortest_ratio": 2.0}])
def test_no_target_can_be_shorter_than_its_shortest(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is above longest"):
        Search(**options)


def test_any_number_of_sentences_may_be_asked_for() -> None:
    class Pairs:
        sides = PairTask.sides

        def texts(self, split: str) -> Any:
            return iter([("a", "b"), ("c", "d")])

    task: Any = Pairs()
    assert task.sides("valid", 99999999999999999999) == (["a", "c"], ["b", "d"])
    assert task.sides("valid", 1) == (["a"], ["b"])


def test_prefixes_without_texts_are_refused() -> None:
    translator: Any = object.__new__(Translator)
    translator.search, translator.ahead = Search(), 10
    translator._group = lambda texts, best, prefixes: [[text] for text in texts]
    assert list(translator.translate(["x", "y"], 1, ["", ""])) == [["x"], ["y"]]
    with pytest.raises(UserError, match="3 prefixes and 2 texts"):
        list(translator.translate(["x", "y"], 1, ["", "", "z"]))


def test_an_address_that_is_not_there_is_no_matter_of_the_port() -> None:
    for host in ("nohost.invalid", "256.1.1.1", "8.8.8.8", "a" * 300):
        with pytest.raises(UserError, match="choose another --host"):
            bind(host, 0)
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with taken, pytest.raises(UserError, match="choose another --port"):
        bind("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("path", ["/dev/null", "."])
def test_what_is_no_file_is_no_saved_stream(path: str) -> None:
    with pytest.raises(UserError, match="not a regular file"):
        Stream.load(path, MODEL)
    with pytest.raises(UserError, match="not a regular file"):
        State.load(path)


def test_a_file_of_another_kind_is_named_by_its_format(tmp_path: Path) -> None:
    stream = Stream(MODEL)
    stream.feed(1)
    stream.save(tmp_path / "stream")
    with pytest.raises(
        UserError, match=r"is not a saved state of stairwell; its format is stairwell\.stream"
    ) as refused:
        State.load(tmp_path / "stream")
    assert len(str(refused.value)) < 300


def test_crop_takes_no_negative_numbers() -> None:
    stream = Stream(MODEL, max_crop=2)
    stream.feed([1, 2])
    with pytest.raises(UserError, match="crop takes 0 or more tokens, not -1"):
        stream.crop(-1)


@pytest.mark.parametrize("tokens", [{1: 2}, {1, 2}])
def test_tokens_have_an_order(tokens: Any) -> None:
    with pytest.raises(UserError, match="tokens are a sequence"):
        Stream(MODEL).feed(tokens)


@pytest.mark.parametrize("core", [None, "feedback", {}])
def test_a_model_takes_the_config_of_a_core(core: Any) -> None:
    with pytest.raises(TypeError, match="not a core's config"):
        LanguageModel(LanguageModelConfig(core=core, inputs=9))


def test_out_of_memory_names_the_n_best() -> None:
    assert "--nbest" in what_to_lower(["translate", "run"])


def test_a_name_that_is_too_long_is_the_users_mistake() -> None:
    assert {errno.ENAMETOOLONG, errno.ELOOP} == {*WRONG_NAMES}
