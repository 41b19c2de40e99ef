"""The CUDA that the installed xFormers was compiled for, from the note its build leaves beside the library."""

from __future__ import annotations

import json
from collections.abc import Iterator

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact

from .distributions import installed_version
from .target import Target, Watch

PROMISES = ("xformers.cuda",)

_NOTE = "xformers/cpp_lib.json"
_MAX_NOTE = 1 << 16


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """xformers.cuda, where xFormers is installed: its version says nothing, wheels of one release differ."""
    if installed_version(target, "xformers") is None:
        return
    for directory in target.site_dirs:
        path = directory / _NOTE
        if path.is_file():
            with path.open("rb") as stream:
                yield _told(stream.read(_MAX_NOTE), str(path))
            return
    where = ", ".join(map(str, target.site_dirs))
    yield Fact("xformers.cuda", None, where, problem=f"no `{_NOTE}`: a build without C++ and CUDA parts")


def _told(note: bytes, source: str) -> Fact:
    try:
        number = json.loads(note)["version"]["cuda"]
    except (ValueError, KeyError, TypeError):
        return Fact("xformers.cuda", None, source, problem=f"`{source}` does not say")
    if number is None:
        return Fact("xformers.cuda", ABSENT, source)
    if not isinstance(number, int):
        return Fact("xformers.cuda", None, source, str(number), f"`{source}` does not say")
    return fact("xformers.cuda", f"{number // 100}.{number % 100}", source)
