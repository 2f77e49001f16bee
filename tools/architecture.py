"""The import graph of the package: which layer imports which, including imports inside functions.

python -m tools.architecture            draws docs/pictures/architecture.png and prints violations
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "stairwell"
FIGURE = ROOT / "docs" / "pictures" / "architecture.png"

# From the lowest to the highest. A layer may import those before it.
LAYERS = (
    "startup", "errors", "version", "files", "outputs", "tensor_files", "configs", "provenance", "devices", "state",
    "layers", "cores", "fast", "models", "decode", "text", "data", "tasks", "train", "rl", "runs", "report",
    "experiments", "stream", "generate", "hf", "export", "serve", "cli",
)  # fmt: skip
# Small modules that any layer may import; the figure leaves them out.
SMALL = ("startup", "errors", "version", "files", "outputs", "tensor_files", "provenance", "devices")
ENTRY_POINTS = ("stairwell", "stairwell.__main__")  # may import everything; nothing may import them


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(name: str, path: Path, package: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, at the top or inside a function."""
    imported: set[str] = set()
    parent = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for target in targets(node, parent):
            while target and target not in package:
                target = target.rpartition(".")[0]
            if target and target != name:
                imported.add(target)
    return imported


def targets(node: ast.AST, parent: str) -> Iterator[str]:
    """Yield the full names in an import statement: `from a.b import c` may mean the module a.b.c or a name in a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = parent.split(".")[: len(parent.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str:
    return module.split(".")[1]


def graph() -> dict[str, set[str]]:
    """Return the imports of every module except for the entry points."""
    package = modules()
    return {name: imports(name, path, package) for name, path in package.items() if name not in ENTRY_POINTS}


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Return every import of a higher layer or of an entry point, as a line."""
    violations = []
    for name, imported in edges.items():
        for other in sorted(imported):
            if other in ENTRY_POINTS or LAYERS.index(layer_of(other)) > LAYERS.index(layer_of(name)):
                violations.append(f"{name} imports {other}")
    return violations


def cycles(edges: dict[str, set[str]]) -> list[str]:
    """Return import cycles between modules, as lines."""
    lines: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            lines.append(" -> ".join([*path[path.index(name) :], name]))
            return
        if name in done:
            return
        for other in sorted(edges.get(name, ())):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(edges):
        visit(name, ())
    return lines


def layer_graph(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the layers that each layer imports."""
    layers: dict[str, set[str]] = {}
    for name, others in edges.items():
        layers.setdefault(layer_of(name), set()).update(
            layer_of(other) for other in others if other not in ENTRY_POINTS
        )
    return {name: others - {name} for name, others in layers.items()}


def draw(layers: dict[str, set[str]]) -> None:
    """Draw the layers above each other, with an arc from each to those it imports, without the small modules."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch

    shown = [name for name in LAYERS if name in layers and name not in SMALL]
    height = {name: i for i, name in enumerate(shown)}
    figure, axes = pyplot.subplots(figsize=(7, 0.42 * len(shown) + 0.6), dpi=110)
    for name, y in height.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "#eaf2fb", "edgecolor": "#0072b2"}
        axes.text(0, y, f"{name:^11}", ha="center", va="center", family="monospace", fontsize=10, bbox=box)
        for other in sorted(layers[name] & set(shown)):
            distance, side = y - height[other], 1 if y % 2 else -1
            arc = FancyArrowPatch(
                (0.85 * side, y), (0.85 * side, height[other]), arrowstyle="-|>", mutation_scale=8,
                connectionstyle=f"arc3,rad={-side * min(0.25 + 0.03 * distance, 0.6)}", color="#555555", lw=0.7,
                alpha=0.6,
            )  # fmt: skip
            axes.add_patch(arc)
    axes.set(xlim=(-5.5, 5.5), ylim=(-0.7, len(shown) - 0.3), title="Imports between packages point down")
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(FIGURE)


def main() -> None:
    edges = graph()
    for line in [*upward(edges), *cycles(edges)]:
        print(line)
    draw(layer_graph(edges))
    print(FIGURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
