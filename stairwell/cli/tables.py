"""Print tables in a terminal without truncating names or numbers, however narrow the terminal is.

A table that is too wide is printed in parts, one below the other, each with the first column.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from stairwell.report.table import Table

PADDING = 3  # characters per column in addition to its cells; the table needs one more
NAMES = 3  # in a table of several parts, the first column wraps if it is wider than 1 / NAMES of the terminal


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    full = [full_width(column) for column in columns_of(table)]
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = total(full)
    narrow = [word_width(column) for column in columns_of(table)]
    if total(narrow) > console.width:
        narrow[0] = max(narrow[0], min(full[0], console.width // NAMES))
    table_parts = parts(table.columns, narrow, console.width)
    for number, part in enumerate(table_parts):
        widths = fitted([narrow[i] for i in part], [full[i] for i in part], console.width)
        rich_table = RichTable(box=box.SIMPLE_HEAD)
        # Text instead of str, so that rich does not read brackets as markup.
        if number == 0:
            rich_table.title = Text(table.title)
        if number == len(table_parts) - 1:
            rich_table.caption = Text(table.caption)
        for i, width in zip(part, widths):
            rich_table.add_column(Text(table.columns[i]), width=width, overflow="fold")
        for row in table.rows:
            rich_table.add_row(*(Text(str(row[i])) for i in part))
        console.print(rich_table)


def parts(names: Sequence[str], narrow: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each part of a table: as many as fit without breaking a word."""
    split = [[0]]
    for group in groups(names):
        if len(split[-1]) > 1 and total([narrow[i] for i in [*split[-1], *group]]) > width:
            split.append([0])
        split[-1] += group
    return split


def groups(names: Sequence[str]) -> list[list[int]]:
    """Return the columns after the first in groups that must stay together: a heading that occurs more than once, such
    as `best validation seed`, belongs to the column before it."""
    grouped: list[list[int]] = []
    for column, name in enumerate(names[1:], start=1):
        if names.count(name) > 1 and grouped:
            grouped[-1].append(column)
        else:
            grouped.append([column])
    return grouped


def fitted(narrow: Sequence[int], full: Sequence[int], width: int) -> list[int]:
    """Return column widths: at least the narrow ones, and wider, up to the full ones, while the table fits `width`."""
    widths = list(narrow)
    for i in range(len(widths)):
        widths[i] += max(0, min(full[i] - widths[i], width - total(widths)))
    return widths


def total(widths: Sequence[int]) -> int:
    return 1 + sum(width + PADDING for width in widths)


def columns_of(table: Table) -> list[list[str]]:
    """Return the heading and the cells of each column."""
    return [[name, *(str(row[i]) for row in table.rows)] for i, name in enumerate(table.columns)]


def full_width(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells))


def word_width(cells: Sequence[str]) -> int:
    return max((cell_len(word) for cell in cells for word in cell.split()), default=1)
