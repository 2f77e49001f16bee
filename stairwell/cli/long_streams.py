"""Progress and result of a long-stream evaluation (`stairwell eval --horizon`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stairwell.cli.display import duration
from stairwell.train import Callback

INTERVAL = {True: 0.2, False: 30.0}  # seconds between two progress lines: on a terminal, in a log
MAX_SHOWN = 12  # streams with a mistake that are listed


@contextmanager
def progress(hidden: bool) -> Iterator[Callback | None]:
    """Yield a callback that updates one line on a terminal, or logs a line now and then."""
    live, last = sys.stderr.isatty(), time.monotonic()

    def show(event: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last < INTERVAL[live] and event["tokens"] < event["of"]:
            return
        last = time.monotonic()
        start, end = ("\r", "\x1b[K") if live else ("", "\n")
        print(f"{start}{progress_line(event)}", end=end, file=sys.stderr, flush=True)

    try:
        yield None if hidden else show
    finally:
        if live and not hidden:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # clear the line


def progress_line(event: dict[str, Any]) -> str:
    error_free = f"{event['error_free']} of {event['streams']} streams without a mistake"
    whose = "each stream" if event.get("each", True) else "all sequences"
    return (
        f"{event['tokens']:,} of {event['of']:,} tokens of {whose}, {event['rate']:,.0f} tokens/s, "
        f"{duration(event['left'])} left; {error_free}"
    )


def horizon_text(result: dict[str, Any]) -> str:
    """Return the first mistakes and the accuracy by position in the stream, one line per power of ten."""
    streams = result["streams"]
    wrong = sorted((s for s in streams if s["first_mistake"]), key=lambda s: s["first_mistake"])
    several = len({s["seed"] for s in streams}) > 1
    lengths = sorted(s["tokens"] for s in streams if "tokens" in s) or [result["tokens"]]
    shortest = f"{lengths[0]:,} to " if lengths[0] < lengths[-1] else ""
    lines = [
        f"streams          {counted(len(streams), 'stream')} of {shortest}{result['tokens']:,} tokens, "
        f"{result['tokens_per_second']:,} tokens/s",
        f"without mistake  {len(streams) - len(wrong)} of {len(streams)}",
        f"mistakes         {sum(s['mistakes'] for s in streams):,}",
    ]
    for stream in wrong[:MAX_SHOWN]:
        name = f"seed {stream['seed']}, stream {stream['stream']}" if several else f"stream {stream['stream']}"
        count = counted(stream["mistakes"], "mistake")
        lines.append(f"  first at {stream['first_mistake']:>14,}  ({name}, {count} in all)")
    if len(wrong) > MAX_SHOWN:
        lines.append(f"  and {len(wrong) - MAX_SHOWN} more streams, see horizon.json")
    lines.append("accuracy by position in the stream")
    lines += [f"  {first:>14,} to {last:<14,} {accuracy}" for first, last, accuracy in decades(result)]
    if result["tokens"] < result.get("requested_tokens", 0) and not result["interrupted"]:
        lines.append(f"none of these sequences has more than {result['tokens']:,} tokens; give longer ones with --data")
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decades(result: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yield first position, last position and accuracy: 1 to 9, 10 to 99, and so on."""
    curve, first = result["curve"], 1
    bins = list(zip(curve["positions"], curve["scored"], curve["wrong"]))
    while first <= result["tokens"]:
        inside = [entry for entry in bins if first <= entry[0] < 10 * first]
        scored, wrong = sum(scored for _, scored, _ in inside), sum(wrong for _, _, wrong in inside)
        # Enough digits to tell one mistake from none.
        accuracy = f"{100 * (1 - wrong / scored):.7g}%" if scored else "not scored"
        yield first, min(10 * first - 1, result["tokens"]), accuracy
        first *= 10
