"""Version ranges by PEP 440, with the answer unknown for pre-releases of a bound."""

from __future__ import annotations

import re
from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .vocabulary import parse_version

OPERATORS = (">=", "<=", "==", "!=", "~=", ">", "<")


@lru_cache(maxsize=65536)
def clause_holds(operator: str, bound_text: str, found_text: str) -> bool | None:
    """Return whether a version satisfies one clause; None for a pre-release of the bound itself.

    NVIDIA's containers have builds such as 2.6.0a0+ecf3bae, cut at some point before 2.6.0: the number does not show
    whether a change of 2.6.0 is in it.
    """
    found, bound = parse_version(found_text), parse_version(bound_text.removesuffix(".*"))
    if found.is_prerelease and not bound.is_prerelease and _release(found, bound) == _release(bound, found):
        return None
    if bound.is_prerelease and operator in ("<", ">", "~="):  # rare, and releases of `packaging` differ on its corners
        return SpecifierSet(operator + bound_text).contains(found, prereleases=True)
    return pep440_holds(operator, found, bound, bound_text.endswith(".*"))


def pep440_holds(operator: str, found: Version, bound: Version, prefix: bool = False) -> bool:
    """Return what `packaging.specifiers` does, for a bound that is not a pre-release, several times faster."""
    if operator == "!=":
        return not pep440_holds("==", found, bound, prefix)
    if operator == "==" and not prefix:
        return (found if bound.local else _public(found)) == bound
    if operator in ("==", "~="):
        width = len(bound.release) - (operator == "~=")
        wanted = (bound.epoch, bound.release[:width])
        return (found.epoch, _release(found, bound)[:width]) == wanted and (prefix or _public(found) >= bound)
    if operator in (">=", "<="):
        return _public(found) >= bound if operator == ">=" else _public(found) <= bound
    same = found.epoch == bound.epoch and _release(found, bound) == _release(bound, found)
    if operator == ">":  # not for a post-release or another build of the bound itself
        return _public(found) > bound and not (same and found.is_postrelease and not bound.is_postrelease)
    return found < bound and not (same and found.is_prerelease)


def _public(version: Version) -> Version:
    return version if version.local is None else parse_version(version.public)


def _release(version: Version, other: Version) -> tuple[int, ...]:
    """Return the release numbers, padded with zeros to the length of the other's."""
    return version.release + (0,) * (len(other.release) - len(version.release))


def split_clauses(text: str) -> list[tuple[str, str]]:
    """Return `">=2.1,<2.9"` as [(">=", "2.1"), ("<", "2.9")]; empty where the text is not a range."""
    if not text.lstrip().startswith(OPERATORS):  # most conditions name a value
        return []
    clauses = []
    for part in text.split(","):
        part = part.strip()
        operator = next((op for op in OPERATORS if part.startswith(op)), None)
        if operator is None:
            return []
        clauses.append((operator, part[len(operator) :].strip()))
    return clauses


def range_holds(clauses: tuple[tuple[str, str], ...], found: str) -> bool | None:
    """Return whether a version satisfies all clauses of a range; None where that is unknown."""
    verdict: bool | None = True
    for operator, bound in clauses:
        holds = clause_holds(operator, bound, found)
        if holds is False:
            return False
        if holds is None:
            verdict = None
    return verdict


def cuda_of_label(label: str) -> str | None:
    """Return the CUDA release that a local label names: cu129 is 12.9; None for any other label."""
    match = re.fullmatch(r"cu(\d\d)(\d)", label)
    return f"{match[1]}.{match[2]}" if match else None
