"""The register of cores: one entry says all that others need to know of a core.

`stairwell.fast` and `stairwell.decode` add an engine and decoding steps to the entries from their side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stairwell.cores.core import Core, Engine
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
    colour: int | None = None  # its place in the palette of reports, the same in each; none: any that is free
    engine: Engine | None = None  # built for speed; none: the reference runs
    decoding: Callable[[Any, int, int], Any] | None = None  # (core, rows, slack); none: its walk, a token a call


CORES: dict[str, Entry] = {}


def entry(name: str) -> Entry:
    if name not in CORES:
        raise UserError(f"unknown core '{name}'{nearest(name, CORES)}")
    return CORES[name]


def name_of(config: Any) -> str | None:
    """The name of a config's core, if it is in the register."""
    return next((name for name, entry in CORES.items() if type(config) is entry.config), None)


def entry_of(core: Core) -> Entry | None:
    """The entry of a core; none for one that is not in the register, or of another class than the register says."""
    config = getattr(core, "config", None)
    return next((e for e in CORES.values() if type(config) is e.config and type(core) is e.core), None)


def build(config: Any) -> Core:
    """The core that a config describes."""
    name = name_of(config)
    if name is None:
        raise TypeError(f"{type(config).__name__} is not a core's config; there are: {', '.join(CORES)}")
    return CORES[name].core(config)


def config_type(name: str) -> type[Any]:
    """The config of a core by its name."""
    return entry(name).config
