"""What reports call libraries and their packages, as library files say; declared when rules are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Library -> what reports call it, where that is not its name.
TITLES: dict[str, str] = {}
#: Package -> (its place, what people call it), for those whose versions a report shows in its line of packages.
SHOWN: dict[str, tuple[int, str]] = {}
#: What reports and repositories call a package, in lower case -> the package.
OTHER_NAMES: dict[str, str] = {}


def declare_titles(name: str, body: Mapping[str, Any]) -> None:
    """Add what one library file says."""
    if "report_title" in body:
        TITLES[name] = body["report_title"]
    for package, row in (body.get("packages") or {}).items():
        if "shown_as" in row:
            SHOWN[package] = (int(row.get("shown_rank", 0)), row["shown_as"])
        OTHER_NAMES.update(dict.fromkeys(row.get("also_called") or (), package))
