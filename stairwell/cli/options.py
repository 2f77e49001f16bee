"""Options `--section.field` for every field of a RunConfig, their help, and completion of names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stairwell.errors import UserError

MAX_TYPE_WIDTH = 11  # characters of an option's type in the help
ARGUMENTS = "stairwell.arguments"  # key of the command's arguments in click's context
HELP_ALL = "--help-all"
# The fields that `train TASK/CORE --help` shows; `--help-all` shows the others too.
COMMON = {
    "core": ("width", "layers", "heads", "memory", "chunk", "passes"),
    "train": ("steps", "batch", "segment", "learning_rate", "warmup", "curriculum", "max_grad_norm", "seed"),
}


def all_configs() -> dict[str, dict[str, type]]:
    """Return the configs of every section by the name of their core, family or task."""
    from stairwell.cores import CORES
    from stairwell.runs.families import FAMILIES
    from stairwell.tasks import TASKS, task_type

    return {
        "core": {name: entry.config for name, entry in CORES.items()},
        "model": {name: family.model_config for name, family in FAMILIES.items()},
        "task": {name: task_type(name)[0] for name in TASKS},
        "train": {name: family.train_config for name, family in FAMILIES.items()},
    }


def dotted_options(sections: dict[str, dict[str, type]] | None = None) -> list[tuple[str, str, str]]:
    """Return name, type and help of every option `section.field` of any run, or of the given configs."""
    from stairwell import configs
    from stairwell.runs.config import DERIVED
    from stairwell.runs.families import FAMILIES

    derived = {str(name): family.derived for name, family in FAMILIES.items()}
    options = []
    for section, members in (sections or all_configs()).items():
        fields: dict[str, tuple[str, str, list[str]]] = {}
        for member, config in members.items():
            help = configs.field_help(config)
            for name, annotation in configs.field_types(config).items():
                if name in (derived[member] if section == "model" else DERIVED.get(section, ())):
                    continue
                fields.setdefault(name, (configs.short_type_name(annotation), help.get(name, ""), []))[2].append(member)
        for name, (type_name, text, owners) in fields.items():
            # A long list of choices would leave no space for the names of the options.
            if len(type_name) > MAX_TYPE_WIDTH:
                type_name, text = "choice", f"{text} ({type_name})"
            only = f" ({', '.join(owners)})" if len(owners) <= len(members) // 2 else ""
            options.append((f"{section}.{name}", type_name, text + only))
    return options


def options_of(name: str) -> dict[str, tuple[str, str]]:
    """Return type and help, with the default, of the options of one preset."""
    from stairwell.runs.presets import preset

    run = preset(name)
    owners = {"core": run.core_name, "model": run.family.name, "task": run.task_name, "train": run.family.name}
    configs, values, options = all_configs(), run.to_json(), {}
    for option, type_name, help in dotted_options({part: {of: configs[part][of]} for part, of in owners.items()}):
        section, _, field = option.partition(".")
        options[option] = type_name, help + default_text(values[section][field])
    return options


def default_text(value: Any) -> str:
    """Return the end of an option's help: its default, as it is written on the command line."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list):
        text = ",".join(map(str, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return rf" \[default: {text}]"  # escaped: rich reads brackets as markup


class DottedCommand(TyperCommand):
    """A command with the options of `with_dotted_options`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        dotted = {name for param in self.params for name in param.opts if "." in name}
        for option, following in pairwise(args):
            if option in dotted and following.startswith("--"):  # click would take it for the value
                raise UserError(f"Option '{option}' requires an argument before {following}")
        return super().parse_args(ctx, args)


class PresetCommand(DottedCommand):
    """A command whose help shows the options of the preset that is named, the common ones or all (--help-all)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        if HELP_ALL in args:
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        rich_utils.STYLE_OPTIONS_TABLE_PADDING = (0, 1, 0, 0)  # type: ignore[assignment]  # narrow columns
        arguments = ctx.meta.get(ARGUMENTS, ())
        presets = set(complete_preset(""))
        name = next((word for word in arguments if word in presets), None)
        options = options_of(name) if name else {option: (kind, help) for option, kind, help in dotted_options()}
        params = []
        for param in self.params:
            dotted = param.opts[0].removeprefix("--")
            section, dot, field = dotted.partition(".")
            if dot and (dotted not in options or (HELP_ALL not in arguments and not is_common(name, section, field))):
                continue
            if dot:
                param = copy(param)
                param.metavar, param.help = options[dotted]  # type: ignore[attr-defined]
            params.append(param)
        shorter = copy(self)
        shorter.params = params
        if HELP_ALL not in arguments:
            more = f"stairwell train {name or 'TASK/CORE'} {HELP_ALL}"
            shorter.epilog = f"All options: {more}" if name else f"Options of a task and a core: {more}"
        super(PresetCommand, shorter).format_help(ctx, formatter)


def is_common(name: str | None, section: str, field: str) -> bool:
    """Return whether --help shows a field: of a named preset the common ones and those of the task."""
    return name is not None and (section == "task" or field in COMMON.get(section, ()))


def with_dotted_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options `--section.field`; those that were used are passed as `options`."""
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
    """Return the options with the value of `short`, which is another name of `dotted`. Both must not differ."""
    if value is None:
        return options
    if options.get(dotted, str(value)) != str(value):
        raise UserError(f"{short} {value} and --{dotted} {options[dotted]} mean the same but differ; give one of them")
    return {**options, dotted: str(value)}


def complete_preset(incomplete: str) -> list[str]:
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    names = [f"{task}/{core}" for task in TASKS for core in CORES]
    return [name for name in names if name.startswith(incomplete)]


def complete_experiment(incomplete: str) -> list[str]:
    from stairwell.experiments.papers import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]
