"""CONTRIBUTING.md lists the functions between the command line and the first optimizer step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_HOPS = 12
ROW = re.compile(r"^\| (?P<returns>&nbsp;&nbsp;)?`(?P<name>[\w.]+)` \| `(?P<file>[\w/]+\.py)` \|", re.MULTILINE)
# Records every call of a function of the package before the first optimizer step, and the stack at that step.
SCRIPT = """
import json, sys
from torch.optim.optimizer import register_optimizer_step_pre_hook
import stairwell
from stairwell.cli import main
calls, package = [], stairwell.__path__[0] + "/"
def name(frame):
    return [frame.f_code.co_filename.removeprefix(package), frame.f_code.co_qualname]
def record(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        calls.append(name(frame))
def stop(*arguments):
    sys.setprofile(None)
    stack, frame = [], sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(package):
            stack.append(name(frame))
        frame = frame.f_back
    print(json.dumps([stack[::-1], calls]), flush=True)
    raise KeyboardInterrupt
register_optimizer_step_pre_hook(stop)
sys.setprofile(record)
main()
"""


def test_contributing_lists_the_calls_up_to_the_first_optimizer_step(tmp_path: Path) -> None:
    options = ["--train.batch", "2", "--task.valid_episodes", "2", "--device", "cpu", "--quiet"]
    command = [sys.executable, "-c", SCRIPT, "train", "random-walk/feedback", *options, "--out", str(tmp_path / "run")]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    stack, calls = ([(file, name) for file, name in functions] for functions in json.loads(output.splitlines()[0]))
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Architecture")[1]
    rows = list(ROW.finditer(section))
    listed = [(row["file"], row["name"]) for row in rows]
    assert 0 < len(listed) <= MAX_HOPS
    assert [function for function, row in zip(listed, rows) if not row["returns"]] == stack
    first_calls = [calls.index(function) for function in listed]
    assert first_calls == sorted(first_calls)
