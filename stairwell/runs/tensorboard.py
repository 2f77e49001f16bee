"""Metrics for TensorBoard, where it is installed: event files in a run's folder `tensorboard`.

Its own writer has a thread that meets a deleted folder or a full disk with a traceback. Here every line of metrics is
written at once, and one that cannot be written is left out: `metrics.jsonl` has them all, and says what is wrong.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stairwell.train import Callback, Run


def with_tensorboard(callback: Callback, run: Run) -> Callback:
    """Metrics to TensorBoard too."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        return callback
    now = time.time()
    # TensorBoard reads the files of a folder in the order of their names.
    path = run.path / "tensorboard" / f"events.out.tfevents.{now:.6f}"

    def append(**event: Any) -> None:
        with open(path, "ab") as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **event).SerializeToString())

    def both(event: dict[str, Any]) -> None:
        if event["event"] == "metrics":
            with suppress(OSError):
                if not path.exists():
                    begin(path.parent, run)
                    append(file_version="brain.Event:2")
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(event)]
                append(step=event["step"], summary=Summary(value=values))
        callback(event)

    return both


def begin(folder: Path, run: Run) -> None:
    """A run folder that was deleted must not come to life again."""
    if run.path.exists():
        folder.mkdir(exist_ok=True)


def scalars(event: dict[str, Any]) -> list[tuple[str, float]]:
    """What a line of metrics holds, by the names that TensorBoard shows."""
    found = []
    for section, numbers in (("train", event), ("valid", event.get("valid", {}))):
        for name, value in numbers.items():
            if isinstance(value, int | float) and name != "step":
                found.append((f"{section}/{name}", float(value)))
    return found
