"""Options `--section.field` for every field of an experiment, and the completion of names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

NARROW = 11  # characters for an option's type in the help


def dotted_options() -> list[tuple[str, str, str]]:
    """Every option `section.field` that any experiment has: its name, its type, its help."""
    from stairwell import configs
    from stairwell.cores import CORES
    from stairwell.runs.experiment import DERIVED
    from stairwell.runs.kinds import KINDS
    from stairwell.tasks import TASKS, task_type

    derived: dict[str, tuple[str, ...]] = {name: kind.derived for name, kind in KINDS.items()}
    kinds: dict[str, dict[str, type]] = {
        "core": {name: entry.config for name, entry in CORES.items()},
        "model": {name: kind.config for name, kind in KINDS.items()},
        "task": {name: task_type(name)[0] for name in TASKS},
        "train": {name: kind.train for name, kind in KINDS.items()},
    }
    options = []
    for section, members in kinds.items():
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


def complete_experiment(incomplete: str) -> list[str]:
    from stairwell.cores import CORES
    from stairwell.tasks import TASKS

    names = [f"{task}/{core}" for task in TASKS for core in CORES]
    return [name for name in names if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[str]:
    from stairwell.experiments.papers import CATALOGUE

    return [name for name in ("demo", *CATALOGUE) if name.startswith(incomplete)]
