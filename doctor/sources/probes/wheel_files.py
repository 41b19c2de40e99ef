"""The wheel file that a distribution was installed from, where its direct_url.json names one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from doctor.model import Fact
from doctor.sources.watch import Watch
from doctor.util.reading import open_regular

from .target import Target

PROMISES: tuple[str, ...] = ()

_MAX_NOTE = 1 << 16


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield `<name>.wheel` of each such distribution that was installed from an address, not from an index."""
    for found in target.distributions:
        record = watch.packages.get(found.name)
        if record is None or not record.wheel_names_build:
            continue
        note = Path(found.path) / "direct_url.json"
        if note.is_file() and (name := _wheel_name(note)):
            yield Fact(f"{found.name}.wheel", name, str(note))


def _wheel_name(note: Path) -> str | None:
    """Return the last part of the address, if it is a wheel."""
    try:
        with open_regular(note) as stream:
            url = json.loads(stream.read(_MAX_NOTE))["url"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    name = str(url).partition("#")[0].rpartition("/")[2].replace("%2B", "+")
    return name if name.endswith(".whl") else None
