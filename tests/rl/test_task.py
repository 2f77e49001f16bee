"""The task `rl`: environments by name, on the command line, kept with a run."""

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
from stairwell.rl.render import frames
from stairwell.rl.rows import OwnRows
from stairwell.rl.spaces import Discrete
from stairwell.rl.task import Config, Reinforcement, parse_options
from stairwell.runs.launch import evaluate_run, fit, load
from tests.commands import stairwell
from tests.rl.test_rollouts import experiment

ROOT = Path(__file__).parents[2]
TINY = [
    "--core.width", "8", "--core.layers", "1", "--train.batch", "4", "--train.segment", "8", "--train.log_every", "4",
    "--train.validate_every", "8", "--train.checkpoint_every", "5", "--train.valid_batch", "2", "--train.warmup", "0",
    "--task.valid_episodes", "4", "--task.test_episodes", "4", "--quiet",
]  # fmt: skip


@pytest.mark.parametrize("core", sorted(CORES))
def test_every_core_has_a_preset_that_trains(core: str, tmp_path: Path) -> None:
    made = experiment(f"rl/{core}", train__learner="ppo", train__steps=5)
    assert fit(made, tmp_path, "cpu")["updates"] == 5


@pytest.mark.parametrize("name", ["passive-t-maze", "maze-navigation", "maze-navigation-easy", "water-maze"])
def test_all_own_environments_have_short_names(name: str, tmp_path: Path) -> None:
    made = experiment("rl/lstm", task__env=name, task__length=None, train__steps=2, task__valid_episodes=1)
    size = {"task.steps": "9"} if "t-maze" not in name else {"task.length": "4"}
    assert fit(made.with_options(size), tmp_path, "cpu")["tokens"] == 48


def test_a_training_an_evaluation_and_a_resumption_on_the_command_line(tmp_path: Path) -> None:
    command = ["train", "rl/feedback", "--task.env", "corridor", "--task.length", "3", *TINY, "--core.heads", "2"]
    done = stairwell(tmp_path, *command, "--steps", "8", "--out", "run", "--json")
    assert done.status == 0, done
    result = json.loads(done.out)
    assert result["tokens"] == 32  # PPO: 4 epochs of 4 minibatches make 16 updates of 4 x 8 frames
    assert "valid_return" in result
    assert stairwell(tmp_path, "train", "--resume", "--out", "run", "--steps", "12", "--quiet").status == 0
    scores = json.loads(stairwell(tmp_path, "eval", "run", "--json").out)
    assert scores["episodes"] == 4 and {"return", "return_deviation", "return_interval", "length"} <= set(scores)
    kept = json.loads((tmp_path / "run" / "task.json").read_text())["phases"][0]
    assert kept["kind"] == "agent" and kept["primary_metric"] == "return"
    assert kept["facts"]["env"] == "stairwell/Corridor-v0" and kept["facts"]["options"] == {"length": 3}
    assert kept["facts"]["action"] == {"kind": "discrete", "n": 3}


def test_a_run_is_loaded_without_gymnasium(tmp_path: Path) -> None:
    fit(experiment("rl/lstm", task__env="CartPole-v1", task__length=None, train__steps=2), tmp_path, "cpu")
    program = f"""
import sys
sys.modules["gymnasium"] = None
from stairwell.runs import load
agent, task = load({str(tmp_path)!r}, "cpu")
print(task.describe(), list(agent.leaves))
try:
    task.open(range(1), 0)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "CartPole-v1, episodes without end ['observation']" in done.stdout
    assert "gymnasium 1.1 or newer is not installed: pip install 'stairwell[rl]'" in done.stdout


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "AutoencodeEasy"])
def test_popgyms_environments_are_known_by_name(name: str, tmp_path: Path) -> None:
    pytest.importorskip("popgym")
    made = experiment(task__env=f"popgym-{name}-v0", task__length=None, train__steps=2, task__valid_episodes=1)
    assert fit(made, tmp_path, "cpu")["tokens"] == 48


def test_a_package_that_is_missing_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popgym", None)
    with pytest.raises(UserError, match="'popgym-X-v0' needs a package that is not installed: pip install popgym"):
        Reinforcement(Config(env="popgym-X-v0")).facts()


class Odd(gymnasium.Env[Any, Any]):
    def __init__(self, **spaces: Any) -> None:
        self.observation_space = spaces.get("observation", gymnasium.spaces.Discrete(2))
        self.action_space = spaces.get("action", gymnasium.spaces.Discrete(2))


gymnasium.register("Odd-v0", entry_point=Odd, kwargs={"observation": gymnasium.spaces.Text(5)})


class Leaves(Odd):
    """Ends the program in place of raising an error, as scripts do."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        if when == "making":
            raise SystemExit("no display")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.when == "resetting":
            raise SystemExit(3)
        return 0, {}

    def step(self, action: Any) -> Any:
        raise SystemExit("bye")


for _when in ("making", "resetting", "stepping"):
    gymnasium.register(f"Leaves-{_when}-v0", entry_point=Leaves, kwargs={"when": _when})
_actions = gymnasium.spaces.Dict({"turn": gymnasium.spaces.Discrete(2)})
gymnasium.register("Dictated-v0", entry_point=Odd, kwargs={"action": _actions})
gymnasium.register(
    "Odder-v0", entry_point=Odd, kwargs={"action": gymnasium.spaces.Graph(gymnasium.spaces.Discrete(2), None)}
)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"env": "CartPool-v1"}, "environment 'CartPool-v1': .*CartPole"),
        (
            {"env": "CartPole-v1", "length": 4},
            "--task.length is no option of CartPole-v1; give its options in --task.opt",
        ),
        ({"env": "corridor", "side": 4}, "--task.side is no option of stairwell/Corridor-v0; it has: colors, length"),
        ({"env": "corridor", "length": 0}, "length is 0; it must be at least 1"),
        ({"env": "CartPole-v1", "options": "color=red"}, "environment 'CartPole-v1' cannot be made with"),
        ({"env": "CartPole-v1", "options": "color"}, "task.options must be name=value pairs, not 'color'"),
        ({"env": "Odd-v0"}, "the observation space is a Text, which is not supported; supported are Discrete"),
        ({"env": "Odder-v0"}, "the action space is a Graph, which is not supported"),
    ],
)
def test_what_cannot_be_played_is_told_in_one_line(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word) as raised:
        Reinforcement(Config(**options)).facts()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"valid_episodes": 10**12}, r"--task.valid_episodes 1,000,000,000,000: at least 101,000,000,000,000 frames"),
        ({"test_episodes": 10**12}, r"--task.test_episodes 1,000,000,000,000: at least 101,000,000,000,000 frames"),
        ({"env": "CartPole-v1", "valid_episodes": 10**12}, r"1,000,000,000,000: at least 1,000,000,000,000 frames"),
        ({"length": 10**9}, r"Corridor-v0 has at least 1,000,000,001 steps \(length 1000000000\), and --task.longest"),
        ({"length": 10**9, "longest": 10**10}, r"--task.valid_episodes 200: at least 200,000,000,200 frames"),
        ({"env": "maze", "steps": 10**9}, r"has at least 1,000,000,000 steps \(steps 1000000000\)"),
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
def test_what_would_be_played_for_days_is_refused_before_the_first_step(options: dict[str, Any], word: str) -> None:
    task = Reinforcement(Config(**options))
    with pytest.raises(UserError, match=word):
        task.returns(0, 64)


def test_a_long_corridor_with_a_clock_is_allowed() -> None:
    Reinforcement(Config(length=10**9, limit=1000)).returns(0, 64)


def test_actions_that_no_policy_has_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"actions of Dict are not supported; they can be Discrete, .* or Box"):
        fit(experiment(task__env="Dictated-v0", task__length=None), tmp_path, "cpu")


@pytest.mark.parametrize(
    ("when", "word"),
    [
        ("making", r"environment 'Leaves-making-v0' cannot be made: SystemExit: no display \(.*test_task.py:\d+\)"),
        ("resetting", r"the environment is broken: SystemExit: 3 \(.*test_task.py:\d+\)"),
        ("stepping", r"the environment is broken: SystemExit: bye \(.*; stopped and saved at update 0 of 12"),
    ],
)
def test_an_environment_that_ends_the_program_is_told_as_any_other_error(when: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=word):
        fit(experiment(task__env=f"Leaves-{when}-v0", task__length=None), tmp_path, "cpu")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that Python does not look in, as for an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    return tmp_path


def test_an_own_environment_is_found_in_the_current_folder_to_train_evaluate_and_play(elsewhere: Path) -> None:
    """The example of the documents."""
    shutil.copy(ROOT / "examples" / "recall.py", elsewhere / "recall_here.py")
    options = {"task__env": "recall_here:Recall-v0", "task__options": "length=3", "task__length": None}
    fit(experiment(**options), elsewhere / "run", "cpu")
    agent, task = load(elsewhere / "run", "cpu")
    assert task.describe() == "recall_here:Recall-v0 (length 3), episodes without end"
    assert evaluate_run(elsewhere / "run", "test", None, 1, 64, "cpu", "auto", None)["length"] == 4
    assert [frame.step for frame in frames(agent, task, episodes=2, seed=0)] == [1, 2, 3, 4] * 2


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [
        (":", "", "--task.env ':': expected module:Name-v0, such as my_module:MyEnv-v0"),
        ("one:", "", "--task.env 'one:': expected module:Name-v0"),
        (":X-v0", "", "--task.env ':X-v0': expected module:Name-v0"),
        ("nowhere:X-v0", "", r"no module 'nowhere' in the current folder \(.*\) or among the .*; run this where"),
        ("two.py:X-v0", "", r"no module 'two.py' in the current folder .*; write two:X-v0"),
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
            r"the module 'named' \(.*named.py\) registers no environment 'X-v0'; it registers Y-v0",
        ),
        ("nothing:X-v0", "", r"'nothing' \(.*nothing.py\) registers no environment 'X-v0'; call gymnasium.register"),
    ],
)
def test_what_failed_with_an_own_environment_is_told_in_one_line(
    name: str, code: str, word: str, elsewhere: Path
) -> None:
    module = name.partition(":")[0]
    if module.isidentifier() and module != "nowhere":
        (elsewhere / f"{module}.py").write_text(code)
    with pytest.raises(UserError, match=word) as raised:
        Reinforcement(Config(env=name)).facts()
    assert "\n" not in str(raised.value)
    sys.modules.pop(module, None)
    gymnasium.registry.pop("Y-v0", None)


def test_an_environment_whose_spaces_have_changed_since_the_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(experiment("rl/lstm", train__steps=2), tmp_path, "cpu")
    _, task = load(tmp_path, "cpu")
    monkeypatch.setattr(
        OwnRows, "observation_space", property(lambda rows: Discrete(9), lambda rows, space: None), False
    )
    with pytest.raises(UserError, match=r"'stairwell/Corridor-v0' has changed since the training: its observation"):
        task.open(range(1), 0)


def test_options_of_an_environment_are_read_as_python_writes_them() -> None:
    assert parse_options("size=9, see=True,rate=0.5,name=red") == {"size": 9, "see": True, "rate": 0.5, "name": "red"}


def test_derived_fields_and_unknown_ones_are_refused() -> None:
    with pytest.raises(UserError, match=r"--model\.action is no option: it follows from the task and the core"):
        experiment(model__action="x")
    with pytest.raises(UserError, match=r"unknown option --train\.discont"):
        experiment(train__discont=1)
    with pytest.raises(UserError, match="an environment has no curriculum"):
        made = experiment(train__curriculum="length=2..4")
        task = made.make_tasks()[0]
        task.batch_source(made.make_model(task), made.train)(range(4), 4, 0).change(length=2)
