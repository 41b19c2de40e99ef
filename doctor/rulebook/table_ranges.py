"""Releases in the rows of tables: which were read, the range that follows, and samples on both sides of a bound."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_SPAN = re.compile(
    r"(?:(?P<first>\d\S*))?(?: ?(?:up )?to (?P<last>\S+))?(?: before (?P<next>\S+))?(?P<open> on)?(?P<alone> alone)?"
    r"(?: after (?P<before>\S+))?"
)


class Span(NamedTuple):
    """Releases in a row that say the same.

    `2.1 to 2.4 before 3.0`: 2.1 and 2.4 were read, 3.0 says something else. Without `before` the next patch release
    ends the range. `2.1 to 2.4 on`: releases to come count, too. `up to 2.4 before 3.0`: all earlier ones. `after 2.0`:
    the release before the first. `2.1 alone`: this version only.
    """

    first: str | None
    last: str
    next: str | None
    open: bool
    alone: bool
    before: str | None

    @classmethod
    def of(cls, text: str) -> Span:
        """Read the text of a row; ValueError for anything else."""
        found = _SPAN.fullmatch(text)
        last = found and (found["last"] or found["first"])
        if not found or not last:
            raise ValueError(f"`{text}` needs the form `2.1 to 2.4 before 3.0`")
        return cls(found["first"], last, found["next"], bool(found["open"]), bool(found["alone"]), found["before"])

    @property
    def range(self) -> str:
        """The releases as a range."""
        if self.alone:
            return f"=={self.first}"
        parts = [f">={self.first}"] if self.first else []
        if not self.open:
            parts.append(f"<{self.next or following(Version(self.last))}")
        return ",".join(parts)

    @property
    def words(self) -> str:
        """The releases that were read, for a sentence."""
        return f"{self.first} to {self.last}"

    @property
    def lacking(self) -> str:
        """The releases that lack something, for a sentence."""
        if self.first is None:
            return f"before {self.next}"
        return f"from {self.first} on" if self.open else f"{self.first} to {self.last}"

    @property
    def example(self) -> str:
        """One of the releases: the one next to another that is not in the range."""
        return self.first or self.last

    @property
    def adjacent(self) -> str | None:
        """A release next to the range, where one was read."""
        return self.before or self.next


def within(inner: Span, outer: Span) -> bool:
    """Whether the releases of one range are in another."""
    starts = Version(outer.first or "0") <= Version(inner.first or "0")
    return starts and Version(inner.last) <= Version(outer.last)


def following(version: Version) -> str:
    """Return the next patch release; post-releases of this one are before it."""
    release = (*version.release, 0, 0)[: max(3, len(version.release))]
    return ".".join(map(str, (*release[:-1], release[-1] + 1)))


def plain(spec: SpecifierSet) -> str:
    """Return the range as text; `<=4.57.2` as `<4.57.3`, which admits its post-releases too, `>4.0` as `>=4.0.1`."""
    bounds_after = {"<=": "<", ">": ">="}
    parts = {
        f"{bounds_after[one.operator]}{following(Version(one.version))}" if one.operator in bounds_after else str(one)
        for one in spec
    }
    return ",".join(sorted(parts, key=lambda text: (not text.startswith(">"), text)))


def sample(spec: str) -> tuple[str, str]:
    """Return a release that a range excludes and one that it admits; the bounds themselves serve."""
    wanted = SpecifierSet(spec)
    texts = [one.version.replace(".*", "") for one in sorted(wanted, key=str)]
    near = [
        text for one in texts for text in (one, f"{Version(one).base_version}.1", following(Version(one)), _before(one))
    ]
    bad = next(text for text in ["9999", *near, "0.0.1"] if not wanted.contains(text, prereleases=True))
    good = next(text for text in near if wanted.contains(text))
    return bad, good


def _before(text: str) -> str:
    release = list(Version(text).release)
    for at in range(len(release) - 1, -1, -1):
        if release[at]:
            release[at] -= 1
            return ".".join(map(str, release[: at + 1] + [99] * (len(release) - at - 1)))
    return "0"


def capped(spec: str) -> bool:
    """Say whether a range excludes releases that are newer than some it admits, or single ones."""
    return bool(re.search(r"<|==|!=|~=", spec))


def without_previews(spec: str) -> str:
    """Return a range that ends before the pre-releases of its upper bounds."""
    return re.sub(r"<(\d[\d.]*)(?=,|$)", r"<\1.dev0", spec)


def outside(key: str, bound: str) -> dict[str, Any]:
    """Return the condition that a release is outside a range; one that is not installed is not."""
    if re.fullmatch(r">=[\d.]+", bound):
        return {key: f"<{bound.removeprefix('>=')}"}
    return {key: ">=0", "not": {key: without_previews(bound)}}
