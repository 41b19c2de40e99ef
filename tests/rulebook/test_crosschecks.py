"""Checks across rules written by hand: no two that repeat each other, no range that nothing is in, no guessed end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from doctor.facts.versions import split_clauses
from doctor.packages.index import load_index
from doctor.rulebook.authoring.coverage import is_generated
from doctor.rulebook.authoring.lint import raw_leaves
from doctor.rulebook.authoring.tests import rulebook_paths
from doctor.rulebook.rule import as_tuple, is_checked
from doctor.rulebook.schema import read_source

INDEX = load_index()
#: Pairs of which one holds wherever the other does, and each names a fault of its own.
BOTH_SAY_SOMETHING = {
    ("MAMBA980", "MAMBA981"): "wrong gradients with several groups; illegal memory",
    ("TF820", "TF896"): "positions of packed rows; positions of padded rows",
}


class Range(NamedTuple):
    """The releases of one distribution that a condition is on."""

    distribution: str
    texts: tuple[str, ...]

    @property
    def known(self) -> tuple[str, ...]:
        """Every release on record."""
        return tuple(INDEX.releases(self.distribution))

    @property
    def releases(self) -> frozenset[str] | None:
        """The releases on record that are in it; None where it is no range or none is on record."""
        if not self.known or not all(split_clauses(text) for text in self.texts):
            return None
        return frozenset(one for text in self.texts for one in admitted(self.distribution, text))


@cache
def admitted(distribution: str, text: str) -> frozenset[str]:
    wanted = SpecifierSet(text, prereleases=True)
    return frozenset(one for one in INDEX.releases(distribution) if wanted.contains(one))


@cache
def rules_by_hand() -> dict[str, Mapping[str, Any]]:
    found = {}
    for path in rulebook_paths():
        if not is_generated(Path(path)) and is_checked(content := read_source(path).content):
            found[content["id"]] = content
    return found


def recorded(distribution: str, text: str) -> bool:
    """Whether releases of the time of a range are on record: those before the oldest one are not."""
    bounds = [Version(bound.removesuffix(".*")) for _, bound in split_clauses(text)]
    known = INDEX.releases(distribution)
    return bool(known) and bool(bounds) and max(bounds) > min(map(Version, known))


def ranges(when: Mapping[str, Any]) -> Iterator[Range]:
    for _, key, wanted in raw_leaves(when, ()):
        if key.endswith(".version"):
            yield Range(key.removesuffix(".version"), tuple(map(str, wanted if isinstance(wanted, list) else [wanted])))


def conjuncts(when: Mapping[str, Any]) -> Iterator[list[Range]]:
    """Yield the ranges that hold together: those of the rule, alone and with each branch of an `any`."""
    plain = {key: wanted for key, wanted in when.items() if key not in ("any", "all", "not")}
    for part in when.get("all") or ():
        plain |= {key: wanted for key, wanted in part.items() if key not in ("any", "all", "not")}
    own = list(ranges(plain))
    branches = [list(ranges(branch)) for branch in when.get("any") or () if not {"any", "not"} & set(branch)]
    for branch in branches or [[]]:
        yield own + branch


def impossible(when: Mapping[str, Any]) -> list[str]:
    """Return distributions of which no release on record is in all ranges that hold together, though one is in each."""
    found = []
    for together in conjuncts(when):
        for name in {one.distribution for one in together}:
            parts = [one.releases for one in together if one.distribution == name and one.releases is not None]
            if parts and all(parts) and not frozenset.intersection(*parts):
                found.append(name)
    return found


def guessed_ends(when: Mapping[str, Any]) -> list[str]:
    """Return ranges that end behind the newest release; the end of a whole generation (`<3` of 2.x) is none of them."""
    found = []
    for one in ranges(when):
        if not one.known:
            continue
        newest = max(map(Version, one.known))
        for text in one.texts:
            for operator, bound in split_clauses(text):
                generation = bound.isdigit() and int(bound) == newest.major + 1
                if operator in ("<", "<=") and Version(bound) > newest and not generation:
                    found.append(f"{one.distribution} {text} (newest on record: {newest})")
    return found


def within(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether one condition holds wherever another one does, on the same facts."""
    groups = [key for key in ("any", "all", "not") if key in first or key in second]
    if any(json.dumps(first.get(key), sort_keys=True) != json.dumps(second.get(key), sort_keys=True) for key in groups):
        return False
    keys = {key for key in first if key not in groups}
    if keys != {key for key in second if key not in groups}:
        return False
    return all(values(key, first[key]) and values(key, first[key]) <= values(key, second[key]) for key in keys)


def values(key: str, wanted: Any) -> frozenset[str]:
    texts = tuple(map(str, wanted if isinstance(wanted, list) else [wanted]))
    found = Range(key.removesuffix(".version"), texts).releases if key.endswith(".version") else None
    return frozenset(texts) if found is None else found


def test_no_rule_repeats_another_one() -> None:
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, rule in rules_by_hand().items():
        if "severity" in rule and rule.get("category"):
            groups[rule["category"], frozenset(rule["when"])].append(name)
    faults = []
    for names in groups.values():
        for pair in combinations(sorted(names), 2):
            first, second = (rules_by_hand()[name] for name in pair)
            linked = pair[0] in as_tuple(second.get("yields_to")) or pair[1] in as_tuple(first.get("yields_to"))
            if linked or pair in BOTH_SAY_SOMETHING:
                continue
            if within(first["when"], second["when"]) or within(second["when"], first["when"]):
                faults.append(f"{pair[0]} and {pair[1]}: merge them (`replaces`), or one yields to the other")
    assert not faults, "\n".join(faults)


def test_every_rule_can_fire() -> None:
    faults = {name: found for name, rule in rules_by_hand().items() if (found := impossible(rule["when"]))}
    assert not faults


def test_no_range_ends_at_a_release_that_is_to_come() -> None:
    """Such an end is a guess: without an end and with `examined_to` the rule says what is known."""
    faults = {name: found for name, rule in rules_by_hand().items() if (found := guessed_ends(rule["when"]))}
    assert not faults


def test_a_release_is_in_the_range_of_every_fix() -> None:
    faults = [
        f"{name}: {distribution}{text}"
        for name, rule in rules_by_hand().items()
        for way in rule.get("fix") or ()
        for distribution, text in (way.get("require") or {}).items()
        if not {"+", "{"} & set(text)  # a build with a label of its own, a range that a fact fills in
        if recorded(distribution, text) and not admitted(distribution, text)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("when", "broken"),
    [
        ({"torch.version": ">=2.5,<2.6"}, False),
        ({"torch.version": ">=2.6", "any": [{"torch.version": "<2.5"}, {"torch.version": "<2.7"}]}, True),
        ({"all": [{"torch.version": ">=2.6"}], "torch.version": "<2.7"}, False),
    ],
)
def test_ranges_that_exclude_each_other_are_found(when: Mapping[str, Any], broken: bool) -> None:
    assert bool(impossible(when)) is broken


def test_guessed_ends_are_found() -> None:
    newest = max(map(Version, INDEX.releases("torch")))
    assert guessed_ends({"torch.version": f">=2.0,<{newest.major}.{newest.minor + 3}"})
    assert not guessed_ends({"torch.version": f">=2.0,<{newest.major + 1}"})
    assert not guessed_ends({"torch.version": ">=2.0,<2.5"})


def test_repeated_conditions_are_found() -> None:
    wide = {"torch.version": ">=2.0,<2.6", "workload.mask": ["causal", "padding"]}
    assert within({"torch.version": ">=2.1,<2.5", "workload.mask": "causal"}, wide)
    assert not within({"torch.version": ">=2.1,<2.9", "workload.mask": "causal"}, wide)
    assert not within({"torch.version": ">=2.1,<2.5"}, wide)
