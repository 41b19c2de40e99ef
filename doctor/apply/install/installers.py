"""uv and pip: find one, and build the same command for each."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from doctor.runner.command import run_child

UV, PIP = "uv", "pip"
_ASK = 60.0  # seconds for `--version`


@dataclass(frozen=True)
class Installer:
    """A program that resolves and installs; `program` is what its commands begin with."""

    kind: str
    program: tuple[str, ...]
    version: tuple[int, ...] = ()
    runs_on: str = ""  # pip: its Python, as 3.11

    @property
    def title(self) -> str:
        """`uv 0.5.1`"""
        return f"{self.kind} {'.'.join(map(str, self.version))}".strip()

    def install(self, python: str, arguments: Sequence[str]) -> list[str]:
        """Install into the environment of this interpreter."""
        if self.kind == UV:
            return [*self.program, "pip", "install", "--python", python, *arguments]
        return [*self._pip(python), "install", *arguments]

    def uninstall(self, python: str, packages: Sequence[str]) -> list[str]:
        """Remove packages, those they need not included."""
        if self.kind == UV:
            return [*self.program, "pip", "uninstall", "--python", python, *packages]
        return [*self._pip(python), "uninstall", "--yes", *packages]

    def consistent(self, python: str) -> list[str]:
        """Check whether every requirement of what is installed is met."""
        if self.kind == UV:
            return [*self.program, "pip", "check", "--python", python]
        return [*self._pip(python), "check"]

    @property
    def reinstall_option(self) -> str:
        """Return the option that reinstalls a package at the version it has."""
        return "--reinstall" if self.kind == UV else "--force-reinstall"

    def _pip(self, python: str) -> list[str]:
        return list(self.program) if self.program[0] == python else [*self.program, "--python", python]


def find_installer(python: str | None, only: str | None = None) -> tuple[Installer | None, str]:
    """(the installer to use, why there is none): uv before pip, the target's pip before our own."""
    tried: list[str] = []
    for kind, program in _candidates(python, only):
        ran = run_child([*program, "--version"], timeout=_ASK)
        version = re.search(r"\b(\d+(?:\.\d+)+)", ran.out)
        if ran.good and version:
            runs_on = re.search(r"\(python (\d+\.\d+)\)", ran.out)
            parts = tuple(map(int, version[1].split(".")))
            if kind == PIP and program[0] != python and python is not None and parts < (22, 3):
                tried.append(f"pip {version[1]} of attn-doctor cannot install into another interpreter")
                continue
            return Installer(kind, program, parts, runs_on[1] if runs_on else ""), ""
        if kind == UV or "No module named" not in ran.said:
            tried.append(f"`{' '.join(program)}` {ran.end}")
    why = f"{only} is not available" if only else "neither uv nor pip is available"
    return None, "; ".join([why, *tried])


def _candidates(python: str | None, only: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    if only in (None, UV):
        here = [Path(place).parent / "uv" for place in (sys.executable, python) if place]
        on_path = shutil.which("uv")
        found = [on_path] if on_path else []
        found += [str(path) for path in here if path.is_file()]
        for path in dict.fromkeys(found):
            yield UV, (path,)
    if only in (None, PIP):
        for place in dict.fromkeys(filter(None, (python, sys.executable))):
            yield PIP, (place, "-m", "pip")
