"""Group releases that no condition, release table, requirement or cost distinguishes; one of each class is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH
from doctor.packages.relations import owner_of
from doctor.rulebook.conditions import Leaf
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.candidates import releases_of

from .cost import series
from .environment import PackageSet
from .equivalence import metadata_class


class ReleaseClasses:
    """Package and range → the nearest release of each kind; torch's are all different."""

    def __init__(self, rulebook: Rulebook, stack: PackageSet) -> None:
        self.rulebook, self.stack = rulebook, stack
        self._memo: dict[Any, Any] = {}

    def releases(self, package: str, spec: str) -> list[str]:
        """The releases within the range, the nearest of each group that behaves alike."""
        key = (package, spec)
        if key not in self._memo:
            kinds: dict[Any, str] = {}
            for version in releases_of(self.stack, package, spec):
                kinds.setdefault(self._kind(package, version), version)
            self._memo[key] = list(kinds.values())
        found: list[str] = self._memo[key]
        return found

    def alike(self, package: str, version: str) -> list[str]:
        """All releases that behave like this one, itself included."""
        kind = self._kind(package, version)
        return [
            version,
            *(other for other in releases_of(self.stack, package, "") if self._kind(package, other) == kind),
        ]

    def _kind(self, package: str, version: str) -> Any:
        key = ("kind", package, version)
        if key not in self._memo:
            self._memo[key] = self._judge(package, version)
        return self._memo[key]

    def _judge(self, package: str, version: str) -> Any:
        """Everything in which releases differ: rules, release tables, requirements both ways, and the cost."""
        release = self.stack.index.release(package, version)
        if release is None or package == TORCH:
            return version
        torch = self.stack.installed.get(TORCH)
        leaves, tables = self._distinctions(package)
        present = self.stack.installed.get(package, ABSENT)
        return (
            metadata_class(self.stack, package, version, torch),
            tuple(leaf.test(version) for leaf in leaves),
            tuple(repr(table.get(version)) for table in tables),
            release.has_wheel(self.stack.platform),
            present != ABSENT and parse_version(version) < parse_version(present),
            series(version) == series(present) if present != ABSENT else None,
        )

    def _distinctions(self, package: str) -> tuple[list[Leaf], list[Mapping[str, Any]]]:
        """The conditions and release tables that name a package."""
        key = ("distinctions", package)
        if key not in self._memo:
            name = f"{package}.version"
            parts = {name, *(f"{part}.version" for part in self.stack.installed if owner_of(part) == package)}
            leaves = {(leaf.key, leaf.text): leaf for leaf in self._leaves() if leaf.key in parts}
            tables = [
                table for sources in self.rulebook.implications.values() for source, table in sources if source == name
            ]
            self._memo[key] = list(leaves.values()), tables
        found: tuple[list[Leaf], list[Mapping[str, Any]]] = self._memo[key]
        return found

    def _leaves(self) -> list[Leaf]:
        if "leaves" not in self._memo:
            conditions = [rule.when for rule in self.rulebook.rules.values()]
            for library in self.rulebook.libraries.values():
                orders = (*library.preferences, *(order for orders in library.variants.values() for order in orders))
                conditions += [when for when in (library.applies, *(when for when, _ in orders)) if when is not None]
            for sources in self.rulebook.implications.values():
                conditions += [source for source, _ in sources if not isinstance(source, str)]
            self._memo["leaves"] = [leaf for condition in conditions for leaf in condition.leaves()]
        found: list[Leaf] = self._memo["leaves"]
        return found
