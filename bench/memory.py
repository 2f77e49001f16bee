"""Peak memory of a training step, and memory of a stream during decoding.

A step (forward, backward and Adam) is measured in its own process, from the second step on, when gradients and Adam's
moments exist. The number is the peak resident size recorded by the kernel (VmHWM, reset before the model is created)
minus the resident size before: parameters, gradients, moments, state and saved activations. A tiny model takes a step
first, so that no library is loaded during the measurement.

glibc's allocator keeps a varying amount of freed memory. ENVIRONMENT makes it return large blocks at once, so that the
resident size is the memory in use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench import decode, speed, staircase
from bench.speed import IMPLEMENTATIONS, WARM_UP
from stairwell import LanguageModel
from stairwell.decode import Session
from stairwell.state import State

NAMES = ("feedback", "transformer-xl", "reference", "transformer-xl-reference", "x-transformers")
# The reference engine takes minutes there.
LARGE_NAMES = ("feedback", "feedback-bf16-kv", "transformer-xl", "x-transformers")
STAIRCASES = {model.name: model.core for model in staircase.MODELS}
CASES = {"b16": NAMES, "b64": NAMES, "char-ptb": LARGE_NAMES, "passes": tuple(STAIRCASES)}  # implementations
START_FULL = ("feedback", "feedback-bf16-kv", "transformer-xl", "reference", "transformer-xl-reference")
REPEATS = 2
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
DECODED = decode.Case("decoding", (), span=512)  # 8 layers of width 512, one stream


def resident(what: str) -> int:
    """Return bytes: VmRSS is the current value, VmHWM the peak since the last reset."""
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def make_step(name: str, case: str, tiny: bool) -> Callable[[], Any]:
    """Return the training step of an implementation, or one of a tiny model that loads the same libraries."""
    if case == "passes":
        core = STAIRCASES[name]
        small = replace(core, layers=1, width=16, heads=2)
        return staircase.training_step(small, "auto", 2, 64) if tiny else staircase.training_step(core, "auto")
    shape = speed.CASES[case]
    if tiny:
        shape = replace(shape, B=2, layers=1, width=16, heads=2, memory=4, segment=4, inner=None)
    return IMPLEMENTATIONS[name](shape)


def peak_memory(name: str, case: str) -> int:
    """Return the peak memory of training steps in bytes. Call this in a process that does nothing else."""
    make_step(name, case, tiny=True)()
    CLEAR.write_text("5", encoding="ascii")  # resets the peak
    before = resident("VmRSS")
    step = make_step(name, case, tiny=False)
    for _ in range(2 if name in START_FULL and case != "passes" else WARM_UP + 1):
        step()
    return resident("VmHWM") - before


def measure_in_process(name: str, case: str) -> int | None:
    """Return the peak memory, measured in a new process, or None if a package is missing."""
    command = [sys.executable, "-m", "bench.memory", name, case]
    completed = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        print(f"{name} skipped: {(completed.stderr.strip().splitlines() or ['it failed'])[-1]}", file=sys.stderr)
        return None
    return int(json.loads(completed.stdout.splitlines()[-1]))


def megabytes(count: float) -> float:
    return round(count / 2**20, 1)


def measure_case(case: str) -> list[dict[str, Any]]:
    if not CLEAR.exists():
        sys.exit("peak memory can only be measured on Linux")
    records: list[dict[str, Any]] = []
    for name in CASES[case]:
        peaks = [peak for _ in range(REPEATS) if (peak := measure_in_process(name, case)) is not None]
        if peaks:
            spread = round((max(peaks) - min(peaks)) / max(peaks), 3)
            records.append({"case": case, "what": name, "peak_megabytes": megabytes(max(peaks)), "spread": spread})
            ratio = round(records[-1]["peak_megabytes"] / records[0]["peak_megabytes"], 2)
            if case == "passes":
                model = staircase.model_for(STAIRCASES[name], "auto").eval()
                with torch.no_grad():
                    _, state = model(torch.zeros(1, 2 * staircase.T, dtype=torch.int64), model.init_state(1))
                records[-1] |= {"over_transformer_xl": ratio, "session_bytes": session_bytes(model, state)}
            else:
                records[-1]["over_feedback"] = ratio
    return records


def session_bytes(model: LanguageModel, state: State) -> int:
    """Return the size of a session's buffers, which hold the state and its keys and values."""
    interpreter: Any = Session(model, state).interpreter
    return sum(buffer.all.untyped_storage().nbytes() for buffer in interpreter.buffers())


def measure_decoding() -> list[dict[str, Any]]:
    """Measure the state of one stream, as a value and as the buffers of a session, which include keys and values."""
    records: list[dict[str, Any]] = []
    for name in ("feedback", "transformer-xl"):
        model = decode.make_model(DECODED, name)
        state = speed.full_state(model, 1)
        record = {"case": "decoding", "what": name, "layers": DECODED.layers, "state_bytes": state.nbytes}
        records.append({**record, "session_bytes": session_bytes(model, state)})
        for part in ("state", "session"):
            ratio = records[-1][f"{part}_bytes"] / records[0][f"{part}_bytes"]
            records[-1][f"{part}_over_feedback"] = round(ratio, 2)
    return records


def measure(cases: Sequence[str] = (*CASES, "decoding")) -> list[dict[str, Any]]:
    return [record for case in cases for record in (measure_decoding() if case == "decoding" else measure_case(case))]


if __name__ == "__main__":
    print(json.dumps(peak_memory(sys.argv[1], sys.argv[2])))
