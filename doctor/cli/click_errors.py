"""The errors of click that typer raises: those of the package `click` before typer 0.26, of typer's own copy since.

Both have the same names in the module of `typer.BadParameter`. Nothing here imports the package `click`: with a newer
typer its classes would catch nothing, and it need not be installed.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

_ERRORS: Any = sys.modules[typer.BadParameter.__module__]

UsageError: Any = _ERRORS.UsageError
NoSuchOption: Any = _ERRORS.NoSuchOption
MissingParameter: Any = _ERRORS.MissingParameter
