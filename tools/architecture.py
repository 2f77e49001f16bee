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

# The packages and top-level modules of each layer, from the lowest to the highest. Each may import those before it, in
# its own layer and in the layers below.
LAYERS = {
    "Basics": (
        "startup", "errors", "version", "files", "outputs", "tensor_files", "configs", "provenance", "devices",
        "checkpoints", "state", "layers",
    ),
    "Models": ("cores", "fast", "models", "decode"),
    "Training": ("text", "data", "tasks", "train", "rl"),
    "Runs": ("runs", "report", "experiments"),
    "Use": ("stream", "generate", "hf", "export", "serve", "cli"),
}  # fmt: skip
ORDER = tuple(name for names in LAYERS.values() for name in names)
# What each layer is for, in the figure.
CAPTIONS = {
    "Basics": "states, attention, configs",
    "Models": "equations, fast engines, decoding",
    "Training": "data, tasks, one training loop",
    "Runs": "run folders, reports, the papers' tables",
    "Use": "trained models in other programs",
}
# Small modules that any package may import; the figure leaves them out.
SMALL = ("startup", "errors", "version", "files", "outputs", "tensor_files", "provenance", "devices", "checkpoints")
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


def part_of(module: str) -> str:
    """Return the package or top-level module that a module belongs to."""
    return module.split(".")[1]


def graph() -> dict[str, set[str]]:
    """Return the imports of every module except for the entry points."""
    package = modules()
    return {name: imports(name, path, package) for name, path in package.items() if name not in ENTRY_POINTS}


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Return every import of a later package or of an entry point, as a line."""
    violations = []
    for name, imported in edges.items():
        for other in sorted(imported):
            if other in ENTRY_POINTS or ORDER.index(part_of(other)) > ORDER.index(part_of(name)):
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


def layer_imports(edges: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the pairs of different layers of which the first imports the second."""
    layer = {part: name for name, parts in LAYERS.items() for part in parts}
    pairs = {
        (layer[part_of(module)], layer[part_of(other)])
        for module, imported in edges.items()
        for other in imported
        if other not in ENTRY_POINTS
    }
    return {(first, second) for first, second in pairs if first != second}


def draw(imported: set[tuple[str, str]]) -> None:
    """Draw the layers above each other with the imports between them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    figure, axes = pyplot.subplots(figsize=(7.6, 4.4), dpi=120)
    height = {name: y for y, name in enumerate(LAYERS)}
    colors = ("#eef1f4", "#e3eefa", "#d3e4f5", "#c0d8ef", "#abcbe8")
    for (name, parts), color in zip(LAYERS.items(), colors):
        y, shown = height[name], [part for part in parts if part not in SMALL]
        band = FancyBboxPatch((0, y - 0.31), 10, 0.62, boxstyle="round,pad=0.02", facecolor=color, edgecolor="none")
        axes.add_patch(band)
        axes.text(0.15, y + 0.1, name, va="center", fontsize=12, fontweight="bold", color="#123a5f")
        axes.text(0.15, y - 0.15, CAPTIONS[name], va="center", fontsize=7, color="#33475b")
        for i, part in enumerate(shown):
            box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#0072b2", "linewidth": 0.8}
            x = 3.75 + 1.12 * i
            axes.text(x, y, part, ha="center", va="center", family="monospace", fontsize=8, bbox=box)
    # Arrows that follow from others are left out: only neighbors and, in red, imports that point up.
    for first, second in sorted(imported):
        distance = height[first] - height[second]
        if distance == 1 or distance < 0:
            arrow = FancyArrowPatch(
                (5, height[first] - 0.3), (5, height[second] + 0.3), arrowstyle="-|>", mutation_scale=16, lw=2,
                shrinkA=2, shrinkB=2, color="#0072b2" if distance > 0 else "#c00000",
            )  # fmt: skip
            axes.add_patch(arrow)
    axes.set(xlim=(-0.1, 10.1), ylim=(-0.75, len(LAYERS) - 0.6))
    caption = "Arrows: imports. A layer imports those below it; in a layer, a package imports those to its left."
    axes.text(0, -0.6, caption, fontsize=8)
    axes.axis("off")
    figure.tight_layout(pad=0.3)
    figure.savefig(FIGURE)
    pyplot.close(figure)


def main() -> None:
    edges = graph()
    for line in [*upward(edges), *cycles(edges)]:
        print(line)
    draw(layer_imports(edges))
    print(FIGURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
