"""Parameters as constant arrays of C."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stairwell.decode.weights import Weights, quantize_matrix
from stairwell.errors import UserError

LINE_LENGTH = 110
KEYWORDS = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
))  # fmt: skip


@dataclass(frozen=True)
class Array:
    """A constant array: its element type, its name and its values as C literals."""

    type: str
    name: str
    values: list[str]
    bytes: int

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def lines(self) -> list[str]:
        return wrapped(self.values)


@dataclass
class Parameters:
    """The arrays of a model. Matrices of the layers and of the head are stored as `weights` says, all else is float."""

    weights: Weights
    arrays: list[Array] = field(default_factory=list)

    @property
    def quantized(self) -> bool:
        return self.weights == "int8"

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.arrays)

    def floats(self, name: str, values: Tensor) -> str:
        """Add an array of floats. Return its name."""
        values = values.detach().to("cpu", torch.float32)
        if not values.isfinite().all():
            raise UserError(f"the parameters contain NaN or infinity ({name}); export a run that did not diverge")
        self.arrays.append(
            Array("float", name, [float_literal(v) for v in values.flatten().tolist()], 4 * values.numel())
        )
        return name

    def matrix(self, name: str, values: Tensor) -> str:
        """Add a matrix. Return the expression that initializes a `matrix` of C."""
        if not self.quantized:
            return self.floats(name, values)
        integers, scales = quantize_matrix(values.detach().to("cpu", torch.float32), self.weights)
        assert scales is not None
        self.arrays.append(Array("signed char", name, [str(v) for v in integers.flatten().tolist()], integers.numel()))
        return f"{{{name}, {self.floats(f'{name}_scales', scales)}}}"


def float_literal(value: float) -> str:
    """Return the shortest float literal with exactly this value."""
    digits = str(np.float32(value))
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


def string_literal(text: bytes) -> str:
    """Return a string literal. Question marks are escaped, because two of them can start a trigraph."""

    def escaped(byte: int) -> str:
        character = chr(byte)
        if character in '"\\?':
            return f"\\{character}"
        return character if 32 <= byte < 127 else f"\\{byte:03o}"

    return f'"{"".join(map(escaped, text))}"'


def wrapped(items: list[str]) -> list[str]:
    """Return the items of an initializer, separated by commas, in lines of limited length."""
    lines, line = [], ""
    for item in items:
        if line and len(line) + len(item) + 2 > LINE_LENGTH:
            lines.append(line.rstrip())
            line = ""
        line += f"{item}, "
    return [*lines, line.rstrip()]
