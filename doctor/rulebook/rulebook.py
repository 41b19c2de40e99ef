"""The rulebook: YAML files → frozen rules and libraries, checked, indexed and kept in a compiled form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from doctor.facts.derived.registry import DERIVATIONS
from doctor.facts.libraries.record import Trainers
from doctor.facts.libraries.titles import declare_titles
from doctor.model import ABSENT
from doctor.packages.records import ROLES, PackageRecords, names_with, records_of
from doctor.packages.relations import declare_relations
from doctor.rulebook.rule import Library, Overridable, Rule

from .cache import load_compiled, rule_folders
from .compiled import Section, section_of
from .decisions import DecisionList
from .effects import Implications
from .implications import LibraryImplications
from .index import RuleIndex
from .reach import CallGraph


class RuleTable(Mapping[str, Rule]):
    """Rules by id, of sections that are parsed when one of their rules is needed."""

    def __init__(self, sections: Iterable[Section]) -> None:
        self.sections = tuple(sections)
        self._section = {rule: section for section in self.sections for rule in section.ids}
        self._parsed: dict[int, dict[str, Rule]] = {}

    def __getitem__(self, rule: str) -> Rule:
        return self.of_section(self._section[rule])[rule]

    def __contains__(self, rule: object) -> bool:
        return rule in self._section

    def __iter__(self) -> Iterator[str]:
        return iter(self._section)

    def __len__(self) -> int:
        return len(self._section)

    def of_section(self, section: Section) -> Mapping[str, Rule]:
        """Return the rules of one section."""
        found = self._parsed.get(id(section))
        if found is None:
            rules = (Rule(body["id"], section.library, body, path) for path, body in section.rules)
            found = self._parsed[id(section)] = {rule.id: rule for rule in rules}
        return found


class LibraryIndexes:
    """For each library the rules that `belongs` picks, the most specific first; made when first needed."""

    def __init__(self, rulebook: Rulebook, belongs: Callable[[Rule], bool]) -> None:
        self._rulebook, self._belongs = rulebook, belongs
        self._made: dict[str, RuleIndex | None] = {}

    def get(self, library: str) -> RuleIndex | None:
        """Return the index of a library; None where no rule of it belongs."""
        if library not in self._made:
            rules = sorted(filter(self._belongs, self._rulebook.rules_of(library)), key=lambda rule: -rule.weight)
            described = self._rulebook.libraries.get(library)
            self._made[library] = RuleIndex(tuple(rules), described) if rules else None
        return self._made[library]


@dataclass(frozen=True)
class Rulebook:
    """All rules and libraries of one or more folders."""

    rules: Mapping[str, Rule]
    libraries: Mapping[str, Library]
    version: str = ""

    @cached_property
    def implications(self) -> Implications:
        """Fact key → what implies it."""
        return LibraryImplications(self.libraries.values())

    @cached_property
    def dependents(self) -> Mapping[str, set[str]]:
        """Key → keys whose value is worked out from it, without predictions."""
        found: dict[str, set[str]] = {"torch.version": {"torch.cuda"}}
        for derivation in DERIVATIONS.values():
            for key in (*derivation.needs, *derivation.uses):
                found.setdefault(key, set()).add(derivation.key)
        for library in self.libraries.values():
            effects = library.effects
            if effects.released:
                for key in (f"{library.distributions[0]}.version", "torch.cuda"):  # a build is known by its CUDA
                    found.setdefault(key, set()).update(effects.released)
            for key, concluded in effects.conditional.items():
                found.setdefault(key, set()).update(concluded)
        return found

    def concerned(self, value: Callable[[str], Any]) -> Iterator[Rule]:
        """Yield the rules that may fire on facts: not those that need a version of a library that is absent.

        `value` returns the value of a fact key. Rules that are left out are not even parsed.
        """
        if not isinstance(self.rules, RuleTable):
            yield from self.rules.values()
            return
        for section in self.rules.sections:
            if section.version_key is None or value(section.version_key) != ABSENT:
                yield from self.rules.of_section(section).values()

    def rules_of(self, library: str) -> Iterator[Rule]:
        """Yield the rules of one library."""
        if not isinstance(self.rules, RuleTable):
            yield from (rule for rule in self.rules.values() if rule.library == library)
            return
        for section in self.rules.sections:
            if section.library == library:
                yield from self.rules.of_section(section).values()

    def only(self, ids: Iterable[str]) -> Rulebook:
        """The same with these rules alone to be judged; what backends are predicted by stays, and is shared."""
        kept = set(ids)
        return self.with_findings({name: self.rules[name] for name in self.rules if name in kept})  # parses no other

    def with_more(self, library: str, rules: Mapping[str, Rule]) -> Rulebook:
        """The same with more rules, none of which predicts a backend."""
        if not isinstance(self.rules, RuleTable):
            return self.with_findings({**self.rules, **rules})
        section = section_of(library, None, [(rule.path, rule.stated) for rule in rules.values()])
        return self.with_findings(RuleTable((*self.rules.sections, section)))

    def with_findings(self, rules: Mapping[str, Rule]) -> Rulebook:
        """The same with these rules, which differ from ours in findings alone: no backend is predicted by them."""
        made = Rulebook(rules, self.libraries, self.version)
        tables = (  # expensive to make, and the same
            "implications", "support", "failures", "import_errors", "refusals", "by_prefix", "decisions", "predicted",
            "call_graph", "dependents",
        )  # fmt: skip
        vars(made).update({name: getattr(self, name) for name in tables})
        return made

    @cached_property
    def support(self) -> LibraryIndexes:
        """Return, for each library, the rules that disable one of its backends."""
        return LibraryIndexes(self, lambda rule: bool(rule.disables))

    @cached_property
    def failures(self) -> LibraryIndexes:
        """Return, for each library, the rules about backends that fail in a step."""
        return LibraryIndexes(self, lambda rule: bool(rule.fails_at_run))

    @cached_property
    def import_errors(self) -> LibraryIndexes:
        """Return, for each library, the rules about what it refuses when it is imported."""
        return LibraryIndexes(self, lambda rule: bool(rule.import_error and not rule.follows_selection))

    @cached_property
    def refusals(self) -> LibraryIndexes:
        """Return, for each library, the rules about what it does when no backend is left."""
        return LibraryIndexes(self, lambda rule: rule.follows_selection)

    @cached_property
    def decisions(self) -> Mapping[str, DecisionList]:
        """Return the decision list behind each fact key, for the libraries that have such lists."""
        return {key: found for library in self.libraries.values() for key, found in library.decisions.items()}

    @cached_property
    def predicted(self) -> dict[str, bool]:
        """Return whether it takes a prediction to answer a fact key, for each key that was looked up."""
        return {}

    @cached_property
    def by_prefix(self) -> Mapping[str, Library]:
        """`te` → its library, for those that have backends."""
        return {library.prefix: library for library in self.libraries.values() if library.prefix}

    @cached_property
    def call_graph(self) -> CallGraph:
        """Return what each library calls."""
        return CallGraph(self.libraries)

    @property
    def watched_distributions(self) -> tuple[str, ...]:
        """Every distribution some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.distributions))

    @property
    def watched_environment(self) -> tuple[str, ...]:
        """Every variable some library.yaml names."""
        return tuple(dict.fromkeys(name for library in self.libraries.values() for name in library.environment))

    @cached_property
    def seldom_packages(self) -> frozenset[str]:
        """Return the distributions that few environments have, of all libraries."""
        return frozenset(name for library in self.libraries.values() for name in library.seldom)

    @cached_property
    def replaced(self) -> Mapping[str, str]:
        """Return the ids of former rules, each with the rule that replaces it."""
        return {former: rule.id for rule in self.rules.values() for former in rule.replaces}

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

    @cached_property
    def overrides(self) -> tuple[Overridable, ...]:
        """Return the parts that may be replaced although their owner pins them, of all libraries."""
        return tuple(item for library in self.libraries.values() for item in library.overrides)

    @cached_property
    def packages(self) -> PackageRecords:
        """Return what all libraries say of single distributions."""
        return records_of(self._tables("packages"))

    @cached_property
    def script_calls(self) -> tuple[Mapping[str, Any], ...]:
        """Return what the calls of all libraries state of a job, in a program that makes them."""
        return tuple(row for library in self.libraries.values() for row in library.script_calls)

    @cached_property
    def trainers(self) -> Trainers:
        """Return how the trainers of all libraries are started, and what their options mean."""
        return Trainers([row for library in self.libraries.values() for row in library.trainers])

    @property
    def stack(self) -> frozenset[str]:
        """Return the distributions whose sources the analysis of API drift reads: who calls, and who is called."""
        return names_with(self.packages, *ROLES)

    def _tables(self, key: str) -> Iterator[Mapping[str, Any]]:
        return filter(None, (library.table(key) for library in self.libraries.values()))


def load_rulebook(extra: Iterable[str] = ()) -> Rulebook:
    """Return the built-in rulebook with any further folders; DoctorError names file and line of a faulty rule.

    A process that diagnoses several times parses the rules once: they are read again after a file has changed.
    """
    folders = rule_folders(extra)
    keys = tuple((item.path, item.key) for item in folders)
    found = _LOADED.get(keys)
    if found is None:
        compiled = load_compiled(folders)
        libraries = {name: Library(name, body, effects) for name, body, effects in compiled.libraries}
        for library in libraries.values():
            declare_titles(library.name, library.stated)
            declare_relations(library.table("packages"), library.unregistered)
        found = Rulebook(RuleTable(compiled.sections), libraries, compiled.version)
        if all(item.is_settled for item in folders):
            is_repeated = keys in _LOADED
            _LOADED.clear()
            _LOADED[keys] = found if is_repeated else None  # a command reads them once, and keeps nothing for its exit
    return found


#: The rulebook that was read last, by the state of its folders; None until it is read for the second time.
_LOADED: dict[tuple[tuple[Path, str], ...], Rulebook | None] = {}
