"""Options `--section.field` for every field of an experiment, and the completion of names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stairwell.errors import UserError

NARROW = 11  # characters for an option's type in the help
GIVEN = "stairwell.given"  # the words of a command, as they were given


def all_configs() -> dict[str, dict[str, type]]:
    """The configs of every section of an experiment, by whose they are."""
    from stairwell.cores import CORES
    from stairwell.runs.families import KINDS
    from stairwell.tasks import TASKS, task_type

    return {
        "core": {name: entry.config for name, entry in CORES.items()},
        "model": {name: kind.config for name, kind in KINDS.items()},
        "task": {name: task_type(name)[0] for name in TASKS},
        "train": {name: kind.train for name, kind in KINDS.items()},
    }


def dotted_options(of: dict[str, dict[str, type]] | None = None) -> list[tuple[str, str, str]]:
    """Every option `section.field` of any experiment, or of these configs: its name, its type, its help."""
    from stairwell import configs
    from stairwell.runs.config import DERIVED
    from stairwell.runs.families import KINDS

    derived: dict[str, tuple[str, ...]] = {name: kind.derived for name, kind in KINDS.items()}
    options = []
    for section, members in (of or all_configs()).items():
        fields: dict[str, tuple[str, str, list[str]]] = {}
        for member, kind in members.items():
            help = configs.field_help(kind)
            for name, annotation in configs.field_types(kind).items():
                if name in (derived[member] if section == "model" else DERIVED.get(section, ())):
                    continue
                words = (configs.short_type_name(annotation), help.get(name, ""))
                fields.setdefault(name, (*words, []))[2].append(member)
        for name, (kind_name, words_of, owners) in fields.items():
            # A long list of choices would leave no room for the options' names.
            if len(kind_name) > NARROW:
                kind_name, words_of = "choice", f"{words_of} ({kind_name})"
            # Options that only some cores or tasks have say which.
            only = f" ({', '.join(owners)})" if len(owners) <= len(members) // 2 else ""
            options.append((f"{section}.{name}", kind_name, words_of + only))
    return options


def options_of(name: str) -> dict[str, tuple[str, str]]:
    """The options of one experiment: the type of each, and its help with what it is if nobody sets it."""
    from stairwell.runs.families import KINDS
    from stairwell.runs.presets import preset

    experiment = preset(name)
    kind = next(name for name, kind in KINDS.items() if kind is experiment.kind)
    whose = {"core": experiment.core_name, "model": kind, "task": experiment.task_name, "train": kind}
    configs, values, found = all_configs(), experiment.to_json(), {}
    for option, type_name, help in dotted_options({part: {of: configs[part][of]} for part, of in whose.items()}):
        section, _, field = option.partition(".")
        found[option] = type_name, help + default_text(values[section][field])
    return found


def default_text(value: Any) -> str:
    """The end of an option's help: what it is if nobody sets it, as it is written on the command line."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"; default: {str(value).lower()}"
    if isinstance(value, list):
        return f"; default: {','.join(map(str, value))}"
    return f"; default: {value:g}" if isinstance(value, float) else f"; default: {value}"


class ExperimentCommand(TyperCommand):
    """A command whose help, where an experiment is named, shows the options of that one only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        known = set(complete_experiment(""))
        name = next((word for word in ctx.meta.get(GIVEN, ()) if word in known), None)
        if name is None:
            super().format_help(ctx, formatter)
            return
        options, params = options_of(name), []
        for param in self.params:
            dotted = param.opts[0].removeprefix("--")
            if dotted in options:
                param = copy(param)
                param.metavar, param.help = options[dotted]  # type: ignore[attr-defined]
            elif "." in dotted:
                continue
            params.append(param)
        shorter = copy(self)
        shorter.params = params
        super(ExperimentCommand, shorter).format_help(ctx, formatter)


def with_dotted_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options `--section.field`; those that were used arrive in `options`."""
    named = {name.replace(".", "__"): (name, kind, help) for name, kind, help in dotted_options()}

    def wrapped(**arguments: Any) -> None:
        options = {named[key][0]: arguments.pop(key) for key in list(arguments) if key in named}
        command(**arguments, options={name: text for name, text in options.items() if text is not None})

    own = dict(inspect.signature(command).parameters)
    hints = inspect.get_annotations(command, eval_str=True)
    del own["options"], hints["options"]
    for key, (name, kind, help) in named.items():
        option = typer.Option(f"--{name}", help=help, metavar=kind, rich_help_panel=name.partition(".")[0])
        hints[key] = Annotated[str | None, option]
        own[key] = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None)
    keywords = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in own.items()
    ]
    wrapped.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    wrapped.__annotations__ = hints
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def same_option(short: str, value: int | None, dotted: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options with what `short` sets, which is another name of `dotted`; both must not differ."""
    if value is None:
        return options
    if options.get(dotted, str(value)) != str(value):
        raise UserError(f"{short} {value} and --{dotted} {options[dotted]} differ and mean the same; give one of them")
    return {**options, dotted: str(value)}


def complete_experiment(incomplete: str) -> list[str]:
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    names = [f"{task}/{core}" for task in TASKS for core in CORES]
    return [name for name in names if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[str]:
    from stairwell.experiments.papers import CATALOG

    return [name for name in ("demo", *CATALOG) if name.startswith(incomplete)]
