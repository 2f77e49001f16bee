"""Histograms in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

# Upper bounds of the buckets, in seconds.
REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """Counts of observed values per bucket, for every set of labels. Any thread may observe."""

    def __init__(self, name: str, help: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help, self.bounds = name, help, bounds
        self.lock = threading.Lock()
        self.series: dict[tuple[tuple[str, str], ...], tuple[list[int], float]] = {}  # counts per bucket, and the sum

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self.lock:
            counts, total = self.series.get(key) or ([0] * (len(self.bounds) + 1), 0.0)
            counts[bisect_left(self.bounds, value)] += 1
            self.series[key] = counts, total + value

    def count(self) -> int:
        """Return the number of observed values."""
        with self.lock:
            return sum(sum(counts) for counts, _ in self.series.values())

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        with self.lock:
            series = [(key, [*counts], total) for key, (counts, total) in sorted(self.series.items())]
        for key, counts, total in series:
            cumulative = 0
            for bound, count in zip((*map(str, self.bounds), "+Inf"), counts):
                cumulative += count
                yield f"{self.name}_bucket{labels_text(*key, ('le', bound))} {cumulative}"
            yield f"{self.name}_sum{labels_text(*key)} {total:.6f}"
            yield f"{self.name}_count{labels_text(*key)} {cumulative}"


def labels_text(*labels: tuple[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


class LatencyMetrics:
    def __init__(self) -> None:
        self.request = Histogram("stairwell_request_seconds", "Time from the request to the end of its response.",
                                 REQUEST_SECONDS)  # fmt: skip
        self.first_token = Histogram("stairwell_time_to_first_token_seconds", "Time from a sequence's request to its "
                                     "first generated token: waiting and prefill.", REQUEST_SECONDS)  # fmt: skip
        self.output_token = Histogram("stairwell_time_per_output_token_seconds", "Mean time between the generated "
                                      "tokens of a sequence.", TOKEN_SECONDS)  # fmt: skip

    def lines(self) -> Iterator[str]:
        for histogram in (self.request, self.first_token, self.output_token):
            yield from histogram.lines()
