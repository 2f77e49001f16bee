"""Metrics for TensorBoard, if it is installed: event files in the folder `tensorboard` of a run.

TensorBoard's own writer has a thread that raises on a deleted folder or a full disk. Here every event is written at
once, and errors are ignored: writing `metrics.jsonl` reports them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from stairwell.runs.run import Run
from stairwell.train import Callback


def with_tensorboard(callback: Callback, run: Run) -> Callback:
    """Return a callback that also writes metrics for TensorBoard."""
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
                    if run.path.exists():  # do not create a deleted run folder again
                        path.parent.mkdir(exist_ok=True)
                    append(file_version="brain.Event:2")
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(event)]
                append(step=event["step"], summary=Summary(value=values))
        callback(event)

    return both


def scalars(event: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the numbers of a metrics event by their TensorBoard tags."""
    tags = []
    for section, numbers in (("train", event), ("valid", event.get("valid", {}))):
        for name, value in numbers.items():
            if isinstance(value, int | float) and name != "step":
                tags.append((f"{section}/{name}", float(value)))
    return tags
