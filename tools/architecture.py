"""The house: which room of the package knows which, read from the imports, lazy ones included.

python -m tools.architecture            draws docs/pictures/architecture.png and says what is wrong
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "stairwell"
PICTURE = ROOT / "docs" / "pictures" / "house.png"

# From the cellar to the roof; a room may know those before it and none after.
ROOMS = (
    "startup", "errors", "version", "files", "outputs", "tensor_files", "configs", "provenance", "devices", "state",
    "layers", "cores", "fast", "models", "decode", "text", "data", "tasks", "train", "rl", "runs", "report",
    "experiments", "stream", "generate", "hf", "export", "serve", "cli",
)  # fmt: skip
# Not drawn: everyone may know them.
SMALL = ("startup", "errors", "version", "files", "outputs", "tensor_files", "provenance", "devices")
FRONT_DOOR = ("stairwell", "stairwell.__main__")  # what users import and start; they may know everything


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The package's modules that a module imports anywhere in its text."""
    found: set[str] = set()
    here = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for target in targets(node, here):
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != name:
                found.add(target)
    return found


def targets(node: ast.AST, here: str) -> Iterator[str]:
    """What an import statement names in full: `from a.b import c` may mean the module a.b.c or a name in a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = here.split(".")[: len(here.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def room(module: str) -> str:
    return module.split(".")[1]


def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, path, known) for name, path in known.items() if name not in FRONT_DOOR}


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Every import of a room above, or of the front door, as a line."""
    wrong = []
    for name, known in edges.items():
        for other in sorted(known):
            if other in FRONT_DOOR or ROOMS.index(room(other)) > ROOMS.index(room(name)):
                wrong.append(f"{name} imports {other}")
    return wrong


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Modules that know each other, directly or by way of others, as lines."""
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
            return
        if name in done:
            return
        for other in sorted(edges.get(name, ())):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(edges):
        visit(name, ())
    return found


def rooms_known(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which rooms each room knows."""
    known: dict[str, set[str]] = {}
    for name, others in edges.items():
        known.setdefault(room(name), set()).update(room(other) for other in others if other not in FRONT_DOOR)
    return {name: others - {name} for name, others in known.items()}


def draw(known: dict[str, set[str]]) -> None:
    """Rooms as floors, an arc from each to those it knows; small rooms that everyone knows are left out."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch

    floors = [name for name in ROOMS if name in known and name not in SMALL]
    height = {name: floor for floor, name in enumerate(floors)}
    figure, axes = pyplot.subplots(figsize=(7, 0.42 * len(floors) + 0.6), dpi=110)
    for name, floor in height.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "#eaf2fb", "edgecolor": "#0072b2"}
        axes.text(0, floor, f"{name:^11}", ha="center", va="center", family="monospace", fontsize=10, bbox=box)
        for other in sorted(known[name] & set(floors)):
            steps, side = floor - height[other], 1 if floor % 2 else -1
            arc = FancyArrowPatch(
                (0.85 * side, floor), (0.85 * side, height[other]), arrowstyle="-|>", mutation_scale=8,
                connectionstyle=f"arc3,rad={-side * min(0.25 + 0.03 * steps, 0.6)}", color="#555555", lw=0.7, alpha=0.6,
            )  # fmt: skip
            axes.add_patch(arc)
    axes.set(xlim=(-5.5, 5.5), ylim=(-0.7, len(floors) - 0.3), title="Which room knows which: arrows point down")
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(PICTURE)


def main() -> None:
    edges = graph()
    for line in [*upward(edges), *circles(edges)]:
        print(line)
    draw(rooms_known(edges))
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
