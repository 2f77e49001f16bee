"""Options `--section.field` for every field of a RunConfig, their help, and completion of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from stairwell import configs
from stairwell.cli.help import Command, Entry, Section, default_text, parameter_sections, parameter_types
from stairwell.errors import UserError, similar_name

MAX_TYPE_WIDTH = 11  # characters of an option's type in the help
MAX_OWNERS = 2  # cores, families or tasks listed in the help of an option
# Keys in the context of a command: the preset among its arguments, whether to show all options, those that were given.
PRESET, ALL_OPTIONS, OPTIONS = "stairwell.preset", "stairwell.all_options", "stairwell.options"
HELP_ALL = "--help-all"
TASK_CORE = "TASK/CORE"  # the name of a preset, in the help
BOOLEAN = "true|false"
SECTIONS = ("task", "core", "model", "train")  # in the order of the help
ALIASES = {"--steps": "train.steps", "--seed": "train.seed"}  # short names of options
# Other names of options, as other libraries have them, for suggestions.
SYNONYMS = {
    "n_head": "core.heads", "n_heads": "core.heads", "num_heads": "core.heads",
    "depth": "core.layers", "n_layer": "core.layers", "n_layers": "core.layers", "num_layers": "core.layers",
    "d_model": "core.width", "dim": "core.width", "hidden": "core.width", "hidden_dim": "core.width",
    "hidden_size": "core.width",
    "cuda": "device", "gpu": "device",
    "output": "out", "output_dir": "out",
    "epochs": "steps", "iterations": "steps", "max_iters": "steps", "max_steps": "steps", "num_steps": "steps",
    "data": "task.path", "file": "task.path", "train_data": "task.path",
    "batch_size": "train.batch",
    "lr_schedule": "train.decay", "scheduler": "train.decay",
    "learn_rate": "train.learning_rate", "lr": "train.learning_rate",
    "clip": "train.max_grad_norm", "grad_clip": "train.max_grad_norm",
    "early_stopping": "train.patience",
    "bptt": "train.segment", "context": "train.segment", "seq_len": "train.segment",
    "sequence_length": "train.segment",
    "wd": "train.weight_decay",
}  # fmt: skip
# What `train TASK/CORE --help` shows; `--help-all` shows the others too.
OWN = ("name", "out", "resume", "steps", "seed", "seeds", "device", "help")
COMMON = {
    "core": ("width", "layers", "heads", "memory", "chunk", "passes"),
    "train": ("batch", "segment", "learning_rate", "curriculum", "batch_tokens", "gamma", "ent_coef"),
}
COMMON_OF_TASK = {
    "algorithmic": ("statements", "variables"),
    "cycle-navigation": ("length", "test_length"),
    "even-pairs": ("length", "test_length"),
    "group-words": ("group", "length"),
    "labeled": ("path", "labels"),
    "lm": ("path", "unit"),
    "modular-arithmetic": ("length", "test_length"),
    "parity-check": ("length", "test_length"),
    "random-walk": ("length", "grid"),
    "rl": ("env", "options", "length"),
    "summarization": ("path", "words", "vocabulary"),
    "translation": ("path", "source", "target", "vocabulary"),
}
NO_CURRICULUM = ("labeled", "lm")  # their training data is not generated


def config_types(name: str | None = None) -> dict[str, dict[str, type]]:
    """Return the configs of every section, of one preset or of all, by the name of their core, family or task."""
    from stairwell.cores import CORES
    from stairwell.runs.families import FAMILIES, family_of
    from stairwell.tasks import task_type

    task, _, core = (name or "").partition("/")
    tasks, cores = ([task], [core]) if name else (all_tasks(), list(CORES))
    families = [family_of(task)] if name else list(FAMILIES.values())
    return {
        "core": {core: CORES[core].config for core in cores},
        "model": {family.name: family.model_config for family in families},
        "task": {task: task_type(task)[0] for task in tasks},
        "train": {family.name: family.train_config for family in families},
    }


def option_fields(section: str, member: str, config: type) -> dict[str, Any]:
    """Return the fields of a config that are options, and their types."""
    from stairwell.runs.config import DERIVED
    from stairwell.runs.families import FAMILIES

    derived = {str(name): family.derived for name, family in FAMILIES.items()}
    hidden = derived[member] if section == "model" else DERIVED.get(section, ())
    return {name: annotation for name, annotation in configs.field_types(config).items() if name not in hidden}


def option_types(name: str | None = None) -> dict[str, set[str]]:
    """Return the types of every option `section.field` of one preset, or of all."""
    types: dict[str, set[str]] = {}
    for section, members in config_types(name).items():
        for member, config in members.items():
            for field, annotation in option_fields(section, member, config).items():
                types.setdefault(f"{section}.{field}", set()).add(configs.short_type_name(annotation))
    return types


def dotted_options(name: str | None = None) -> list[tuple[str, str, str]]:
    """Return name, type and help of every option `section.field` of one preset, or of all."""
    options = []
    for section, members in config_types(name).items():
        fields: dict[str, tuple[str, str, list[str]]] = {}
        for member, config in members.items():
            help = configs.field_help(config)
            for field, annotation in option_fields(section, member, config).items():
                described = fields.setdefault(field, (configs.short_type_name(annotation), help.get(field, ""), []))
                described[2].append(member)
        for field, (type_name, text, owners) in fields.items():
            # A long list of choices would leave no space for the names of the options.
            if len(type_name) > MAX_TYPE_WIDTH:
                type_name, text = "choice", f"{text} ({type_name})"
            only = f" ({owners_text(owners)})" if len(owners) <= len(members) // 2 else ""
            options.append((f"{section}.{field}", type_name, text + only))
    return options


def owners_text(owners: list[str]) -> str:
    more = f" and {len(owners) - MAX_OWNERS} more" if len(owners) > MAX_OWNERS else ""
    return ", ".join(owners[:MAX_OWNERS]) + more


def options_of(name: str) -> dict[str, tuple[str, str]]:
    """Return type and help, with the default, of the options of one preset."""
    from stairwell.runs.presets import preset

    values, options = preset(name).to_json(), {}
    for option, type_name, help in dotted_options(name):
        section, _, field = option.partition(".")
        options[option] = type_name, help + default_text(values[section][field])
    return options


class CompletedWord(NamedTuple):
    """A completion in the shell, with the attributes that typer reads."""

    value: str
    help: str
    type: str = "plain"


class PresetCommand(Command):
    """A command with the options `--section.field`, which its function gets as `context.meta[OPTIONS]`. The parser does
    not know them, so that only the fields of the preset that runs are read, and only if an option is given. The help
    shows those of the preset: the common ones, or all (--help-all)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[PRESET] = preset_in(args)
        ctx.meta[ALL_OPTIONS] = HELP_ALL in args
        if HELP_ALL in args:
            args = [*(word for word in args if word != HELP_ALL), "--help"]
        if ctx.resilient_parsing:  # of a shell that completes a word
            args = [word for word in args if not is_dotted(word)]
        else:
            args, ctx.meta[OPTIONS] = take_dotted(args, ctx.meta[PRESET])
            if ctx.meta[PRESET] is None:
                self.check_preset(ctx, args)
        return super().parse_args(ctx, args)

    def check_preset(self, ctx: Any, args: list[str]) -> None:
        """Reject a name that is not a TASK/CORE, which --help would ignore."""
        from stairwell.runs.presets import preset

        given = self.make_parser(ctx).parse_args(list(args))[0]
        for parameter in self.params:
            name = given.get(parameter.name)
            if getattr(parameter, "metavar", None) == TASK_CORE and isinstance(name, str):
                preset(name)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        dotted = (
            [CompletedWord(f"--{name}", help) for name, _, help in dotted_options()] if is_dotted(incomplete) else []
        )
        return [*super().shell_complete(ctx, incomplete), *(c for c in dotted if c.value.startswith(incomplete))]

    def sections(self, ctx: Any) -> list[Section]:
        name, all_options = ctx.meta[PRESET], ctx.meta[ALL_OPTIONS]
        common = (*OWN, "frames") if name and is_agent(name) else OWN
        shown = common if name and not all_options else None
        own = [parameter for parameter in self.get_params(ctx) if shown is None or parameter.name in shown]
        options: dict[str, tuple[str, str]] = {}
        if name:
            options = options_of(name)
        elif all_options:
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
    task = name.partition("/")[0]
    if section == "task":
        return field in COMMON_OF_TASK.get(task, ("length",))
    if field == "curriculum" and task in NO_CURRICULUM:
        return False
    if field == "segment" and task == "rl":  # agents have options of their environment instead
        return False
    return field in COMMON.get(section, ())


def is_agent(name: str) -> bool:
    from stairwell.runs.families import family_of

    return family_of(name.partition("/")[0]).name == "rl"


def preset_in(arguments: Sequence[str]) -> str | None:
    """Return the name of a preset among arguments."""
    from stairwell.cores import CORES

    tasks = all_tasks()
    for word in arguments:
        task, _, core = word.partition("/")
        if task in tasks and core in CORES:
            return word
    return None


def all_tasks() -> list[str]:
    """Return the names of all tasks, including those that packages above `tasks` register when they are imported."""
    import stairwell.runs.families  # noqa: F401
    from stairwell.tasks import TASKS

    return list(TASKS)


def is_dotted(word: str) -> bool:
    return word.startswith("--") and "." in word.partition("=")[0]


def take_dotted(arguments: list[str], preset: str | None) -> tuple[list[str], dict[str, str]]:
    """Split arguments into the ordinary ones and the options `--section.field` with their values.

    `--core.share_kv` sets a flag, `--no-core.share_kv` clears it. Dashes in the names of fields count as underscores.
    """
    ordinary: list[str] = []
    options: dict[str, str] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*ordinary, word, *left], options
        if not is_dotted(word):
            ordinary.append(word)
            continue
        given, equals, value = word.partition("=")
        off = given.startswith("--no-")
        name = given.removeprefix("--no-" if off else "--").replace("-", "_")
        types = types_of(name, preset)
        is_other = preset and synonym(name) and name not in option_types(preset)  # such as the epochs of agents
        if not types or is_other or (off and (equals or BOOLEAN not in types)):
            raise UserError(f"No such option: {given}{near_option(given, preset)}")
        following = left[0] if left else "--"
        if off or (BOOLEAN in types and not equals and is_flag_before(following, types)):
            options[name] = "false" if off else "true"
        elif equals:
            options[name] = value
        elif following.startswith("--"):  # not a value
            before = f" before {following}" if left else ""
            raise UserError(f"Option '{given}' requires an argument{before}")
        else:
            options[name] = left.pop(0)
    return ordinary, options


def types_of(option: str, preset: str | None) -> set[str]:
    """Return the types of an option of a preset. What another preset would have is rejected later, by name."""
    return (option_types(preset).get(option) if preset else None) or option_types().get(option, set())


def near_option(given: str, preset: str | None, other_options: Iterable[str] = ()) -> str:
    """Return a suggestion: an option of the preset with the same name in another section, the option with another
    library's name, or one with a similar name. `other_options`: those outside the sections, such as --steps."""
    types, name = option_types(preset), given.lstrip("-").removeprefix("no-").replace("-", "_")
    same = [option for option in types if option.rpartition(".")[2] == name.rpartition(".")[2] and option != name]
    other = [option for option in synonym(name) if option in types or "." not in option]
    similar = similar_name(given, other_options) or similar_name(name, types) or similar_name(name, option_types())
    suggested = next(iter([*same, *other, similar or ""])).lstrip("-")
    return f"; did you mean --{suggested}?" if suggested else ""


def synonym(name: str) -> list[str]:
    """Return the option that other libraries call by this name, if there is one."""
    field = name.rpartition(".")[2]
    return [SYNONYMS[field]] if field in SYNONYMS else []


def is_flag_before(following: str, types: set[str]) -> bool:
    """Return whether an option that may be a flag has no value: the next word is no true or false, or an option."""
    if following.lower() in configs.TRUE + configs.FALSE:
        return False
    return following.startswith("--") or types == {BOOLEAN}


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

    names = [f"{task}/{core}" for task in all_tasks() for core in CORES]
    return [name for name in names if name.startswith(incomplete)]


def complete_experiment(incomplete: str) -> list[str]:
    from stairwell.experiments.papers import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]
