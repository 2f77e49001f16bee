"""The task `rl`: environments by name, on the command line, and saved with a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.rl.render import render_episodes
from stairwell.rl.spaces import Discrete
from stairwell.rl.task import RLTask, RLTaskConfig, parse_options
from stairwell.rl.vector_env import BatchedVectorEnv
from stairwell.runs.launch import fit
from stairwell.runs.load import evaluate_run, load
from tests.commands import stairwell
from tests.rl.small_runs import rollout_source, run_config

ROOT = Path(__file__).parents[2]
TINY = [
    "--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "8", "--train.log_every", "4",
    "--train.validate_every", "8", "--train.checkpoint_every", "5", "--train.valid_batch", "2", "--train.warmup", "0",
    "--task.valid_episodes", "4", "--task.test_episodes", "4", "--quiet",
]  # fmt: skip


@pytest.mark.parametrize("core", sorted(CORES))
def test_every_core_has_a_preset_that_trains(core: str, tmp_path: Path) -> None:
    config = run_config(f"rl/{core}", train__algorithm="ppo", train__steps=5)
    assert fit(config, tmp_path, "cpu")["steps"] == 5


@pytest.mark.parametrize("name", ["passive-t-maze", "maze-navigation", "maze-navigation-easy", "water-maze"])
def test_all_own_environments_have_short_names(name: str, tmp_path: Path) -> None:
    config = run_config("rl/lstm", task__env=name, task__length=None, train__steps=2, task__valid_episodes=1)
    size = {"task.max_steps": "9"} if "t-maze" not in name else {"task.length": "4"}
    assert fit(config.with_options(size), tmp_path, "cpu")["tokens"] == 48


def test_a_number_of_frames_is_converted_to_steps(tmp_path: Path) -> None:
    """The preset's rollouts have 64 x 64 frames, and PPO takes 4 x 4 steps on each."""

    def steps(*arguments: str) -> int:
        shown = stairwell(tmp_path, "train", *arguments, "--show")
        return int(json.loads(shown.out)["train"]["steps"])

    assert steps("rl/feedback", "--frames", "8192") == 32
    assert steps("rl/feedback", "--frames", "8193") == 48, "rounded up to whole rollouts"
    assert (
        steps("rl/lstm", "--frames", "100", "--train.batch", "8", "--train.segment", "4", "--train.epochs", "1") == 16
    )
    both = stairwell(tmp_path, "train", "rl/feedback", "--frames", "9", "--steps", "9")
    assert "--frames and --steps both set the length" in both.error_line
    assert "--frames is for agents" in stairwell(tmp_path, "train", "parity/lstm", "--frames", "9").error_line


def test_deterministic_evaluation_is_for_agents(tmp_path: Path) -> None:
    assert "--deterministic is for agents" in stairwell(tmp_path, "eval", "s5-feedback", "--deterministic").error_line


def test_train_resume_and_eval_on_the_command_line(tmp_path: Path) -> None:
    command = ["train", "rl/feedback", "--task.env", "corridor", "--task.length", "3", *TINY, "--core.heads", "2"]
    done = stairwell(tmp_path, *command, "--steps", "8", "--out", "run", "--json")
    assert done.status == 0, done
    result = json.loads(done.out)
    assert result["frames"] == 32  # one rollout of 4 x 8 frames: PPO takes 16 steps on it
    assert "valid_return" in result and "tokens" not in result
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--steps", "12", "--quiet").status == 0
    scores = json.loads(stairwell(tmp_path, "eval", "run", "--json").out)
    assert scores["episodes"] == 4 and {"return", "return_std", "return_ci95", "length"} <= set(scores)
    greedy = [json.loads(stairwell(tmp_path, "eval", "run", "--deterministic", "--json").out) for _ in range(2)]
    assert greedy[0] == greedy[1] != scores
    saved = json.loads((tmp_path / "run" / "task.json").read_text())["phases"][0]
    assert saved["family"] == "rl" and saved["primary_metric"] == "return"
    assert saved["facts"]["env"] == "stairwell/Corridor-v0" and saved["facts"]["options"] == {"length": 3}
    assert saved["facts"]["action_space"] == {"type": "discrete", "n": 3}


def test_a_run_is_loaded_without_gymnasium(tmp_path: Path) -> None:
    fit(run_config("rl/lstm", task__env="CartPole-v1", task__length=None, train__steps=2), tmp_path, "cpu")
    program = f"""
import sys
sys.modules["gymnasium"] = None
from stairwell.runs import load
agent, task = load({str(tmp_path)!r}, "cpu")
print(task.describe(), list(agent.leaves))
try:
    task.make_env(range(1), 0)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "CartPole-v1, unlimited episodes ['observation']" in done.stdout
    assert 'gymnasium 1.1 or newer is not installed: pip install "gymnasium>=1.1"' in done.stdout


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "AutoencodeEasy"])
def test_popgym_environments_are_found_by_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip("popgym")
    config = run_config(task__env=f"popgym-{name}-v0", task__length=None, train__steps=2, task__valid_episodes=1)
    assert fit(config, tmp_path, "cpu")["tokens"] == 48


def test_a_missing_package_raises_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popgym", None)
    with pytest.raises(UserError, match="'popgym-X-v0' needs a package that is not installed: pip install popgym"):
        RLTask(RLTaskConfig(env="popgym-X-v0")).facts()


class Spaces(gymnasium.Env[Any, Any]):
    def __init__(self, **spaces: Any) -> None:
        self.observation_space = spaces.get("observation", gymnasium.spaces.Discrete(2))
        self.action_space = spaces.get("action", gymnasium.spaces.Discrete(2))


gymnasium.register("TextObservation-v0", entry_point=Spaces, kwargs={"observation": gymnasium.spaces.Text(5)})


class Exits(Spaces):
    """Raises SystemExit."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        if where == "init":
            raise SystemExit("no display")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.where == "reset":
            raise SystemExit(3)
        return 0, {}

    def step(self, action: Any) -> Any:
        raise SystemExit("bye")


for _where in ("init", "reset", "step"):
    gymnasium.register(f"Exits-{_where}-v0", entry_point=Exits, kwargs={"where": _where})
_actions = gymnasium.spaces.Dict({"turn": gymnasium.spaces.Discrete(2)})
gymnasium.register("DictAction-v0", entry_point=Spaces, kwargs={"action": _actions})
gymnasium.register(
    "GraphAction-v0", entry_point=Spaces, kwargs={"action": gymnasium.spaces.Graph(gymnasium.spaces.Discrete(2), None)}
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "CartPool-v1"}, "environment 'CartPool-v1': .*CartPole"),
        (
            {"env": "CartPole-v1", "length": 4},
            "--task.length is not an option of CartPole-v1; use --task.options",
        ),
        (
            {"env": "corridor", "side": 4},
            "--task.side is not an option of .*Corridor-v0; its options are colors, length",
        ),
        ({"env": "corridor", "length": 0}, "length is 0; it must be at least 1"),
        ({"env": "CartPole-v1", "options": "color=red"}, "environment 'CartPole-v1' cannot be made with"),
        ({"env": "CartPole-v1", "options": "color"}, "task.options must be name=value pairs, not 'color'"),
        (
            {"env": "TextObservation-v0"},
            "the observation space is a Text, which is not supported; supported are Discrete",
        ),
        ({"env": "GraphAction-v0"}, "the action space is a Graph, which is not supported"),
    ],
)
def test_invalid_environments_and_options_raise_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        RLTask(RLTaskConfig(**options)).facts()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"valid_episodes": 10**12},
            r"--task.valid_episodes 1,000,000,000,000 needs at least 101,000,000,000,000 frames",
        ),
        (
            {"test_episodes": 10**12},
            r"--task.test_episodes 1,000,000,000,000 needs at least 101,000,000,000,000 frames",
        ),
        (
            {"env": "CartPole-v1", "valid_episodes": 10**12},
            r"1,000,000,000,000 needs at least 1,000,000,000,000 frames",
        ),
        (
            {"length": 10**9},
            r"has at least 1,000,000,001 steps \(length 1000000000\), but --task.max_episode_steps is 100,000",
        ),
        (
            {"length": 10**9, "max_episode_steps": 10**10},
            r"--task.valid_episodes 200 needs at least 200,000,000,200 frames",
        ),
        ({"env": "maze", "max_steps": 10**9}, r"has at least 1,000,000,000 steps \(max_steps 1000000000\)"),
        (
            {"env": "maze", "side": 10**6 + 1},
            r"side is 1,000,001; it must be at most 201",
        ),
        (
            {"env": "water-maze", "side": 10**6},
            r"side is 1,000,000; it must be at most 1,001",
        ),
    ],
)
def test_evaluations_that_take_days_raise_before_training(options: dict[str, Any], message: str) -> None:
    task = RLTask(RLTaskConfig(**options))
    with pytest.raises(UserError, match=message):
        task.validation(0, 64)


def test_a_long_corridor_with_a_time_limit_is_allowed() -> None:
    RLTask(RLTaskConfig(length=10**9, max_steps=1000)).validation(0, 64)


def test_unsupported_action_spaces_raise(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"action space Dict is not supported; supported are Discrete, .* and Box"):
        fit(run_config(task__env="DictAction-v0", task__length=None), tmp_path, "cpu")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("init", r"environment 'Exits-init-v0' cannot be made: SystemExit: no display \(.*test_task.py:\d+\)"),
        ("reset", r"the environment failed: SystemExit: 3 \(.*test_task.py:\d+\)"),
        ("step", r"the environment failed: SystemExit: bye \(.*; stopped and saved at step 0 of 12"),
    ],
)
def test_an_environment_that_raises_system_exit_is_reported(where: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        fit(run_config(task__env=f"Exits-{where}-v0", task__length=None), tmp_path, "cpu")


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory that is not in sys.path, as for an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    return tmp_path


def test_a_custom_environment_is_found_in_the_working_directory(working_directory: Path) -> None:
    """The example in the documentation: train, evaluate and play."""
    shutil.copy(ROOT / "examples" / "recall.py", working_directory / "recall_here.py")
    options = {"task__env": "recall_here:Recall-v0", "task__options": "length=3", "task__length": None}
    fit(run_config(**options), working_directory / "run", "cpu")
    agent, task = load(working_directory / "run", "cpu")
    assert task.describe() == "recall_here:Recall-v0 (length 3), unlimited episodes"
    assert evaluate_run(working_directory / "run", "test", device="cpu")["length"] == 4
    assert [step.step for step in render_episodes(agent, task, episodes=2, seed=0)] == [1, 2, 3, 4] * 2


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (":", "", "--task.env ':': expected module:Name-v0, for example my_module:MyEnv-v0"),
        ("one:", "", "--task.env 'one:': expected module:Name-v0"),
        (":X-v0", "", "--task.env ':X-v0': expected module:Name-v0"),
        ("nowhere:X-v0", "", r"no module 'nowhere' in the current directory \(.*\) or among the .*; run this in its"),
        ("two.py:X-v0", "", r"no module 'two.py' in the current directory .*; write two:X-v0"),
        (
            "needs:X-v0",
            "import nosuchpackage",
            r"importing the module 'needs' failed: .*'nosuchpackage' \(.*needs.py:1",
        ),
        ("wrong:X-v0", "def f(:", r"importing the module 'wrong' failed: SyntaxError: .*wrong.py, line 1\)$"),
        (
            "script:X-v0",
            "raise SystemExit(4)",
            r"importing the module 'script' failed: SystemExit: 4 \(.*script.py:1\)",
        ),
        (
            "named:X-v0",
            "import gymnasium\ngymnasium.register('Y-v0', entry_point='named:Y')",
            r"the module 'named' \(.*named.py\) does not register 'X-v0'; it registers Y-v0",
        ),
        ("nothing:X-v0", "", r"'nothing' \(.*nothing.py\) does not register 'X-v0'; call gymnasium.register"),
    ],
)
def test_errors_in_custom_environments_are_reported_in_one_line(
    name: str, code: str, message: str, working_directory: Path
) -> None:
    module = name.partition(":")[0]
    if module.isidentifier() and module != "nowhere":
        (working_directory / f"{module}.py").write_text(code)
    with pytest.raises(UserError, match=message) as raised:
        RLTask(RLTaskConfig(env=name)).facts()
    assert "\n" not in str(raised.value)
    sys.modules.pop(module, None)
    gymnasium.registry.pop("Y-v0", None)


def test_an_environment_whose_spaces_have_changed_since_training_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(run_config("rl/lstm", train__steps=2), tmp_path, "cpu")
    _, task = load(tmp_path, "cpu")
    monkeypatch.setattr(
        BatchedVectorEnv, "observation_space", property(lambda env: Discrete(9), lambda env, space: None), False
    )
    with pytest.raises(UserError, match=r"'stairwell/Corridor-v0' has changed since training: its observation"):
        task.make_env(range(1), 0)


def test_environment_options_are_python_literals_or_strings() -> None:
    assert parse_options("size=9, see=True,rate=0.5,name=red") == {"size": 9, "see": True, "rate": 0.5, "name": "red"}


def test_derived_and_unknown_fields_raise() -> None:
    with pytest.raises(UserError, match=r"--model\.action_space"):
        run_config(model__action_space="x")
    with pytest.raises(UserError, match=r"unknown option --train\.discont"):
        run_config(train__discont=1)
    with pytest.raises(UserError, match=r"unknown option --train\.curriculum"):
        run_config(train__curriculum="length=2..4")


def test_environments_have_no_curriculum() -> None:
    with pytest.raises(UserError, match="environments have no curriculum"):
        rollout_source(run_config()).change(length=2)


@pytest.mark.parametrize("name", ["Cue", "Cue-v0"])
def test_an_environment_of_the_current_directory_is_suggested_by_its_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text('import gymnasium\ngymnasium.register("Cue-v0", entry_point="mine:Cue")\n')
    with pytest.raises(UserError, match=r"for that of mine.py write --task.env mine:Cue-v0"):
        run_config(task__env=name, task__length=None).make_tasks()[0].facts()
    with pytest.raises(UserError, match=r"an environment of your own is named module:Name-v0"):
        run_config(task__env="Cues-v0", task__length=None).make_tasks()[0].facts()
