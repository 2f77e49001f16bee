"""The native operators refuse arguments that do not fit together: they never read or write outside of what they get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stairwell.fast import native
from tests.fast.native_cases import OPERATORS

pytestmark = pytest.mark.skipif(bool(native.MISSING), reason=native.MISSING)


@pytest.fixture(scope="module")
def outcomes() -> list[list[str]]:
    """Of each case: operator, what was changed, what happened."""
    # MALLOC_CHECK_: the C library ends the process where memory beyond a block was written.
    environment = {**os.environ, "MALLOC_CHECK_": "3", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fast.native_cases"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_refuses_tensors_of_other_sizes_and_types(operator: str, outcomes: list[list[str]]) -> None:
    own = [(what, outcome) for name, what, outcome in outcomes if name == operator]
    wrong = [(what, outcome) for what, outcome in own if what.endswith(("an element less", "another type", "gaps"))]
    assert len(wrong) >= 6
    assert [what for what, outcome in wrong if outcome != "refused"] == []


def test_an_operator_refuses_lists_of_another_length_and_negative_numbers(outcomes: list[list[str]]) -> None:
    for end in ("the last is missing", "one more", "nothing"):
        assert {outcome for _, what, outcome in outcomes if what.endswith(end)} == {"refused"}
    assert {outcome for _, what, outcome in outcomes if ": -1 for " in what} == {"refused"}
