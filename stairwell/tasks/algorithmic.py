"""Algorithmic: execute a program and answer its prints (Fan et al., arXiv 2002.09402, 4.1.2, 7.4 and Table 7).

A program is `statements` statements and then `END`, which clears the variables. Programs are concatenated; nothing but
`END` marks them, so a memory goes on over it. Values are 1..10. The statements, each token as it is written here:

    x = 5 ;             sets a variable that no statement executed so far has set
    x ++ ;   x -- ;     changes a set variable, if the result is within 1..10
    print x ;           asks for the value of a set variable: the label at this `;` is the value less one, 0..9
    if x < y : BODY     BODY is one of the first three, executed only if the comparison holds, yet always one that
                        would be legal now. x is set; y is another set variable or a number 1..10; `<` or `>`, and
                        `==` by option. With its body it is one statement

Nothing but prints is labeled. The paper draws a program "by randomly choosing a statement one after another" under
these conditions. Here a pair of a kind (assignment, `++`, `--`, `print`, `if`) and a variable is drawn uniformly from
the legal pairs; the variable of an `if` is the left one of its comparison. A body is drawn in the same way from the
first three kinds. Operators and numbers are uniform; the right side of a comparison is a number or a variable with
equal chance, and a number if no other variable is set.

The program that the paper prints has 415 tokens, `END` included. Of its 100 statements 27 are prints, 25 `--`, 23
`++`, 22 `if` and 3 assignments; it compares 12 times with a variable, never with itself, and 10 times with a number;
11 bodies are `++`, 10 `--` and one an assignment. Programs drawn here with 3 variables have on average 432 tokens
(standard deviation 22), 25.7 prints, 23.0 `--`, 23.1 `++`, 25.5 `if` and 2.7 assignments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from stairwell import configs
from stairwell.errors import UserError

from .base import IGNORE
from .generated import Array, GeneratedTask, Played, check_at_least
from .scores import TokenScore

NAMES = "xyzuvwabcd"  # the variables, in the order in which they are taken
VALUES = np.arange(1, 11, dtype=np.int8)  # and 0 stands for a variable that is not set
LIKELIEST = 1_000_000  # times as likely as another statement: chances are added up in 32 bits
ASSIGN, INCREMENT, DECREMENT, PRINT, IF = range(5)  # the kinds of statement; a body is one of the first three
EFFECT = np.array([0, 1, -1, 0], dtype=np.int8)  # of each kind but `if` on a variable that is set

WORDS = (";", "print", "=", "++", "--", "if", ":", "<", ">", "==", "END", *map(str, VALUES), *NAMES)
SEMICOLON, PRINTS, IS, PLUS, MINUS, IFS, COLON, LESS, MORE, EQUAL, END, ONE = range(12)
FIRST_VARIABLE = WORDS.index(NAMES[0])


@dataclass(frozen=True)
class Config(configs.Config):
    statements: int = 100
    """statements in a program"""
    variables: int = 3
    """how many variables there are (the papers: 3 and 5)"""
    equality: bool = False
    """compare with == too"""
    assigns: int = 1
    """how many times as likely as any other statement an assignment is (the papers: 1); what curricula begin with"""
    changes: int = 1
    """how many times as likely as any other statement `++` and `--` are (the papers: 1); 0 for none"""
    prints: int = 1
    """how many times as likely as any other statement a print is (the papers: 1)"""
    ifs: int = 1
    """how many times as likely as any other statement an `if` is (the papers: 1); 0 for none"""
    fresh: bool = False
    """begin every program with an empty memory; otherwise nothing but `END` tells, as in the papers"""
    train_episodes: int = 0
    """size of the training set, which repeats (the papers: 10000 programs); 0 draws new programs without end"""
    valid_episodes: int = 200
    """fresh programs in the validation split"""
    test_episodes: int = 1000
    """fresh programs in the test split"""


@dataclass(frozen=True)
class Programs:
    statements: int
    variables: int
    most_variables: int  # of the vocabulary, while a curriculum may begin with fewer
    equality: bool
    documents: bool
    assigns: int = 1
    changes: int = 1
    prints: int = 1
    ifs: int = 1
    adjustable: ClassVar[tuple[str, ...]] = ("statements", "variables", "assigns", "changes", "prints", "ifs")

    def __post_init__(self) -> None:
        check_at_least(1, statements=self.statements, assigns=self.assigns, prints=self.prints)
        check_at_least(0, changes=self.changes, ifs=self.ifs)
        for name in ("assigns", "changes", "prints", "ifs"):
            if getattr(self, name) > LIKELIEST:
                raise UserError(f"{name} is {getattr(self, name):,}; it must be at most {LIKELIEST:,}")
        if self.ifs and not self.changes:
            raise UserError("changes is 0, so nothing is left for an `if` to do; let ifs be 0 too")
        if not 1 <= self.most_variables <= len(NAMES):
            raise UserError(f"variables is {self.most_variables}; it must be between 1 and {len(NAMES)}")
        if not 1 <= self.variables <= self.most_variables:
            raise UserError(f"variables is {self.variables}; it must be between 1 and {self.most_variables}")

    @property
    def size(self) -> int:
        return 4 * self.statements + 1

    @property
    def operators(self) -> Array:
        return np.array([LESS, MORE, EQUAL] if self.equality else [LESS, MORE], dtype=np.int8)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.random((count, self.statements, len(Dice._fields)))

    def play(self, draws: Array) -> Played:
        E, S, _ = draws.shape
        dice = Dice(*np.ascontiguousarray(draws.transpose(2, 1, 0)))  # each (S, E)
        dice = dice._replace(
            operator=_roll(dice.operator, self.operators),
            compared=_roll(dice.compared, VALUES),
            assigned=_roll(dice.assigned, VALUES),
        )
        values = np.zeros((self.variables, E), dtype=np.int8)
        facts = np.empty((S, len(Facts._fields), E), dtype=np.int8)
        chances = np.array([self.assigns, self.changes, self.changes, self.prints, self.ifs], dtype=np.int32)
        for t in range(S):
            facts[t] = _execute(values, Dice(*(die[t] for die in dice)), chances)
        return _write(Facts(*facts.transpose(1, 0, 2)), dice)


class Dice(NamedTuple):
    """What is drawn for each statement, all of it each time, though a statement may have no use for most."""

    statement: Array
    body: Array
    side: Array  # below a half: compare with a number
    other: Array  # else which variable to compare with
    operator: Array
    compared: Array
    assigned: Array


class Facts(NamedTuple):
    """What was chosen for each statement: enough to write it down."""

    conditional: Array
    left: Array  # the variable left in its comparison
    right: Array  # the token on the right
    kind: Array  # the statement's kind, or its body's
    variable: Array
    value: Array  # of this variable before the statement


def _execute(values: Array, dice: Dice, chances: Array) -> Facts:
    """Choose one statement for each program and execute it on the programs' values (V, E), in place."""
    V, E = values.shape
    each = np.arange(E)
    legal = _legal(values, chances)
    kind, left = divmod(_choose(legal, dice.statement), V)
    conditional = kind == IF
    body_kind, body_variable = divmod(_choose(legal[: PRINT * V], dice.body), V)
    kind = np.where(conditional, body_kind, kind)
    variable = np.where(conditional, body_variable, left)

    comparable = values > 0
    comparable[left, each] = False
    other = _choose(comparable, dice.other)
    by_number = (dice.side < 0.5) | (other == V)
    other_value = values[np.where(by_number, 0, other), each]
    # -1, 0 or 1, as `<`, `==` or `>` holds
    order = np.sign(values[left, each] - np.where(by_number, dice.compared, other_value))
    holds = order == np.where(dice.operator == LESS, -1, dice.operator == MORE)
    right = np.where(by_number, ONE - 1 + dice.compared, FIRST_VARIABLE + other)

    value = values[variable, each]
    result = np.where(kind == ASSIGN, dice.assigned, value + EFFECT[kind])
    values[variable, each] = np.where(conditional & ~holds, value, result)
    return Facts(conditional, left, right, kind, variable, value)


def _legal(values: Array, chances: Array) -> Array:
    """(5 V, E): of which variables each kind of statement can be made now, and how likely each is."""
    known = values > 0
    kinds = np.stack([~known, known & (values < VALUES[-1]), values > VALUES[0], known, known])
    return (kinds * chances[:, None, None]).reshape(-1, values.shape[1])


def _choose(legal: Array, die: Array) -> Array:
    """A row of each column of (N, E), as likely as its number there says; N where all are 0."""
    rank = np.cumsum(legal, axis=0, dtype=np.int32)
    return (rank <= (die * rank[-1]).astype(np.int32)).sum(axis=0)


def _roll(die: Array, faces: Array) -> Array:
    return faces[(die * len(faces)).astype(np.intp)]


def _write(facts: Facts, dice: Dice) -> Played:
    """Each statement has nine places for tokens, `if x < y :` and `x = 5 ;`; most statements leave some out."""
    S, E = facts.kind.shape
    left, variable = FIRST_VARIABLE + facts.left, FIRST_VARIABLE + facts.variable
    assigns, prints = facts.kind == ASSIGN, facts.kind == PRINT
    does = np.array([IS, PLUS, MINUS, PRINTS])[facts.kind]
    first, second = np.where(prints, (does, variable), (variable, does))

    tokens = np.full((E, 9 * S + 1), END, dtype=np.int8)
    targets = np.full((E, 9 * S + 1), IGNORE, dtype=np.int8)
    present = np.ones((E, 9 * S + 1), dtype=bool)
    places = (IFS, left, dice.operator, facts.right, COLON, first, second, ONE - 1 + dice.assigned, SEMICOLON)
    for place, token in enumerate(places):
        tokens[:, place:-1:9] = np.transpose(token)
    targets[:, 8:-1:9] = np.where(prints, facts.value - 1, IGNORE).T
    for place in range(5):
        present[:, place:-1:9] = facts.conditional.T
    present[:, 7:-1:9] = assigns.T
    return Played(tokens, targets, present)


class Algorithmic(GeneratedTask):
    def __init__(self, config: Config) -> None:
        c = config
        programs = Programs(
            c.statements, c.variables, c.variables, c.equality, c.fresh, c.assigns, c.changes, c.prints, c.ifs
        )
        super().__init__(config, programs, inputs=FIRST_VARIABLE + c.variables, outputs=len(VALUES))

    def score(self) -> TokenScore:
        return TokenScore()

    def describe(self) -> str:
        c = self.config
        return f"programs of {c.statements} statements on {c.variables} variables; {self.sets()}"


def format_program(tokens: Iterable[int], targets: Iterable[int]) -> str:
    """A statement a line, and behind each print its answer: `print x ;   # 7`."""
    lines: list[list[str]] = [[]]
    for token, target in zip(tokens, targets):
        lines[-1].append(WORDS[token])
        if target != IGNORE:
            lines[-1].append(f"  # {VALUES[target]}")
        if token in (SEMICOLON, END):
            lines.append([])
    return "\n".join(" ".join(line) for line in lines).rstrip()
