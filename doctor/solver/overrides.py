"""Replace a part without its owner's consent: torch pins cuDNN exactly, and a newer one serves it as well.

Package metadata forbids such a pair, so it is a fix only where the pair is known to work: a library's `overrides`
say so with their source, or the rule whose remedy it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH, FixSafety, Remedy
from doctor.packages.relations import owner_of
from doctor.packages.specifiers import admits, normalized
from doctor.rulebook.rule import Overridable

from .causes import Causes
from .environment import PackageSet
from .plan import FixPlan, Pick
from .repair import CandidateFix, FixSearch
from .resolve import choices

_TRIED = 4  # releases of one part


def overrides_of(repair: FixSearch) -> Iterator[CandidateFix]:
    """Yield complete fixes that replace one part: one for each part that an error depends on."""
    entries = [item for item in repair.rulebook.overrides if _applies(repair, item)]
    if entries:
        causes = Causes(repair.rulebook, repair.stack, repair.facts)
        reads = set().union(*(causes.of(rule) for rule in repair.firing_rules()))
        for item in entries:
            if reads & {f"{item.package}.version", *item.facts}:
                yield from _first_that_serves(repair, FixPlan(), item.package, item.range)
    for rule in repair.firing_rules():
        for order, remedy in enumerate(rule.alternatives):
            yield from _by_author(repair, Pick(rule.id, order, remedy), {item.package for item in entries})


def _applies(repair: FixSearch, item: Overridable) -> bool:
    """Whether the part is installed as its owner brought it, and may be replaced."""
    stack = repair.stack
    present = stack.installed.get(item.package, stack.pinned_by_owner(item.package))
    if present in (None, ABSENT) or stack.installed.get(item.owner, ABSENT) == ABSENT:
        return False
    return stack.free(item.package) and item.when.holds(repair.base.known) is True


def _by_author(repair: FixSearch, pick: Pick, known: Collection[str]) -> Iterator[CandidateFix]:
    """Yield the fix of a remedy that replaces one part, where its rule or a library says that the pair works."""
    remedy: Remedy = pick.alternative
    parts = [name for name in map(normalized, remedy.require) if owner_of(name) == TORCH]
    joined = FixPlan().joined(pick)
    if len(parts) != 1 or remedy.call or joined is None or not repair.stack.free(parts[0]):
        return
    if remedy.safety != FixSafety.RISKY and parts[0] not in known:
        return
    rest = {name: spec for name, spec in joined.require.items() if name != parts[0]}
    for chosen in islice(choices(repair.stack, rest, repair.budget), 1):
        yield from _first_that_serves(repair, joined, parts[0], joined.require[parts[0]], chosen)


def _first_that_serves(
    repair: FixSearch, plan: FixPlan, package: str, spec: str, chosen: Mapping[str, str] | None = None
) -> Iterator[CandidateFix]:
    """Yield the first release that leaves nothing: those that another release of the owner pins come first."""
    best: CandidateFix | None = None
    for version in _releases(repair.stack, package, spec)[:_TRIED]:
        outcome = repair.evaluate(plan, {**(chosen or {}), package: version})
        if outcome is None or outcome.firing:
            continue
        if not repair.new_warnings(outcome):
            best = outcome
            break
        best = best or outcome
    if best is not None:
        yield best


def _releases(stack: PackageSet, package: str, spec: str) -> list[str]:
    """Return the releases of a part that are newer than its owner's, nearest first."""
    owner = owner_of(package) or ""
    tested = {
        pin
        for version in stack.index.releases(owner)
        if stack.index.mentions(owner, package) and (pin := stack.bundled_packages(owner, version).get(package))
    }
    floor = stack.pinned_by_owner(package) or stack.installed.get(package, ABSENT)
    found = [
        version
        for version, item in stack.index.releases(package).items()
        if admits(spec, version)
        and not item.yanked
        and not item.is_prerelease
        and item.installs_on(stack.platform)
        and (floor == ABSENT or parse_version(version) > parse_version(floor))
    ]
    return sorted(found, key=lambda version: (version not in tested, parse_version(version)))
