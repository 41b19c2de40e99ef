"""What sources look for on behalf of the rulebook: names and tables, passed in so that no source loads a rulebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from doctor.facts.libraries.record import Trainer
from doctor.packages.gpus import Table
from doctor.packages.records import PackageRecords

#: Image name -> release tag -> facts of that image, with `source` and `certainty`.
Images = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Watch:
    """Names and tables that sources need from the rulebook in use, the team's own folders included."""

    environment: tuple[str, ...] = ()  # read by rules; a `*` at the end makes a prefix, at the start a suffix
    distributions: tuple[str, ...] = ()  # packages whose metadata is opened, not only named
    gpus: Table = field(default_factory=dict)
    cuda_drivers: Table = field(default_factory=dict)
    images: Images = field(default_factory=dict)
    packages: PackageRecords = field(default_factory=dict)
    script_calls: tuple[Mapping[str, Any], ...] = ()  # what calls in a program state of its job
    trainers: Mapping[str, Trainer] = field(default_factory=dict)

    def reads_variable(self, name: str) -> bool:
        """Return whether a rule reads this environment variable."""
        exact, prefixes, suffixes = self._variables
        known = name in exact or name.startswith(prefixes) or name.endswith(suffixes)
        return known and name.isascii() and name.isidentifier()

    @cached_property
    def _variables(self) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
        exact = frozenset(name for name in self.environment if "*" not in name)
        prefixes = tuple(name[:-1] for name in self.environment if name.endswith("*") and len(name) > 1)
        suffixes = tuple(name[1:] for name in self.environment if name.startswith("*") and len(name) > 1)
        return exact, prefixes, suffixes
