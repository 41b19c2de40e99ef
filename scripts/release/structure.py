"""Measure the structure of the code: packages, cycles, import arrows, lines, imports inside functions, enums.

    python scripts/release/structure.py [CHECKOUT ...]

Prints one column per checkout, so that two commits can be compared. Only `doctor/` is read, and nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    """Print the table."""
    checkouts = [Path(name) for name in sys.argv[1:]] or [Path(__file__).resolve().parents[2]]
    columns = [measure(checkout / "doctor") for checkout in checkouts]
    for name in columns[0]:
        print(f"{name:<46}", *(f"{column[name]:>10}" for column in columns))
    return 0


def measure(root: Path) -> dict[str, int]:
    """Return each figure of one package."""
    files = {_module(root, path): path for path in sorted(root.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text()) for name, path in files.items()}
    arrows = {name: set(_imports(name, files[name], tree, files)) - {name} for name, tree in trees.items()}
    top = [path for path in root.iterdir() if path.name != "__pycache__"]
    cycles = [part for part in _components(arrows) if len(part) > 1]
    lines = [len(path.read_text().splitlines()) for path in files.values()]
    return {
        "packages at the top": sum((path / "__init__.py").exists() for path in top if path.is_dir()),
        "modules at the top": sum(path.suffix == ".py" and not path.name.startswith("__") for path in top),
        "modules in all": len(files),
        "import arrows between modules": sum(map(len, arrows.values())),
        "groups of modules that import each other": len(cycles),
        "modules in the largest such group": max(map(len, cycles), default=0),
        "imports inside functions, of own modules": sum(_in_functions(tree) for tree in trees.values()),
        "enums": sum(_enums(tree) for tree in trees.values()),
        "lines": sum(lines),
        "lines of the longest module": max(lines),
    }


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path, tree: ast.AST, files: dict[str, Path]) -> Iterator[str]:
    """Yield the own modules that a module imports, anywhere in its text."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names if item.name in files)
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*around, *(node.module or "").split(".")]).strip(".")
            for item in node.names:
                named = f"{base}.{item.name}"
                if named in files or base in files:
                    yield named if named in files else base


def _in_functions(tree: ast.AST) -> int:
    found = 0
    for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTION)):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                found += bool(node.level) or (node.module or "").split(".")[0] == "doctor"
            elif isinstance(node, ast.Import):
                found += any(item.name.split(".")[0] == "doctor" for item in node.names)
    return found


def _enums(tree: ast.AST) -> int:
    bases = (base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases)
    return sum("Enum" in ast.unparse(base) for base in bases)


def _components(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components (Tarjan), without recursion."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in arrows:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        stack.append(start)
        work = [(start, iter(sorted(arrows[start])))]
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    work.append((other, iter(sorted(arrows[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    at = stack.index(node)
                    found.append(stack[at:])
                    del stack[at:]
    return found


if __name__ == "__main__":
    sys.exit(main())
