"""What a short command imports and leaves for its exit: the time of a check is mostly that of its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCIDENT = ROOT / "examples" / "incidents" / "b"
HEALTHY = ROOT / "examples" / "output" / "healthy.yaml"
#: Whatever typer imports is not ours; it reads one option and one word.
TYPER_ALONE = """
import sys, typer
app = typer.Typer(add_completion=False)
@app.command()
def main(word: str, option: list[str] = typer.Option([])) -> None: ...
try:
    app(["a", "--option", "b"], standalone_mode=False)
except SystemExit:
    pass
"""
OURS = """
import sys
from doctor.cli.entry import main
sys.argv[0] = "attn-doctor"
try:
    main()
except SystemExit:
    pass
"""
SHOWN = "\nprint('\\n' + ' '.join(sorted(sys.modules)), file=sys.stderr)"
#: Packages and modules of the standard library that cost more than they give a command of one answer.
HEAVY = frozenset(
    ("rich", "jinja2", "markupsafe", "tomlkit", "re2", "zstandard", "pynvml", "pygments", "mcp", "pydantic", "click",
     "asyncio", "concurrent", "ctypes", "email", "html", "http", "importlib.metadata", "multiprocessing", "socket",
     "sqlite3", "ssl", "tarfile", "unittest", "urllib.request", "uuid", "xml", "zipfile")
)  # fmt: skip
#: Parts of ours that only other questions need.
OTHER = (
    "doctor.apply", "doctor.diagnosis.logs", "doctor.diagnosis.fleet", "doctor.drift", "doctor.rulebook.authoring",
    "doctor.rulebook.fields", "doctor.rulebook.schema", "doctor.sources.binaries", "doctor.sources.manifests",
    "doctor.sources.printed", "doctor.sources.probes", "doctor.stress", "doctor.report.html", "doctor.report.sarif",
    "doctor.report.markdown", "doctor.report.json",
)  # fmt: skip
SOLVER = ("doctor.solver", "doctor.packages.index", "packaging.markers")


@cache
def modules_of(code: str, *arguments: str) -> frozenset[str]:
    """Return the names of all modules that a program has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", code + SHOWN, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return frozenset(done.stderr.splitlines()[-1].split())


def imported(*arguments: str) -> frozenset[str]:
    """Return the modules that a command of ours imports beyond those of typer."""
    return modules_of(OURS, *arguments) - modules_of(TYPER_ALONE)


def within(modules: frozenset[str], packages: frozenset[str] | tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if any(name == item or name.startswith(f"{item}.") for item in packages))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The facts of a sound environment as `snapshot` writes them: JSON, with the job."""
    file = tmp_path_factory.mktemp("facts") / "snapshot.json"
    subprocess.run(
        [sys.executable, "-m", "doctor", "snapshot", "--facts", str(HEALTHY), "--output", str(file)],
        capture_output=True, timeout=120, check=True, cwd=ROOT,
    )  # fmt: skip
    assert json.loads(file.read_text())["facts"]
    return str(file)


def test_a_check_without_findings_imports_neither_solver_nor_yaml(healthy: str) -> None:
    found = imported("check", "--no-run", "--facts", healthy)
    assert "doctor.diagnosis.single" in found
    assert within(found, HEAVY) == []
    assert within(found, (*OTHER, *SOLVER, "yaml")) == []


def test_a_check_with_a_fix_imports_nothing_heavy() -> None:
    facts, workload = str(INCIDENT / "facts.yaml"), str(INCIDENT / "workload.yaml")
    found = imported("check", "--no-run", "--facts", facts, "--workload", workload)
    assert "doctor.solver.solve" in found
    assert within(found, HEAVY) == []
    assert within(found, OTHER) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--no-run", "--facts", str(HEALTHY), "--color", "never", "--fail-on", "note", "--timeout", "5"),
        ("backends", "--facts", str(HEALTHY)), ("rules", "list", "cudnn"), ("keys", "gpu"), ("--version",),
    ],
)  # fmt: skip
def test_options_are_converted_without_pydantic(arguments: tuple[str, ...]) -> None:
    # Releases of typer that convert by pydantic would import it for every option, given or not.
    assert within(modules_of(OURS, *arguments), ("pydantic", "pydantic_core")) == []


def test_the_version_imports_no_part_of_a_check() -> None:
    found = imported("--version")
    assert within(found, HEAVY) == []
    assert within(found, (*OTHER, *SOLVER, "doctor.diagnosis", "doctor.sources", "doctor.rulebook")) == []


def test_an_explanation_from_the_cache_imports_no_definition_of_the_format(tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    for log in (first, second):
        log.write_text("ImportError: undefined symbol: _ZN3c105ErrorC2E\n")
    imported("explain", str(first))  # fills the cache
    assert within(imported("explain", str(second)), ("doctor.rulebook.fields", "doctor.rulebook.schema")) == []


def test_the_exit_searches_nothing_for_garbage() -> None:
    code = """
import atexit, gc, sys
atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count(), file=sys.stderr))
"""
    done = subprocess.run(
        [sys.executable, "-c", code + OURS.replace("except SystemExit:\n    pass", "finally: pass"),
         "check", "--no-run", "--facts", str(HEALTHY)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    left, frozen = map(int, done.stderr.splitlines()[-1].split())
    assert done.returncode == 0, done.stderr
    assert left < 1000 < frozen
