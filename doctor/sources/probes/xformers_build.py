"""The CUDA that the installed xFormers was compiled for, from the file that its build writes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .distributions import installed_version
from .target import Target

PROMISES = ("xformers.cuda",)

_BUILD_INFO = "xformers/cpp_lib.json"
_MAX_BYTES = 1 << 16


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield xformers.cuda where xFormers is installed; wheels of one release differ in it."""
    if installed_version(target, "xformers") is None:
        return
    for directory in target.site_dirs:
        path = directory / _BUILD_INFO
        if path.is_file():
            with open_regular(path) as stream:
                yield _cuda_of(stream.read(_MAX_BYTES), str(path))
            return
    where = ", ".join(map(str, target.site_dirs))
    yield Fact("xformers.cuda", None, where, problem=f"no `{_BUILD_INFO}`: a build without C++ and CUDA code")


def _cuda_of(text: bytes, source: str) -> Fact:
    try:
        number = json.loads(text)["version"]["cuda"]
    except (ValueError, KeyError, TypeError):
        return Fact("xformers.cuda", None, source, problem=f"`{source}` does not give it")
    if number is None:
        return Fact("xformers.cuda", ABSENT, source)
    if not isinstance(number, int):
        return Fact("xformers.cuda", None, source, str(number), f"`{source}` does not give it")
    return fact("xformers.cuda", f"{number // 100}.{number % 100}", source)
