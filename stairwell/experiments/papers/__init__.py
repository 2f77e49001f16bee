"""Every table and figure of both papers, one file each, and a few studies of ours (`extra`).

A file's functions make a study at a scale; its `STUDIES` gives them their names."""

from __future__ import annotations

from stairwell.errors import UserError
from stairwell.experiments.papers import extra, horizon, league
from stairwell.experiments.papers.feedback import (
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
)
from stairwell.experiments.papers.staircase import figure2, table7, table8, table9
from stairwell.experiments.papers.staircase import figure3 as staircase_figure3
from stairwell.experiments.papers.staircase import table1 as staircase_table1
from stairwell.experiments.papers.staircase import table2 as staircase_table2
from stairwell.experiments.papers.staircase import table3 as staircase_table3
from stairwell.experiments.papers.staircase import table6 as staircase_table6
from stairwell.experiments.study import SCALES, Maker, Scale, Study

FEEDBACK = (
    table1,
    figure3,
    figure4,
    table2,
    figure5,
    table3,
    table4,
    table5,
    figure6,
    figure7,
    figure8,
    table6,
    figure9,
)
STAIRCASE = (
    staircase_table1,
    figure2,
    staircase_figure3,
    staircase_table2,
    staircase_table3,
    staircase_table6,
    table7,
    table8,
    table9,
)
# Every study by its name, in the order of the papers.
CATALOGUE: dict[str, Maker] = {
    name: make for module in (*FEEDBACK, extra, league, horizon, *STAIRCASE) for name, make in module.STUDIES.items()
}


def studies(name: str, scale: Scale) -> list[Study]:
    """The study of a name, or all those of a table: `staircase.table1` has a part for each task."""
    found = [make for known, make in CATALOGUE.items() if known == name or known.startswith(f"{name}.")]
    if not found:
        raise UserError(f"nothing is called '{name}'; there are demo, {', '.join(CATALOGUE)}")
    made = [study for make in found if (study := make(scale)) is not None]
    if not made:
        raise UserError(f"{name} is not made at {scale} scale; try --scale {next(s for s in SCALES if s != scale)}")
    return made
