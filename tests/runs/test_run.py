"""The run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stairwell.errors import UserError
from stairwell.runs.run import Run


def test_an_unreadable_config_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot read"):
        Run(tmp_path).read_config()
