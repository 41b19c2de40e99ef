"""The architecture that import-linter cannot hold: who prints, what kernels import, how wide the top is, late imports.

The layers themselves are contracts in `.importlinter`; `lint-imports` checks them, here and in CI.
"""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCTOR = ROOT / "doctor"
MODULES = sorted(DOCTOR.rglob("*.py"))
KERNELS = sorted((ROOT / "kernels").rglob("*.py"))
OURS = {"doctor", "yaml", "packaging", "rich", "typer", "tomlkit", "jinja2"}
EXAMINED = {
    "torch", "torchvision", "transformers", "transformer_engine", "transformer_engine_torch", "flash_attn", "xformers",
    "megatron", "xtuner", "vllm", "sglang", "triton", "numpy", "cudnn", "deepspeed", "lmdeploy",
}  # fmt: skip
MOST_PACKAGES, MOST_MODULES = 13, 6

#: Exceptions in `.importlinter`. This number may only shrink.
MOST_EXCEPTIONS = 1
#: Late imports that are allowed: packages that only some commands need (docs/adr/0016-layout-and-layers.md).
DOORS = {
    "command": ("doctor.cli",),
    "renderer": ("doctor.report",),
    "solver": ("doctor.solver",),
    "manifest reader": (
        "doctor.sources.manifests",
        "doctor.sources.workload",
        "doctor.sources.programs",
        "doctor.sources.printed",
    ),
    "runner": ("doctor.runner", "doctor.diagnosis"),
    "rulebook": ("doctor.rulebook",),
    "installer": ("doctor.apply",),
    "binaries": ("doctor.sources.binaries",),
    "probes": ("doctor.sources.probes", "doctor.diagnosis"),
    "analyzer": ("doctor.drift",),
    "requirements": ("doctor.packages.requirements",),
}
#: Libraries outside the package: optional, of one platform only, or slow to import.
OPTIONAL = {"tomlkit", "jinja2", "rich", "pynvml", "fcntl", "re", "sre_parse", "importlib", "tomllib", "tomli", "yaml"}
#: Imports inside functions. This number may only shrink.
MOST_LATE = 42


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def package_of(path: Path) -> list[str]:
    """The package that relative imports of a module start from."""
    return list(path.relative_to(ROOT).with_suffix("").parts[:-1])


def imported(node: ast.AST, package: list[str]) -> list[str]:
    """The absolute names of the modules that one statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if not node.level:
        return [str(node.module)]
    base = package[: len(package) - node.level + 1]
    if node.module:
        return [".".join([*base, node.module])]
    return [".".join([*base, alias.name]) for alias in node.names]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import of a file."""
    for node in ast.walk(parsed(path)):
        for name in imported(node, package_of(path)):
            yield name, node.lineno  # type: ignore[attr-defined]


def late_imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[str, int]]:
    """(module, line) of every import inside a function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = {
        (name, node.lineno) for function in functions for node in ast.walk(function) for name in imported(node, package)
    }
    yield from sorted(found)


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_the_contracts_of_import_linter_hold():
    pytest.importorskip("importlinter", reason="import-linter is in the extra `dev`; CI runs `lint-imports`")
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_the_contracts_have_few_exceptions():
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    ignored = [line for name in config.sections() for line in config[name].get("ignore_imports", "").split("\n")]
    assert len([line for line in ignored if line.strip()]) <= MOST_EXCEPTIONS


def test_the_top_of_the_package_is_narrow():
    packages = [path.parent.name for path in DOCTOR.glob("*/__init__.py")]
    modules = [path.name for path in DOCTOR.glob("*.py")]
    assert len(packages) <= MOST_PACKAGES, packages
    assert len(modules) <= MOST_MODULES, modules


def test_only_cli_prints():
    wrong = []
    for path in MODULES:
        inside = path.relative_to(DOCTOR)
        if inside.parts[0] == "cli" or (inside.parts[:2] == ("sources", "probes") and path.name.startswith("_")):
            continue  # a probe's program runs in the target's interpreter: what it prints is its answer
        for node in ast.walk(parsed(path)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"):
                wrong.append(f"doctor/{inside}:{node.lineno} calls {called}")
    assert not wrong, "\n".join(wrong)


def test_kernels_import_nothing_of_ours():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in KERNELS
        for name, line in imports(path)
        if name.split(".")[0] in OURS
    ]
    assert KERNELS and not wrong, "\n".join(wrong)


def test_nothing_imports_an_examined_library():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        for name, line in imports(path)
        if name.split(".")[0] in EXAMINED
    ]
    assert not wrong, "\n".join(wrong)


def test_late_imports_go_through_the_doors():
    doors = tuple(package for packages in DOORS.values() for package in packages)
    late = [(path, *found) for path in MODULES for found in late_imports(parsed(path), package_of(path))]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name} inside a function"
        for path, name, line in late
        if not (is_in(name, doors) or name.split(".")[0] in OPTIONAL)
    ]
    assert not wrong, "\n".join(wrong)
    by_file = Counter(str(path.relative_to(ROOT)) for path, *_ in late)
    assert len(late) <= MOST_LATE, f"{len(late)} late imports: {by_file.most_common()}"


def test_the_walk_sees_imports():
    """The tests above could not fail if the walk saw nothing."""
    tree = ast.parse("import torch.nn\ndef f():\n    from yaml import x\n    from . import y\nif 1:\n    import rich\n")
    assert list(late_imports(tree, ["doctor", "cli"])) == [("doctor.cli.y", 4), ("yaml", 3)]
    assert {name for node in ast.walk(tree) for name in imported(node, ["doctor"])} >= {"torch.nn", "rich", "yaml"}
    names = {name for name, _ in imports(DOCTOR / "diagnosis" / "pipeline.py")}
    assert any(name.startswith("doctor.") for name in names)
    assert not is_in("doctor.clients", ("doctor.cli",)) and is_in("doctor.cli.fix", ("doctor.cli",))
