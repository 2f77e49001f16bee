"""Generate the reference pages of the command line and of the configs from the code, when the site is built."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from stairwell import configs
from stairwell.cli import main as _commands  # noqa: F401  registers every command
from stairwell.cli.app import app
from stairwell.cli.help import MAINTAIN, REPRODUCE, TRAIN, USE, entry_of, parameter_types, shown_default
from stairwell.cli.options import all_tasks, config_types
from stairwell.runs.config import DERIVED
from stairwell.runs.families import FAMILIES, family_of
from stairwell.runs.presets import preset

GROUPS = (TRAIN, USE, REPRODUCE, MAINTAIN)
Row = tuple[str, str, str, str]  # name, type, default, description of a field
COMMAND_LINE, CONFIGURATION = "reference/command-line.md", "reference/configuration.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, COMMAND_LINE, content=command_line()))
    files.append(File.generated(config, CONFIGURATION, content=configuration()))
    return files


def command_line() -> str:
    """Return the page of all commands and options."""
    lines = [
        "# Command line\n",
        "`stairwell COMMAND --help` prints the same texts. `python -m stairwell` is the same command. Exit statuses: "
        "[training](../training.md#exit-status).\n",
    ]
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = {name: group.commands[name] for name in group.list_commands(None)}
    panels = {name: getattr(command, "rich_help_panel", None) for name, command in commands.items()}
    for panel in GROUPS:
        lines.append(f"## {panel}\n")
        for name in (name for name in commands if panels[name] == panel):
            lines += described(name, commands[name])
    return "\n".join(lines)


def described(name: str, command: Any) -> Iterator[str]:
    """Yield the lines of a command, or of every command of a group."""
    if hasattr(command, "commands"):
        for sub, inner in command.commands.items():
            yield from described(f"{name} {sub}", inner)
        return
    yield f"### stairwell {name}\n"
    yield from paragraphs(command.help or "")
    shown = [param for param in command.params if "." not in param.opts[0] and not getattr(param, "hidden", False)]
    arguments = [metavar(param) for param in shown if param.param_type_name == "argument"]
    yield f"\n```text\nstairwell {' '.join([name, *arguments, '[OPTIONS]'])}\n```\n"
    yield "| argument or option | default | |\n|---|---|---|"
    types = parameter_types(command.callback)
    for param in shown:
        is_argument = param.param_type_name == "argument"
        names = metavar(param) if is_argument else entry_of(param, types).label.replace("|", "\\|")
        default = None if is_argument else shown_default(param, param.is_flag)
        described_default = default if isinstance(param.show_default, str) else code(default if default != "" else None)
        yield f"| `{names}` | {described_default} | {cell(getattr(param, 'help', '') or '')} |"
    if len(shown) < len(command.params):
        yield "\nEvery field of a run's config is an option `--section.field`: [configuration](configuration.md)."
    yield ""


def metavar(param: Any) -> str:
    """Return the name of an argument, in brackets if it is optional."""
    name = param.metavar or param.name.upper()
    name = name.strip("[]") + ("..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def paragraphs(text: str) -> Iterator[str]:
    """Yield a help text; what follows a `\\b` keeps its lines, as in the terminal."""
    for part in re.split(r"\n\s*\n", text.replace("\f", "").strip()):
        if "\b" in part:
            title, _, body = part.replace("\b", "").strip().partition("\n")
            yield "\n".join(["", title, "", "```sh", *(line.strip() for line in body.splitlines()), "```"])
        else:
            yield re.sub(r"\s+", " ", part) + "\n"


def configuration() -> str:
    """Return the page of all configs and their fields."""
    lines = [
        "# Configuration\n",
        "A run is determined by a config of four sections. Each field is an option of `stairwell train` and of "
        "`stairwell reproduce`, written `--section.field VALUE`, and a line of the run's `config.json`. Presets set "
        "other defaults than the ones below: `stairwell train TASK/CORE --help-all` lists those of a preset, "
        "`--show` prints its whole config.\n",
    ]
    introductions = {
        "core": "The recurrent model, named after the slash in `TASK/CORE`.",
        "model": "Embedding and head. The family of a task selects the model: streams of tokens, pairs of a source "
        "and a target, or agents.",
        "task": "The task and its data, named before the slash in `TASK/CORE`.",
        "train": "The training of each family.",
    }
    derived = {str(name): tuple(family.derived) for name, family in FAMILIES.items()}
    for section, members in config_types().items():
        lines.append(f"## {section}\n\n{introductions[section]}\n")
        by_type: dict[type, list[str]] = {}
        for name, config in members.items():
            by_type.setdefault(config, []).append(name)
        hidden = {
            config: derived[names[0]] if section == "model" else tuple(DERIVED.get(section, ()))
            for config, names in by_type.items()
        }
        common = common_rows(by_type, hidden)
        if common:
            every = list(itertools.chain.from_iterable(by_type.values()))
            lines += [f"### Several {section}s\n" if section in ("core", "task") else "### All\n"]
            lines += ["| option | type | default | | used by |", "|---|---|---|---|---|"]
            for (name, *cells), owners in common.items():
                others = [name for name in every if name not in owners]
                used_by = f"all but {', '.join(others)}" if others else "all"
                used_by = used_by if len(others) < len(owners) else ", ".join(owners)
                lines.append(f"| `--{section}.{name}` | {' | '.join(cells)} | {used_by} |")
            lines.append("")
        for config, names in by_type.items():
            own = [row for row in rows(config, hidden[config]) if row not in common]
            lines.append(f"### {', '.join(names)}\n")
            if (text := summary(config)) != config.__name__:
                lines.append(f"{text}\n")
            if own:
                lines += ["| option | type | default | |", "|---|---|---|---|"]
                presets = preset_values(names[0], config) if section == "train" else {}
                for name, type_name, default, text in own:
                    default += f"; presets: {presets[name]}" if presets.get(name, default) != default else ""
                    lines.append(f"| `--{section}.{name}` | {type_name} | {default} | {text} |")
                lines.append("")
            else:
                lines.append("No further fields.\n")
    return "\n".join(lines)


def preset_values(family: str, config: Any) -> dict[str, str]:
    """Return the training options to which the presets of all tasks of a family give the same value."""
    of_family = [task for task in all_tasks() if family_of(task).name == family]
    trains = [preset(f"{task}/feedback").train for task in of_family]
    values = {
        field.name: {code(getattr(train, field.name)) for train in trains} for field in dataclasses.fields(config)
    }
    return {name: found.pop() for name, found in values.items() if len(found) == 1}


def common_rows(by_type: dict[type, list[str]], hidden: dict[type, tuple[str, ...]]) -> dict[Row, list[str]]:
    """Return the rows that most configs have, or at least four, and the names of their owners."""
    owners: dict[Row, list[str]] = {}
    count: dict[Row, int] = {}
    for config, names in by_type.items():
        for row in rows(config, hidden[config]):
            owners.setdefault(row, []).extend(names)
            count[row] = count.get(row, 0) + 1
    enough = min(4, len(by_type) // 2 + 1) if len(by_type) > 1 else 2
    return {row: owners[row] for row in owners if count[row] >= enough}


def summary(config: type) -> str:
    """Return the first paragraph of a config's docstring."""
    return re.sub(r"\s+", " ", (config.__doc__ or "").partition("\n\n")[0])


def rows(config: Any, hidden: Iterable[str]) -> list[Row]:
    """Return name, type, default and description of every field."""
    help, types = configs.field_help(config), configs.field_types(config)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return [
        (
            name,
            cell(configs.type_name(types[name])),
            code("" if defaults[name] is dataclasses.MISSING else defaults[name]),
            cell(help.get(name, "")),
        )
        for name in types
        if name not in hidden
    ]


def code(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, tuple):
        return code(",".join(map(str, value)))
    return f"`{str(value).lower() if isinstance(value, bool) else cell(str(value))}`"


def cell(text: str) -> str:
    """Return text for a cell of a Markdown table. Brackets of the terminal's markup lose their backslash."""
    text = re.sub(r"\s+", " ", text).replace("\\[", "[")
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "&#91;")
