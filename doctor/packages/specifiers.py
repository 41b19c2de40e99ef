"""Names of distributions, and version ranges: read by `packaging` without its slow parser of requirements."""

from __future__ import annotations

import functools
import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import parse_version
from doctor.util.patterns import pattern

#: `packaging` reads recursively, and Python refuses numbers of more than 4,300 digits: such a text is no requirement.
_LONGEST, _DEEPEST = 16_384, 64
_LONG_NUMBER = pattern(r"[0-9]{128}")


def is_excessive(text: str) -> bool:
    """Return whether a text is too long or too deep for a requirement or a range."""
    return len(text) > _LONGEST or text.count("(") > _DEEPEST or _LONG_NUMBER.search(text) is not None


@functools.lru_cache(maxsize=65536)
def normalized(name: str) -> str:
    """Return a distribution name in its PEP 503 form."""
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.lru_cache(maxsize=65536)
def specifier(text: str) -> SpecifierSet:
    """Parse a version range; InvalidSpecifier where it is none."""
    if is_excessive(text):
        raise InvalidSpecifier("too long")
    return SpecifierSet(text)


@functools.lru_cache(maxsize=262144)
def admits(range_text: str, version: str) -> bool:
    """Return whether the version is in the range; pre-releases count."""
    return not range_text or specifier(range_text).contains(parse_version(version), prereleases=True)


def named_release(wanted: str) -> str | None:
    """Return the lowest release that a range names and admits: a lower bound, else an upper one."""
    bounds = [(operator, bound) for operator, bound in split_clauses(wanted) if operator in (">=", "~=", "<=", "==")]
    bounds.sort(key=lambda item: item[0] == "<=")
    texts = (bound.removesuffix(".*") for _, bound in bounds if not bound.startswith("="))
    return next((text for text in texts if admits(wanted, text)), None)
