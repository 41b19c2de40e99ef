"""Write the result of an analysis as JSON data, and read it back."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .findings import (
    CallerResult,
    Certainty,
    Finding,
    History,
    Kind,
    Location,
    Notice,
    Pair,
    PairVerdict,
    Reach,
    Release,
    Severity,
)


def as_data(value: Any) -> Any:
    """Return JSON data of nested named tuples, enums and tuples."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        parts = [as_data(item) for item in value]
        return parts if fields is None else dict(zip(fields, parts, strict=True))
    return value


def _location(data: Any) -> Location | None:
    return None if data is None else Location(data["path"], data["line"])


def finding_from(data: dict[str, Any]) -> Finding:
    """Return the finding that `as_data` wrote."""
    site = _location(data["site"])
    assert site is not None
    return Finding(
        Kind[data["kind"]], Severity[data["severity"]], Certainty[data["certainty"]], Reach[data["reach"]],
        Release(**data["caller"]), Release(**data["callee"]), data["symbol"], data["name"], site, data["scope"],
        _location(data["definition"]), data["signature"], data["message"], tuple(data["conditions"]), data["unknown"],
        History(**data["history"]),
    )  # fmt: skip


def result_from(data: dict[str, Any]) -> CallerResult:
    """Return the result that `as_data` wrote."""
    pairs = [
        Pair(Release(**item["caller"]), Release(**item["callee"]), PairVerdict[item["verdict"]], item["uses"],
             item["unknown_uses"])
        for item in data["pairs"]
    ]  # fmt: skip
    notices = tuple(Notice(item["subject"], item["reason"]) for item in data["notices"])
    return CallerResult(
        tuple(map(finding_from, data["findings"])), tuple(pairs), notices, tuple(data["files"]),
        reaches=tuple(data["reaches"]),
    )  # fmt: skip
