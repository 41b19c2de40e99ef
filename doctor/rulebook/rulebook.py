"""The rulebook: YAML files → frozen rules and libraries, checked, indexed and kept in a compiled form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from doctor.rulebook.rule import Library, Rule

from .cache import load_bodies
from .conditions import Condition
from .decisions import DecisionList
from .index import RuleIndex
from .resolver import Implications


@dataclass(frozen=True)
class Rulebook:
    """All rules and libraries of one or more folders."""

    rules: Mapping[str, Rule]
    libraries: Mapping[str, Library]
    version: str = ""

    @cached_property
    def implications(self) -> Implications:
        """Key → releases that imply it."""
        table: dict[str, list[tuple[str | Condition, Mapping[str, Any]]]] = {}
        for library in self.libraries.values():
            if not library.releases or not library.distributions:
                continue
            version_key = f"{library.distributions[0]}.version"
            for key in {key for implied in library.releases.values() for key in implied}:
                table.setdefault(key, []).append((version_key, library.releases))
        for library in self.libraries.values():
            for condition, implied in library.implies:
                for key in implied:
                    table.setdefault(key, []).append((condition, implied))
        return table

    def only(self, ids: Iterable[str]) -> Rulebook:
        """The same with these rules alone to be judged; what backends are predicted by stays, and is shared."""
        kept = set(ids)
        return self.with_findings({name: rule for name, rule in self.rules.items() if name in kept})

    def with_findings(self, rules: Mapping[str, Rule]) -> Rulebook:
        """The same with these rules, which differ from ours in findings alone: no backend is predicted by them."""
        made = Rulebook(rules, self.libraries, self.version)
        tables = (  # expensive to make, and the same
            "implications", "support", "runtime", "refusals", "by_prefix", "decisions",
        )  # fmt: skip
        vars(made).update({name: getattr(self, name) for name in tables})
        return made

    @cached_property
    def support(self) -> Mapping[str, RuleIndex]:
        """Return, for each library, the rules that disable one of its backends."""
        return self._group(lambda rule: bool(rule.body.get("disables")))

    @cached_property
    def runtime(self) -> Mapping[str, RuleIndex]:
        """Return, for each library, the rules about failures after selection or at import, the most specific first."""
        return self._group(
            lambda rule: bool(rule.body.get("fails_at_run") or (rule.import_error and not rule.follows_selection))
        )

    @cached_property
    def refusals(self) -> Mapping[str, RuleIndex]:
        """Return, for each library, the rules about what it does when no backend is left, the most specific first."""
        return self._group(lambda rule: rule.follows_selection)

    def _group(self, belongs: Callable[[Rule], bool]) -> Mapping[str, RuleIndex]:
        """Return the rules of each library that `belongs` picks, as an index."""
        grouped: dict[str, list[Rule]] = {}
        for rule in self.rules.values():
            if belongs(rule):
                grouped.setdefault(rule.library, []).append(rule)
        return {
            name: RuleIndex(tuple(sorted(rules, key=lambda rule: -rule.weight)), self.libraries.get(name))
            for name, rules in grouped.items()
        }

    @cached_property
    def decisions(self) -> Mapping[str, DecisionList]:
        """Return the decision list behind each fact key, for the libraries that have such lists."""
        return {key: found for library in self.libraries.values() for key, found in library.decisions.items()}

    @cached_property
    def by_prefix(self) -> Mapping[str, Library]:
        """`te` → its library, for those that have backends."""
        return {library.prefix: library for library in self.libraries.values() if library.prefix}

    @property
    def watched_distributions(self) -> tuple[str, ...]:
        """Every distribution some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.distributions))

    @property
    def watched_environment(self) -> tuple[str, ...]:
        """Every variable some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.environment))

    @cached_property
    def gpus(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the GPUs of all libraries: name -> `sm`, `memory_gib`, `aliases`."""
        return {name: row for table in self._tables("gpus") for name, row in table.items()}

    @cached_property
    def cuda_drivers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the driver of each CUDA release, of all libraries."""
        return {cuda: row for table in self._tables("cuda_drivers") for cuda, row in table.items()}

    @cached_property
    def images(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """Return the container images of all libraries: name -> release -> what it holds."""
        images: dict[str, dict[str, Mapping[str, Any]]] = {}
        for table in self._tables("images"):
            for name, releases in table.items():
                images.setdefault(name, {}).update(releases)
        return images

    def _tables(self, key: str) -> Iterator[Mapping[str, Any]]:
        return (library.body[key] for library in self.libraries.values() if library.body.get(key))


def load_rulebook(extra: Iterable[str] = ()) -> Rulebook:
    """The built-in rulebook and any further folders; DoctorError names file and line of a faulty rule."""

    rules: dict[str, Rule] = {}
    libraries: dict[str, Library] = {}
    version, bodies = load_bodies(tuple(extra))
    for kind, name, path, body in bodies:
        if kind == "library":
            libraries[name] = Library(name, body)
        else:
            rules[body["id"]] = Rule(body["id"], name, body, path)
    return Rulebook(rules, libraries, version)
