"""The ranges that the metadata of a release requires of other packages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from doctor.rulebook.table_ranges import plain

ENVIRONMENT = {"python_version": "3.12", "platform_system": "Linux", "sys_platform": "linux",
               "platform_machine": "x86_64"}  # fmt: skip


def bounds(lines: Sequence[str], extras: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return package -> the range required of it as text; what is required without one is left out."""
    return {name: plain(spec) for name, spec in required(lines, extras).items() if spec}


def required(lines: Sequence[str], extras: Mapping[str, Sequence[str]]) -> dict[str, SpecifierSet]:
    """Return package -> the range required of it on Linux, by the package itself or by one of these extras.

    `extras`: extra -> the packages of which it counts.
    """
    found: dict[str, SpecifierSet] = defaultdict(SpecifierSet)
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        name, marker = canonicalize_name(requirement.name), requirement.marker
        if marker is None or marker.evaluate({**ENVIRONMENT, "extra": ""}):
            found[name] &= requirement.specifier
        elif any(name in names and marker.evaluate({**ENVIRONMENT, "extra": extra}) for extra, names in extras.items()):
            found[name] &= _at_least(requirement.specifier)
    return dict(found)


def _at_least(spec: SpecifierSet) -> SpecifierSet:
    """Read the pin of an extra as the oldest release that was tested; the one after it mostly works too."""
    return SpecifierSet(",".join(str(one).replace("==", ">=") if "*" not in str(one) else str(one) for one in spec))
