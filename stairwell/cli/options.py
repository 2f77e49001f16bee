"""Options `--section.field` for every field of a RunConfig, their help, and completion of names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import typer

from stairwell import configs
from stairwell.cli.help import Command, Entry, Section, default_text, parameter_sections, parameter_types
from stairwell.errors import UserError

MAX_TYPE_WIDTH = 11  # characters of an option's type in the help
MAX_OWNERS = 2  # cores, families or tasks listed in the help of an option
ARGUMENTS = "stairwell.arguments"  # key of the command's arguments in click's context
HELP_ALL = "--help-all"
BOOLEAN = "true|false"
SECTIONS = ("task", "core", "model", "train")  # in the order of the help
ALIASES = {"--steps": "train.steps", "--seed": "train.seed"}  # short names of options
# What `train TASK/CORE --help` shows; `--help-all` shows the others too.
OWN = ("name", "out", "resume", "steps", "seed", "seeds", "device", "help")
COMMON = {
    "core": ("width", "layers", "heads", "memory", "chunk", "passes"),
    "train": ("batch", "segment", "learning_rate", "curriculum", "batch_tokens", "algorithm"),
}
COMMON_OF_TASK = {
    "algorithmic": ("statements", "variables"),
    "cycle-navigation": ("length", "test_length"),
    "even-pairs": ("length", "test_length"),
    "group-words": ("group", "length"),
    "labeled": ("path",),
    "lm": ("path", "unit"),
    "modular-arithmetic": ("length", "test_length"),
    "parity-check": ("length", "test_length"),
    "random-walk": ("length", "grid"),
    "rl": ("env", "length"),
    "summarization": ("path", "words", "vocabulary"),
    "translation": ("path", "source", "target", "vocabulary"),
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
            only = f" ({owners_text(owners)})" if len(owners) <= len(members) // 2 else ""
            options.append((f"{section}.{name}", type_name, text + only))
    return options


def owners_text(owners: list[str]) -> str:
    more = f" and {len(owners) - MAX_OWNERS} more" if len(owners) > MAX_OWNERS else ""
    return ", ".join(owners[:MAX_OWNERS]) + more


def options_of(name: str) -> dict[str, tuple[str, str]]:
    """Return type and help, with the default, of the options of one preset."""
    from stairwell.runs.presets import preset

    run = preset(name)
    owners = {"core": run.core_name, "model": run.family.name, "task": run.task_name, "train": run.family.name}
    types, values, options = all_configs(), run.to_json(), {}
    for option, type_name, help in dotted_options({part: {of: types[part][of]} for part, of in owners.items()}):
        section, _, field = option.partition(".")
        options[option] = type_name, help + default_text(values[section][field])
    return options


class PresetCommand(Command):
    """A command with the options `--section.field`. Its help shows those of the preset that is named: the common ones,
    or all (--help-all)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        if HELP_ALL in args:
            args = ["--help"]
        args = with_flags(args)
        dotted = {name for param in self.params for name in param.opts if "." in name}
        for option, following in pairwise(args):
            if option in dotted and following.startswith("--"):  # the parser would take it for the value
                raise UserError(f"Option '{option}' requires an argument before {following}")
        return super().parse_args(ctx, args)

    def sections(self, ctx: Any) -> list[Section]:
        arguments = ctx.meta.get(ARGUMENTS, ())
        presets = set(complete_preset(""))
        name, all_options = next((word for word in arguments if word in presets), None), HELP_ALL in arguments
        shown = OWN if name and not all_options else None
        own = [
            parameter
            for parameter in self.get_params(ctx)
            if "." not in parameter.name.replace("__", ".") and (shown is None or parameter.name in shown)
        ]
        if name:
            options = options_of(name)
        else:
            options = {option: (type_name, help) for option, type_name, help in dotted_options()}
        sections = parameter_sections(own, parameter_types(self.callback))
        entries = sections[-1].entries
        for number, entry in enumerate(entries) if name else ():
            if dotted := ALIASES.get(entry.label.partition(" ")[0]):
                entries[number] = entry._replace(help=options[dotted][1])
        entries.append(Entry(HELP_ALL, "Show all options, including rarely used config fields."))
        by_section: dict[str, list[Entry]] = {}
        for option, (type_name, help) in options.items():
            section, _, field = option.partition(".")
            if all_options or (name and is_common(name, section, field)):
                by_section.setdefault(section, []).append(dotted_entry(option, type_name, help))
        titles = dict(zip(("task", "core"), name.split("/"))) if name else {}
        for section in SECTIONS:
            if of_section := by_section.get(section):
                title = f"{section.capitalize()} ({titles[section]})" if section in titles else section.capitalize()
                sections.append(Section(title, of_section))
        return sections


def dotted_entry(option: str, type_name: str, help: str) -> Entry:
    if type_name == BOOLEAN:
        return Entry(f"--[no-]{option}", help)
    return Entry(f"--{option} {re.sub('int|number|text|choice', lambda word: word[0].upper(), type_name)}", help)


def is_common(name: str, section: str, field: str) -> bool:
    """Return whether --help shows a field of a preset."""
    if section == "task":
        return field in COMMON_OF_TASK.get(name.partition("/")[0], ("length",))
    return field in COMMON.get(section, ())


def with_flags(arguments: list[str]) -> list[str]:
    """Return arguments in which every flag has its value: `--core.share_kv` is `--core.share_kv=true`, and
    `--no-core.share_kv` is `--core.share_kv=false`. Dashes in the names of fields count as underscores."""
    types = {f"--{name}": set(types) for name, types in option_types().items()}
    result: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*result, word, *left]
        name, equals, value = word.partition("=")
        if name.startswith("--") and "." in name:
            off = name.startswith("--no-")
            name = "--" + name.removeprefix("--no-" if off else "--").replace("-", "_")
            if BOOLEAN in types.get(name, ()):
                following = left[0] if left else "--"
                if off and not equals:
                    word = f"{name}=false"
                elif not off and not equals and is_flag_before(following, types[name]):
                    word = f"{name}=true"
                elif not off:
                    word = f"{name}{equals}{value}"
            elif not off and name in types:
                word = f"{name}{equals}{value}"
        result.append(word)
    return result


def is_flag_before(following: str, types: set[str]) -> bool:
    """Return whether an option that may be a flag has no value: the next word is no true or false, or an option."""
    if following.lower() in configs.TRUE + configs.FALSE:
        return False
    return following.startswith("--") or types == {BOOLEAN}


@cache
def option_types() -> dict[str, list[str]]:
    """Return the types of every option `section.field`, of all cores, families and tasks that have it."""
    types: dict[str, list[str]] = {}
    for section, members in all_configs().items():
        for config in members.values():
            for name, annotation in configs.field_types(config).items():
                types.setdefault(f"{section}.{name}", []).append(configs.short_type_name(annotation))
    return types


def with_dotted_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options `--section.field`; those that were used are passed as `options`."""
    named = {name.replace(".", "__"): (name, type_name, help) for name, type_name, help in dotted_options()}

    def wrapped(**arguments: Any) -> None:
        options = {named[key][0]: arguments.pop(key) for key in list(arguments) if key in named}
        command(**arguments, options={name: text for name, text in options.items() if text is not None})

    own = dict(inspect.signature(command).parameters)
    hints = inspect.get_annotations(command, eval_str=True)
    del own["options"], hints["options"]
    for key, (name, type_name, help) in named.items():
        option = typer.Option(f"--{name}", help=help, metavar=type_name)
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


@contextmanager
def as_given(options: Iterable[str], aliases: Mapping[str, str]) -> Iterator[None]:
    """Name options in errors the way they were given: `--train.steps`, or `--steps` if that was."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for name in options:
            message = re.sub(rf"(?<![\w.])(--)?{re.escape(name)}(?![\w.])", aliases.get(name, f"--{name}"), message)
        error.args = (message,)
        raise


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
