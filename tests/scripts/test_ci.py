"""What CI runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_test_command_of_the_readme_word_for_word() -> None:
    """A failure anywhere in the line ends the run, which `set -e` alone does not do for an && list."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    command = next(line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.endswith("-m pytest"))
    assert f"\n(\n{command}\n)\n" in script
    assert "set -euo pipefail" in script
    failing = "set -euo pipefail\n(\ntrue && false && true\n)\ntrue\n"
    assert subprocess.run(["bash", "-c", failing], check=False).returncode == 1
