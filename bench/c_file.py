"""Exported C files: bytes, tokens per second, and mistakes over a long stream, on this machine and on ARM under qemu.

The model is the shipped tracker of S5, which a small program runs over random tokens; it compares each output with the
product so far. Cases: `native` and `arm` (Linux, under qemu-arm) over a million tokens, `cortex-m4` (a board without
an operating system, under qemu-system-arm) over ten thousand. Speed is per second of processor time. The bytes of code
are those of the exported file's functions, without the C library; the stack is the sum over its functions.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stairwell.errors import UserError
from stairwell.export.c import export_c
from stairwell.runs.load import load

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "examples/cortex-m"
M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
SEMIHOSTING = ("-nographic", "-semihosting-config", "enable=on,target=native")


@dataclass(frozen=True)
class Target:
    """How a case is compiled and run."""

    name: str
    compiler: str
    size: str
    tokens: int
    compile: tuple[str, ...] = ("-O2",)
    link: tuple[str | Path, ...] = ()
    command: tuple[str, ...] = ()


TARGETS = {
    "native": Target("x86-64", "gcc", "size", 1_000_000, ("-O3",)),
    "arm": Target(
        "ARMv7, qemu-arm", "arm-linux-gnueabihf-gcc", "size", 1_000_000, ("-O3",), ("-static",), ("qemu-arm",)
    ),
    "cortex-m4": Target(
        "Cortex-M4, qemu-system-arm",
        "arm-none-eabi-gcc",
        "arm-none-eabi-size",
        10_000,
        ("-O2", *M4),
        ("--specs=rdimon.specs", "-T", BOARD / "memory.ld", BOARD / "start.c"),
        ("qemu-system-arm", "-M", "mps2-an386", *SEMIHOSTING, "-kernel"),
    ),
}
CASES = tuple(TARGETS)
PROGRAM = """
#include <stdio.h>
#include "model.h"

static const short product[MODEL_OUTPUTS][MODEL_INPUTS] = {PRODUCTS};

int main(void)
{
    static model_state state;
    static float logits[MODEL_OUTPUTS];
    unsigned random = 1;
    long mistakes = 0;
    int label = 0;
    model_init(&state);
    for (long i = 0; i < TOKENS; i++) {
        random ^= random << 13, random ^= random >> 17, random ^= random << 5;
        const int token = (int)((random >> 8) % MODEL_INPUTS);
        label = product[label][token];
        mistakes += model_step(&state, token, logits) != label;
    }
    printf("%ld\\n", mistakes);
    return 0;
}
"""


def products(task: Any) -> str:
    """Return the table of the product so far after each token, as the initializer of an array."""
    so_far = np.repeat(np.arange(task.outputs), task.inputs)[:, None]
    tokens = np.tile(np.arange(task.inputs), task.outputs)[:, None]
    following = task.train.labels(tokens.astype(np.int16), so_far)[0].reshape(task.outputs, task.inputs)
    rows = [", ".join(map(str, row)) for row in following.tolist()]
    return f"{{{', '.join(f'{{{row}}}' for row in rows)}}}"


def measure_case(case: str, weights: Any, tokens: int | None, folder: Path) -> dict[str, Any]:
    target = TARGETS[case]
    for tool in (target.compiler, target.size, *target.command[:1]):
        if not shutil.which(tool):
            raise UserError(f"{case}: {tool} is not installed")
    tokens = target.tokens if tokens is None else tokens
    model, task = load("s5-feedback", "cpu", "reference")
    c_model = export_c(model, folder / "model.c", task, "model", weights)
    (folder / "main.c").write_text(PROGRAM.replace("{PRODUCTS}", products(task)).replace("TOKENS", str(tokens)))
    compiler = [target.compiler, "-std=c99", *target.compile]
    subprocess.run([*compiler, "-fstack-usage", "-c", "model.c"], cwd=folder, check=True)
    subprocess.run([*compiler, "main.c", "model.o", *target.link, "-o", "main", "-lm"], cwd=folder, check=True)
    sections = subprocess.run([target.size, "-A", "model.o"], cwd=folder, capture_output=True, text=True, check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run([*target.command, folder / "main"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "case": case,
        "what": weights,
        "target": target.name,
        "options": " ".join(target.compile),
        "code_bytes": sum(int(size) for size in re.findall(r"^\.text\S*\s+(\d+)", sections.stdout, re.MULTILINE)),
        "parameter_bytes": c_model.parameter_bytes,
        "state_bytes": c_model.state_bytes,
        "stack_bytes": sum(int(line.split("\t")[1]) for line in (folder / "model.su").read_text().splitlines()),
        "tokens": tokens,
        "mistakes": int(run.stdout),
        "tokens_per_second": round(tokens / seconds),
    }


def measure(cases: Sequence[str] = CASES, tokens: int | None = None) -> list[dict[str, Any]]:
    measured = []
    for case in cases:
        for weights in ("float32", "int8"):
            with tempfile.TemporaryDirectory(prefix="stairwell-c-") as folder:
                measured.append(measure_case(case, weights, tokens, Path(folder)))
    return measured
