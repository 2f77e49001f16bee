"""Algorithmic: execute a program and predict its prints (Fan et al., arXiv 2002.09402, 4.1.2, 7.4 and Table 7).

A program has `statements` statements and then `END`, which clears the variables. Programs are concatenated; only `END`
separates them, and the state continues across it. Values are 1..10. The statements, written as their tokens:

    x = 5 ;             sets a variable that no executed statement has set
    x ++ ;   x -- ;     changes a set variable, if the result is within 1..10
    print x ;           the label of this `;` is the value of a set variable minus one, 0..9
    if x < y : BODY     BODY is one of the first three, executed only if the comparison holds, but always one that
                        would be legal now. x is set; y is another set variable or a number 1..10; `<` or `>`, and
                        `==` by option. Counts as one statement with its body

Only prints are labeled. The paper generates a program "by randomly choosing a statement one after another" under these
conditions. Here a pair of a statement type (assignment, `++`, `--`, `print`, `if`) and a variable is sampled uniformly
from the legal pairs; the variable of an `if` is the left one of its comparison. A body is sampled in the same way from
the first three types. Operators and numbers are uniform; the right side of a comparison is a number or a variable with
equal probability, and a number if no other variable is set.

The program printed in the paper has 415 tokens including `END`. Of its 100 statements 27 are prints, 25 `--`, 23 `++`,
22 `if` and 3 assignments; it compares 12 times with a variable, never with itself, and 10 times with a number; 11
bodies are `++`, 10 `--` and one an assignment. Programs generated here with 3 variables have on average 432 tokens
(standard deviation 22), 25.7 prints, 23.0 `--`, 23.1 `++`, 25.5 `if` and 2.7 assignments.

Letters: E episodes (programs), S statements, V variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from stairwell.errors import UserError

from .base import IGNORE_INDEX
from .generated import Array, EpisodeArrays, EpisodesConfig, GeneratedTask, check_at_least, check_at_most
from .scores import TokenScore

NAMES = "xyzuvwabcd"  # of the variables
VALUES = np.arange(1, 11, dtype=np.int8)  # 0 is a variable that is not set
MAX_WEIGHT = 1_000_000  # weights are summed in 32 bits
ASSIGN, INCREMENT, DECREMENT, PRINT, IF = range(5)  # statement types; a body is one of the first three
EFFECT = np.array([0, 1, -1, 0], dtype=np.int8)  # of each type but `if` on a set variable

PROGRAM_TOKENS = (";", "print", "=", "++", "--", "if", ":", "<", ">", "==", "END", *map(str, VALUES), *NAMES)
SEMICOLON, PRINTS, IS, PLUS, MINUS, IFS, COLON, LESS, MORE, EQUAL, END, ONE = range(12)
FIRST_VARIABLE = PROGRAM_TOKENS.index(NAMES[0])


@dataclass(frozen=True)
class AlgorithmicConfig(EpisodesConfig):
    statements: int = 100
    """Statements per program."""
    variables: int = 3
    """Number of variables (the papers: 3 and 5)."""
    equality: bool = False
    """Whether comparisons may use ==."""
    assigns: int = 1
    """Relative probability of an assignment (the papers: 1); a curriculum may start with more."""
    changes: int = 1
    """Relative probability of `++` and of `--` (the papers: 1); 0: none."""
    prints: int = 1
    """Relative probability of a print (the papers: 1)."""
    ifs: int = 1
    """Relative probability of an `if` (the papers: 1); 0: none."""
    reset: bool = False
    """Whether the state is reset at every program; in the papers it is not."""


@dataclass(frozen=True)
class ProgramEpisodes:
    statements: int
    variables: int
    max_variables: int  # of the vocabulary; a curriculum may start with fewer
    equality: bool
    reset: bool
    assigns: int = 1
    changes: int = 1
    prints: int = 1
    ifs: int = 1
    curriculum_options: ClassVar[tuple[str, ...]] = ("statements", "variables", "assigns", "changes", "prints", "ifs")

    def __post_init__(self) -> None:
        check_at_least(1, statements=self.statements, assigns=self.assigns, prints=self.prints)
        check_at_least(0, changes=self.changes, ifs=self.ifs)
        check_at_most(MAX_WEIGHT, assigns=self.assigns, changes=self.changes, prints=self.prints, ifs=self.ifs)
        if self.ifs and not self.changes:
            raise UserError("changes is 0, so an `if` would have no body; set ifs to 0 too")
        if not 1 <= self.max_variables <= len(NAMES):
            raise UserError(f"variables is {self.max_variables}; it must be between 1 and {len(NAMES)}")
        if not 1 <= self.variables <= self.max_variables:
            raise UserError(f"variables is {self.variables}; it must be between 1 and {self.max_variables}")

    @property
    def size(self) -> int:
        return 4 * self.statements + 1

    @property
    def operators(self) -> Array:
        return np.array([LESS, MORE, EQUAL] if self.equality else [LESS, MORE], dtype=np.int8)

    def sample(self, rng: np.random.Generator, count: int) -> Array:
        return rng.random((count, self.statements, len(Samples._fields)))

    def build(self, samples: Array) -> EpisodeArrays:
        E, S, _ = samples.shape
        sampled = Samples(*np.ascontiguousarray(samples.transpose(2, 1, 0)))  # each (S, E)
        sampled = sampled._replace(
            operator=_pick(sampled.operator, self.operators),
            compared=_pick(sampled.compared, VALUES),
            assigned=_pick(sampled.assigned, VALUES),
        )
        values = np.zeros((self.variables, E), dtype=np.int8)
        statements = np.empty((S, len(Statements._fields), E), dtype=np.int8)
        weights = np.array([self.assigns, self.changes, self.changes, self.prints, self.ifs], dtype=np.int32)
        for t in range(S):
            statements[t] = _execute(values, Samples(*(numbers[t] for numbers in sampled)), weights)
        return _to_tokens(Statements(*statements.transpose(1, 0, 2)), sampled)


class Samples(NamedTuple):
    """The random numbers of each statement. All are sampled each time, although most statements use only some."""

    statement: Array
    body: Array
    side: Array  # below 0.5: compare with a number
    other: Array  # which variable to compare with otherwise
    operator: Array
    compared: Array
    assigned: Array


class Statements(NamedTuple):
    """The chosen statements."""

    conditional: Array
    left: Array  # the variable on the left of the comparison
    right: Array  # the token on the right of the comparison
    type: Array  # of the statement, or of its body
    variable: Array
    value: Array  # of this variable before the statement


def _execute(values: Array, samples: Samples, weights: Array) -> Statements:
    """Choose one statement per program and execute it on the programs' values (V, E), in place."""
    V, E = values.shape
    program = np.arange(E)
    legal = _legal_weights(values, weights)
    statement_type, left = divmod(_choose(legal, samples.statement), V)
    conditional = statement_type == IF
    body_type, body_variable = divmod(_choose(legal[: PRINT * V], samples.body), V)
    statement_type = np.where(conditional, body_type, statement_type)
    variable = np.where(conditional, body_variable, left)

    comparable = values > 0
    comparable[left, program] = False
    other = _choose(comparable, samples.other)
    by_number = (samples.side < 0.5) | (other == V)
    other_value = values[np.where(by_number, 0, other), program]
    # -1, 0 or 1 if `<`, `==` or `>` holds
    order = np.sign(values[left, program] - np.where(by_number, samples.compared, other_value))
    holds = order == np.where(samples.operator == LESS, -1, samples.operator == MORE)
    right = np.where(by_number, ONE - 1 + samples.compared, FIRST_VARIABLE + other)

    value = values[variable, program]
    result = np.where(statement_type == ASSIGN, samples.assigned, value + EFFECT[statement_type])
    values[variable, program] = np.where(conditional & ~holds, value, result)
    return Statements(conditional, left, right, statement_type, variable, value)


def _legal_weights(values: Array, weights: Array) -> Array:
    """Return the weight of each pair of a statement type and a variable, 0 where it is not legal: (5 V, E)."""
    is_set = values > 0
    legal = np.stack([~is_set, is_set & (values < VALUES[-1]), values > VALUES[0], is_set, is_set])
    return (legal * weights[:, None, None]).reshape(-1, values.shape[1])


def _choose(weights: Array, uniform: Array) -> Array:
    """Return an index into axis 0 of the weights (N, E), chosen in proportion to them; N where all are 0."""
    cumulative = np.cumsum(weights, axis=0, dtype=np.int32)
    return (cumulative <= (uniform * cumulative[-1]).astype(np.int32)).sum(axis=0)


def _pick(uniform: Array, choices: Array) -> Array:
    return choices[(uniform * len(choices)).astype(np.intp)]


def _to_tokens(statements: Statements, samples: Samples) -> EpisodeArrays:
    """Return the tokens. Each statement has nine positions, for `if x < y :` and `x = 5 ;`; most statements
    leave some out."""
    S, E = statements.type.shape
    left, variable = FIRST_VARIABLE + statements.left, FIRST_VARIABLE + statements.variable
    assigns, prints = statements.type == ASSIGN, statements.type == PRINT
    keyword = np.array([IS, PLUS, MINUS, PRINTS])[statements.type]
    first, second = np.where(prints, (keyword, variable), (variable, keyword))

    tokens = np.full((E, 9 * S + 1), END, dtype=np.int8)
    targets = np.full((E, 9 * S + 1), IGNORE_INDEX, dtype=np.int8)
    present = np.ones((E, 9 * S + 1), dtype=bool)
    number = ONE - 1 + samples.assigned
    slots = (IFS, left, samples.operator, statements.right, COLON, first, second, number, SEMICOLON)
    for position, token in enumerate(slots):
        tokens[:, position:-1:9] = np.transpose(token)
    targets[:, 8:-1:9] = np.where(prints, statements.value - 1, IGNORE_INDEX).T
    for position in range(5):
        present[:, position:-1:9] = statements.conditional.T
    present[:, 7:-1:9] = assigns.T
    return EpisodeArrays(tokens, targets, present)


class Algorithmic(GeneratedTask):
    config: AlgorithmicConfig
    config_type = AlgorithmicConfig

    def __init__(self, config: AlgorithmicConfig) -> None:
        c = config
        programs = ProgramEpisodes(
            c.statements, c.variables, c.variables, c.equality, c.reset, c.assigns, c.changes, c.prints, c.ifs
        )
        super().__init__(config, programs, inputs=FIRST_VARIABLE + c.variables, outputs=len(VALUES))

    def score(self) -> TokenScore:
        return TokenScore()

    def names(self) -> tuple[list[str], list[str]]:
        return list(PROGRAM_TOKENS[: self.inputs]), [str(value) for value in VALUES]

    def describe(self) -> str:
        c = self.config
        return f"programs of {c.statements} statements with {c.variables} variables; {self.describe_splits()}"
