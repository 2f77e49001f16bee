"""python -m bench NAME [CASE...]: measure, print, and append to bench/results/ with commit, versions and machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import (
    agents,
    browser,
    c_file,
    data,
    decode,
    environments,
    limit,
    machine,
    memory,
    page,
    plot,
    profile,
    records,
    rl_memory,
    scaling,
    schedules,
    serve,
    speculation,
    speed,
    staircase,
    table,
    translate,
)
from stairwell.errors import UserError
from stairwell.provenance import provenance


@dataclass(frozen=True)
class Measurement:
    """A benchmark. `measure` accepts a list of cases, if there are several."""

    description: str
    measure: Callable[..., list[dict[str, Any]]]
    cases: tuple[str, ...] = ()


MEASUREMENTS = {
    "speed": Measurement("training steps against peers", speed.measure, tuple(speed.CASES)),
    "cores": Measurement("training steps of every core", speed.measure_cores),
    "limit": Measurement("training steps against the machine's speed of matrix products", limit.measure, limit.CASES),
    "profile": Measurement("time of a Feedback step by part", profile.measure, profile.CASES),
    "memory": Measurement("peak memory of a step, size of a state", memory.measure, (*memory.CASES, "decoding")),
    "decode": Measurement(
        "decoding against peers", decode.measure, (*decode.SINGLES, *decode.CASES, "parts", "groups", "flat")
    ),
    "translate": Measurement("beam search of translators against peers", translate.measure, tuple(translate.CASES)),
    "staircase": Measurement("training steps of the Staircases", staircase.measure, staircase.CASES),
    "schedules": Measurement("the two schedules of Feedback's training loops", schedules.measure, schedules.CASES),
    "scaling": Measurement("time per token as sizes grow", scaling.measure, scaling.CASES),
    "serve": Measurement("the server under load", serve.measure, serve.CASES),
    "data": Measurement("speed of data generation against training", data.measure),
    "speculation": Measurement("a Feedback draft for a large Transformer-XL", speculation.measure, speculation.CASES),
    "browser": Measurement(
        "exported pages: their size, and tokens per second in Chromium", browser.measure, browser.CASES
    ),
    "c": Measurement(
        "an exported C file: bytes, speed and mistakes, also on ARM under qemu", c_file.measure, c_file.CASES
    ),
    "agents": Measurement("frames per second of an agent's training against peers", agents.measure, agents.CASES),
    "rl-memory": Measurement(
        "PPO with a Feedback memory: return, and cost of states", rl_memory.measure, rl_memory.CASES
    ),
    "environments": Measurement("steps per second of the batched environments", environments.measure),
    "machine": Measurement("memory bandwidth and rate of a matrix product", machine.measure, machine.CASES),
}
PAGES = {
    "table": ("write the tables of docs/performance.md and docs/agents.md from bench/results", table.write),
    "plot": ("draw docs/pictures/scaling.png and sb3.png from bench/results", plot.write),
}


def usage() -> str:
    lines = ["usage: python -m bench NAME [CASE...]", ""]
    lines += ["Measure, print and append to bench/results/; all cases if none is named."]
    for name, measurement in MEASUREMENTS.items():
        lines.append(f"  {name:12} {measurement.description}")
        if measurement.cases:
            lines.append(f"  {'':12}   cases: {', '.join(measurement.cases)}")
    lines += [
        "",
        "Measure one machine as a whole, each benchmark in a new process, and write the tables.",
        f"  {'page':12} {', '.join(page.BENCHMARKS)}, between two measurements of the machine; or only the named ones",
        "",
        "Generate documents from the results.",
        *(f"  {name:12} {description}" for name, (description, _) in PAGES.items()),
    ]
    return "\n".join(lines)


def run(arguments: Sequence[str]) -> None:
    """Run the command line after `bench`. Raise a UserError for invalid arguments."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(usage())
        return
    name, *cases = arguments
    if name == "page":
        if unknown := [case for case in cases if case not in MEASUREMENTS]:
            raise UserError(f"cannot measure '{unknown[0]}'; choose from: {', '.join(MEASUREMENTS)}")
        if page.run(cases):
            raise UserError("some benchmarks failed")
        return
    if name in PAGES and not cases:
        PAGES[name][1]()
        return
    if name not in MEASUREMENTS:
        raise UserError(f"cannot measure '{' '.join(arguments)}'; choose from: {', '.join((*MEASUREMENTS, *PAGES))}")
    measurement = MEASUREMENTS[name]
    for case in cases:
        if case not in measurement.cases:
            known = f"choose from: {', '.join(measurement.cases)}" if measurement.cases else "it has no cases"
            raise UserError(f"unknown case '{case}' of {name}; {known}")
    about = provenance(" ".join(["python -m bench", *arguments]))
    measured = measurement.measure(cases) if cases else measurement.measure()
    records.add(name, measured, about)
    for record in measured:
        print("  ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in record.values()))


def main() -> None:
    try:
        run(sys.argv[1:])
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
