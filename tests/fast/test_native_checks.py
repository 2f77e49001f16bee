"""Native operators reject inconsistent arguments, so they never access memory out of bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stairwell.fast import native
from tests.fast.native_cases import OPERATORS

pytestmark = pytest.mark.skipif(bool(native.UNAVAILABLE_REASON), reason=native.UNAVAILABLE_REASON)


@pytest.fixture(scope="module")
def outcomes() -> list[list[str]]:
    """Return operator, change and outcome of each case."""
    # With MALLOC_CHECK_ the C library aborts if memory beyond a block was written.
    environment = {**os.environ, "MALLOC_CHECK_": "3", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fast.native_cases"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("operator", OPERATORS)
def test_tensors_of_wrong_size_or_dtype_are_rejected(operator: str, outcomes: list[list[str]]) -> None:
    own = [(change, outcome) for name, change, outcome in outcomes if name == operator]
    wrong = [
        (change, outcome)
        for change, outcome in own
        if change.endswith(("one element fewer", "another dtype", "not contiguous"))
    ]
    assert len(wrong) >= 6
    assert [change for change, outcome in wrong if outcome != "rejected"] == []


def test_lists_of_wrong_length_and_negative_integers_are_rejected(outcomes: list[list[str]]) -> None:
    for end in ("last item missing", "one item more", "empty list"):
        assert {outcome for _, change, outcome in outcomes if change.endswith(end)} == {"rejected"}
    assert {outcome for _, change, outcome in outcomes if ": -1 for " in change} == {"rejected"}
