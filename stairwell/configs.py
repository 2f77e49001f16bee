"""Configs are frozen dataclasses; this file carries them to JSON and back and sets their fields from text.

A field's help is the string literal below it. Types are read from the annotations, so a new field needs no code here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stairwell.errors import UserError, nearest

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Config:
    """Base of every config: a frozen dataclass whose fields have the types that their annotations name.

    A subclass with a `__post_init__` of its own calls this one first."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, annotation in _known_types(kind).items():
            value = getattr(self, name)
            if not any(_fits(value, choice) for choice in _choices(annotation)):
                raise UserError(f"{name} must be {_type_text(annotation)}, not {value!r}")


@cache
def _known_types(kind: type) -> dict[str, Any]:
    try:
        return field_types(kind)
    except NameError:  # of a class inside a function, which knows types that nobody else can look up
        return {}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain type; of any other type it may be anything."""
    if get_origin(kind) is Literal:
        return value in get_args(kind) and not isinstance(value, bool)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, get_args(kind)[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind if kind in (int, bool, str, type(None)) else True


def _type_text(annotation: Any) -> str:
    """A type as Python writes it: `int or None`, `'pre' or 'post'`."""
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(map(_type_text, get_args(annotation)))
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def field_types(kind: type) -> dict[str, Any]:
    """The fields of a config and their types, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def field_help(kind: type) -> dict[str, str]:
    """What the string below each field says; a subclass's own words win."""
    help: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_string(below):
                help[field.target.id] = inspect.cleandoc(below.value.value)  # type: ignore[attr-defined]
    return help


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def type_name(annotation: Any) -> str:
    """A type as people say it: `number`, `pre|post`, `number or none`."""
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(type_name(choice) for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return "numbers separated by commas"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(annotation, str(annotation))


def short_type_name(annotation: Any) -> str:
    """The same for a narrow column: `int|none`."""
    name = type_name(annotation)
    for long, short in (("whole number", "int"), ("numbers separated by commas", "int,int,.."), (" or ", "|")):
        name = name.replace(long, short)
    return name


def parse(text: str, annotation: Any, where: str) -> Any:
    """A value of the annotated type from what a person typed."""
    for choice in _choices(annotation):
        value = _parse_one(text.strip(), choice)
        if value is not _NOTHING:
            return value
    raise UserError(f"{where}: {text!r} is not a {type_name(annotation)}")


_NOTHING = object()


def _choices(annotation: Any) -> list[Any]:
    """The plain types that a union allows; text last, since every word is one."""
    if get_origin(annotation) in (Union, types.UnionType):
        return sorted(get_args(annotation), key=lambda choice: choice is str)
    return [annotation]


def _parse_one(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == text), _NOTHING)
    if get_origin(kind) is tuple:
        values = [_parse_one(part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip()]
        return _NOTHING if _NOTHING in values else tuple(values)
    if kind is type(None):
        return None if text.lower() in ("none", "") else _NOTHING
    if kind is bool:
        return text.lower() in YES if text.lower() in YES + NO else _NOTHING
    if kind in (int, float):
        try:
            value = kind(text.replace("_", ""))
            return value if math.isfinite(value) else _NOTHING
        except (ValueError, OverflowError):  # no number, or a whole one of hundreds of digits
            return _NOTHING
    return text if kind is str else _NOTHING


def set_fields(config: Any, values: dict[str, str], section: str) -> Any:
    """The config with fields set from text; `section` is what a person wrote before the dot."""
    kinds = field_types(type(config))
    for name in values:
        if name not in kinds:
            raise UserError(f"unknown option --{section}.{name}{nearest(name, kinds, f'--{section}.{{}}')}")
    parsed = {name: parse(text, kinds[name], f"--{section}.{name}") for name, text in values.items()}
    return changed(config, **parsed)


def changed(config: Any, **fields: Any) -> Any:
    """The config with other fields. What it says about fields that do not fit is about what a person asked for."""
    return _asked(lambda: dataclasses.replace(config, **fields))


def _asked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise UserError(str(error)) from None


def check_at_least(config: Any, least: int, *names: str) -> None:
    """Refuse fields below `least`; one that is not given is none."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def check_rates(config: Any, *names: str) -> None:
    """Refuse rates of dropout outside [0, 1)."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), not {getattr(config, name)}")


def to_json(config: Any) -> dict[str, Any]:
    """A config as plain JSON; tuples become lists."""
    return {
        name: list(value) if isinstance(value := getattr(config, name), tuple) else value
        for name in field_types(type(config))
    }


def from_json(kind: type, data: dict[str, Any], where: str) -> Any:
    """The inverse of `to_json`. Unknown fields and wrong types are plain errors; missing ones keep their defaults."""
    kinds = field_types(kind)
    values = {}
    if not isinstance(data, dict):
        raise UserError(f"{where}: it must hold fields and their values, not {data!r}")
    for name, value in data.items():
        if name not in kinds:
            raise UserError(f"{where}: unknown field '{name}'; it may come from another version of stairwell")
        values[name] = _checked(value, kinds[name], f"{where}: '{name}'")
    return _asked(lambda: kind(**values))


def _finite(value: float, where: str) -> float:
    """JSON has no infinity, but Python reads 1e400 as one."""
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        pass
    raise UserError(f"{where}: it must be a finite number, not {str(value)[:20]}")


def _checked(value: Any, annotation: Any, where: str) -> Any:
    for choice in _choices(annotation):
        if get_origin(choice) is tuple and isinstance(value, list):
            return tuple(_checked(item, get_args(choice)[0], where) for item in value)
        if get_origin(choice) is Literal and value in get_args(choice) and not isinstance(value, bool):
            return value
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, where)
        if isinstance(choice, type) and type(value) is choice:
            return value
    raise UserError(f"{where}: {value!r} is not a {type_name(annotation)}")
