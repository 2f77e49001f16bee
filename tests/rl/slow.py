"""The environments' rules once more, for one row, in plain Python: what the batched ones are held against.

Each has `reset()`, which begins the next episode, and `step(action)`; both as the batched ones say it, for one row.
"""

from __future__ import annotations

from typing import Any

Transition = tuple[list[int], float, bool, bool]

TOP = 2**64


def scramble(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % TOP
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % TOP
    return x ^ (x >> 31)


def mix(key: int, number: int) -> int:
    return scramble((key + scramble((number + 1) * 0x9E3779B97F4A7C15 % TOP)) % TOP)


class Numbers:
    """The random numbers of one episode, one after another."""

    def __init__(self, seed: int, row: int, episode: int) -> None:
        self.key, self.drawn = mix(mix(seed, row), episode), 0

    def next(self) -> int:
        self.drawn += 1
        return mix(self.key, self.drawn - 1)

    def below(self, size: int) -> int:
        return below(self.next(), size)

    def order(self, count: int) -> list[int]:
        numbers = [self.next() for _ in range(count)]
        return sorted(range(count), key=numbers.__getitem__)


def below(number: int, size: int) -> int:
    return (number >> 32) * size >> 32


class Slow:
    """Seed, row, and the options of the Config as attributes."""

    limit: int

    def __init__(self, seed: int, row: int, **options: Any) -> None:
        self.seed, self.row, self.episode = seed, row, -1
        self.__dict__.update(options)

    def reset(self) -> list[int]:
        self.episode += 1
        self.time = 0
        self.numbers = Numbers(self.seed, self.row, self.episode)
        self.begin()
        return self.observe()

    def step(self, action: int) -> Transition:
        self.time += 1
        reward, terminated = self.act(action)
        return self.observe(), reward, terminated, self.time >= self.limit and not terminated

    def begin(self) -> None: ...
    def act(self, action: int) -> tuple[float, bool]: ...  # type: ignore[empty-body]
    def observe(self) -> list[int]: ...  # type: ignore[empty-body]


class SlowCorridor(Slow):
    length: int
    colors: int
    shuffled: bool
    penalty: float

    def begin(self) -> None:
        self.color = self.numbers.below(self.colors)
        order = self.numbers.order(self.colors)
        self.doors = order if self.shuffled else list(range(self.colors))
        self.cell = 0

    def act(self, action: int) -> tuple[float, bool]:
        if self.cell == self.length and action > 0:
            return (1.0 if self.doors[action - 1] == self.color else 0.0), True
        if action == 0 and self.cell < self.length:
            self.cell += 1
        if self.time <= self.length and self.cell < self.time:
            return -self.penalty / self.length, False
        return 0.0, False

    def observe(self) -> list[int]:
        thing = self.color + 1 if self.cell == 0 else 0
        doors = [door + 1 if self.cell == self.length else 0 for door in self.doors]
        return [thing, *doors]


class SlowMaze(Slow):
    """`maze` is {(row, column): content} of the free cells: None or a color."""

    side: int
    targets: int
    easy: bool

    EAST, NORTH, WEST, SOUTH = (0, 1), (-1, 0), (0, -1), (1, 0)
    CIRCLE = (EAST, NORTH, WEST, SOUTH)

    def begin(self) -> None:
        side = self.side
        direction, target = self.numbers.next(), self.numbers.next()
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
        for number in self.numbers.order(len(walls)):
            wall, one, other = walls[number]
            if root(one) != root(other):
                parent[root(one)] = root(other)
                opened.add(wall)
        self.tree = set(rooms) | opened
        for room in rooms:
            choice = self.numbers.next()
            around = [wall for wall, one, other in walls if room in (one, other)]
            closed = [wall for wall in around if wall not in opened]
            if len(around) - len(closed) == 1:
                opened.add(closed[below(choice, len(closed))])
        self.maze: dict[tuple[int, int], int | None] = dict.fromkeys([*rooms, *opened])
        priority = {(y, x): self.numbers.next() >> 1 for y in range(side) for x in range(side)}
        places = sorted(self.maze, key=priority.__getitem__)
        for color in range(self.targets):
            self.maze[places[color]] = color
        self.at = places[self.targets]
        self.heading = self.CIRCLE[below(direction, 4)] if not self.easy else self.NORTH
        self.target = below(target, self.targets)

    def act(self, action: int) -> tuple[float, bool]:
        turn = self.CIRCLE.index(self.heading)
        if self.easy:
            self.walk(self.CIRCLE[action])
        elif action == 0:
            self.walk(self.heading)
        elif action == 1:
            self.heading = self.CIRCLE[(turn + 1) % 4]
        else:
            self.heading = self.CIRCLE[(turn + 3) % 4]
        if self.maze[self.at] != self.target:
            return 0.0, False
        others = [(self.target + 1 + i) % self.targets for i in range(self.targets - 1)]
        self.target = others[self.numbers.below(len(others))]
        return 1.0, False

    def walk(self, step: tuple[int, int]) -> None:
        ahead = (self.at[0] + step[0], self.at[1] + step[1])
        if ahead in self.maze:
            self.at = ahead

    def observe(self) -> list[int]:
        south, east = self.heading
        seen = []
        for ahead in (1, 0, -1):
            for right in (-1, 0, 1):
                # Right of a heading (south, east) is (east, -south): right of north is east.
                place = (self.at[0] + ahead * south + right * east, self.at[1] + ahead * east - right * south)
                if place not in self.maze:
                    seen.append(1)
                else:
                    content = self.maze[place]
                    seen.append(0 if content is None else content + 2)
        return [*seen, self.target]


class SlowWaterMaze(Slow):
    side: int

    def begin(self) -> None:
        cells = self.side**2
        goal, start = self.numbers.below(cells), self.numbers.next()
        self.goal = divmod(goal, self.side)
        self.at = self.elsewhere(start)
        self.names = self.numbers.order(cells)

    def elsewhere(self, number: int) -> tuple[int, int]:
        cells, goal = self.side**2, self.goal[0] * self.side + self.goal[1]
        return divmod([(goal + 1 + i) % cells for i in range(cells - 1)][below(number, cells - 1)], self.side)

    def act(self, action: int) -> tuple[float, bool]:
        south, east = ((0, 1), (-1, 0), (0, -1), (1, 0))[action]
        y, x = self.at[0] + south, self.at[1] + east
        if 0 <= y < self.side and 0 <= x < self.side:
            self.at = (y, x)
        if self.at != self.goal:
            return 0.0, False
        self.at = self.elsewhere(self.numbers.next())
        return 1.0, False

    def observe(self) -> list[int]:
        view = [(self.at[0] + south, self.at[1] + east) for south in (-1, 0, 1) for east in (-1, 0, 1)]
        name = {place: self.names[place[0] * self.side + place[1]] for place in (self.at, self.goal)}
        return [name[self.at], name[self.goal], int(self.goal in view)]
