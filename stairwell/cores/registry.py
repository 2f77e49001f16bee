"""The registry of cores: one entry per core with everything that other packages need to know about it.

`stairwell.fast` adds engines to the entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stairwell.cores.core import Core, Engine, warn_once
from stairwell.cores.step import StepDescription
from stairwell.errors import UserError, suggestion
from stairwell.layers import CoreConfig

AnyCore = Core[Any, Any]


@dataclass
class CoreEntry:
    """A core. The first four fields are required."""

    config: type[CoreConfig]
    core: type[AnyCore]
    title: str  # name in reports
    description: str  # shown by `stairwell list cores`
    context: Callable[[Any], str] = lambda config: "its state"  # description of what a config attends to
    engine: Engine | None = None  # optimized engine; None: the reference forward runs


CORES: dict[str, CoreEntry] = {}


def entry(name: str) -> CoreEntry:
    if name not in CORES:
        raise UserError(f"unknown core '{name}'{suggestion(name, CORES)}")
    return CORES[name]


def name_of(config: CoreConfig) -> str | None:
    """Return the name of a config's core; None if it is not registered."""
    return next((name for name, entry in CORES.items() if type(config) is entry.config), None)


def engine_of(core: AnyCore) -> Engine | None:
    """Return the fast engine of a core, inherited by subclasses that compute the same; None: the reference runs."""
    return next((entry.engine for entry in entries_of(core) if entry.engine is not None), None)


def step_of(core: AnyCore) -> StepDescription | None:
    """Return the description of a core's step; None if there is none, and the reference forward runs.

    A description is inherited by subclasses that compute the same. A core with an entry of its own has to define
    `describe_step` itself, since it may compute something else than the class it inherits from."""
    if core.changed_module() or not any("describe_step" in vars(entry.core) for entry in entries_of(core)):
        return None
    description = core.describe_step()
    if description is not None:
        description.check(core.config.layers)
    return description


def entries_of(core: AnyCore) -> Iterator[CoreEntry]:
    """Yield a core's own entry and those whose computation it inherits, nearest first. Warn once about a subclass
    without an entry that changes what engines rely on."""
    config_types = type(core.config).__mro__
    related = [e for cls in config_types for e in CORES.values() if e.config is cls and isinstance(core, e.core)]
    for entry in related:
        change = difference(core, entry)
        if not change:
            yield entry
        elif entry is related[0]:
            warn_once(
                f"{type(core).__name__} with {type(core.config).__name__} has neither the fast engine nor the step "
                f"description of {entry.core.__name__}: {change}. The reference engine runs, and decoding calls it per "
                "token"
            )


def difference(core: AnyCore, entry: CoreEntry) -> str:
    """Return how a core differs from an entry's core, so that the entry's engine may be wrong for it; empty if it
    computes the same."""
    cls = type(core)
    if cls is entry.core and type(core.config) is entry.config:
        return ""
    if changed := overrides(cls, entry.core) or overrides(type(core.config), entry.config):
        return f"it overrides {changed}"
    if cls.__init__ is entry.core.__init__:
        return ""
    with torch.device("meta"):
        plain = entry.core(core.config)
    # Additional modules are harmless: no inherited method uses them.
    children = dict(plain.named_children())
    own = {name: part for name, part in structure(core).items() if name.split(".")[0] in children}
    different = structure(plain).items() ^ own.items()
    return f"{min(name for name, _ in different)} is not the same" if different else ""


def overrides(cls: type, base: type) -> str:
    """Return the name of an attribute of `base` that a subclass overrides; empty if there is none. Config fields may
    have other defaults."""
    fields = {field.name for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
    harmless = fields | {"extra_repr"}
    for between in cls.__mro__[: cls.__mro__.index(base)]:
        for name in vars(between):
            if not name.startswith("__") and hasattr(base, name) and name not in harmless:
                return name
    return ""


def structure(core: AnyCore) -> dict[str, Any]:
    """Return the types of all modules and the shapes of all parameters of a core, by name."""
    modules = {name: type(module) for name, module in core.named_modules() if name}
    return modules | {name: tuple(parameter.shape) for name, parameter in core.named_parameters()}


def build(config: CoreConfig) -> AnyCore:
    """Return the core that a config describes."""
    name = name_of(config)
    if name is None:
        raise TypeError(f"{type(config).__name__} is not the config of a core; choose one of: {', '.join(CORES)}")
    return CORES[name].core(config)


def config_type(name: str) -> type[CoreConfig]:
    """Return the config class of a core."""
    return entry(name).config
