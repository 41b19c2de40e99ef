"""Count the names of libraries that the code knows: what one library is or does belongs into `rules/<library>/`.

    python scripts/release/library_names.py [CHECKOUT] [--files 20] [--lines FILE]

A name is a text constant in `doctor/`, docstrings left out, that equals a library's folder in `rules/` or a spelling of
those in `SPELLINGS`. A folder that describes neither packages nor frameworks nor backends is no library: `declared`,
`images`, `speed`. `tests/test_library_names.py` has the highest number that is allowed, and a reason for each file.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

#: Spellings of libraries that are not the name of their folder.
SPELLINGS = (
    "flash-attn", "transformer-engine", "TransformerEngine", "megatron", "Megatron", "XTuner", "vLLM", "SGLang",
)  # fmt: skip
#: What a file about a library has, and one about a kind of rules has not.
_DESCRIBED = re.compile(r"^(?:distributions:(?! *\[\])|frameworks:|backends:)", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).resolve().parents[2])
    parser.add_argument("--files", type=int, default=20, help="how many files to list")
    parser.add_argument("--lines", metavar="FILE", help="list the constants of this file instead")
    given = parser.parse_args()
    found = names_by_file(given.checkout)
    if given.lines:
        for line, name in found[given.lines]:
            print(f"{given.lines}:{line}: {name}")
        return 0
    print(f"{sum(map(len, found.values()))} names in {len(found)} files")
    for path, names in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))[: given.files]:
        print(f"{len(names):>5}  {path}")
    words = Counter(name for names in found.values() for _, name in names)
    print(", ".join(f"{name} {count}" for name, count in words.most_common(given.files)))
    return 0


def names_by_file(checkout: Path) -> dict[str, list[tuple[int, str]]]:
    """Return the names of libraries in each file of `doctor/` that has any, with their lines."""
    names = library_names(checkout)
    found = {}
    for path in sorted((checkout / "doctor").rglob("*.py")):
        constants = [item for item in texts(ast.parse(path.read_text("utf-8"))) if item[1] in names]
        if constants:
            found[path.relative_to(checkout).as_posix()] = sorted(constants)
    return found


def library_names(checkout: Path) -> frozenset[str]:
    """Return what counts as the name of a library."""
    folders = ((path.parent.name, path.read_text("utf-8")) for path in (checkout / "rules").glob("*/library.yaml"))
    return frozenset((*(name for name, text in folders if _DESCRIBED.search(text)), *SPELLINGS))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each text constant that is no docstring."""
    documented = (node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED) and node.body)
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


if __name__ == "__main__":
    raise SystemExit(main())
