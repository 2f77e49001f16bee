"""Mutation testing: change the program in one position at a time and see whether a test fails.

    python -m tools.mutate map                          find out which test runs which line, by coverage (pytest-cov)
    python -m tools.mutate run --sample 400 --seed 1    change one position at a time, run the tests that reach it
    python -m tools.mutate show                         print the table and every mutant that survived

The mutants are those of cosmic-ray. Positions are sampled with a seed, then one change for each. Tests run in a copy of
the tree, the fastest first, until one fails; each mutant runs in a fork of a process that has imported torch and all
other packages except stairwell. `run` resumes: mutants in the results file are skipped. `run --again --budget 120` runs
more tests on the survivors, including those that start commands, whose processes coverage does not see. Tests that
quote the code or read its imports are excluded.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import gc
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("layers", "cores", "models", "tasks", "train", "experiments/measures")
FOLDER = ROOT / "mutants"
EXCLUDED = ("tests/docs/test_docs.py", "tests/test_architecture.py", "tests/test_soak.py")
MORE_TESTS = (
    "tests/train/test_determinism.py", "tests/train/test_objective.py",
    "tests/train/test_optimizers.py", "tests/train/test_loop.py", "tests/train/test_pair_objective.py",
    "tests/train/test_reliability.py",
)  # fmt: skip
PRELOADED = (
    "pytest", "hypothesis", "torch", "numpy", "safetensors.torch", "tokenizers", "typer", "rich.live", "rich.table",
    "matplotlib.pyplot", "transformers", "transformers.generation", "gymnasium", "minigrid", "sacrebleu", "rouge_score",
    "onnx", "onnxruntime", "starlette.applications", "starlette.testclient", "uvicorn", "openai",
)  # fmt: skip
EXCLUDED_OPERATORS = ("core/RemoveDecorator",)  # a property or dataclass without its decorator fails on import
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
    """Return the files to change: those of all packages, or some by name."""
    found: list[Path] = []
    for package in only or [f"stairwell/{package}" for package in PACKAGES]:
        path = ROOT / package
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return found


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every change that cosmic-ray knows for a file, except in annotations, which have no effect."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text(encoding="utf-8")
    unread = annotations(source)
    tree = get_ast(source)
    for name in operator_names():
        if get_operator(name).arguments() or name in EXCLUDED_OPERATORS:
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            if not any(first <= place < last for first, last in unread):
                yield Mutant(str(path.relative_to(ROOT)), *place, name, occurrence)


def annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges of annotations: from (line, column) to (line, column)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        kinds = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for part in (kind for kind in kinds if isinstance(kind, ast.expr)):
            found.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
    return found


def sample(only: list[str], size: int, seed: int) -> list[Mutant]:
    """Return one change at each of `size` sampled positions, so operators with many changes are not sampled more."""
    places: dict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
    for path in files(only):
        for mutant in mutants(path):
            places[mutant.file, mutant.line, mutant.column].append(mutant)
    generator = random.Random(seed)
    sampled = generator.sample(sorted(places), min(size, len(places)))
    print(f"{len(sampled)} of {len(places)} positions, seed {seed}", flush=True)
    return [generator.choice(places[place]) for place in sampled]


class Durations:
    """A pytest plugin that measures the seconds of every test."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def make_map(arguments: list[str]) -> None:
    """Run the tests once with coverage and save, for each line, the tests that reach it, and the seconds per test."""
    import pytest
    from coverage import CoverageData

    FOLDER.mkdir(exist_ok=True)
    data, settings = FOLDER / "coverage", FOLDER / "coverage.ini"
    settings.write_text("[run]\ninclude =\n" + "".join(f"    {path}\n" for path in files([])))
    os.environ.update(COVERAGE_FILE=str(data), PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    command = [
        "-q",
        "--cov",
        f"--cov-config={settings}",
        "--cov-context=test",
        "--cov-report=",
        "-p",
        "no:cacheprovider",
    ]
    tests = Durations()
    pytest.main([*command, *(f"--ignore={path}" for path in EXCLUDED), *arguments], plugins=[tests])
    # A test that fails on the unchanged program cannot be used.
    print("\n".join(f"excluded because it fails: {test}" for test in sorted(tests.failed)))
    measured = CoverageData(str(data))
    measured.read()
    reached: dict[str, dict[int, list[str]]] = {}
    for file in measured.measured_files():
        lines = {
            line: sorted({context.partition("|")[0] for context in contexts if context} - tests.failed)
            for line, contexts in measured.contexts_by_lineno(file).items()
        }
        reached[str(Path(file).relative_to(ROOT))] = {line: found for line, found in lines.items() if found}
    seconds = {test: round(took, 3) for test, took in tests.seconds.items() if test not in tests.failed}
    (FOLDER / "map.json").write_text(json.dumps({"reached": reached, "seconds": seconds}))
    print(f"{len(reached)} files are reached by {len(seconds)} tests: {FOLDER / 'map.json'}")


class Tests:
    """The tests to run for a change: fast ones first, some of every file, within a budget of seconds."""

    def __init__(self, budget: float) -> None:
        path = FOLDER / "map.json"
        if not path.exists():
            sys.exit("no map of which test reaches which line; make it with: python -m tools.mutate map")
        known = json.loads(path.read_text())
        self.reached: dict[str, dict[str, list[str]]] = known["reached"]
        self.seconds: dict[str, float] = known["seconds"]
        self.budget = budget

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the line; for a line that only runs on import, those that reach the file."""
        lines = self.reached.get(mutant.file, {})
        tests = lines.get(str(mutant.line)) or sorted({test for found in lines.values() for test in found})
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=self.cost):
            by_file[test.partition("::")[0]].append(test)
        turns = [(number, self.cost(test), test) for found in by_file.values() for number, test in enumerate(found)]
        selected: list[str] = []
        left = self.budget
        for _, cost, test in sorted(turns):
            # At least one test is run, however long it takes.
            if not selected or cost <= left:
                selected.append(test)
                left -= cost
        return sorted(selected, key=self.cost)

    def cost(self, test: str) -> float:
        return self.seconds.get(test, 1.0) + 0.01


def changed(mutant: Mutant) -> str | None:
    """Return the file's text with the change; None if cosmic-ray finds none."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    return mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)


def judge(mutant: Mutant, tests: list[str], tree: Path, limit: int) -> dict[str, Any]:
    """Run the tests on the changed program and return the outcome."""
    before, after = (ROOT / mutant.file).read_text(encoding="utf-8"), changed(mutant)
    if after is None or after == before:
        return {"outcome": "no change"}
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[3:]
    if not tests:
        return {"outcome": "not reached", "diff": diff}
    (tree / mutant.file).write_text(after, encoding="utf-8")
    # Python would not notice a file of the same size changed within a second.
    for compiled in (tree / mutant.file).parent.glob(f"__pycache__/{Path(mutant.file).stem}.*.pyc"):
        compiled.unlink()
    start = time.monotonic()
    try:
        outcome, failure = run_tests(tests, tree, limit)
    finally:
        (tree / mutant.file).write_text(before, encoding="utf-8")
    took = round(time.monotonic() - start, 1)
    return {"outcome": outcome, "diff": diff, "tests": len(tests), "seconds": took, "failure": failure}


def warm() -> None:
    """Import what the tests need except stairwell, so that forks of this process have it."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    # Torch imports many of its modules with the first optimizer.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    assert not any(name.partition(".")[0] == "stairwell" for name in sys.modules)
    gc.freeze()


def run_tests(tests: list[str], tree: Path, limit: int) -> tuple[str, str]:
    """Run tests in a fork of this process with a limit of CPU seconds, so that a busy machine kills no mutant."""
    output = tree.parent / "output.txt"
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            run_pytest(tests, tree, output, limit)
        os._exit(5)
    give_up = time.monotonic() + 10 * limit
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < give_up:
        time.sleep(0.02)
    # A separate process group: processes started by the tests are killed too.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended[0] == 0:
        os.waitpid(child, 0)
        return "too slow", ""
    status, lines = os.waitstatus_to_exitcode(ended[1]), output.read_text(errors="replace").splitlines()
    if status == -signal.SIGXCPU:
        return "too slow", ""
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    # 1: a test failed; 2, 3, 4: the program cannot be imported, so no test is collected.
    return ("survived" if status == 0 else "killed"), (failed or lines[-1:] or [""])[0][:300]


def run_pytest(tests: list[str], tree: Path, output: Path, limit: int) -> None:
    """Run the tests of the changed tree in the fork, then exit."""
    import resource

    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(tree)
    os.environ.update(PYTHONPATH=str(tree), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    command = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "--hypothesis-seed=0"]
    status = pytest.main([*command, f"--basetemp={tree.parent / 'tmp'}", *tests])
    sys.stdout.flush()
    os._exit(int(status))


def run(arguments: argparse.Namespace) -> None:
    tests = Tests(arguments.budget)
    results = Path(arguments.out)
    results.parent.mkdir(exist_ok=True)
    done = {record["key"]: record["outcome"] for record in read(results)}
    sampled = sample(arguments.only, arguments.sample, arguments.seed)
    # With --again, run more tests on the survivors.
    todo = [mutant for mutant in sampled if done.get(mutant.key, "") in (("survived",) if arguments.again else ("",))]
    warm()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        check(sorted({test for mutant in todo[:20] for test in tests.of(mutant)[:20]}), tree)
        for number, mutant in enumerate(todo, start=1):
            selected = tests.of(mutant)
            if arguments.again:
                selected += [str(path) for path in MORE_TESTS if (ROOT / path).exists()]
            verdict = judge(mutant, selected, tree, int(3 * arguments.budget + 60))
            source = hashlib.blake2b((ROOT / mutant.file).read_bytes(), digest_size=8).hexdigest()
            record = {"key": mutant.key, "seed": arguments.seed, "source": source, **asdict(mutant), **verdict}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            took = f"{verdict.get('seconds', 0):6.1f} s {verdict.get('tests', 0):4} tests"
            print(f"{number}/{len(todo)} {verdict['outcome']:11} {took}  {mutant.key}", flush=True)
    show(results)


def copy_tree(tree: Path) -> None:
    """Copy what the tests need and check that they can be collected there, so later errors are due to the mutant."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tree / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    # This leaves compiled files, so that tests of a mutant need not compile them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    collected = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if collected.returncode:
        sys.exit(f"the tests cannot be collected in a copy of the tree:\n{collected.stdout[-2000:]}")


def check(tests: list[str], tree: Path) -> None:
    """Raise an error if the tests fail on the unchanged program."""
    outcome, failure = run_tests(tests, tree, 600) if tests else ("survived", "")
    if outcome != "survived":
        sys.exit(f"the tests fail on the unchanged program ({outcome}): {failure}")


def read(results: Path) -> list[dict[str, Any]]:
    """Return the newest record of each mutant."""
    records = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return list({record["key"]: record for record in records}.values())


def show(results: Path) -> None:
    """Print the outcomes per package, and every mutant that survived."""
    records = read(results)
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        packages["/".join(Path(record["file"]).parts[1:2])][record["outcome"]] += 1
        packages["all"][record["outcome"]] += 1
    outcomes = sorted(packages["all"])
    print(f"{'':16}" + "".join(f"{outcome:>12}" for outcome in outcomes))
    for package, counts in packages.items():
        print(f"{package:16}" + "".join(f"{counts[outcome]:12}" for outcome in outcomes))
    for record in records:
        if record["outcome"] in ("survived", "not reached"):
            print(f"\n{record['outcome']}: {record['key']}", *record["diff"], sep="\n    ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="Map lines to tests; further arguments are passed to pytest.")
    mapping.add_argument("pytest", nargs=argparse.REMAINDER)
    running = commands.add_parser("run")
    running.add_argument("--sample", type=int, default=400, help="Number of mutants.")
    running.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    running.add_argument("--budget", type=float, default=30.0, help="Seconds of tests per mutant.")
    running.add_argument("--again", action="store_true", help="Run more tests on the survivors.")
    running.add_argument("--only", nargs="*", default=[], help="Files or folders, such as stairwell/cores/lstm.py.")
    running.add_argument("--out", default=str(FOLDER / "results.jsonl"))
    commands.add_parser("show").add_argument("out", nargs="?", default=str(FOLDER / "results.jsonl"))
    arguments = parser.parse_args()
    if arguments.command == "map":
        make_map(arguments.pytest)
    elif arguments.command == "run":
        run(arguments)
    else:
        show(Path(arguments.out))


if __name__ == "__main__":
    main()
