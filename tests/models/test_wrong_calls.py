"""Wrong arguments raise errors that name the problem."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.cli.main import WRONG_NAMES, what_to_lower
from stairwell.errors import UserError
from stairwell.serve.run_server import bind
from stairwell.state import State
from stairwell.stream import Stream
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import Search, Translator

pytestmark = pytest.mark.quick

MODEL = LanguageModel(LanguageModelConfig(core=FeedbackConfig(width=8, heads=2, layers=1, memory=3), inputs=9)).eval()


@pytest.mark.parametrize("name", ["max_length_ratio", "min_length_ratio"])
def test_huge_ratios_raise(name: str) -> None:
    for value in (1e300, math.inf, math.nan):
        with pytest.raises(UserError, match=name):
            Search(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"max_length": 5, "min_length": 10}, {"max_length_ratio": 1.0, "min_length_ratio": 2.0}]
)
def test_a_minimum_length_above_the_maximum_raises(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is above max_length"):
        Search(**options)


def test_any_number_of_sentences_can_be_requested() -> None:
    class Pairs:
        sources_and_targets = PairTask.sources_and_targets

        def texts(self, split: str) -> Any:
            return iter([("a", "b"), ("c", "d")])

    task: Any = Pairs()
    assert task.sources_and_targets("valid", 99999999999999999999) == (["a", "c"], ["b", "d"])
    assert task.sources_and_targets("valid", 1) == (["a"], ["b"])


def test_more_prefixes_than_texts_raise() -> None:
    translator: Any = object.__new__(Translator)
    translator.search, translator.read_ahead = Search(), 10
    translator._translate_group = lambda texts, best, prefixes: [[text] for text in texts]
    assert list(translator.translate(["x", "y"], 1, ["", ""])) == [["x"], ["y"]]
    with pytest.raises(UserError, match="3 prefixes and 2 texts"):
        list(translator.translate(["x", "y"], 1, ["", "", "z"]))


def test_an_unavailable_address_is_not_reported_as_a_port() -> None:
    for host in ("nohost.invalid", "256.1.1.1", "8.8.8.8", "a" * 300):
        with pytest.raises(UserError, match="choose another --host"):
            bind(host, 0)
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with taken, pytest.raises(UserError, match="choose another --port"):
        bind("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("path", ["/dev/null", "."])
def test_loading_something_that_is_not_a_file_raises(path: str) -> None:
    with pytest.raises(UserError, match="not a regular file"):
        Stream.load(path, MODEL)
    with pytest.raises(UserError, match="not a regular file"):
        State.load(path)


def test_loading_another_type_of_file_names_its_format(tmp_path: Path) -> None:
    stream = Stream(MODEL)
    stream.feed(1)
    stream.save(tmp_path / "stream")
    with pytest.raises(UserError, match=r"is not a saved state of stairwell: its format is stairwell\.stream") as error:
        State.load(tmp_path / "stream")
    assert len(str(error.value)) < 300


def test_cropping_a_negative_number_raises() -> None:
    stream = Stream(MODEL, max_crop=2)
    stream.feed([1, 2])
    with pytest.raises(UserError, match="crop takes 0 or more tokens, not -1"):
        stream.crop(-1)


@pytest.mark.parametrize("tokens", [{1: 2}, {1, 2}])
def test_unordered_tokens_raise(tokens: Any) -> None:
    with pytest.raises(UserError, match="tokens must be a sequence"):
        Stream(MODEL).feed(tokens)


@pytest.mark.parametrize("core", [None, "feedback", {}])
def test_a_core_that_is_not_a_config_raises(core: Any) -> None:
    with pytest.raises(TypeError, match="is not the config of a core"):
        LanguageModel(LanguageModelConfig(core=core, inputs=9))


def test_out_of_memory_names_the_n_best() -> None:
    assert "--nbest" in what_to_lower(["translate", "run"])


def test_names_that_are_too_long_are_user_errors() -> None:
    assert {errno.ENAMETOOLONG, errno.ELOOP} == {*WRONG_NAMES}
