"""Python's warning settings are meant for the job: they change neither the answer nor the exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEALTHY = ROOT / "examples" / "output" / "healthy.yaml"


@pytest.fixture
def noisy_libraries(tmp_path):
    """A `typer` that warns when it is imported, as click does with some releases of typer."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "typer.py").write_text(
        "import sys, warnings\n"
        "warnings.warn('to be removed', DeprecationWarning, stacklevel=2)\n"
        f"sys.path.remove({str(folder)!r})\n"
        "del sys.modules['typer']\n"
        "import typer\n"
    )
    return folder


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["check", "--no-run", "--facts", HEALTHY], 0),
        (["check", "--no-run", "--facts", "nosuch.yaml"], 2),
        (["check", "--no-such-option"], 2),
        (["run", "--", "false"], 1),
    ],
    ids=lambda value: " ".join(map(str, value))[:24] if isinstance(value, list) else None,
)
def test_warnings_as_errors_change_nothing(noisy_libraries, tmp_path, arguments, code):
    path = os.pathsep.join((str(noisy_libraries), str(ROOT)))
    start = "from doctor.cli.entry import main; main()"
    answers = []
    for setting in ("", "error"):
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": setting}
        done = subprocess.run(
            [sys.executable, "-c", start, *map(str, arguments)],
            capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path,
        )  # fmt: skip
        answers.append((done.returncode, done.stdout, done.stderr))
    assert answers[0] == answers[1]
    assert answers[1][0] == code and "Traceback" not in answers[1][2]
