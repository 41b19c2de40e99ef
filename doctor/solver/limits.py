"""What the user keeps: held packages, packages that alone may change, and version ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from doctor.packages.needs import named_in

if TYPE_CHECKING:
    from doctor.sources.manifests.base import DeclaredRequirement


class Limits(NamedTuple):
    """Packages that stay, packages that alone may move, and the ranges that every new version must be in."""

    hold: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()  # empty: all may
    ranges: Mapping[str, str] = MappingProxyType({})
    #: lines of the project's own files, kept where possible
    declared: Mapping[str, DeclaredRequirement] = MappingProxyType({})

    def free(self, package: str) -> bool:
        """Whether the package may change at all."""
        return package not in self.hold and (not self.allow or package in self.allow)

    def with_declared(self) -> Limits | None:
        """The limits with the ranges that the project's own files declare; None where they declare none.

        An exact pin is no range: it is what is installed, and moves where it is part of the trouble.
        """
        own = {name: line.range for name, line in self.declared.items() if line.range}
        both = {name: ",".join(filter(None, (self.ranges.get(name), text))) for name, text in own.items()}
        return self._replace(ranges={**self.ranges, **both}) if own else None

    def source(self, package: str) -> str:
        """The origin of the range of a package: `your constraint`, or the line of the project's own."""
        line = self.declared.get(package)
        own = line is not None and line.range and self.ranges.get(package, "").endswith(line.range)
        return line.place if line is not None and own else "your constraint"


_QUOTED = r'"([^"\\]*)"|\'([^\']*)\''


def requirement_in(line: DeclaredRequirement) -> str | None:
    """Return the requirement as its line has it, `torch[extra]>=2.4`; None where the file uses another notation."""
    raw = (line.raw or "").partition(" #")[0]
    texts = [raw, *(double or single for double, single in re.findall(_QUOTED, raw))]  # items of an array in TOML
    for text in map(str, texts):
        if named_in(text.strip()) == line.name:
            return text.strip()
    return None
