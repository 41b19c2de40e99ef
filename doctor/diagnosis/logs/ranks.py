"""Which rank failed first, as torchrun reports it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .scan import Match

ROOT_CAUSE = r"Root Cause \(first observed failure\):"
_REPORT = re.compile(ROOT_CAUSE + r"\s+\[\d+\]:\s+time\s*:\s*(\S+)\s+host\s*:\s*\S+\s+rank\s*:\s*(\d+)")


def root_rank(matches: Iterable[Match]) -> str | None:
    """Return the rank that failed first: of several reports, one for each node, the earliest; None without a report."""
    reports = {found.groups() for match in matches for found in _REPORT.finditer(match.around)}
    return min(reports)[1] if reports else None
