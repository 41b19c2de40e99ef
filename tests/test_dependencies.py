"""What `doctor/` imports is what pyproject.toml declares, and what it declares is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from doctor.util.toml_text import parse_toml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = parse_toml((ROOT / "pyproject.toml").read_text("utf-8"), "pyproject.toml")["project"]
#: Import names that differ from the distribution's; the metadata of what is installed is compared with it below.
NAMES = {
    "yaml": "pyyaml", "re2": "google-re2", "pynvml": "nvidia-ml-py", "jinja2": "jinja2", "mcp": "mcp", "ray": "ray",
}  # fmt: skip
#: Imported with an answer for their absence, and no dependency of ours: newer Pythons have them, or the user does.
OPTIONAL = {"compression", "setuptools"}


def imported() -> Iterator[tuple[str, str]]:
    """The top-level name of every import in `doctor/`, also of `import_module("…")`, with its place."""
    for path in sorted((ROOT / "doctor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [item.name for item in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and node.args and _called(node) in ("import_module", "__import__"):
                first = node.args[0]
                names = [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
            for name in names:
                yield name.partition(".")[0], f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def declared(*extras: str) -> set[str]:
    texts = [*PROJECT["dependencies"], *(text for name in extras for text in PROJECT["optional-dependencies"][name])]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def foreign() -> dict[str, str]:
    """Distribution -> a place that imports it, for all that is neither Python's nor ours."""
    ours = {"doctor", "__future__", "tomllib", *sys.stdlib_module_names, *OPTIONAL}
    return {NAMES.get(name, name).replace("_", "-"): place for name, place in imported() if name not in ours}


def test_every_import_is_declared() -> None:
    missing = {name: place for name, place in foreign().items() if name not in declared("mcp", "ray")}
    assert missing == {}


def test_every_dependency_is_imported() -> None:
    assert declared() - set(foreign()) - {"tomli"} == set()  # tomli is `tomllib` since Python 3.11


def test_the_names_are_those_of_the_distributions() -> None:
    known = importlib.metadata.packages_distributions()
    for module, distribution in NAMES.items():
        for name in known.get(module, [distribution]):
            assert canonicalize_name(name) == distribution


@pytest.mark.parametrize("text", PROJECT["dependencies"])
def test_a_dependency_has_a_floor_and_no_ceiling(text: str) -> None:
    """A ceiling keeps users from releases that work; CI runs the command line with the oldest typer and the newest."""
    specifier = str(Requirement(text).specifier)
    assert re.fullmatch(r">=[\w.]+", specifier), text


def test_setuptools_reads_the_project_without_a_complaint() -> None:
    """A form that a later setuptools refuses is a warning first."""
    program = (
        "import warnings; from setuptools import Distribution; from setuptools.config import pyprojecttoml; "
        "from setuptools.warnings import SetuptoolsDeprecationWarning as old; "
        "warnings.simplefilter('error', old); found = Distribution(); "
        "pyprojecttoml.apply_configuration(found, 'pyproject.toml'); print(found.metadata.license_expression)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "Apache-2.0\n", done.stderr
