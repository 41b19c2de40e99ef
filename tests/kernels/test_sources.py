"""Kernel programs run in the target interpreter: old syntax, only the standard library at import, nothing of ours."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "kernels"
KERNELS = sorted(ROOT.rglob("*.py"))
#: Which package may import which: programs import the sweep and the measurements, these import the checks' attention.
BELOW = {
    "programs": {"sweep", "measure", "attention"},
    "measure": {"attention"},
    "parallel": {"attention"},
    "sweep": {"attention"},
    "attention": set(),
    "": set(),
}


def _is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def _top_level(tree: ast.Module) -> list[ast.stmt]:
    """Return what runs at import, the bodies of `try` included."""
    return [inner for node in tree.body for inner in (node.body if isinstance(node, ast.Try) else [node])]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(ROOT)))
def test_source(path: pathlib.Path) -> None:
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    folder = path.parent.name if path.parent != ROOT else ""
    for node in _top_level(tree):
        if isinstance(node, ast.Import):
            outside = {alias.name for alias in node.names if not _is_standard(alias.name)}
            assert not outside, "third-party imports belong inside functions"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert _is_standard(str(node.module)), "third-party imports belong inside functions"
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 2, "nothing outside the folder of the kernels is there at run time"
            if node.level == 2 and node.module and node.module != "protocol":
                assert node.module.partition(".")[0] in BELOW[folder], node.module
            if node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert all((path.parent / f"{name}.py").is_file() for name in names)
    if folder == "programs":
        assert any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)
    # Methods that came after Python 3.8, where the syntax check sees nothing wrong.
    assert "removeprefix(" not in text and "removesuffix(" not in text and "strict=True" not in text


def test_no_package_file() -> None:
    assert not list(ROOT.rglob("__init__.py")), "`kernels` is the import name of another distribution"
