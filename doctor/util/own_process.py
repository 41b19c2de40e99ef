"""Start this program again. `python -m` would import from the current folder, which may hold code of anyone."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])  # where `doctor` is; last, so that it hides nothing
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), {root!r}]; from runpy import run_module; "
    "run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def own_command(*arguments: str, module: str = "doctor") -> list[str]:
    """Return the command that runs a module of this program; nothing is imported from the current folder."""
    return [sys.executable, "-c", _START.format(root=_ROOT, module=module), *arguments]
