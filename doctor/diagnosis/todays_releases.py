"""Packages that a job calls and whose release no input states.

Where no release of any library is stated, those that an installer takes today are judged. What is found with these is a
warning at most: other releases may be installed where the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.derived.shapes import framework_of
from doctor.facts.libraries.frameworks import caller_named, caller_with_option
from doctor.model import ABSENT, TORCH, Facts
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook

from .diagnosis_input import DiagnosisInput
from .environment import states_release
from .request import Request

_OF_MACHINE = ("platform.", "gpu.", "driver.", "env.", "workload.")


def with_todays_releases(examined: DiagnosisInput, request: Request, rulebook: Rulebook) -> DiagnosisInput:
    """Return the input with the releases that the job would get, where no input states a release of any library."""
    wanted = dict.fromkeys(_wanted(examined.facts, rulebook))
    if any(examined.facts.value(f"{name}.version") == ABSENT for name in wanted):
        return examined  # a package that the job calls is stated not to be there: no installer changes that
    names = [name for name in wanted if name in rulebook.watched_distributions]
    if not names or states_release(examined.facts, rulebook):
        return examined
    implicit = not request.names_target
    facts = _machine(examined.facts) if implicit else examined.facts
    from doctor.sources.manifests.today import TODAY, todays_declaration  # door: manifests

    declaration = todays_declaration(names, facts, rulebook.watched_distributions)
    added = (fact for key, fact in declaration.facts.items() if key.endswith(".version"))
    made = examined._replace(
        facts=facts.with_(*(fact for fact in added if facts.value(fact.key) is None)),
        declaration=declaration,
        remarks=examined.notes,
        faults=examined.unread,
        today=tuple(names),
        target=f"{examined.target} + {TODAY}",
    )
    if not implicit:
        return made
    why_not = "no attention library is installed in this environment"
    read = tuple(item for item in examined.read if item.kind != "interpreter")
    return made._replace(python=None, why_not=why_not, requirements=None, site_dirs=(), target=TODAY, read=read)


def called_unstated(rulebook: Rulebook, examined: DiagnosisInput, known: FactResolver) -> Iterator[tuple[str, str]]:
    """Yield (library, distribution) of what the job calls by name and no input says anything of."""
    if examined.python is not None or examined.facts.value("distributions.complete") is True:
        return  # what is not installed is known
    declared = examined.declaration
    stated = {*declared.requested, *(item.name for item in declared.open)} if declared is not None else ()
    for library, name in _called(rulebook, known):
        if name not in stated and known.value(f"{name}.version") is None:
            yield library, name


def _called(rulebook: Rulebook, known: FactResolver) -> Iterator[tuple[str, str]]:
    framework = rulebook.libraries.get(framework_of(known.given) or "")
    if framework is not None and framework.backends and framework.distributions:
        yield framework.name, framework.distributions[0]
    for library in rulebook.libraries.values():
        for name, when in library.requested.items():
            if when.holds(known):
                yield library.name, name


def _wanted(facts: Facts, rulebook: Rulebook) -> Iterator[str]:
    """Yield the distributions that a job calls by what it states of itself."""
    framework = framework_of(facts)
    stated = any(key in facts for key in ("workload.framework", "workload.attn_implementation", "workload.model_type"))
    if framework is None and not stated:
        return
    caller = caller_named(framework) if framework is not None else caller_with_option()
    called = () if caller.takes_attn_implementation else (caller.library,)  # models bring what they call
    for name in (caller.word, *called):
        library = rulebook.libraries.get(name)
        yield from library.distributions[:1] if library is not None else ()
    if facts.value("workload.trainer") in rulebook.libraries:
        yield from rulebook.libraries[str(facts.value("workload.trainer"))].distributions[:1]
    yield TORCH


def _machine(facts: Facts) -> Facts:
    """Return what an environment without attention libraries still says: the machine, and the job."""
    known = (fact for key, fact in facts.items() if key.startswith(_OF_MACHINE) and fact.value not in (None, ABSENT, 0))
    return Facts(known)
