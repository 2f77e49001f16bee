"""Programs, compared with an interpreter that reads them as text and shares no code with their generator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from stairwell.tasks.algorithmic import PROGRAM_TOKENS, Algorithmic, AlgorithmicConfig
from stairwell.tasks.base import IGNORE_INDEX

# Table 7 of the paper
PRINTED_PROGRAM = """
x = 1 ; print x ; x ++ ; print x ; z = 8 ; print z ; print z ; x -- ; if x > z : z -- ; z ++ ;
print z ; print x ; print x ; if z < x : z ++ ; x ++ ; z -- ; x -- ; if z > x : z -- ; z ++ ;
if x > z : z ++ ; if z < 5 : y = 7 ; print x ; if x > z : z ++ ; x ++ ; y = 7 ; if x > 10 : x
-- ; y -- ; x ++ ; z ++ ; print z ; y -- ; print x ; print x ; z ++ ; y ++ ; y ++ ; if z < 3 :
y ++ ; if x > 4 : x ++ ; z -- ; x -- ; x -- ; print x ; y ++ ; z ++ ; y -- ; if x > z : z -- ;
x ++ ; z -- ; print x ; z ++ ; print y ; y ++ ; y -- ; x -- ; print x ; y ++ ; print y ; y --
; if z < x : x ++ ; if z > 4 : y -- ; z -- ; x ++ ; if y < x : y ++ ; print y ; print z ; z --
; y -- ; x ++ ; y -- ; y ++ ; if y > 3 : z -- ; y ++ ; if z < 10 : z ++ ; z ++ ; y -- ; z ++ ;
print z ; x -- ; y -- ; x -- ; x ++ ; if x < 4 : y -- ; print y ; print z ; if z > x : y -- ;
print z ; if y < x : x -- ; print x ; print z ; if x < 4 : z -- ; if z < y : z ++ ; z -- ; x --
; print x ; if z < x : y ++ ; print x ; print z ; y -- ; if z < 6 : x ++ ; z -- ; END
"""


class IllegalProgramError(Exception):
    pass


@dataclass
class Execution:
    """An executed program: its statements as text, the label of each token (None if it has none), and whether its
    conditions held."""

    statements: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    conditions: list[bool] = field(default_factory=list)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise IllegalProgramError(message)


def number(word: str) -> int:
    require(word.isdigit() and 1 <= int(word) <= 10, f"{word} is not within 1..10")
    return int(word)


def value_of(values: dict[str, int], name: str) -> int:
    require(name in values, f"{name} is not set")
    return values[name]


def change(values: dict[str, int], words: list[str]) -> tuple[str, int]:
    """Return the effect of an assignment, ++ or --; raise if it is not legal."""
    match words:
        case [name, "=", value]:
            require(name.isalpha() and name not in values, f"{name} is set already")
            return name, number(value)
        case [name, "++"]:
            return name, number(str(value_of(values, name) + 1))
        case [name, "--"]:
            return name, number(str(value_of(values, name) - 1))
    raise IllegalProgramError(f"not a statement: {' '.join(words)}")


def execute(text: str) -> Execution:
    """Execute one program from its first statement to END."""
    execution, values = Execution(), dict[str, int]()
    *statements, end = text.split(" ; ") if " ; " in text else [text]
    require(end == "END", "no END")
    for statement in statements:
        words, label = statement.split(), None
        match words:
            case ["print", name]:
                label = value_of(values, name)
            case ["if", left, operator, right, ":", *body]:
                require(left != right, "compared with itself")
                a = value_of(values, left)
                b = number(right) if right.isdigit() else value_of(values, right)
                require(operator in ("<", ">", "=="), f"no comparison: {operator}")
                holds = {"<": a < b, ">": a > b, "==": a == b}[operator]
                name, value = change(values, body)
                execution.conditions.append(holds)
                if holds:
                    values[name] = value
            case _:
                name, value = change(values, words)
                values[name] = value
        execution.statements.append(statement)
        execution.labels += [None] * len(words) + [label]
    execution.labels.append(None)
    return execution


def programs(words: list[str]) -> list[str]:
    """Return the complete programs of a stream of words."""
    return [text.strip() + " END" for text in " ".join(words).split("END")[:-1]]


def type_of(statement: str) -> str:
    first, second = statement.split()[:2]
    return first if first in ("if", "print") else second


def generate(count: int, **options: Any) -> list[Execution]:
    """Generate and execute `count` programs and compare their labels."""
    task = Algorithmic(AlgorithmicConfig(test_episodes=count, **options))
    (batch,) = task.batches("test", 1, 10**9)
    assert batch.start is None and batch.tokens.max() < task.inputs
    words = [PROGRAM_TOKENS[token] for token in batch.tokens[0].tolist()]
    runs = [execute(program) for program in programs(words)]
    expected = [label for run in runs for label in run.labels]
    labels = [None if target == IGNORE_INDEX else target + 1 for target in batch.targets[0].tolist()]
    assert labels == expected
    assert len(runs) == count
    return runs


def test_with_reset_every_program_starts_with_a_start_flag() -> None:
    task = Algorithmic(AlgorithmicConfig(statements=6, reset=True, test_episodes=50))
    (test,) = task.batches("test", 1, 10**9)
    for batch in (test, task.batch_source(range(4), 4, 0).read(500)):
        ended = batch.tokens[:, :-1] == PROGRAM_TOKENS.index("END")
        assert batch.start is not None and batch.start[:, 0].all()
        assert batch.start[:, 1:].equal(ended) and ended.any()


def test_the_program_printed_in_the_paper_is_legal() -> None:
    words = PRINTED_PROGRAM.split()
    assert len(words) == 415
    assert all(PROGRAM_TOKENS.index(word) < Algorithmic(AlgorithmicConfig()).inputs for word in words)
    run = execute(" ".join(words))
    assert len(run.statements) == 100
    assert Counter(map(type_of, run.statements)) == {"print": 27, "--": 25, "++": 23, "if": 22, "=": 3}
    labels = [label for label in run.labels if label is not None]
    assert labels[:10] == [1, 2, 8, 8, 9, 1, 1, 1, 9, 3]
    assert labels[-4:] == [10, 1, 1, 8]


@pytest.mark.parametrize(
    "text",
    [
        "print x ; END",
        "x ++ ; END",
        "x = 5 ; x = 6 ; END",
        "x = 11 ; END",
        "x = 0 ; END",
        "x = 10 ; x ++ ; END",
        "x = 1 ; x -- ; END",
        "x = 5 ; if x < 9 : y = 2 ; y = 3 ; END",
        "x = 10 ; if x < 3 : x ++ ; END",  # illegal though not executed
        "x = 5 ; if x < 3 : y ++ ; END",
        "x = 5 ; if x < 3 : x = 4 ; END",
        "x = 5 ; if x < y : x ++ ; END",
        "x = 5 ; if x < x : x ++ ; END",
        "x = 5 ; if x > 3 : print x ; END",
        "x = 5 ; if x > 3 : if x > 4 : x ++ ; END",
        "if x > 3 : x = 1 ; END",
        "x = 5 ;",
    ],
)
def test_the_interpreter_rejects_illegal_programs(text: str) -> None:
    with pytest.raises(IllegalProgramError):
        execute(text)


def test_a_variable_is_set_only_if_the_assignment_is_executed() -> None:
    run = execute("x = 5 ; if x < 3 : y = 2 ; y = 4 ; print y ; END")
    assert run.labels[-2] == 4


@pytest.mark.parametrize("variables", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("equality", [False, True])
def test_generated_programs_are_legal_and_have_the_correct_labels(variables: int, equality: bool) -> None:
    runs = generate(250, variables=variables, equality=equality)
    statements = [statement for run in runs for statement in run.statements]
    assert all(len(run.statements) == 100 for run in runs)
    names = {word for statement in statements for word in statement.split() if word.isalpha()} - {"if", "print"}
    assert names == set("xyzuvwabcd"[:variables])
    assert any(" == " in statement for statement in statements) == equality


@pytest.mark.parametrize("statements", [1, 2, 17, 250])
def test_programs_have_the_configured_number_of_statements(statements: int) -> None:
    runs = generate(60, statements=statements)
    assert {len(run.statements) for run in runs} == {statements}


def test_statement_types_have_their_relative_probabilities() -> None:
    """Check second statements where one variable is set to neither 1 nor 10: then all statements on it are legal."""
    runs = generate(4000, variables=3, statements=2, assigns=6, prints=4, ifs=2)
    second = [run.statements[1] for run in runs if run.statements[0].split()[-1] not in ("1", "10")]
    mix = Counter(map(type_of, second))
    expected = {"=": 12 / 20, "print": 4 / 20, "if": 2 / 20, "++": 1 / 20, "--": 1 / 20}
    assert {name: count / len(second) for name, count in mix.items()} == pytest.approx(expected, abs=0.03)
    without_ifs = generate(200, statements=20, ifs=0)
    assert not any(type_of(statement) == "if" for run in without_ifs for statement in run.statements)
    without_changes = generate(200, statements=20, changes=0, ifs=0)
    assert {type_of(statement) for run in without_changes for statement in run.statements} == {"=", "print"}
    with pytest.raises(ValueError, match="changes is 0"):
        generate(1, changes=0)


def test_the_mix_of_statements_resembles_the_printed_program() -> None:
    runs = generate(1000)
    mix = Counter(type_of(statement) for run in runs for statement in run.statements)
    expected = {"print": 25.7, "if": 25.5, "++": 23.1, "--": 23.0, "=": 2.7}
    assert {name: count / 1000 for name, count in mix.items()} == pytest.approx(expected, abs=0.4)

    conditionals = [statement.split() for run in runs for statement in run.statements if statement.startswith("if")]
    with_number = sum(words[3].isdigit() for words in conditionals) / len(conditionals)
    assert with_number == pytest.approx(0.51, abs=0.02)
    bodies = Counter(words[6] for words in conditionals)
    assert bodies["++"] / len(conditionals) == pytest.approx(0.49, abs=0.02)
    assert 0.01 < bodies["="] / len(conditionals) < 0.05
    conditions = [holds for run in runs for holds in run.conditions]
    assert 0.3 < sum(conditions) / len(conditions) < 0.6
    tokens = sum(len(run.labels) for run in runs) / 1000
    assert tokens == pytest.approx(432, abs=3)


def test_numbers_and_variables_are_uniform() -> None:
    runs = generate(1000, variables=2, equality=True)
    statements = [statement.split() for run in runs for statement in run.statements]
    assigned = Counter(words[2] for words in statements if words[1] == "=")
    compared = Counter(words[3] for words in statements if words[0] == "if" and words[3].isdigit())
    operators = Counter(words[2] for words in statements if words[0] == "if")
    printed = Counter(words[1] for words in statements if words[0] == "print")
    for counts, size in ((assigned, 10), (compared, 10), (operators, 3), (printed, 2)):
        assert len(counts) == size
        total = sum(counts.values())
        assert all(abs(count / total - 1 / size) < 4 * (total * size) ** -0.5 for count in counts.values())


def test_a_curriculum_may_start_with_fewer_variables_of_the_same_vocabulary() -> None:
    task = Algorithmic(AlgorithmicConfig(variables=3))
    stream = task.batch_source(range(10), 10, 0)
    stream.read(100)
    for variables, statements, names in ((1, 10, "x"), (2, 30, "xy"), (3, 100, "xyz")):
        stream.change(variables=variables, statements=statements)
        batch = stream.read(2000)
        for tokens in batch.tokens.tolist():
            words = [PROGRAM_TOKENS[token] for token in tokens]
            runs = [execute(program) for program in programs(words)]
            assert {len(run.statements) for run in runs} == {statements}
            assert set(words) & set("xyzuvwabcd") == set(names)
    with pytest.raises(ValueError, match="variables is 4; it must be between 1 and 3"):
        stream.change(variables=4)


@pytest.mark.parametrize("name", ["assigns", "changes", "prints", "ifs"])
def test_too_large_probabilities_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 1,000,000,000,000; it must be at most 1,000,000"):
        Algorithmic(AlgorithmicConfig(**{name: 10**12}))


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="statements is 0; it must be at least 1"):
        Algorithmic(AlgorithmicConfig(statements=0))
    for variables in (0, 11):
        with pytest.raises(ValueError, match=f"variables is {variables}; it must be between 1 and 10"):
            Algorithmic(AlgorithmicConfig(variables=variables))
