"""Names of distributions on conda-forge."""

from __future__ import annotations

import functools
import json

from doctor.util.resources import rules_dir


@functools.cache
def conda_names() -> dict[str, str]:
    """Return the conda-forge name of each distribution that conda-forge has."""
    names: dict[str, str] = json.loads((rules_dir() / "index" / "conda_forge.json").read_text("utf-8"))["names"]
    return names
