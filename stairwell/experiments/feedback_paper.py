"""The tables and figures of Fan et al. 2020, "Addressing Some Limitations of Transformers with Feedback Memory"."""

from __future__ import annotations

from stairwell.experiments.study import Maker

STUDIES: dict[str, Maker] = {}
