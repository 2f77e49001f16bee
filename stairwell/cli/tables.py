"""Tables in a terminal: every name and number is whole, however narrow the terminal is.

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

PADDING = 3  # characters per column in addition to its cells; the table takes one more
NAMES = 3  # in a table of several parts the first column may take a third of the width before it wraps


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    full = [full_width(column) for column in columns_of(table)]
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = total(full)
    narrow = [word_width(column) for column in columns_of(table)]
    if total(narrow) > console.width:
        narrow[0] = max(narrow[0], min(full[0], console.width // NAMES))
    chosen = parts(table.columns, narrow, console.width)
    for number, part in enumerate(chosen):
        widths = fitted([narrow[i] for i in part], [full[i] for i in part], console.width)
        shown = RichTable(box=box.SIMPLE_HEAD)
        # Text, not str, so that brackets are not markup.
        if number == 0:
            shown.title = Text(table.title)
        if number == len(chosen) - 1:
            shown.caption = Text(table.caption)
        for i, width in zip(part, widths):
            shown.add_column(Text(table.columns[i]), width=width, overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(str(row[i])) for i in part))
        console.print(shown)


def parts(names: Sequence[str], narrow: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each part of a table: as many as fit with all their words whole."""
    found = [[0]]
    for group in groups(names):
        if len(found[-1]) > 1 and total([narrow[i] for i in [*found[-1], *group]]) > width:
            found.append([0])
        found[-1] += group
    return found


def groups(names: Sequence[str]) -> list[list[int]]:
    """Return the columns after the first in groups that must stay together: a heading that occurs more than once, such
    as `best validation seed`, belongs to the column before it."""
    found: list[list[int]] = []
    for column, name in enumerate(names[1:], start=1):
        if names.count(name) > 1 and found:
            found[-1].append(column)
        else:
            found.append([column])
    return found


def fitted(narrow: Sequence[int], full: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns that together fit: at least the narrow ones, wider where there is room."""
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
