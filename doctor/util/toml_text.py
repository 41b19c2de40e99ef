"""Parse TOML; name file and line of an error."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from doctor.errors import DoctorError


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The document; DoctorError with the file's name and the line of what is wrong."""
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
