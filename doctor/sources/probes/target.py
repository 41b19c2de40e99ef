"""What a probe is given: the target, whose facts it reads, and the names it should watch for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from doctor.model import Fact

INTERPRETER, SITE_PACKAGES = "interpreter", "site_packages"
OLDEST = (3, 8)


@dataclass(frozen=True)
class Target:
    """The environment under examination; what its interpreter said of itself is kept with it."""

    python: str | None
    prefix: Path
    site_dirs: tuple[Path, ...]  # where it imports from, in order
    kind: str  # interpreter | site_packages
    version: str | None = None
    implementation: str | None = None
    system: str | None = None
    machine: str | None = None
    glibc: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, compare=False)  # of what runs in it

    def describe(self) -> str:
        """The target, in words for a report."""
        if self.kind == SITE_PACKAGES:
            return f"packages in {self.site_dirs[0]}"
        return f"Python {self.version} at {self.python}"


@dataclass(frozen=True)
class Watch:
    """What the rulebook cares for: variables (a trailing `*` is a prefix) and distributions."""

    environment: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()  # those whose metadata is worth opening and not only naming


class Probe(Protocol):
    """One source of facts: a module with these two names."""

    PROMISES: tuple[str, ...]

    def collect(self, target: Target, watch: Watch) -> Iterator[Fact]:
        """Read the facts."""
        ...
