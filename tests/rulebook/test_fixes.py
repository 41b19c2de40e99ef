"""Every fix of every rule, applied to the facts of the rule's own tests: the rule is silent then, and no error is new.

A fix that cannot do that says why in `partial`, in the rule's file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from doctor.facts.vocabulary import parse, term
from doctor.model import ABSENT, Fact, Facts, Remedy, Severity
from doctor.packages.index import load_index
from doctor.packages.relations import owner_of
from doctor.rulebook.authoring.tests import in_file_tests, rulebook_paths
from doctor.rulebook.conditions import parse_conditions
from doctor.rulebook.evaluate import filled_alternatives, know, rule_holds
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rule import Rule, as_tuple
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.rulebook.schema import read_sources

FOLDERS = sorted({path.parent.name for path in rulebook_paths()})
#: Facts that no fix changes by itself; all others are read from the packages, or measured with them.
STATED = ("workload.", "env.", "gpu.", "platform.", "driver.", "target.", "python.version")
INDEX = load_index()


class Trial(NamedTuple):
    """One fix of one rule on the facts of one test, with a release of each package."""

    rule: Rule
    test: str
    number: int
    way: Remedy
    before: FactResolver
    after: FactResolver
    changed: frozenset[str]

    def __str__(self) -> str:
        return f"{self.test}, fix {self.number}"


@cache
def rulebook() -> Rulebook:
    return load_rulebook()


@cache
def errors_by_key() -> Mapping[str, tuple[Rule, ...]]:
    """The rules of errors that read a fact."""
    found: dict[str, list[Rule]] = defaultdict(list)
    for rule in rulebook().rules.values():
        if rule.severity == Severity.ERROR:
            for key in {leaf.key for leaf in rule.when.leaves()}:
                found[key].append(rule)
    return {key: tuple(rules) for key, rules in found.items()}


@cache
def releases(name: str, wanted: str) -> tuple[str, ...]:
    """The oldest, a middle and the newest release in a range, as far as the package is on record."""
    if wanted == ABSENT:
        return (ABSENT,)
    known = INDEX.releases(name) if name in INDEX else {}
    inside = sorted(Version(text) for text in known if SpecifierSet(wanted).contains(text, prereleases=True))
    kept = [version for version in inside if not version.is_prerelease] or inside
    return tuple(dict.fromkeys(str(kept[at]) for at in (0, len(kept) // 2, -1))) if kept else ()


def facts_of(given: Mapping[str, Any]) -> Facts:
    return Facts(
        Fact(key, None, "the test", None, "unknown") if value is None else Fact(key, parse(key, value), "the test")
        for key, value in given.items()
    )


def changed(given: Mapping[str, Any], way: Remedy, chosen: Mapping[str, str]) -> dict[str, Any]:
    """The facts after a fix: what was measured before it, or follows from other facts, is left out."""
    replaced = bool(chosen or way.set_env or way.unset_env)
    kept = {
        key: value
        for key, value in given.items()
        if not term(key).derived
        and not key.endswith((".selected", ".selected_by_default", ".available"))
        and (not replaced or key.startswith(STATED) or (key.endswith(".version") and key != "cudnn.version"))
        and (key.removesuffix(".version") in chosen or owner_of(key.removesuffix(".version")) not in chosen)
        and key.removeprefix("env.") not in way.unset_env
    }
    kept.update({f"{name}.version": version for name, version in chosen.items()})
    kept.update({f"env.{name}": value for name, value in way.set_env.items()})
    kept.update(way.config)
    for key, value in way.then.items():
        kept[key] = None if str(value).startswith("{") else value
    return kept


def trials(folder: str) -> Iterator[tuple[str, list[Trial]]]:
    """The trials of each fix of a folder's rules, with its name."""
    sources = [source for path in rulebook_paths() if path.parent.name == folder for source in read_sources(path)]
    for source in sources:
        rule = rulebook().rules.get(source.content.get("id", ""))
        if rule is None or "when" not in rule.stated or not rule.alternatives:
            continue
        for test in in_file_tests(source):
            if test.expect != "fires" or "9999" in test.given.values():  # 9999 tests a bound without an end
                continue
            before, _ = know(rulebook(), facts_of(test.given))
            for number, way in enumerate(filled_alternatives(rule, before), 1):
                if way.partial or not (way.require or way.set_env or way.unset_env or way.config):
                    continue
                made = [
                    Trial(rule, test.id, number, way, before, know(rulebook(), facts_of(given))[0], frozenset(given))
                    for choice in product(*(releases(name, wanted) for name, wanted in way.require.items()))
                    for given in [changed(test.given, way, dict(zip(way.require, choice, strict=True)))]
                ]
                offered = [one for one in made if not way.when or _holds(way.when, one.after) is not False]
                if offered:
                    yield f"{test.id}, fix {number}", offered


def _holds(when: Mapping[str, Any], known: FactResolver) -> bool | None:
    return parse_conditions(when).holds(known)


def new_errors(trial: Trial) -> list[str]:
    """The errors that read a fact which the fix sets, and fire after it only."""
    set_by_it = {f"{name}.version" for name in trial.way.require} | {*trial.way.config, *trial.way.then}
    set_by_it |= {f"env.{name}" for name in (*trial.way.set_env, *trial.way.unset_env)}
    concerned = {rule.id: rule for key in set_by_it for rule in errors_by_key().get(key, ())}
    return sorted(
        name
        for name, rule in concerned.items()
        if name not in as_tuple(trial.rule.stated.get("yields_to"))  # the specific rule has the fix for both
        and rule_holds(rulebook(), rule, trial.after) is True
        and rule_holds(rulebook(), rule, trial.before) is not True
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_rule_is_silent_after_each_of_its_fixes(folder: str):
    faults = [
        f"{name} ({dict(one.way.require)} {dict(one.way.set_env)} {dict(one.way.config)})"
        for name, tried in trials(folder)
        for one in tried
        if one.rule.severity is not None  # a reason against a backend stays true where the job takes another one
        and rule_holds(rulebook(), one.rule, one.after) is True
    ]
    assert not faults, "\n".join(dict.fromkeys(faults))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_fix_brings_another_error(folder: str):
    faults = []
    for name, tried in trials(folder):
        found = [new_errors(one) for one in tried]
        if all(found):
            faults.append(f"{name}: {found[0]}")
    assert not faults, "\n".join(faults)
