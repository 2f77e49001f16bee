"""The command line: results on stdout, progress on stderr, and every user error in one line with exit status 2."""

from __future__ import annotations

import json
import math
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stairwell.cores import CORES
from stairwell.tasks import TASKS
from stairwell.tensor_files import load_tensors, save_tensors
from tests.commands import TINY, Completed, assert_same_tensors, read_metrics, stairwell

SMALL = [*TINY, "--steps", "4"]
LM = [
    "--core.width", "8", "--core.layers", "1", "--train.batch", "2", "--train.segment", "8", "--train.valid_batch", "1",
    "--steps", "3", "--quiet",
]  # fmt: skip
PANGRAM = "the quick brown fox jumps over the lazy dog\n"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs: `walk` on a generated task, `text` on characters, `mine` on labeled streams."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "text.txt").write_text(PANGRAM * 40)
    (folder / "mine.tokens").write_text("a b a b\n" * 40)
    (folder / "mine.labels").write_text("0 1 - 1\n" * 40)
    for arguments in (
        ["random-walk/lstm", *SMALL, "--quiet", "--out", "walk"],
        ["lm/lstm", *LM, "--task.path", "text.txt", "--task.unit", "characters", "--out", "text"],
        ["labeled/lstm", *LM, "--task.path", "mine.tokens", "--out", "mine"],
    ):
        ended = stairwell(folder, "train", *arguments)
        assert ended.status == 0, ended
    return folder


def test_a_training_prints_its_result_on_stdout_and_progress_on_stderr(tmp_path: Path) -> None:
    plain = stairwell(tmp_path, "train", "random-walk/lstm", *SMALL, "--out", "a")
    assert plain.status == 0 and plain.out.startswith("run ") and "step 4/4" in plain.err
    quiet = stairwell(tmp_path, "train", "random-walk/lstm", *SMALL, "--out", "b", "--quiet", "--json")
    assert quiet.status == 0 and quiet.err == ""
    result = one_object(quiet)
    assert result["run"] == "b" and result["steps"] == 4 and result["tokens"] == 4 * 4 * 8
    assert {"parameters", "seconds", "best_step", "valid_loss", "valid_accuracy"} <= set(result)
    loud = stairwell(tmp_path, "train", "random-walk/lstm", *SMALL, "--out", "c", "--json")
    assert one_object(loud)["valid_loss"] == result["valid_loss"] and "step 4/4" in loud.err


def one_object(ended: Completed) -> dict[str, Any]:
    """What was printed, if it is exactly one JSON object."""
    assert ended.status == 0, ended
    assert ended.out.count("\n") == 1
    found = json.loads(ended.out)
    assert isinstance(found, dict)
    return found


@pytest.mark.quick
def test_an_evaluation_prints_one_json_object_that_does_not_depend_on_the_segment(workspace: Path) -> None:
    for run in ("walk", "text", "mine"):
        results = [
            one_object(stairwell(workspace, "eval", run, "--json", "--segment", segment)) for segment in (1, 7, 1000)
        ]
        assert results[0]["run"] == run and results[0]["split"] == "test" and results[0]["streams"] == 1
        for result in results[1:]:
            assert result.keys() == results[0].keys()
            for name, expected in results[0].items():
                close = expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-5)
                assert result[name] == close, name
    plain = stairwell(workspace, "eval", "walk", "--split", "valid")
    assert "accuracy" in plain.out and plain.err == ""


def test_other_text_can_be_evaluated(workspace: Path) -> None:
    (workspace / "other.txt").write_text("lazy foxes jump over quick dogs\n")
    scores = one_object(stairwell(workspace, "eval", "text", "--data", "other.txt", "--json"))
    assert scores["scored"] == 31 and scores["bits_per_character"] > 0


def test_a_moved_run_needs_neither_its_corpus_nor_a_cache(workspace: Path, tmp_path: Path) -> None:
    """As on another machine: the folder is copied, text and cache are gone."""
    empty = {"STAIRWELL_CACHE": str(tmp_path / "cache")}
    for run in ("text", "mine"):
        shutil.copytree(workspace / run, tmp_path / run)
    (tmp_path / "other.txt").write_text("lazy foxes jump over quick dogs\n")
    (tmp_path / "more.tokens").write_text("b a b\n")
    (tmp_path / "more.labels").write_text("1 - 0\n")

    command = ("generate", "text", "--prompt", "the ", "--tokens", "20", "--seed", "1")
    written = stairwell(tmp_path, *command, **empty)
    assert written.status == 0 and len(written.out) == 21, written
    assert written.out == stairwell(workspace, *command).out
    reported = stairwell(tmp_path, "report", "text", "mine", **empty)
    page = (tmp_path / "report.html").read_text()
    assert reported.status == 0 and "lm/lstm" in page and "labeled/lstm" in page, reported
    assert not (tmp_path / "cache").exists(), "nothing was read yet that needs one"

    scores = one_object(stairwell(tmp_path, "eval", "text", "--data", "other.txt", "--json", **empty))
    assert scores["scored"] == 31 and "other.txt" in scores["data"]
    (workspace / "other.txt").write_text("lazy foxes jump over quick dogs\n")
    assert scores == one_object(stairwell(workspace, "eval", "text", "--data", "other.txt", "--json"))
    assert one_object(stairwell(tmp_path, "eval", "mine", "--data", "more.tokens", "--json", **empty))["scored"] == 2

    for command in (("eval", "text"), ("train", "--resume", "--out", "text")):
        assert (
            "there is no file or folder text.txt; the run was trained on it" in stairwell(tmp_path, *command).error_line
        )


@pytest.mark.quick
def test_a_run_rejects_a_changed_corpus_or_vocabulary(workspace: Path, tmp_path: Path) -> None:
    commands = [("train", "--resume", "--out", "text"), ("eval", "text"), ("eval", "text", "--split", "valid")]
    shutil.copytree(workspace / "text", tmp_path / "text")
    (tmp_path / "text.txt").write_text(PANGRAM * 80)
    message = "text.txt has changed since the run started (in train and valid and test)"
    for command in commands:
        assert message in stairwell(tmp_path, *command).error_line
    (tmp_path / "text.txt").write_text(PANGRAM * 40)
    assert stairwell(tmp_path, "eval", "text").status == 0
    assert stairwell(tmp_path, "train", "--resume", "--out", "text", "--quiet").status == 0

    saved = (tmp_path / "text" / "task.json").read_text()
    (tmp_path / "text" / "task.json").write_text(saved.replace("abc", "acb"))
    others = [("generate", "text"), ("report", "text"), ("eval", "text", "--data", "text.txt")]
    for command in commands + others:
        assert "task.json was changed or damaged after the run wrote it" in stairwell(tmp_path, *command).error_line
    (tmp_path / "text" / "task.json").unlink()
    for command in commands + others:
        assert "task.json is missing" in stairwell(tmp_path, *command).error_line
    assert not (tmp_path / "text" / "task.json").exists(), "never rebuilt from the changed text"


def test_a_saved_config_gives_the_same_parameters(workspace: Path) -> None:
    for run in ("walk", "text"):
        config = workspace / run / "config.json"
        ended = stairwell(workspace, "train", "--config", config, "--out", f"{run}-again", "--quiet")
        assert ended.status == 0, ended
        assert_same_tensors(workspace / run, workspace / f"{run}-again")
        assert read_metrics(workspace / run) == read_metrics(workspace / f"{run}-again")
        assert config.read_text() == (workspace / f"{run}-again" / "config.json").read_text()


def test_all_tasks_are_listed(workspace: Path) -> None:
    tasks = {line.split()[0] for line in stairwell(workspace, "list", "tasks").out.splitlines()}
    assert {"random-walk", "labeled", "rl"} <= tasks
    assert ", rl" in next(
        line for line in stairwell(workspace, "list", "experiments").out.splitlines() if "tasks" in line
    )


def test_what_would_be_trained_can_be_shown_and_changed(workspace: Path) -> None:
    shown = json.loads(stairwell(workspace, "train", "lm/staircase", "--show", "--core.chunk", "5", "--seed", "7").out)
    assert shown["name"] == "lm/staircase"
    assert shown["core"]["chunk"] == 5 and shown["train"]["seed"] == 7
    assert not (workspace / "runs").exists()


MISTAKES = {
    "train": "give a TASK/CORE, such as random-walk/feedback",
    "train random-walk": "is not TASK/CORE, such as random-walk/feedback",
    "train randomwalk/lstm": "unknown task 'randomwalk'; did you mean 'random-walk'?",
    "train random-walk/feedbak": "unknown core 'feedbak'; did you mean 'feedback'?",
    "train random-walk/lstm --core.widht 8": "No such option: --core.widht; did you mean --core.width?$",
    "train random-walk/lstm --core.memory 8": "unknown option --core.memory",
    "train random-walk/lstm --bogus 8": "No such option: --bogus",
    "train random-walk/feedback --core.cross true": "No such option: --core.cross$",
    "train random-walk/staircase --core.attend_to_current false": "unknown option --core.attend_to_current",
    "train random-walk/multi-vector-rnn --core.chunk 4": "unknown option --core.chunk",
    "train random-walk/memory-network --core.compute 1": "unknown option --core.compute",
    "train random-walk/lstm --train.batch 0": ": --train.batch must be at least 1",
    "train random-walk/lstm --train.batch many": "'many' is not an integer",
    "train random-walk/lstm --train.batch 6 --train.accumulate 4": ": --train.accumulate 4 does not divide",
    "train random-walk/lstm --train.learning_rate nan": "'nan' is not a number",
    "train random-walk/lstm --train.decay linear": "'linear' is not a none|cosine",
    "train random-walk/lstm --train.curriculum length=9..2": "cannot read the curriculum",
    "train random-walk/lstm --train.curriculum length=2;lenght=4": "cannot change 'lenght'",
    "train random-walk/lstm --train.finetune_steps 1 --train.finetune_task length": "finetune_task must be name=value",
    "train random-walk/lstm --task.length 0": ": --task.length is 0; it must be at least 1",
    "train random-walk/feedback --core.layers 1 --core.heads 7": ": --core.heads 7: width 64 is not divisible by 7",
    "train random-walk/lstm --steps -1": ": --steps must be at least 0, not -1",
    "train rl/feedback --train.minibatches 7": ": --train.minibatches 7 does not divide the batch of 64",
    "train random-walk/feedback --core.share_kv=perhaps": "--core.share_kv: 'perhaps' is not a true or false",
    "train random-walk/feedback --no-core.width": "No such option: --no-core.width",
    "reproduce staircase.table1.random-walk --steps 0": "--steps",
    "reproduce staircase.table1.random-walk --core.heads 7 --dry-run": "--core.heads 7: width 64 is not divisible",
    "train random-walk/lstm --task.length -3": ": --task.length is -3; it must be at least 1",
    "train unicorn/lstm": "unknown task 'unicorn'; there are: random-walk, algorithmic",
    "train random-walk/unicorn": "unknown core 'unicorn'; there are: feedback, transformer-xl",
    "train random-walk/lstm --device cuda:7": "--device cuda:7 cannot be used",
    "train random-walk/lstm --device abacus": "'abacus' is not a device",
    "train random-walk/lstm --engine warp": "engine must be auto, fast or reference",
    "train random-walk/lstm --seeds 0": "--seeds",
    "train random-walk/lstm --out walk": "walk is a run already; resume it (--resume)",
    "train random-walk/lstm --out text.txt": "the folder text.txt cannot be created (text.txt is a file); choose "
    "another",
    "train random-walk/lstm --out text.txt/a": "text.txt is not a folder; choose another path",
    "train random-walk/lstm --seed 12345678901234567890": ": --seed must be below 2^63, not 12345678901234567890",
    "train random-walk/lstm --seed 9223372036854775807 --seeds 2": "--seed must be below 2^63",
    "train random-walk/lstm --train.batch 1000000000": "lower --train.batch (now 1,000,000,000)",
    "train random-walk/lstm --core.width 1000000000": "lower --core.width (now 1,000,000,000)",
    "train random-walk/lstm --core.layers 1000000 --seeds 2": "lower --core.layers (now 1,000,000)",
    "reproduce staircase.table1.random-walk --core.width 1000000000": "lower --core.width (now 1,000,000,000)",
    "reproduce staircase.table1.random-walk --only nobody": "--only 'nobody': staircase.table1.random-walk has no "
    "such variant",
    "reproduce staircase.table1.random-wlk": "random-wlk",
    "reproduce feedback.figure5": "--task.path",
    "train --resume": "--resume needs --out",
    "train --resume --out nowhere": "nowhere is not a run folder",
    "train --resume --out walk --train.batch 8": "only --steps may change",
    "train lm/lstm --resume --out walk": "walk is a run of random-walk/lstm",
    "train --config nowhere.json": "nowhere.json",
    "train --config text.txt": "is not readable JSON",
    "train lm/lstm --task.path nowhere.txt": "nowhere.txt",
    "train lm/lstm --task.path empty.txt": "empty.txt",
    "train lm/lstm --task.path tiny.txt": "tiny.txt",
    "train lm/lstm --task.path binary.txt --task.unit characters": "unit=bytes reads any file",
    "train lm/lstm --task.path binary.txt --task.unit words": "unit=bytes reads any file",
    "train labeled/lstm": "path",
    "train labeled/lstm --task.path lonely.tokens": "lonely.labels",
    "train labeled/lstm --task.path crooked.tokens": "crooked",
    "train walk/config.json": "walk",
    "train random-walk/lstm --core.width": "Option '--core.width' requires an argument",
    "train random-walk/lstm --core.width --out x": "Option '--core.width' requires an argument before --out",
    "reproduce demo --core.width --only x": "Option '--core.width' requires an argument before --only",
    "train random-walk/lstm --steps 5 --train.steps 7": "--steps 5 and --train.steps 7 mean the same but differ",
    "train random-walk/lstm --seed 5 --train.seed 7": "--seed 5 and --train.seed 7 mean the same but differ",
    "generate text --temperature": "Option '--temperature' requires an argument",
    "generate text --temperature inf": ": --temperature must be a finite number, 0 or more, not inf",
    "generate text --repetition-penalty nan": ": --repetition-penalty must be from 0.01 to 100 (1: no penalty), not "
    "nan",
    "generate text --repetition-penalty inf": ": --repetition-penalty must be from 0.01 to 100 (1: no penalty), not "
    "inf",
    "generate text --top-p nan": ": --top-p must be above 0 and at most 1, not nan",
    "generate text --seed 12345678901234567890": "--seed",
    "translate text --seed 12345678901234567890": "--seed",
    "generate broken": "broken/model.safetensors: the parameters contain NaN or infinity (in '",
    "eval broken": "Restore the file or retrain.",
    "eval nowhere": "nowhere is not a run folder",
    "eval begun": "begun has no model yet",
    "report .": ". is not a run folder: it has no config.json, but it contains runs: ",
    "compare walk mine": "walk is a run of random-walk/lstm, but compare is for translators; to compare the scores and "
    "curves of any runs: stairwell report walk mine",
    "eval walk --split train": "--split must be valid or test",
    "eval walk --data text.txt": "--data is for tasks that read files",
    "eval walk --streams 0": "--streams",
    "eval walk --streams 1000000000000": "1,000,000,000,000 parallel streams would need at least",
    "eval walk --horizon 50 --seeds 1000000000": "lower --streams (now 4) or --seeds (now 1,000,000,000)",
    "eval walk --horizon 50 --baselines": "--baselines needs a split; leave it out with --horizon",
    "eval text --data foreign.txt": "is not in the training text",
    "eval mine --data foreign.tokens": "the token 'c' was not in the training data; there are: a, b",
    "eval walk --device cuda:7": "--device cuda:7 cannot be used",
    "list nonsense": "cannot list 'nonsense'",
    "data get nonsense": "nonsense",
    "trian": "trian",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_user_error_is_one_line(arguments: str, workspace: Path) -> None:
    for name, content in {
        "empty.txt": b"",
        "tiny.txt": b"a",
        "binary.txt": bytes(range(256)) * 40,
        "foreign.txt": "naïve façade\n".encode(),
        "lonely.tokens": b"a b\n" * 40,
        "crooked.tokens": b"a b\n" * 40,
        "crooked.labels": b"0 1 1\n" * 40,
        "foreign.tokens": b"a c a b\n" * 40,
        "foreign.labels": b"0 1 - 1\n" * 40,
    }.items():
        (workspace / name).write_bytes(content)
    (workspace / "begun").mkdir(exist_ok=True)
    (workspace / "begun" / "config.json").write_text((workspace / "walk" / "config.json").read_text())
    if not (workspace / "broken").exists():
        shutil.copytree(workspace / "text", workspace / "broken")
        tensors, note = load_tensors(workspace / "text" / "model.safetensors")
        save_tensors(workspace / "broken" / "model.safetensors", {n: t * math.nan for n, t in tensors.items()}, note)
    folders = {path for path in workspace.rglob("*") if path.is_dir()}
    assert MISTAKES[arguments] in f"{stairwell(workspace, *arguments.split()).error_line}$"
    assert {path for path in workspace.rglob("*") if path.is_dir()} == folders, (
        "a rejected command leaves nothing behind"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "was written by a newer stairwell (format 99, this one reads 2); upgrade"),
        ({"format": "1"}, "is not a stairwell config"),
        ({"trian": {}}, "unknown section 'trian'"),
        ({"name": 3}, "'name' must be a task and a core"),
        ({"name": "random-walk/gru"}, "unknown core 'gru'"),
        ({"train": []}, "expected an object with the fields of a config, not []"),
        ({"train": {"batsch": 3}}, "unknown field 'batsch'"),
        ({"train": {"batch": "3"}}, "'batch': '3' is not an integer"),
        ({"train": {"batch": 3.5}}, "'batch': 3.5 is not an integer"),
        ({"train": {"stop_when_mastered": 1}}, "'stop_when_mastered': 1 is not a true or false"),
        ({"core": {"width": -8}}, "width"),
    ],
)
def test_an_invalid_config_is_reported_in_one_line(change: dict[str, Any], message: str, workspace: Path) -> None:
    run = workspace / "changed"
    run.mkdir(exist_ok=True)
    config = json.loads((workspace / "walk" / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **change}))
    assert message in stairwell(workspace, "train", "--config", "changed/config.json", "--out", "other").error_line
    assert message in stairwell(workspace, "train", "--resume", "--out", "changed").error_line
    assert message in stairwell(workspace, "eval", "changed").error_line


def test_a_model_that_does_not_fit_its_config_is_reported_in_one_line(workspace: Path) -> None:
    run = workspace / "unfit"
    run.mkdir()
    config = json.loads((workspace / "walk" / "config.json").read_text())
    config["core"]["width"] = 16
    (run / "config.json").write_text(json.dumps(config))
    (run / "model.safetensors").write_bytes((workspace / "walk" / "model.safetensors").read_bytes())
    assert "does not fit" in stairwell(workspace, "eval", "unfit").error_line
    (run / "model.safetensors").write_bytes(b"not at all")
    assert "model.safetensors is damaged" in stairwell(workspace, "eval", "unfit").error_line


def test_an_internal_error_can_be_traced(workspace: Path) -> None:
    ended = stairwell(workspace, "eval", "nowhere", STAIRWELL_DEBUG="1")
    assert "Traceback" in ended.err


@pytest.mark.parametrize("moment", ["text/config.json", "text/task.json", "long.txt"])
def test_interrupting_any_command_leaves_no_traceback(moment: str, workspace: Path) -> None:
    (workspace / "long.txt").write_text(PANGRAM * 20)
    ended = stairwell(workspace, "eval", "text", "--segment", "1", "--data", "long.txt", TEST_INTERRUPT_AT=moment)
    assert ended.status == 130 and ended.out == "" and ended.err == "interrupted\n", ended


def test_interrupting_a_command_that_is_still_loading_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stairwell import cli

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "stairwell.train":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "stairwell.train", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "interrupted before the command started\n"


def test_lists_and_information(workspace: Path) -> None:
    listed = stairwell(workspace, "list")
    assert listed.status == 0
    for word in ("random-walk", "global-cached-staircase", "enwik8", "TASK/CORE"):
        assert word in listed.out
    cores = stairwell(workspace, "list", "cores").out.splitlines()
    words = [line.split(maxsplit=1)[1] for line in cores]
    assert len(set(words)) == len(words) == 10
    output = stairwell(workspace, "info").out
    for word in ("stairwell", "python", "torch", "device", "threads", "engine"):
        assert f"\n{word}" in f"\n{output}"


def test_the_help_names_every_option_in_full_on_a_narrow_terminal(workspace: Path) -> None:
    from stairwell.cli.options import dotted_options

    words = set(stairwell(workspace, "train", "--help-all", COLUMNS="80").out.split())
    missing = [name for name, _, _ in dotted_options() if not {f"--{name}", f"--[no-]{name}"} & words]
    assert not missing
    assert all(help for _, _, help in dotted_options())


def test_the_help_of_one_experiment_has_its_own_options_words_and_defaults(workspace: Path) -> None:
    """An option of the same name is another thing elsewhere: a path, say, or which tables are tied."""
    command = ("train", "translation/feedback", "--task.path", "lm/lstm/pairs", "--help-all")
    text = " ".join(stairwell(workspace, *command, COLUMNS="100").out.split())
    assert "Vocabulary size (byte pairs). [default: 8000]" in text
    assert "not needed if source and target are files" in text
    assert "or none. (all|output|none) [default: all]" in text
    assert "--out" in text and "--train.label_smoothing" in text and "--core.memory" in text
    for foreign in ("--core.chunk", "--task.unit", "--task.statements", "--train.epochs", "--model.adaptive"):
        assert foreign not in text, foreign


def help_of(workspace: Path, *words: str, columns: int = 80) -> list[str]:
    ended = stairwell(workspace, *words, "--help", COLUMNS=str(columns))
    assert ended.status == 0, ended
    return ended.out.splitlines()


def test_the_commands_are_listed_in_groups(workspace: Path) -> None:
    from stairwell.cli.help import ORDER

    lines = help_of(workspace)
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Train:", "Use:", "Reproduce:", "Maintain:", "Options:"]
    commands = [line.split()[0] for line in lines if line.startswith("  ") and line[2] not in " -"]
    assert commands == [*ORDER], "every command is in a group"


def test_the_help_of_train_fits_on_a_screen_and_shows_the_most_useful_options(workspace: Path) -> None:
    assert len(help_of(workspace, "train")) < 60
    for name in (*(f"{task}/feedback" for task in TASKS), "lm/staircase", "lm/lstm"):
        lines = help_of(workspace, "train", name)
        options = [line.split()[0] for line in lines if line.startswith("  -")]
        assert len(lines) < 60 and 12 <= len(options) <= 20, name
        assert {"--out", "--steps", "--core.width", "--train.batch", "--help-all"} <= set(options), name
        assert max(map(len, lines)) <= 80, name


def test_the_help_of_an_option_has_at_most_two_lines(workspace: Path) -> None:
    from stairwell.cli.help import ORDER

    names = [[name] for name in ORDER if name != "data"] + [["data", "list"], ["data", "get"], ["train", "lm/feedback"]]
    for words in names:
        lines = help_of(workspace, *words, columns=100)
        start = next(number for number, line in enumerate(lines) if line == "Options:")
        option, length = "", 0
        for line in lines[start:]:
            if line.startswith("  -"):
                option, length = line, 1 if "  " in line.strip() else 0  # beside the option, or below it
            elif line.startswith("   "):
                length += 1
                assert length <= 2, (words, option, line)


def test_defaults_are_shown_in_one_style(workspace: Path) -> None:
    """In brackets at the end, also where a default is only described."""
    for command, defaults in {
        ("train",): ["[default: runs/TASK-CORE]", "[default: auto]", "[default: 1]"],
        ("generate",): ["[default: a newline]", "[default: 0.8]", "[default: random]"],
        ("translate",): ["[default: as tuned, or 5]"],
        ("serve",): ["[default: 127.0.0.1]", "[default: true]"],
        ("train", "random-walk/feedback"): ["[default: 6000]", "[default: length=8..100]"],
    }.items():
        text = " ".join(help_of(workspace, *command)).partition("Options:")[2]
        for default in defaults:
            assert default in text, (command, default)
        assert "if not given" not in text and "<bool>" not in text


def test_flags_are_flags(workspace: Path) -> None:
    def shown(*options: str) -> dict[str, Any]:
        """Return the config that options make."""
        ended = stairwell(workspace, "train", "random-walk/feedback", *options, "--show")
        assert ended.status == 0, ended
        config: dict[str, Any] = json.loads(ended.out)
        return config

    assert shown()["task"]["reset"] is False and shown()["core"]["share_kv"] is True
    for options in (["--task.reset"], ["--task.reset", "true"], ["--task.reset=true"], ["--task.reset", "--seed", "1"]):
        assert shown(*options)["task"]["reset"] is True, options
    for name in ("core.share_kv", "core.share-kv"):
        for options in ([f"--no-{name}"], [f"--{name}", "false"], [f"--{name}=false"]):
            assert shown(*options)["core"]["share_kv"] is False, options
    assert shown("--train.learning-rate", "0.5")["train"]["learning_rate"] == 0.5
    before = stairwell(workspace, "train", "--task.reset", "random-walk/feedback", "--show")
    assert json.loads(before.out)["task"]["reset"] is True, "the next word is no value of the flag"
    tied = stairwell(workspace, "train", "translation/feedback", "--model.tied", "output", "--task.path", "x", "--show")
    assert json.loads(tied.out)["model"]["tied"] == "output", "a flag elsewhere, a choice here"


def test_every_task_and_every_core_has_a_help_of_its_own() -> None:
    from stairwell.cli.options import options_of

    for name in (*(f"{task}/feedback" for task in TASKS), *(f"parity/{core}" for core in CORES)):
        assert all(help for _, help in options_of(name).values()), name


def test_the_shell_completes_experiments_and_options(workspace: Path) -> None:
    for typed, number, wanted in (
        ("stairwell train random-walk/f", "2", "random-walk/feedback"),
        ("stairwell train --core.mem", "2", "--core.memory"),
        ("stairwell tr", "1", "train"),
    ):
        completed = stairwell(workspace, _STAIRWELL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=number)
        assert wanted in completed.out.split(), completed


def test_the_module_is_the_same_command_and_a_terminal_shows_a_live_panel(tmp_path: Path) -> None:
    """The real interpreter, with a pseudo-terminal as stderr."""
    master, terminal = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    arguments = ["train", "random-walk/lstm", *TINY, "--steps", "30", "--out", "run", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stairwell", *arguments],
        stdout=subprocess.PIPE,
        stderr=terminal,
        cwd=tmp_path,
        env=environment,
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        seen += part
    out, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["steps"] == 30
    shown = seen.decode(errors="replace")
    for word in ("steps", "30/30", "tokens/s", "eta", "loss", "valid", "random-walk/lstm"):
        assert word in shown, word
    assert any(block in shown for block in "▁▂▃▄▅▆▇█")
