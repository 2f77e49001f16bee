"""Reference implementations of the environments in plain Python, for one environment of a batch.

`reset()` starts the next episode. `reset` and `step(action)` return what the batched environment returns for it.
"""

from __future__ import annotations

from typing import Any

StepOutput = tuple[list[int], float, bool, bool]

MODULUS = 2**64


def scramble(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % MODULUS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % MODULUS
    return x ^ (x >> 31)


def mix(key: int, number: int) -> int:
    return scramble((key + scramble((number + 1) * 0x9E3779B97F4A7C15 % MODULUS)) % MODULUS)


class RandomNumbers:
    """The sequence of random numbers of one episode."""

    def __init__(self, seed: int, index: int, episode: int) -> None:
        self.key, self.count = mix(mix(seed, index), episode), 0

    def next(self) -> int:
        self.count += 1
        return mix(self.key, self.count - 1)

    def integer(self, high: int) -> int:
        return to_integer(self.next(), high)

    def permutation(self, count: int) -> list[int]:
        numbers = [self.next() for _ in range(count)]
        return sorted(range(count), key=numbers.__getitem__)


def to_integer(number: int, high: int) -> int:
    return (number >> 32) * high >> 32


class ReferenceEnv:
    """Base class. The options of the Config are attributes."""

    max_steps: int

    def __init__(self, seed: int, index: int, **options: Any) -> None:
        self.seed, self.index, self.episode = seed, index, -1
        self.__dict__.update(options)

    def reset(self) -> list[int]:
        self.episode += 1
        self.elapsed_steps = 0
        self.random = RandomNumbers(self.seed, self.index, self.episode)
        self.start_episode()
        return self.observe()

    def step(self, action: int) -> StepOutput:
        self.elapsed_steps += 1
        reward, terminated = self.act(action)
        return self.observe(), reward, terminated, self.elapsed_steps >= self.max_steps and not terminated

    def start_episode(self) -> None: ...
    def act(self, action: int) -> tuple[float, bool]: ...  # type: ignore[empty-body]
    def observe(self) -> list[int]: ...  # type: ignore[empty-body]


class ReferenceCorridor(ReferenceEnv):
    length: int
    colors: int
    shuffled: bool
    penalty: float

    def start_episode(self) -> None:
        self.color = self.random.integer(self.colors)
        order = self.random.permutation(self.colors)
        self.doors = order if self.shuffled else list(range(self.colors))
        self.cell = 0

    def act(self, action: int) -> tuple[float, bool]:
        if self.cell == self.length and action > 0:
            return (1.0 if self.doors[action - 1] == self.color else 0.0), True
        if action == 0 and self.cell < self.length:
            self.cell += 1
        if self.elapsed_steps <= self.length and self.cell < self.elapsed_steps:
            return -self.penalty / self.length, False
        return 0.0, False

    def observe(self) -> list[int]:
        visible_color = self.color + 1 if self.cell == 0 else 0
        doors = [door + 1 if self.cell == self.length else 0 for door in self.doors]
        return [visible_color, *doors]


class ReferenceMaze(ReferenceEnv):
    """`maze` maps free cells (row, column) to None or the color of an object."""

    side: int
    targets: int
    easy: bool

    EAST, NORTH, WEST, SOUTH = (0, 1), (-1, 0), (0, -1), (1, 0)
    DIRECTIONS = (EAST, NORTH, WEST, SOUTH)

    def start_episode(self) -> None:
        side = self.side
        direction, target = self.random.next(), self.random.next()
        rooms = [(y, x) for y in range(0, side, 2) for x in range(0, side, 2)]
        walls = []
        for y, x in rooms:
            if x + 2 < side:
                walls.append(((y, x + 1), (y, x), (y, x + 2)))
            if y + 2 < side:
                walls.append(((y + 1, x), (y, x), (y + 2, x)))
        parent = {room: room for room in rooms}

        def root(room: tuple[int, int]) -> tuple[int, int]:
            while parent[room] != room:
                room = parent[room]
            return room

        opened = set()
        for index in self.random.permutation(len(walls)):
            wall, one, other = walls[index]
            if root(one) != root(other):
                parent[root(one)] = root(other)
                opened.add(wall)
        self.tree = set(rooms) | opened
        for room in rooms:
            choice = self.random.next()
            adjacent = [wall for wall, one, other in walls if room in (one, other)]
            closed = [wall for wall in adjacent if wall not in opened]
            if len(adjacent) - len(closed) == 1:
                opened.add(closed[to_integer(choice, len(closed))])
        self.maze: dict[tuple[int, int], int | None] = dict.fromkeys([*rooms, *opened])
        priority = {(y, x): self.random.next() >> 1 for y in range(side) for x in range(side)}
        cells = sorted(self.maze, key=priority.__getitem__)
        for color in range(self.targets):
            self.maze[cells[color]] = color
        self.cell = cells[self.targets]
        self.direction = self.DIRECTIONS[to_integer(direction, 4)] if not self.easy else self.NORTH
        self.target = to_integer(target, self.targets)

    def act(self, action: int) -> tuple[float, bool]:
        direction = self.DIRECTIONS.index(self.direction)
        if self.easy:
            self.walk(self.DIRECTIONS[action])
        elif action == 0:
            self.walk(self.direction)
        elif action == 1:
            self.direction = self.DIRECTIONS[(direction + 1) % 4]
        else:
            self.direction = self.DIRECTIONS[(direction + 3) % 4]
        if self.maze[self.cell] != self.target:
            return 0.0, False
        others = [(self.target + 1 + i) % self.targets for i in range(self.targets - 1)]
        self.target = others[self.random.integer(len(others))]
        return 1.0, False

    def walk(self, step: tuple[int, int]) -> None:
        ahead = (self.cell[0] + step[0], self.cell[1] + step[1])
        if ahead in self.maze:
            self.cell = ahead

    def observe(self) -> list[int]:
        south, east = self.direction
        view = []
        for ahead in (1, 0, -1):
            for right in (-1, 0, 1):
                # The right of a direction (south, east) is (east, -south).
                cell = (self.cell[0] + ahead * south + right * east, self.cell[1] + ahead * east - right * south)
                if cell not in self.maze:
                    view.append(1)
                else:
                    content = self.maze[cell]
                    view.append(0 if content is None else content + 2)
        return [*view, self.target]


class ReferenceWaterMaze(ReferenceEnv):
    side: int

    def start_episode(self) -> None:
        cells = self.side**2
        goal, start = self.random.integer(cells), self.random.next()
        self.goal = divmod(goal, self.side)
        self.cell = self.random_cell_except_goal(start)
        self.labels = self.random.permutation(cells)

    def random_cell_except_goal(self, number: int) -> tuple[int, int]:
        cells, goal = self.side**2, self.goal[0] * self.side + self.goal[1]
        return divmod([(goal + 1 + i) % cells for i in range(cells - 1)][to_integer(number, cells - 1)], self.side)

    def act(self, action: int) -> tuple[float, bool]:
        south, east = ((0, 1), (-1, 0), (0, -1), (1, 0))[action]
        y, x = self.cell[0] + south, self.cell[1] + east
        if 0 <= y < self.side and 0 <= x < self.side:
            self.cell = (y, x)
        if self.cell != self.goal:
            return 0.0, False
        self.cell = self.random_cell_except_goal(self.random.next())
        return 1.0, False

    def observe(self) -> list[int]:
        view = [(self.cell[0] + south, self.cell[1] + east) for south in (-1, 0, 1) for east in (-1, 0, 1)]
        label = {cell: self.labels[cell[0] * self.side + cell[1]] for cell in (self.cell, self.goal)}
        return [label[self.cell], label[self.goal], int(self.goal in view)]
