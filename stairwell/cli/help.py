"""The help of all commands, in one layout: options in a column, their help beside it, and the default in brackets."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup

MAX_WIDTH = 100  # characters of a line
MAX_LABEL = 30  # characters of an option with its type; the help of a longer one is on the next line
INDENT = 2
NO_BREAK, MAX_UNBROKEN = "\xa0", 40  # defaults up to this length stay on one line
TYPES = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}

# The groups of commands, and the order of the commands in the help.
TRAIN, USE, REPRODUCE, MAINTAIN = "Train", "Use", "Reproduce", "Maintain"
ORDER = (
    "train", "eval", "tune", "distill", "data",
    "generate", "label", "play", "translate", "summarize", "compare", "report", "export", "serve",
    "reproduce", "list",
    "info",
)  # fmt: skip


class Entry(NamedTuple):
    label: str
    help: str


class Section(NamedTuple):
    title: str
    entries: list[Entry]


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        arguments = [usage_of(parameter) for parameter in self.get_params(ctx) if isinstance(parameter, TyperArgument)]
        usage = " ".join([f"Usage: {ctx.command_path}", *arguments, "[OPTIONS]"])
        print_help(usage, self.help or "", self.sections(ctx))

    def sections(self, ctx: Any) -> list[Section]:
        """Return the sections of the help."""
        types = parameter_types(self.callback)
        return parameter_sections(self.get_params(ctx), types)


class Group(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = [command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        groups: dict[str, list[Entry]] = {}
        for command in commands:
            title = getattr(command, "rich_help_panel", None)
            summary = " ".join((command.help or "").partition("\n\n")[0].split())
            groups.setdefault(title if isinstance(title, str) else "Commands", []).append(
                Entry(command.name or "", summary)
            )
        sections = [Section(title, entries) for title, entries in groups.items()]
        print_help(self.get_usage(ctx), self.help or "", [*sections, *parameter_sections(self.get_params(ctx), {})])


class App(typer.Typer):
    """A typer application whose help has this layout."""

    def __init__(self, **options: Any) -> None:
        names = {"help_option_names": ["--help", "-h"]}
        super().__init__(cls=Group, context_settings=names, add_help_option=True, **options)

    def command(self, name: str | None = None, *, cls: type[Any] | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, cls=cls or Command, **options)


def parameter_types(callback: Callable[..., Any] | None) -> dict[str, str]:
    """Return the types of a command's parameters, as the help shows them."""
    if callback is None:
        return {}
    hints = inspect.get_annotations(inspect.unwrap(callback), eval_str=True)
    return {name: TYPES.get(plain_type(hint), "") for name, hint in hints.items()}


def plain_type(hint: Any) -> Any:
    """Return int for `Annotated[list[int] | None, ...]`."""
    if get_origin(hint) is Annotated:
        return plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return plain_type(next(member for member in get_args(hint) if member is not type(None)))
    return plain_type(get_args(hint)[0]) if get_origin(hint) is list else hint


def parameter_sections(parameters: Iterable[Any], types: dict[str, str]) -> list[Section]:
    """Return the arguments and the options of a command."""
    visible = [parameter for parameter in parameters if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in visible if isinstance(parameter, TyperArgument)]
    options = [parameter for parameter in visible if not isinstance(parameter, TyperArgument)]
    sections = [
        Section("Arguments", [entry_of(argument, types) for argument in arguments]),
        Section("Options", [entry_of(option, types) for option in options]),
    ]
    return [section for section in sections if section.entries]


def argument_name(argument: Any) -> str:
    return argument.metavar or argument.name.upper()


def usage_of(argument: Any) -> str:
    name = argument_name(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def entry_of(parameter: Any, types: dict[str, str]) -> Entry:
    text = parameter.help or ""
    if isinstance(parameter, TyperArgument):
        return Entry(argument_name(parameter), text)
    names, off = sorted(parameter.opts, key=len), list(parameter.secondary_opts)
    if off and off == [f"--no-{name.removeprefix('--')}" for name in names]:
        label = ", ".join(f"--[no-]{name.removeprefix('--')}" for name in names)
    else:
        label = ", ".join(names) + "".join(f" / {name}" for name in off)
    is_flag = parameter.is_flag or "--help" in names
    type_name = "" if is_flag else parameter.metavar or types.get(parameter.name, "")
    return Entry(f"{label} {type_name}".rstrip(), text + default_text(shown_default(parameter, is_flag)))


def shown_default(parameter: Any, is_flag: bool) -> Any:
    """Return what to show as the default: a description of it, if there is one."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if is_flag and not parameter.secondary_opts:
        return None
    return None if callable(parameter.default) or parameter.show_default is False else parameter.default


def default_text(value: Any) -> str:
    """Return the end of an option's help: its default, as it is written on the command line."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list | tuple):
        text = ",".join(map(str, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f" [default: {text}]"


def print_help(usage: str, description: str, sections: Sequence[Section]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    width = min(console.width, MAX_WIDTH)
    labels = [len(entry.label) for section in sections for entry in section.entries]
    column = INDENT + min(max(labels, default=0), MAX_LABEL) + 2
    console.print(Text(" ".join(usage.split())))
    for paragraph in description.replace("\b\n", "").split("\n\n"):
        is_code = any(line.startswith(" ") for line in paragraph.splitlines())
        console.print()
        console.print(Text(paragraph.rstrip() if is_code else textwrap.fill(" ".join(paragraph.split()), width)))
    for title, entries in sections:
        console.print()
        console.print(Text(f"{title}:", style="bold"))
        for entry in entries:
            console.print(entry_text(entry, column, width))


def entry_text(entry: Entry, column: int, width: int) -> Text:
    """Return the lines of an option."""
    head, marker, default = entry.help.partition("[default: ")
    unbroken = head + (marker + default).replace(" ", NO_BREAK) if len(default) < MAX_UNBROKEN else entry.help
    lines = textwrap.wrap(unbroken, max(width - column, 20), break_on_hyphens=False) or [""]
    name, _, type_name = entry.label.partition(" ")
    text = Text.assemble(" " * INDENT, (name, "cyan"), f" {type_name}" if type_name else "")
    if len(entry.label) > MAX_LABEL and entry.help:
        text.append("\n" + " " * column)
    else:
        text.append(" " * (column - INDENT - len(entry.label)))
    text.append(("\n" + " " * column).join(lines).replace(NO_BREAK, " "))
    text.rstrip()
    return text
