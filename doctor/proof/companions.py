"""What a fix has to live with: everything installed that it leaves alone, as the resolver is asked about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..model import ABSENT, Report
from ..pinset import Pins
from ..release_index import ReleaseIndex, load_index
from ..requirement_lines import read_line
from ..solve import distributions, platform_of
from ..solve.parts import leader_of
from .resolve import Question

#: Tools of the environment itself, at whatever version.
_TOOLS = frozenset({"pip", "uv", "setuptools", "wheel", "attn-doctor"})


def question_of(
    report: Report, pins: Pins, local: Mapping[str, Sequence[str]] | None = None, index: ReleaseIndex | None = None
) -> Question:
    """The pins, what else is installed, and where; `local` is what came from no registry → what it requires."""
    from ..known import Known

    local = local or {}
    known = Known(report.facts)
    index = index or load_index()
    glibc = known.value("platform.glibc")
    return Question(
        pins=tuple(line.requirement for line in pins.changed if line.package not in local),
        held=tuple(line.requirement for line in pins.held if line.package not in local),
        beside=_beside(report, pins, local, index),
        needs=tuple(text for lines in local.values() for text in lines if _plain(text)),
        built=tuple(line.requirement for line in pins.built if line.package not in local),
        stays=tuple(line.requirement for line in (*pins.held, *pins.built) if line.held and line.package not in local),
        platform=platform_of(known),
        glibc=None if glibc in (None, ABSENT) else str(glibc),
        index_url=pins.index_url,
    )


def _beside(report: Report, pins: Pins, local: Mapping[str, Sequence[str]], index: ReleaseIndex) -> dict[str, str]:
    """Installed packages that are no part of the stack: they stay, unless the fix needs them to move."""
    stack = {line.package for line in (*pins.changed, *pins.held, *pins.built)}
    found = {}
    for name, fact in distributions(report.facts).items():
        if name in stack or name in pins.removed or name in local or name in _TOOLS:
            continue
        if leader_of(name) or name in index:  # a part follows its leader; what cannot be held is told with the pins
            continue
        found[name] = str(fact.value)
    return found


def _plain(text: str) -> bool:
    """A requirement that holds without any extra, and that names a release and no place."""
    line = read_line(text)
    return line is not None and "extra" not in text.partition(";")[2]
