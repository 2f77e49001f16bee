"""A schedule for the size of a core: smaller chunks or fewer passes at first, then those of its config.

`1000:passes=1;3000:passes=2` trains with one pass up to step 1,000, with two up to step 3,000, then with all passes.
The parameters, relative position embeddings included, are those of the full core from the start. States are reset where
a size changes. Validation always uses the full core.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

from stairwell.errors import UserError

RESIZABLE = ("chunk", "passes", "compute")  # fields on which no parameter except position embeddings depends
EXAMPLE = "write steps and sizes, such as 1000:passes=1;3000:passes=2"


class SizeSchedule:
    def __init__(self, stages: list[tuple[int, dict[str, int]]]) -> None:
        self.stages = stages  # the step at which a stage ends, and its sizes

    @staticmethod
    def parse(text: str) -> SizeSchedule:
        stages = [_parse_stage(part, text) for part in (text.split(";") if text.strip() else ())]
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(stages)):
            raise UserError(f"the steps in train.size_schedule '{text}' must increase")
        return SizeSchedule(stages)

    def sizes(self, step: int) -> dict[str, int]:
        """Return the sizes in a step, counted from 0; empty for the full core."""
        return next((sizes for end, sizes in self.stages if step < end), {})

    def check(self, core: Any, steps: int) -> None:
        """Reject stages that do not fit a core's config or never end."""
        resizable = [field.name for field in dataclasses.fields(core) if field.init and field.name in RESIZABLE]
        if not resizable:
            raise UserError(f"train.size_schedule: {type(core).__name__} has neither chunks nor passes; leave it out")
        for _, sizes in self.stages:
            for name, value in sizes.items():
                if name not in resizable:
                    raise UserError(
                        f"train.size_schedule: '{name}' of this core cannot change; there are: {', '.join(resizable)}"
                    )
                if value > getattr(core, name):
                    raise UserError(f"train.size_schedule: {name} {value} is above core.{name}, {getattr(core, name)}")
            try:
                dataclasses.replace(core, **sizes)
            except ValueError as error:
                raise UserError(f"train.size_schedule: {error}") from None
        for (_, before), (_, after) in pairwise([*self.stages, (0, {})]):
            for name in resizable:
                if before.get(name, getattr(core, name)) > after.get(name, getattr(core, name)):
                    raise UserError(f"train.size_schedule: {name} must not decrease from one stage to the next")
        if self.stages[-1][0] >= steps:
            raise UserError(
                f"train.size_schedule ends at step {self.stages[-1][0]:,} of {steps:,}, so the full core would never "
                "be trained; let it end earlier"
            )


def _parse_stage(part: str, text: str) -> tuple[int, dict[str, int]]:
    end, colon, options = part.partition(":")
    try:
        sizes = {name.strip(): int(value) for name, value in (option.split("=") for option in options.split(","))}
        if not colon or int(end) < 1 or not all(sizes):
            raise ValueError
        return int(end), sizes
    except ValueError:
        raise UserError(f"cannot read train.size_schedule '{text}' at '{part}'; {EXAMPLE}") from None
