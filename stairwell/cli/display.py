"""Display of training on a terminal: a bar with speed and remaining time, the latest metrics, a small curve.

Everything goes to stderr, so that stdout has results only.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any, TextIO, cast

BLOCKS = "▁▂▃▄▅▆▇█"
CURVE = 48  # characters
STOPPING = "stopping after this step; Ctrl-C again stops at once"


class SafeStderr:
    """A stderr whose reader or terminal may disappear: further output is dropped without an error."""

    # A signal handler that writes during a write raises a RuntimeError.
    ERRORS = (OSError, ValueError, RuntimeError)

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(*self.ERRORS):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(*self.ERRORS):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def use_safe_stderr() -> None:
    """Replace stderr, so that a run continues without output when it is closed."""
    if not isinstance(sys.stderr, SafeStderr):
        sys.stderr = cast(TextIO, SafeStderr(sys.stderr))


def curve(values: list[float], width: int = CURVE) -> str:
    """Return numbers as a line of block characters, the newest last."""
    values = [value for value in values if value == value]
    if not values:
        return ""
    # Average the values in as many buckets as fit.
    buckets = min(width, len(values))
    edges = [i * len(values) // buckets for i in range(buckets + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[round((mean - low) / ((high - low) or 1) * (len(BLOCKS) - 1))] for mean in means)


def summary(record: dict[str, Any], unit: str = "tokens") -> str:
    """Return the metrics of a step in one readable line. `unit` is what the model reads: tokens, or frames."""
    parts = [f"loss {record['loss']:.4f}"]
    if "accuracy" in record:
        parts.append(f"accuracy {record['accuracy']:.1f}%")
    if "return" in record:
        parts.append(f"return {record['return']:.3g} over {record['length']:.3g} steps")
    if "tokens_per_second" in record:
        parts.append(f"{record['tokens_per_second']:,.0f} {unit}/s")
    if "stage" in record:
        parts.append(" ".join(f"{name} {value}" for name, value in record["stage"].items()))
    return ", ".join(parts)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def time_left(record: dict[str, Any], total: int) -> str:
    """Return the remaining time at the average time per step so far, without validations."""
    left = record["seconds"] / record["step"] * (total - record["step"])
    return f", {duration(left)} left" if left else ""


def metrics_line(event: dict[str, Any], unit: str = "tokens") -> str:
    """Return the metrics of a step or a validation, for logs."""
    return f"valid: {scores_line(event['valid'])}" if "valid" in event else summary(event, unit)


def scores_line(scores: dict[str, float]) -> str:
    """Return the scores of a split in one line, the counts last."""
    counted = ("scored", "sequences", "streams")
    first = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in scores.items() if name not in counted]
    return ", ".join([*first, *(f"{scores[name]:,.0f} {name}" for name in counted if name in scores)])


class NullDisplay:
    """Shows nothing; for all processes except the first."""

    def __enter__(self) -> NullDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: dict[str, Any]) -> None:
        pass


class WarningDisplay(NullDisplay):
    """Shows only warnings (--quiet)."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "warning":
            self.say(f"warning: {event['text']}")


class LogDisplay(WarningDisplay):
    """Prints one line per event, for logs and pipes."""

    def __init__(self, title: str, total: int, unit: str = "tokens") -> None:
        self.total, self.unit = total, unit
        self.say(title)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "metrics":
            left = "" if "valid" in event else time_left(event, self.total)
            self.say(f"step {event['step']:,}/{self.total:,}  {metrics_line(event, self.unit)}{left}")
        elif event["event"] == "stopping":
            self.say(STOPPING)
        else:
            super().__call__(event)


class ScreenDisplay(NullDisplay):
    """A live display that is redrawn, for terminals."""

    live: Any  # rich's

    def panel(self) -> Any:
        raise NotImplementedError

    def __enter__(self) -> NullDisplay:
        self.live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.update(self.panel())
        self.live.__exit__(*error)


class LiveDisplay(ScreenDisplay):
    """The live panel of a run."""

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "tokens") -> None:
        from rich.console import Console, Group
        from rich.live import Live as RichLive
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        self.title, self.unit, self.Text, self.Group = title, unit, Text, Group
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("[bold]steps"), BarColumn(), MofNCompleteColumn(), TextColumn("eta"), TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"), console=self.console,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=total, completed=done, rate="")
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.latest = self.valid = self.note = ""
        self.live = RichLive(self.panel(), console=self.console, refresh_per_second=4)

    def panel(self) -> Any:
        name, *about = self.title.splitlines()
        lines = [self.Text(name, style="bold")]
        lines += [self.Text(line, style="dim") for line in about]
        lines += [self.Text(line) for line in (self.latest, self.valid, self.note) if line]
        if len(self.losses) > 1:
            lines.append(self.Text(f"loss      {curve(self.losses)}  {self.losses[-1]:.4f}", style="cyan"))
        if len(self.accuracies) > 1:
            lines.append(self.Text(f"accuracy  {curve(self.accuracies)}  {self.accuracies[-1]:.1f}%", style="green"))
        return self.Group(*lines, self.progress)

    def __call__(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if name == "step":
            rate = event["tokens"] / max(event["seconds"], 1e-9)
            self.progress.update(self.task, completed=event["step"], rate=f"{rate:,.0f} {self.unit}/s")
            self.note = ""
            return
        if name == "metrics" and "valid" in event:
            self.valid = f"valid     {scores_line(event['valid'])} at step {event['step']:,}"
            self.note = ""
        elif name == "metrics":
            self.latest = f"train     {summary(event, self.unit)}"
            self.losses.append(event["loss"])
            if "accuracy" in event:
                self.accuracies.append(event["accuracy"])
        elif name == "evaluating":
            self.note = f"evaluating {event['split']}: {event['tokens']:,} {self.unit}"
        elif name == "warning":
            self.console.print(f"[yellow]warning:[/] {event['text']}")
        elif name == "stopping":
            self.note = STOPPING
        self.live.update(self.panel())


class SideBySideDisplay(ScreenDisplay):
    """Runs that train at the same time, one panel each."""

    def __init__(self, steps: dict[str, int]) -> None:
        from rich.console import Console, Group
        from rich.live import Live as RichLive

        self.panels = {name: LiveDisplay(name, total) for name, total in steps.items()}
        self.Group, self.note = Group, ""
        self.live = RichLive(self.panel(), console=Console(stderr=True), refresh_per_second=4)

    def panel(self) -> Any:
        panels = [panel.panel() for panel in self.panels.values()]
        return self.Group(*panels, self.note) if self.note else self.Group(*panels)

    def __call__(self, event: dict[str, Any]) -> None:
        panel = self.panels.get(event.get("model", ""))
        if event["event"] == "stopping":
            self.note = STOPPING
        elif event["event"] == "metrics" and panel is not None:
            panel({**event, "event": "step"})
            panel(event)
        self.live.update(self.panel())


class SideBySideLog(LogDisplay):
    """One line per event of runs that train at the same time."""

    def __init__(self, steps: dict[str, int]) -> None:
        self.steps = steps
        self.say(f"{' and '.join(steps)} train side by side")

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "metrics":
            total = self.steps[event["model"]]
            self.say(f"{event['model']:24} step {event['step']:,}/{total:,}  {metrics_line(event)}")
        elif event["event"] == "finished":
            self.say(f"{event['model']:24} finished")
        else:
            super().__call__(event)


class RunLog(WarningDisplay):
    """One line per run of several: when it starts, or when it is finished."""

    def __init__(self, title: str, quiet: bool) -> None:
        self.title, self.quiet, self.start, self.finished = title, quiet, time.monotonic(), 0

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "stopping":
            self.say(STOPPING)
        elif self.quiet:
            super().__call__(event)
        elif event["event"] == "begin":
            self.say(f"{self.title}, run {event['number']} of {event['of']}: {event['model']}")
        elif event["event"] == "finished":
            self.finished += 1
            eta = (time.monotonic() - self.start) / self.finished * event["left"]
            self.say(f"{self.title}, finished: {event['model']}; {event['left']} left, eta {duration(eta)}")


def side_by_side(steps: dict[str, int], quiet: bool) -> NullDisplay:
    """Return the display of runs that train at the same time, by name and number of steps."""
    if quiet:
        return WarningDisplay()
    return SideBySideDisplay(steps) if sys.stderr.isatty() else SideBySideLog(steps)


def display(title: str, total: int, done: int, quiet: bool, unit: str = "tokens") -> NullDisplay:
    """Return the display that fits where stderr goes."""
    if quiet:
        return WarningDisplay()
    return LiveDisplay(title, total, done, unit) if sys.stderr.isatty() else LogDisplay(title, total, unit)
