"""A curriculum: stages of increasing difficulty. The next one starts when the accuracy of the current one is reached.

`length=8..100` increases by a quarter per stage. `variables=1,statements=10;variables=2,statements=10..40` lists the
stages; a range stands for several. A comparison of models is fair if all have the same curriculum.
"""

from __future__ import annotations

from stairwell.errors import UserError

WINDOW = 20  # steps over which accuracy is measured
FACTOR = 1.25  # from one value of a range to the next


class Curriculum:
    def __init__(self, stages: list[dict[str, int]], accuracy: float = 96.0, stop_when_mastered: bool = False) -> None:
        self.stages, self.accuracy, self.stop_when_mastered = stages, accuracy, stop_when_mastered
        self.stage, self.steps, self.correct, self.scored = 0, 0, 0, 0
        self.mastered = False  # whether the last stage has reached the accuracy

    @staticmethod
    def parse(text: str, accuracy: float = 96.0, stop_when_mastered: bool = False) -> Curriculum:
        stages: list[dict[str, int]] = []
        for part in text.split(";") if text.strip() else ():
            pairs = [_parse_option(option, text) for option in part.split(",")]
            options = dict(pairs)
            if len(options) < len(pairs):
                raise UserError(f"the curriculum '{text}' sets a name twice in the stage '{part}'; give it once")
            for i in range(max(map(len, options.values()))):
                stages.append({name: values[min(i, len(values) - 1)] for name, values in options.items()})
        return Curriculum(stages, accuracy, stop_when_mastered)

    @staticmethod
    def ending_at(text: str, difficulty: dict[str, int]) -> str:
        """Return a curriculum that ends at a difficulty: values above it are lowered, and a last stage reaches it."""
        stages: list[dict[str, int]] = []
        for stage in Curriculum.parse(text).stages:
            stages.append({name: min(value, difficulty.get(name, value)) for name, value in stage.items()})
        if stages:
            stages.append({name: difficulty.get(name, value) for name, value in stages[-1].items()})
        distinct = [stage for i, stage in enumerate(stages) if i == 0 or stage != stages[i - 1]]
        return ";".join(",".join(f"{name}={value}" for name, value in stage.items()) for stage in distinct)

    @property
    def options(self) -> dict[str, int]:
        return self.stages[self.stage]

    def update(self, correct: int, scored: int) -> bool:
        """Count the answers of one step. Return whether the next stage starts."""
        self.steps, self.correct, self.scored = self.steps + 1, self.correct + correct, self.scored + scored
        if self.steps < WINDOW:
            return False
        reached = self.scored > 0 and 100 * self.correct >= self.accuracy * self.scored
        self.steps, self.correct, self.scored = 0, 0, 0
        if reached and self.stage + 1 < len(self.stages):
            self.stage += 1
            return True
        self.mastered = reached
        return False

    def position(self) -> list[int]:
        return [self.stage, self.steps, self.correct, self.scored, int(self.mastered)]

    def seek(self, position: list[int]) -> None:
        self.stage, self.steps, self.correct, self.scored = position[:4]
        self.mastered = bool(position[4])


def _parse_option(option: str, text: str) -> tuple[str, list[int]]:
    """Return the name and the values of `name=8` or `name=8..100`."""
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
    values = [low]
    while values[-1] < high:
        values.append(min(high, max(values[-1] + 1, round(values[-1] * FACTOR))))
    return name.strip(), values
