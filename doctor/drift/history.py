"""Since which release a name, parameter or return length of a callee differs, from data that ships with the doctor."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from doctor.util.resources import rules_dir

from .findings import Finding, History, Kind

FILE = "api_history.json.gz"


class Shape(NamedTuple):
    """What one release says of one symbol; `required` and `accepted` are None for a name that is no function."""

    required: tuple[str, ...] | None
    accepted: tuple[str, ...] | None
    open: bool
    lengths: tuple[int, ...]


class Ranges(NamedTuple):
    """Releases of a callee in which uses are broken or work, nearest to the installed one first; empty: unknown."""

    broken: tuple[str, ...]
    working: tuple[str, ...]
    fixed_in: str
    """Release of the caller."""


def use_key(finding: Finding) -> str:
    """Return what names the same use in several releases of a caller."""
    return f"{finding.code} {finding.symbol} {finding.name}".strip()


class ApiHistory:
    """The interfaces of some callees over their releases, and which releases of some callers break.

    The data: `{callee: {"releases": [...], "symbols": {symbol: [[first release, shape | null], ...]}}}`; null means
    that the release has no such name. A shape is `[required, accepted, open, lengths]`. Under "callers" is
    `{caller: {callee: {use: [[first broken release, release that fixes it | null], ...]}}}`.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        """Use data of the form above."""
        self.data = data

    @staticmethod
    @cache
    def load() -> ApiHistory:
        """Return the history that ships with the doctor; an empty one where there is none."""
        path = rules_dir() / "index" / FILE
        if not path.is_file():
            return ApiHistory({})
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            return ApiHistory(json.load(stream))

    def explain(self, finding: Finding) -> Finding:
        """Return the finding with the releases between which its callee changed, and the caller's that fixes it."""
        releases, works = self._works(finding)
        fixed = self.fixed_in(finding)
        if not works:
            return finding._replace(history=History(fixed_in=fixed)) if fixed else finding
        installed = _position(releases, finding.callee.version)
        assert installed is not None
        first = installed
        while first > 0 and works[first - 1] is False:
            first -= 1
        after = next((index for index in range(installed + 1, len(releases)) if works[index] is True), None)
        before = releases[first - 1] if first > 0 and works[first - 1] is True else ""
        since = releases[first] if first > 0 else ""
        return finding._replace(history=History(since, before, releases[after] if after is not None else "", fixed))

    def ranges(self, findings: Sequence[Finding]) -> Ranges:
        """Return the releases in which all of these uses of one callee by one caller work.

        Only releases next to the break count, as far as what is used stays as it is: an older release may lack
        something else of the same call.
        """
        fixed = [self.fixed_in(item) for item in findings]
        fixed_in = max(fixed, key=Version) if fixed and all(fixed) else ""
        known = [self._works(item) for item in findings]
        if not known or not all(works for _, works in known):
            return Ranges((), (), fixed_in)
        releases = known[0][0]
        near = [self._next_to_break(item) for item in findings]
        fits = [all(index in each for each in near) for index in range(len(releases))]
        installed = _position(releases, findings[0].callee.version)
        assert installed is not None
        runs: list[tuple[int, bool, str]] = []
        for fit, group in groupby(range(len(releases)), key=fits.__getitem__):
            members = list(group)
            first, after = members[0], members[-1] + 1
            bounds = [f">={releases[first]}"] if first or fit else []
            bounds += [f"<{releases[after]}"] if after < len(releases) else []
            distance = min(abs(index - installed) for index in members)
            runs.append((distance, fit, ",".join(bounds) or "present"))
        runs.sort()
        broken = tuple(text for _, fit, text in runs if not fit)
        return Ranges(broken, tuple(text for _, fit, text in runs if fit), fixed_in)

    def _next_to_break(self, finding: Finding) -> set[int]:
        """Return the indexes of the releases before and after the break in which the use works unchanged."""
        releases, works = self._works(finding)
        timeline = self.data[finding.callee.name]["symbols"][finding.symbol]
        installed = _position(releases, finding.callee.version)
        assert installed is not None
        found: set[int] = set()
        for step in (-1, 1):
            index = installed
            while 0 <= index < len(releases) and works[index] is not True:
                index += step
            shape = _at(timeline, releases, index) if 0 <= index < len(releases) else None
            while 0 <= index < len(releases) and works[index] is True and _at(timeline, releases, index) == shape:
                found.add(index)
                index += step
        return found

    def fixed_in(self, finding: Finding) -> str:
        """Return the first later release of the caller in which the use is not broken; empty where none is known."""
        spans = self.data.get("callers", {}).get(finding.caller.name, {}).get(finding.callee.name, {})
        try:
            installed = Version(finding.caller.version)
            for first, fixed in spans.get(use_key(finding), ()):
                if fixed and Version(first) <= installed < Version(fixed):
                    return str(fixed)
        except InvalidVersion:
            pass
        return ""

    def _works(self, finding: Finding) -> tuple[list[str], list[bool | None]]:
        """Return the callee's releases, and for each whether the use works; nothing where the data do not say."""
        known = self.data.get(finding.callee.name)
        timeline = known["symbols"].get(finding.symbol) if known is not None else None
        if known is None or timeline is None or finding.kind is Kind.VERSION_REFUSED:
            return [], []
        releases: list[str] = known["releases"]
        installed = _position(releases, finding.callee.version)
        if installed is None:
            return [], []
        works = [self._fits(finding, _at(timeline, releases, index)) for index in range(len(releases))]
        return (releases, works) if works[installed] is False else ([], [])  # else the data and the analysis disagree

    @staticmethod
    def _fits(finding: Finding, shape: Shape | None) -> bool | None:
        """Return whether a release has what the finding misses; None when the data do not say."""
        if finding.kind in (Kind.MISSING_NAME, Kind.MISSING_ATTRIBUTE, Kind.MISSING_MODULE):
            return shape is not None
        if shape is None:
            return None
        if finding.kind is Kind.MISSING_ARGUMENT and shape.required is not None:
            return finding.name not in shape.required
        if finding.kind is Kind.UNEXPECTED_KEYWORD and shape.accepted is not None:
            return shape.open or finding.name in shape.accepted
        if finding.kind is Kind.UNPACK_LENGTH and shape.lengths and finding.name.isdigit():
            return int(finding.name) in shape.lengths
        if finding.kind is Kind.INDEX_RANGE and shape.lengths and finding.name.lstrip("-").isdigit():
            return any(-length <= int(finding.name) < length for length in shape.lengths)
        return None


def _at(timeline: list[list[Any]], releases: list[str], index: int) -> Shape | None:
    shape: Shape | None = None
    for first, data in timeline:
        if releases.index(first) > index:
            break
        shape = None
        if data is not None:
            required, accepted, is_open, lengths = data
            shape = Shape(
                tuple(required) if required is not None else None, tuple(accepted) if accepted is not None else None,
                bool(is_open), tuple(lengths),
            )  # fmt: skip
    return shape


def _position(releases: list[str], version: str) -> int | None:
    """Return the index of a release, or of the last one before it."""
    try:
        wanted = Version(version)
        found = [index for index, item in enumerate(releases) if Version(item) <= wanted]
    except InvalidVersion:
        return None
    return found[-1] if found else None
