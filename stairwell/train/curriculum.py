"""A curriculum: stages of growing difficulty, each begun when the one before is mastered.

`length=8..100` grows by a quarter from stage to stage; `variables=1,statements=10;variables=2,statements=10..40` lists
stages one by one, a range standing for several. Curricula are fair when every model gets the same one.
"""

from __future__ import annotations

from typing import Any

from stairwell.errors import UserError

WINDOW = 20  # updates over which accuracy is measured
GROWTH = 1.25


class Curriculum:
    def __init__(self, stages: list[dict[str, int]], accuracy: float = 96.0) -> None:
        self.stages, self.accuracy = stages, accuracy
        self.stage, self.updates, self.right, self.scored = 0, 0, 0, 0
        self.finished = False  # whether the last stage is mastered too

    @staticmethod
    def parse(text: str, accuracy: float = 96.0) -> Curriculum:
        stages: list[dict[str, int]] = []
        for part in text.split(";") if text.strip() else ():
            pairs = [_option(option, text) for option in part.split(",")]
            options = dict(pairs)
            if len(options) < len(pairs):
                raise UserError(f"the curriculum '{text}' sets a name twice in the stage '{part}'; give it once")
            longest = max(len(values) for values in options.values())
            for i in range(longest):
                stages.append({name: values[min(i, len(values) - 1)] for name, values in options.items()})
        return Curriculum(stages, accuracy)

    @staticmethod
    def reaching(text: str, goals: dict[str, int]) -> str:
        """A curriculum that ends where the task is: stages beyond a goal are cut, and a last one reaches it."""
        stages: list[dict[str, int]] = []
        for stage in Curriculum.parse(text).stages:
            stages.append({name: min(value, goals.get(name, value)) for name, value in stage.items()})
        if stages:
            stages.append({name: goals.get(name, value) for name, value in stages[-1].items()})
        unlike = [stage for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]
        return ";".join(",".join(f"{name}={value}" for name, value in stage.items()) for stage in unlike)

    @property
    def options(self) -> dict[str, int]:
        return self.stages[self.stage]

    def mastered(self, right: int, scored: int) -> bool:
        """Count one update; true if it completes a window that masters the stage, and the next stage begins."""
        self.updates, self.right, self.scored = self.updates + 1, self.right + right, self.scored + scored
        if self.updates < WINDOW:
            return False
        good = self.scored > 0 and 100 * self.right >= self.accuracy * self.scored
        self.updates, self.right, self.scored = 0, 0, 0
        if good and self.stage + 1 < len(self.stages):
            self.stage += 1
            return True
        self.finished = good
        return False

    def position(self) -> list[int]:
        return [self.stage, self.updates, self.right, self.scored, int(self.finished)]

    def seek(self, position: list[int]) -> None:
        self.stage, self.updates, self.right, self.scored = position[:4]
        self.finished = bool(position[4])


def _option(option: str, text: str) -> tuple[str, list[int]]:
    """`name=8` or `name=8..100` as a name and its values."""
    name, _, value = option.partition("=")
    first, dots, last = value.partition("..")
    try:
        low, high = int(first), int(last) if dots else int(first)
    except ValueError:
        low, high = 1, 0
    if not name.strip() or low < 0 or high < low:
        raise UserError(
            f"cannot read the curriculum '{text}' at '{option}'; "
            "write name=8..100, or stages such as name=1,other=5;name=2,other=9"
        )
    values: list[Any] = [low]
    while values[-1] < high:
        values.append(min(high, max(values[-1] + 1, round(values[-1] * GROWTH))))
    return name.strip(), values
