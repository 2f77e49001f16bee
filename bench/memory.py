"""How much memory a training step needs, and how much a stream that is being decoded.

A step is measured in a process of its own: forward, backward and Adam, from the second step on, so that gradients and
Adam's moments are there. The number is the largest resident size that the kernel saw (VmHWM, reset when the model is
about to be made; nothing is sampled) less the resident size just before: weights, gradients, moments, state and all
that a step keeps. A tiny model has taken a step before, so that no library is loaded inside the measurement.

glibc's allocator keeps freed memory for later, more or less of it from run to run. The process is told to hand large
pieces back at once (ENVIRONMENT), so that the resident size is what is really held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench import decode, speed
from bench.speed import CONTESTANTS, WARM_UP, Case
from stairwell.decode import Session

CASES = ("b16", "b64", "char-ptb")
KINDS = ("feedback", "transformer-xl", "reference", "transformer-xl-reference", "x-transformers")
BEGIN_FULL = ("feedback", "transformer-xl", "reference", "transformer-xl-reference")
REPEATS = 2
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
DECODED = decode.Case("decoding", (), span=512)  # 8 layers of width 512, one stream


def resident(what: str) -> int:
    """Bytes: VmRSS now, VmHWM at most since the last reset."""
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def peak_of(kind: str, case: Case) -> int:
    """Bytes that training steps of a contestant need at most. Only in a process that does nothing else."""
    CONTESTANTS[kind](replace(case, B=2, layers=1, width=16, heads=2, memory=4, segment=4, inner=None))()
    CLEAR.write_text("5", encoding="ascii")  # the largest size so far is forgotten
    before = resident("VmRSS")
    step = CONTESTANTS[kind](case)
    for _ in range(2 if kind in BEGIN_FULL else WARM_UP + 1):
        step()
    return resident("VmHWM") - before


def in_a_process(kind: str, case: str) -> int | None:
    """The same in a fresh process; nothing if a package is missing there."""
    asked = [sys.executable, "-m", "bench.memory", kind, case]
    ended = subprocess.run(
        asked,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        print(f"{kind} left out: {(ended.stderr.strip().splitlines() or ['it failed'])[-1]}", file=sys.stderr)
        return None
    return int(json.loads(ended.stdout.splitlines()[-1]))


def megabytes(count: float) -> float:
    return round(count / 2**20, 1)


def measure_case(case: str) -> list[dict[str, Any]]:
    if not CLEAR.exists():
        sys.exit("memory is measured where the kernel tells it: on Linux")
    records: list[dict[str, Any]] = []
    for kind in KINDS:
        found = [peak for _ in range(REPEATS) if (peak := in_a_process(kind, case)) is not None]
        if found:
            spread = round((max(found) - min(found)) / max(found), 3)
            records.append({"case": case, "what": kind, "peak_megabytes": megabytes(max(found)), "spread": spread})
            records[-1]["over_feedback"] = round(records[-1]["peak_megabytes"] / records[0]["peak_megabytes"], 2)
    return records


def measure_decoding() -> list[dict[str, Any]]:
    """The state of one stream, as a value and as the buffers of a session, which hold keys and values too."""
    records: list[dict[str, Any]] = []
    for kind in ("feedback", "transformer-xl"):
        model = decode.make_model(DECODED, kind)
        state = speed.full_state(model, 1)
        steps: Any = Session(model, state).steps
        buffers = sum(rows.all.untyped_storage().nbytes() for rows in steps.parts())
        record = {"case": "decoding", "what": kind, "layers": DECODED.layers, "state_bytes": state.nbytes}
        records.append({**record, "session_bytes": buffers})
        for name in ("state", "session"):
            ratio = records[-1][f"{name}_bytes"] / records[0][f"{name}_bytes"]
            records[-1][f"{name}_over_feedback"] = round(ratio, 2)
    return records


def measure(cases: Sequence[str] = (*CASES, "decoding")) -> list[dict[str, Any]]:
    return [record for case in cases for record in (measure_decoding() if case == "decoding" else measure_case(case))]


if __name__ == "__main__":
    print(json.dumps(peak_of(sys.argv[1], speed.CASES[sys.argv[2]])))
