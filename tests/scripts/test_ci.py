"""What CI runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from doctor.util.toml_text import parse_toml

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_test_command_of_the_readme_word_for_word() -> None:
    """A failure anywhere in the line ends the run, which `set -e` alone does not do for an && list."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    command = next(line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.endswith("-m pytest"))
    assert f"\n(\n{command}\n)\n" in script
    assert "set -euo pipefail" in script
    failing = "set -euo pipefail\n(\ntrue && false && true\n)\ntrue\n"
    assert subprocess.run(["bash", "-c", failing], check=False).returncode == 1


def test_ci_runs_the_command_line_with_the_oldest_releases_that_are_allowed() -> None:
    """The floors of pyproject.toml are those that CI installs; the newest releases are what pip takes by default."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (line,) = re.findall(r"(?m)^oldest=\((.*)\)$", script)
    project = parse_toml((ROOT / "pyproject.toml").read_text("utf-8"), "pyproject.toml")
    floors = dict(re.findall(r"([\w-]+)==([\d.]+)", line))
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        wanted = Requirement(text)
        if wanted.name in ("typer", "setuptools"):
            (floor,) = [item.version for item in wanted.specifier if item.operator == ">="]
            assert Version(floors[wanted.name]) == Version(floor), text
    assert "tests/cli" in script and "${oldest[@]}" in script
