"""Mutations: small wrong programs that the tests should notice. Which do they not?

    python -m tools.mutate map                          which test runs which line: once, by coverage (pytest-cov)
    python -m tools.mutate run --sample 400 --seed 1    change one place at a time, run the tests that reach it
    python -m tools.mutate show                         the table, and every mutant that survived, to be judged

The mutants are those of cosmic-ray; places are drawn with a seed, then one change for each place. Tests run in a copy
of the tree, nearest first, until one fails. `run` goes on where it was stopped: what is in the file of results is not
done again. Tests that quote the code or read its imports do not count.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("layers", "cores", "models", "tasks", "train", "experiments/measures")
KEPT = ROOT / "mutants"
NOT_COUNTED = ("tests/test_docs.py", "tests/test_house.py", "tests/test_soak.py")
LEFT_OUT = ("core/RemoveDecorator",)  # a property or dataclass without its decorator fails on import
COPIED = ("stairwell", "tests", "examples", "docs", "bench", "tools", "results", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.operator} {self.occurrence}"


def files(only: list[str]) -> list[Path]:
    """The files to change: all of the rooms, or some by name."""
    found: list[Path] = []
    for room in only or [f"stairwell/{room}" for room in ROOMS]:
        path = ROOT / room
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return found


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change that cosmic-ray knows for a file, apart from those in annotations, which nothing reads."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text(encoding="utf-8")
    unread = annotations(source)
    tree = get_ast(source)
    for name in operator_names():
        if get_operator(name).arguments() or name in LEFT_OUT:
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not any(first <= place < last for first, last in unread):
                yield Mutant(str(path.relative_to(ROOT)), *place, name, occurrence)


def annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations stand: from (line, column) to (line, column)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        kinds = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for part in (kind for kind in kinds if isinstance(kind, ast.expr)):
            found.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
    return found


def sample(only: list[str], size: int, seed: int) -> list[Mutant]:
    """`size` places of all, then one change at each: operators with many changes are not drawn more often for that."""
    places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for path in files(only):
        for mutant in mutants(path):
            places[mutant.file, mutant.line, mutant.column].append(mutant)
    dice = random.Random(seed)
    drawn = dice.sample(sorted(places), min(size, len(places)))
    print(f"{len(drawn)} of {len(places)} places, seed {seed}", flush=True)
    return [dice.choice(places[place]) for place in drawn]


def make_map(arguments: list[str]) -> None:
    """Run the tests once under coverage: for each line of each file, the tests that reach it."""
    from coverage import CoverageData

    KEPT.mkdir(exist_ok=True)
    data = KEPT / "coverage"
    command = [sys.executable, "-m", "pytest", "-q", "--cov=stairwell", "--cov-context=test", "--cov-report="]
    command += [f"--ignore={path}" for path in NOT_COUNTED]
    environment = {**os.environ, "COVERAGE_FILE": str(data), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if subprocess.run([*command, *arguments], cwd=ROOT, env=environment).returncode:
        sys.exit("some tests fail on the program as it is: mend them first")
    measured = CoverageData(str(data))
    measured.read()
    reached: dict[str, dict[int, list[str]]] = {}
    for file in measured.measured_files():
        lines = {
            line: sorted({context.partition("|")[0] for context in contexts if context})
            for line, contexts in measured.contexts_by_lineno(file).items()
        }
        reached[str(Path(file).relative_to(ROOT))] = {line: tests for line, tests in lines.items() if tests}
    (KEPT / "map.json").write_text(json.dumps(reached))
    print(f"{len(reached)} files are reached by tests: {KEPT / 'map.json'}")


class Tests:
    """Which tests to run for a change, nearest first."""

    def __init__(self, most: int) -> None:
        path = KEPT / "map.json"
        if not path.exists():
            sys.exit("no map of which test reaches which line; make it with: python -m tools.mutate map")
        self.reached: dict[str, dict[str, list[str]]] = json.loads(path.read_text())
        self.most = most

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that reach the line; where it is only read on import, those that reach the file. At most so many, some
        of every file of tests."""
        lines = self.reached.get(mutant.file, {})
        tests = lines.get(str(mutant.line)) or sorted({test for found in lines.values() for test in found})
        dice = random.Random(mutant.key)
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in dice.sample(tests, len(tests)):
            by_file[test.partition("::")[0]].append(test)
        turn = [(number, file, test) for file, found in by_file.items() for number, test in enumerate(found)]
        chosen = {test for _, _, test in sorted(turn)[: self.most]}
        stem = Path(mutant.file).stem
        order = sorted(by_file, key=lambda file: (stem not in Path(file).stem, len(by_file[file])))
        return [test for file in order for test in sorted(by_file[file]) if test in chosen]


def changed(mutant: Mutant) -> str | None:
    """The file's text with the change; nothing where cosmic-ray finds none."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    return mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)


def judge(mutant: Mutant, tests: list[str], tree: Path, seconds: float) -> dict[str, Any]:
    """Run the tests on the changed program."""
    before, after = (ROOT / mutant.file).read_text(encoding="utf-8"), changed(mutant)
    if after is None or after == before:
        return {"outcome": "no change"}
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[3:]
    if not tests:
        return {"outcome": "not reached", "diff": diff}
    (tree / mutant.file).write_text(after, encoding="utf-8")
    began = time.monotonic()
    try:
        outcome, last = run_tests(tests, tree, seconds)
    finally:
        (tree / mutant.file).write_text(before, encoding="utf-8")
    took = round(time.monotonic() - began, 1)
    return {"outcome": outcome, "diff": diff, "tests": len(tests), "seconds": took, "told": last}


def run_tests(tests: list[str], tree: Path, seconds: float) -> tuple[str, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # A group of its own: what the tests have started ends with them.
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "too slow", ""
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # 1: a test failed; 2, 3, 4: the program cannot even be loaded, so that no test is found.
    return ("survived" if process.returncode == 0 else "killed"), (failed or out.splitlines()[-1:] or [""])[0][:300]


def run(arguments: argparse.Namespace) -> None:
    tests = Tests(arguments.tests)
    results = Path(arguments.out)
    results.parent.mkdir(exist_ok=True)
    done = {record["key"] for record in read(results)}
    drawn = sample(arguments.only, arguments.sample, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for number, mutant in enumerate(drawn, start=1):
            if mutant.key in done:
                continue
            verdict = judge(mutant, tests.of(mutant), tree, arguments.timeout)
            source = hashlib.blake2b((ROOT / mutant.file).read_bytes(), digest_size=8).hexdigest()
            record = {"key": mutant.key, "seed": arguments.seed, "source": source, **asdict(mutant), **verdict}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{number}/{len(drawn)} {verdict['outcome']:11} {mutant.key}", flush=True)
    show(results)


def copy_tree(tree: Path) -> None:
    """What the tests need, and a proof that they can be collected there: an error of theirs is then the mutant's."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tree / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    found = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"the tests cannot be collected in a copy of the tree:\n{found.stdout[-2000:]}")


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def show(results: Path) -> None:
    """How many of each room were noticed, and every one that was not."""
    records = read(results)
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        rooms["/".join(Path(record["file"]).parts[1:2])][record["outcome"]] += 1
        rooms["all"][record["outcome"]] += 1
    outcomes = sorted(rooms["all"])
    print(f"{'':16}" + "".join(f"{outcome:>12}" for outcome in outcomes))
    for room, counts in rooms.items():
        print(f"{room:16}" + "".join(f"{counts[outcome]:12}" for outcome in outcomes))
    for record in records:
        if record["outcome"] in ("survived", "not reached"):
            print(f"\n{record['outcome']}: {record['key']}", *record["diff"], sep="\n    ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="arguments that follow go to pytest")
    mapping.add_argument("pytest", nargs=argparse.REMAINDER)
    running = commands.add_parser("run")
    running.add_argument("--sample", type=int, default=400, help="mutants")
    running.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    running.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant")
    running.add_argument("--tests", type=int, default=150, help="tests for one mutant, at most")
    running.add_argument("--only", nargs="*", default=[], help="files or folders, such as stairwell/cores/lstm.py")
    running.add_argument("--out", default=str(KEPT / "results.jsonl"))
    commands.add_parser("show").add_argument("out", nargs="?", default=str(KEPT / "results.jsonl"))
    arguments = parser.parse_args()
    if arguments.command == "map":
        make_map(arguments.pytest)
    elif arguments.command == "run":
        run(arguments)
    else:
        show(Path(arguments.out))


if __name__ == "__main__":
    main()
