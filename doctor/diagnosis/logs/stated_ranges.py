"""The releases that a message itself requires: `0.16.0 <= version < 0.17.0`, `peft>=0.17,<0.18`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from doctor.model import Remedy

_RELEASE = r"\d[\w.]{0,20}"
_BETWEEN = re.compile(rf"(?P<low>{_RELEASE})\s?<=?\s?version\s?(?P<edge><=?)\s?(?P<high>{_RELEASE})")
_NAMED = re.compile(
    rf"(?<![\w.-])(?P<name>[A-Za-z][\w-]{{1,40}})[`'\"]?\s?(?P<bounds>(?:>=|==|<=|~=|!=|>|<)\s?{_RELEASE}"
    rf"(?:\s?,\s?(?:>=|<=|!=|>|<|==)\s?{_RELEASE}){{0,3}})"
)
#: Before a range that does not fit.
_REFUSED = re.compile(
    r"(?i)(?:\bnot\b|n't|incompatib\w*|unsupported|conflict\w*|broken|found|have|installed)[^,;.:]{0,40}$"
)


def stated(line: str, packages: Sequence[str]) -> Remedy | None:
    """Return the releases of one of these packages that a line requires; None where it states none."""
    for name, bounds in _ranges(line, [canonicalize_name(name) for name in packages]):
        try:
            SpecifierSet(bounds)
        except InvalidSpecifier:
            continue
        return Remedy(require={name: bounds}, note="the releases that the message requires")
    return None


def _ranges(line: str, packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    found = _BETWEEN.search(line)
    named = [name for name in packages if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line)]
    if found is not None and named:
        yield named[0], f">={found['low']},{found['edge']}{found['high'].rstrip('.')}"
    for match in _NAMED.finditer(line):
        name = canonicalize_name(match["name"])
        if name in packages and not _REFUSED.search(line[: match.start()]):
            yield name, re.sub(r"\s", "", match["bounds"]).rstrip(".")
