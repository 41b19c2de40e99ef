"""TOML: by the standard library, or by its forerunner on Python 3.10; one sentence for what neither reads."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from .errors import DoctorError


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The document; DoctorError with the file's name and the line of what is wrong."""
    try:
        tomllib = import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        try:
            tomllib = import_module("tomli")
        except ModuleNotFoundError:
            raise DoctorError(
                f"{name}: Python 3.10 cannot read TOML by itself",
                "install `attn-doctor[declared]`, or run it with Python 3.11 or newer",
            ) from None
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        place = re.search(r"\(at (?:line (\d+)|end of document)", str(problem))
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        raise DoctorError(f"{name}:{line}: not TOML: {re.sub(r' *[(]at .*', '', str(problem)).lower()}") from None
    except RecursionError:
        raise DoctorError(f"{name}: nested too deeply") from None
    except ValueError:  # more digits than Python makes a number of
        raise DoctorError(f"{name}: a number in it is too long") from None
    return content
