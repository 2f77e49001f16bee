"""What the C source of a model consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Constant(NamedTuple):
    name: str
    value: int
    comment: str


@dataclass(frozen=True)
class StateField:
    """A field of the state: a number, or an array of `size` numbers. Both types have four bytes."""

    name: str
    type: str  # int or float
    size: int
    comment: str
    carried: bool = False  # an array that starts at 0; others are written before they are read

    @property
    def declaration(self) -> str:
        return f"{self.type} {self.name}[{self.size}]" if self.size else f"{self.type} {self.name}"

    @property
    def bytes(self) -> int:
        return 4 * max(self.size, 1)


@dataclass(frozen=True)
class CoreSource:
    """The source of a core: its template, which defines `apply_core`, and what that needs."""

    template: str
    constants: list[Constant]
    fields: list[StateField]
    functions: set[str]  # of math.h
    context: dict[str, Any]
    uses_layers: bool = True  # whether the template calls `add` and `layer_norm`


@dataclass(frozen=True)
class ModelSource:
    """The source of what is around a core: its templates, for the header and the C file, and what they need."""

    template: str
    constants: list[Constant]
    functions: set[str]
    context: dict[str, Any]
    adds: bool  # whether the template calls `add`
