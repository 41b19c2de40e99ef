"""Since which release a name, parameter or return length of a callee differs, from data that ships with the doctor."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from doctor.util.resources import rules_dir

from .findings import Finding, History, Kind

FILE = "api_history.json.gz"


@dataclass(frozen=True)
class Shape:
    """What one release says of one symbol; `required` and `accepted` are None for a name that is no function."""

    required: tuple[str, ...] | None
    accepted: tuple[str, ...] | None
    open: bool
    lengths: tuple[int, ...]


class ApiHistory:
    """The interfaces of some callees over their releases.

    The data: `{callee: {"releases": [...], "symbols": {symbol: [[first release, shape | null], ...]}}}`; null means
    that the release has no such name. A shape is `[required, accepted, open, lengths]`.
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
        """Return the finding with the releases between which its callee changed."""
        known = self.data.get(finding.callee.name)
        timeline = known["symbols"].get(finding.symbol) if known is not None else None
        if known is None or timeline is None or finding.kind is Kind.VERSION_REFUSED:
            return finding
        releases: list[str] = known["releases"]
        installed = _position(releases, finding.callee.version)
        if installed is None:
            return finding
        works = [self._fits(finding, _at(timeline, releases, index)) for index in range(len(releases))]
        if works[installed] is not False:
            return finding  # the data and the analysis disagree: say nothing
        first = installed
        while first > 0 and works[first - 1] is False:
            first -= 1
        after = next((index for index in range(installed + 1, len(releases)) if works[index] is True), None)
        before = releases[first - 1] if first > 0 and works[first - 1] is True else ""
        since = releases[first] if first > 0 else ""
        return replace(finding, history=History(since, before, releases[after] if after is not None else ""))

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
