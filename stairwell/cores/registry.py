"""The register of cores: one entry says all that others need to know of a core.

`stairwell.fast` and `stairwell.decode` add an engine and decoding steps to the entries from their side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stairwell.cores.core import Core, Engine, tell_once
from stairwell.errors import UserError, nearest


class Needs(Protocol):
    """How much of the past a task needs."""

    @property
    def recall(self) -> int:
        """Tokens in sight for cores that carry more than those onwards."""

    @property
    def context(self) -> int:
        """Tokens in sight for cores that do not: everything they need."""

    @property
    def chunk(self) -> int:
        """Tokens of a chunk, for cores that have chunks."""


@dataclass
class Entry:
    """A core. Only the first four have to be given."""

    config: type[Any]
    core: type[Core]
    title: str  # in reports
    description: str  # a line of `stairwell list cores`
    look_back: Callable[[Needs], dict[str, Any]] = lambda needs: {}  # options of the config that suit a task
    in_sight: Callable[[Any], str] = lambda config: "its state"  # how far a config looks back, in words
    width_factor: float = 1.0  # how much wider it is than a transformer with as many weights
    color: int | None = None  # its place in the palette of reports, the same in each; none: any that is free
    engine: Engine | None = None  # built for speed; none: the reference runs
    decoding: Callable[[Any, int, int], Any] | None = None  # (core, rows, max_crop); none: its walk, a token a call


CORES: dict[str, Entry] = {}


def entry(name: str) -> Entry:
    if name not in CORES:
        raise UserError(f"unknown core '{name}'{nearest(name, CORES)}")
    return CORES[name]


def name_of(config: Any) -> str | None:
    """The name of a config's core, if it is in the register."""
    return next((name for name, entry in CORES.items() if type(config) is entry.config), None)


def engine_of(core: Core) -> Engine | None:
    """Return the fast engine of a core, inherited by subclasses that compute the same; none: the reference runs."""
    return next((entry.engine for entry in entries_of(core) if entry.engine is not None), None)


def decoding_of(core: Core) -> Callable[[Any, int, int], Any] | None:
    """Return the decoding steps of a core, inherited by subclasses that compute the same; none: its walk."""
    return next((entry.decoding for entry in entries_of(core) if entry.decoding is not None), None)


def entries_of(core: Any) -> Iterator[Entry]:
    """Yield a core's own entry and those whose math it inherits, the nearest first. A subclass that has no entry and
    changes what engines rely on is told so once."""
    kinds = type(getattr(core, "config", None)).__mro__
    related = [e for kind in kinds for e in CORES.values() if e.config is kind and isinstance(core, e.core)]
    for entry in related:
        change = difference(core, entry)
        if not change:
            yield entry
        elif entry is related[0]:
            tell_once(
                f"{type(core).__name__} with {type(core.config).__name__} has neither the fast engine nor the decoding "
                f"steps of {entry.core.__name__}: {change}. The reference engine runs, and decoding calls it per token"
            )


def difference(core: Any, entry: Entry) -> str:
    """Return what a core changes of an entry's core, so that the entry's engine may compute something else; nothing if
    it computes the same."""
    kind = type(core)
    if kind is entry.core and type(core.config) is entry.config:
        return ""
    if changed := overrides(kind, entry.core) or overrides(type(core.config), entry.config):
        return f"it overrides {changed}"
    if kind.__init__ is entry.core.__init__:
        return ""
    with torch.device("meta"):
        plain = entry.core(core.config)
    # Modules beside those of the plain core do no harm: nothing that is not overridden knows them.
    children = dict(plain.named_children())
    own = {name: part for name, part in plan_of(core).items() if name.split(".")[0] in children}
    other = plan_of(plain).items() ^ own.items()
    return f"{min(name for name, _ in other)} is not the same" if other else ""


def overrides(kind: type, base: type) -> str:
    """Return an attribute of `base` that a subclass gives another meaning; nothing if there is none. Fields of a config
    may have other defaults."""
    fields = {field.name for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
    harmless = fields | {"extra_repr"}
    for between in kind.__mro__[: kind.__mro__.index(base)]:
        for name in vars(between):
            if not name.startswith("__") and hasattr(base, name) and name not in harmless:
                return name
    return ""


def plan_of(core: Core) -> dict[str, Any]:
    """Return the types of all modules of a core and the shapes of all parameters, by name."""
    modules = {name: type(module) for name, module in core.named_modules() if name}
    return modules | {name: tuple(parameter.shape) for name, parameter in core.named_parameters()}


def build(config: Any) -> Core:
    """The core that a config describes."""
    name = name_of(config)
    if name is None:
        raise TypeError(f"{type(config).__name__} is not a core's config; there are: {', '.join(CORES)}")
    return CORES[name].core(config)


def config_type(name: str) -> type[Any]:
    """The config of a core by its name."""
    return entry(name).config
