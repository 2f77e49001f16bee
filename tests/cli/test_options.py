"""The options `--section.field` of `train` and `reproduce`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stairwell.cli import options
from stairwell.cli.main import command
from stairwell.errors import UserError


def test_only_the_fields_of_the_named_preset_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    presets: list[str | None] = []
    config_types = options.config_types
    monkeypatch.setattr(options, "config_types", lambda name=None: (presets.append(name), config_types(name))[1])
    arguments = ["random-walk/feedback", "--out", "x"]
    assert options.take_dotted(arguments, "random-walk/feedback") == (arguments, {}) and not presets
    given = [*arguments, "--core.width=8", "--no-core.share-kv", "--task.reset", "--train.steps", "5"]
    assert options.take_dotted(given, "random-walk/feedback") == (
        arguments,
        {"core.width": "8", "core.share_kv": "false", "task.reset": "true", "train.steps": "5"},
    )
    assert set(presets) == {"random-walk/feedback"}


def test_options_of_other_presets_are_rejected_later_and_unknown_ones_at_once() -> None:
    assert options.take_dotted(["--core.chunk", "4"], "random-walk/feedback")[1] == {"core.chunk": "4"}
    with pytest.raises(UserError, match=r"No such option: --core.chnk; did you mean --core.chunk\?"):
        options.take_dotted(["--core.chnk", "4"], "random-walk/feedback")


def test_importing_the_command_line_reads_no_config() -> None:
    program = "import sys, stairwell.cli.main; assert 'stairwell.runs.families' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_help_of_an_agent_shows_its_options_and_defaults_in_a_new_process(option: str) -> None:
    """In a new process nothing has imported stairwell.rl, which registers the task."""
    command = [sys.executable, "-m", "stairwell", "train", "rl/feedback", option]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in ("--task.env", "--task.options", "--task.length", "--train.gamma", "--train.ent_coef", "--frames"):
        assert name in text, name
    assert "[default: corridor]" in text and "[default: 0.99]" in text
    assert "--task.grid" not in text and "--task.vocabulary" not in text


def test_completion_offers_agents() -> None:
    program = "from stairwell.cli.options import complete_preset; print(complete_preset('rl/feed'))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "['rl/feedback']\n"


LABELED, AGENT = "labeled/feedback", "rl/feedback"


@pytest.mark.parametrize(
    ("preset", "given", "suggested"),
    [
        (LABELED, "--train.lr", "--train.learning_rate"),
        (LABELED, "--lr", "--train.learning_rate"),
        (LABELED, "--train.epochs", "--steps"),
        (LABELED, "--epochs", "--steps"),
        (AGENT, "--epochs", "--train.epochs"),
        (LABELED, "--path", "--task.path"),
        (LABELED, "--data", "--task.path"),
        (LABELED, "--labels", "--task.labels"),
        (LABELED, "--hidden-size", "--core.width"),
        (LABELED, "--core.num_layers", "--core.layers"),
        (LABELED, "--width", "--core.width"),
        (LABELED, "--core.learning-rate", "--train.learning_rate"),
        (LABELED, "--stepz", "--steps"),
        (LABELED, "--train.warmpu", "--train.warmup"),
        ("random-walk/feedback", "--data", None),
        ("random-walk/feedback", "--nothing-like-this", None),
    ],
)
def test_unknown_options_suggest_the_one_that_is_meant(preset: str, given: str, suggested: str | None) -> None:
    hint = f"; did you mean {suggested}?" if suggested else ""
    assert options.near_option(given, preset, ["--steps", "--out", "--device"]) == hint


@pytest.mark.parametrize(
    ("given", "suggested"), [("--train.epochs", "--steps"), ("--lr", "--train.learning_rate"), ("--stepz", "--steps")]
)
def test_unknown_options_are_errors_with_a_suggestion(given: str, suggested: str) -> None:
    command = [sys.executable, "-m", "stairwell", "train", LABELED, given, "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    error = f"stairwell: No such option: {given}; did you mean {suggested}?"
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (2, error)


def test_every_synonym_is_the_name_of_no_option_and_suggests_one() -> None:
    types = options.option_types()
    assert all(option in types or option in options.OWN for option in options.SYNONYMS.values())
    agents = {"epochs", "max_steps"}  # an option of agents is suggested before the synonym
    assert {name.rpartition(".")[2] for name in types} & set(options.SYNONYMS) == agents


def test_help_of_labeled_data_shows_its_options() -> None:
    shown = {name for name in options.options_of(LABELED) if options.is_common(LABELED, *name.split("."))}
    assert {"task.path", "task.labels", "train.learning_rate"} <= shown and "train.curriculum" not in shown
    assert options.is_common("parity/feedback", "train", "curriculum")


@pytest.mark.parametrize("option", ["--help", "--help-all", None])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random-walk", "'random-walk' is not TASK/CORE, such as random-walk/feedback; `stairwell list` shows"),
        ("no-such", "'no-such' is not TASK/CORE, such as random-walk/feedback; `stairwell list` shows tasks and cores"),
        ("random-walk/nope", "unknown core 'nope'"),
    ],
)
def test_a_name_that_is_not_a_task_and_a_core_is_an_error_with_help_too(
    name: str, message: str, option: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stairwell", "train", "--seed", "1", name, *([option] if option else [])])
    with pytest.raises(SystemExit, match=r"^2$"):
        command()
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out
