"""Kernel programs run where the patient runs: old syntax, only the standard library at import, no other files."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

KERNELS = sorted((pathlib.Path(__file__).parents[2] / "kernels").glob("*.py"))
STANDARD = {
    "json",
    "os",
    "pathlib",
    "sys",
    "time",
    "traceback",
    "warnings",
    "logging",
    "importlib",
    "contextlib",
    "math",
}


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_source(path: pathlib.Path) -> None:
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    assert text.count("\n") <= 300
    shared = {other.stem for other in KERNELS if other.name.startswith("_")}
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert set(names) <= STANDARD | shared, "third-party imports belong inside run()"
    if not path.name.startswith("_"):
        assert any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)
        assert re.search(r'\nif __name__ == "__main__":\n    main\(run(, ahead=[a-z_.]+)?\)$', text.rstrip())
    # Methods that came after Python 3.8, where the syntax check sees nothing wrong.
    assert "removeprefix(" not in text and "removesuffix(" not in text and "strict=True" not in text


def test_no_package_file() -> None:
    assert not (KERNELS[0].parent / "__init__.py").exists()
