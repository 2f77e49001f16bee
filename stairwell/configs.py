"""Configs are frozen dataclasses. This module converts them to and from JSON and sets their fields from text.

The documentation of a field is the string literal below it. It appears in the class docstring and in the help of the
command line. Types are read from the annotations, so a new field needs no code here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stairwell.errors import UserError, suggestion

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
DOCSTRING_WIDTH = 100
T = TypeVar("T")


class DocumentedFields:
    """The docstring of a config, with an `Attributes:` section from the strings below its fields.

    Parsing the source takes time, so the section is made when the docstring is read."""

    def __init__(self, summary: str) -> None:
        self.summary = summary

    def __get__(self, instance: object, owner: type) -> str:
        # dataclass() itself reads the docstring, before it sets __match_args__.
        if "__match_args__" not in vars(owner) or not dataclasses.is_dataclass(owner):
            return self.summary or owner.__name__
        help = field_help(owner)
        lines = [
            textwrap.fill(f"    {field.name}: {help[field.name]}", DOCSTRING_WIDTH, subsequent_indent=" " * 8)
            for field in dataclasses.fields(owner)
            if field.name in help
        ]
        return "\n".join([self.summary or owner.__name__, "", "Attributes:", *lines]) if lines else self.summary


class Config:
    """Base class of all configs: a frozen dataclass that checks the types of its fields.

    A subclass with its own `__post_init__` calls this one first."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        summary = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        cls.__doc__ = DocumentedFields(summary)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        config_type: Any = type(self)
        for name, annotation in _known_types(config_type).items():
            value = getattr(self, name)
            if not any(_is_instance(value, choice) for choice in _choices(annotation)):
                raise UserError(f"{name} must be {_type_text(annotation)}, not {value!r}")


@cache
def _known_types(config_type: type) -> dict[str, Any]:
    try:
        return field_types(config_type)
    except NameError:  # a class inside a function, with annotations that cannot be resolved from here
        return {}


def _is_instance(value: Any, annotation: Any) -> bool:
    """Return whether a value has a plain type. Other types are not checked."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation) and not isinstance(value, bool)
    if get_origin(annotation) is tuple:
        return isinstance(value, tuple | list) and all(_is_instance(item, get_args(annotation)[0]) for item in value)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is annotation if annotation in (int, bool, str, type(None)) else True


def _type_text(annotation: Any) -> str:
    """Return a type in Python's notation: `int or None`, `'pre' or 'post'`."""
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(map(_type_text, get_args(annotation)))
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def field_types(config_type: Any) -> dict[str, Any]:
    """Return the fields of a config and their types, in order."""
    hints = get_type_hints(config_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_type) if field.init}


@cache
def field_help(config_type: type) -> dict[str, str]:
    """Return the string below each field; that of a subclass replaces that of its base."""
    help: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # a class without source, such as one made in a shell
            continue
        body = ast.parse(inspect.cleandoc("\n" + source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_string(below):
                help[field.target.id] = inspect.cleandoc(below.value.value)  # type: ignore[attr-defined]
    return help


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def type_name(annotation: Any) -> str:
    """Return a type for help texts and errors: `number`, `pre|post`, `number or none`."""
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(type_name(choice) for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "numbers separated by commas"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(annotation, str(annotation))


def short_type_name(annotation: Any) -> str:
    """Return a type for a narrow column: `int|none`."""
    name = type_name(annotation)
    for long, short in (("integer", "int"), ("numbers separated by commas", "int,int,.."), (" or ", "|")):
        name = name.replace(long, short)
    return name


def parse(text: str, annotation: Any, where: str) -> Any:
    """Return a value of the annotated type from text."""
    for choice in _choices(annotation):
        value = _parse_choice(text.strip(), choice)
        if value is not _INVALID:
            return value
    raise UserError(f"{where}: {text!r} is not {_article(type_name(annotation))}")


def _article(name: str) -> str:
    return f"an {name}" if name.startswith("integer") else f"a {name}"


_INVALID = object()


def _choices(annotation: Any) -> list[Any]:
    """Return the types of a union. `str` comes last, because every text is one."""
    if get_origin(annotation) in (Union, types.UnionType):
        return sorted(get_args(annotation), key=lambda choice: choice is str)
    return [annotation]


def _parse_choice(text: str, choice: Any) -> Any:
    if get_origin(choice) is Literal:
        return next((value for value in get_args(choice) if str(value) == text), _INVALID)
    if get_origin(choice) is tuple:
        values = [_parse_choice(part.strip(), get_args(choice)[0]) for part in text.split(",") if part.strip()]
        return _INVALID if _INVALID in values else tuple(values)
    if choice is type(None):
        return None if text.lower() in ("none", "") else _INVALID
    if choice is bool:
        return text.lower() in TRUE if text.lower() in TRUE + FALSE else _INVALID
    if choice in (int, float):
        try:
            value = choice(text.replace("_", ""))
            return value if math.isfinite(value) else _INVALID
        except (ValueError, OverflowError):  # not a number, or an integer of hundreds of digits
            return _INVALID
    return text if choice is str else _INVALID


def set_fields(config: T, values: dict[str, str], section: str) -> T:
    """Return the config with fields set from text. `section` is the part of an option's name before the dot."""
    annotations = field_types(type(config))
    for name in values:
        if name not in annotations:
            raise UserError(f"unknown option --{section}.{name}{suggestion(name, annotations, f'--{section}.{{}}')}")
    parsed = {name: parse(text, annotations[name], f"--{section}.{name}") for name, text in values.items()}
    return replace(config, **parsed)


def replace(config: T, **fields: Any) -> T:
    """Return the config with other fields, like `dataclasses.replace`. A ValueError becomes a UserError."""
    return _as_user_error(lambda: dataclasses.replace(config, **fields))  # type: ignore[type-var]


def _as_user_error(make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise UserError(str(error)) from None


def check_at_least(config: Any, minimum: int, *names: str) -> None:
    """Reject fields below a minimum. None is accepted."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")


def check_probabilities(config: Any, *names: str) -> None:
    """Reject probabilities of dropout outside [0, 1)."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), not {getattr(config, name)}")


def to_json(config: Any) -> dict[str, Any]:
    """Return a config as JSON; tuples become lists."""
    return {
        name: list(value) if isinstance(value := getattr(config, name), tuple) else value
        for name in field_types(type(config))
    }


def from_json(config_type: Callable[..., T], data: Any, where: str) -> T:
    """Return the config that `to_json` wrote. Unknown fields and wrong types are errors; missing fields get their
    defaults."""
    annotations = field_types(config_type)
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected an object with the fields of a config, not {data!r}")
    values = {}
    for name, value in data.items():
        if name not in annotations:
            raise UserError(f"{where}: unknown field '{name}'; it may come from another version of stairwell")
        values[name] = _check_json(value, annotations[name], f"{where}: '{name}'")
    return _as_user_error(lambda: config_type(**values))


def _check_finite(value: float, where: str) -> float:
    """Reject infinity. JSON has none, but Python reads 1e400 as one."""
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer of hundreds of digits
        pass
    raise UserError(f"{where}: expected a finite number, not {str(value)[:20]}")


def _check_json(value: Any, annotation: Any, where: str) -> Any:
    for choice in _choices(annotation):
        if get_origin(choice) is tuple and isinstance(value, list):
            return tuple(_check_json(item, get_args(choice)[0], where) for item in value)
        if get_origin(choice) is Literal and value in get_args(choice) and not isinstance(value, bool):
            return value
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _check_finite(value, where)
        if isinstance(choice, type) and type(value) is choice:
            return value
    raise UserError(f"{where}: {value!r} is not {_article(type_name(annotation))}")
