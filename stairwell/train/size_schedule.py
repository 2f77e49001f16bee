"""A core that grows while it is trained: smaller chunks or fewer passes at first, then those of its config.

`1000:passes=1;3000:passes=2` trains up to update 1,000 with one pass, up to 3,000 with two, then with all there are.
The parameters are those of the whole core from the beginning, its distances included; where it grows, states begin
anew. Validation, and so the choice of the best parameters, is always of the whole core.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

from stairwell.errors import UserError

GROWING = ("chunk", "passes", "compute")  # sizes that no parameter but distances depends on
FORM = "write the updates until which and the sizes, such as 1000:passes=1;3000:passes=2"


class SizeSchedule:
    def __init__(self, stages: list[tuple[int, dict[str, int]]]) -> None:
        self.stages = stages  # until which update, and the sizes until then

    @staticmethod
    def parse(text: str) -> SizeSchedule:
        stages = [_stage(part, text) for part in (text.split(";") if text.strip() else ())]
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(stages)):
            raise UserError(f"the updates in train.size_schedule '{text}' must rise")
        return SizeSchedule(stages)

    def sizes(self, step: int) -> dict[str, int]:
        """The sizes in an update, counted from 0; none where the core is whole."""
        return next((sizes for until, sizes in self.stages if step < until), {})

    def check(self, core: Any, steps: int) -> None:
        """Refuse stages that do not fit a core's config, or never end."""
        can = [field.name for field in dataclasses.fields(core) if field.init and field.name in GROWING]
        if not can:
            raise UserError(f"train.size_schedule: {type(core).__name__} has neither chunks nor passes that could grow")
        for _, sizes in self.stages:
            for name, value in sizes.items():
                if name not in can:
                    raise UserError(
                        f"train.size_schedule: this core has no '{name}' that grows; it has {', '.join(can)}"
                    )
                if value > getattr(core, name):
                    raise UserError(f"train.size_schedule: {name} {value} is above core.{name}, {getattr(core, name)}")
            try:
                dataclasses.replace(core, **sizes)
            except ValueError as error:
                raise UserError(f"train.size_schedule: {error}") from None
        for (_, before), (_, after) in pairwise([*self.stages, (0, {})]):
            for name in can:
                if before.get(name, getattr(core, name)) > after.get(name, getattr(core, name)):
                    raise UserError(f"train.size_schedule: {name} must not become smaller from one stage to the next")
        if self.stages[-1][0] >= steps:
            raise UserError(
                f"train.size_schedule ends at update {self.stages[-1][0]:,} of {steps:,}: "
                "the whole core would never be trained"
            )


def _stage(part: str, text: str) -> tuple[int, dict[str, int]]:
    until, colon, options = part.partition(":")
    try:
        sizes = {name.strip(): int(value) for name, value in (option.split("=") for option in options.split(","))}
        if not colon or int(until) < 1 or not all(sizes):
            raise ValueError
        return int(until), sizes
    except ValueError:
        raise UserError(f"cannot read train.size_schedule '{text}' at '{part}'; {FORM}") from None
