"""Order candidate fixes by what they cost people, refuse those that are none, and choose the few that are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH, Facts, FixKind, FixSafety, Severity
from doctor.packages.relations import BUILT_AGAINST_TORCH, BUILT_PER_INDEX, owner_of
from doctor.rulebook.categories import UNKNOWN_MODEL, WRONG_LAYOUT, WRONG_NUMBERS
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.rulebook import Rulebook

from .effort import build_weight, kind_of
from .images import own_build
from .repair import CandidateFix, FixSearch, unfused_selected

#: Categories of findings that say that the numbers are wrong, or that the model does not load.
_REFUSED = (WRONG_NUMBERS, WRONG_LAYOUT, UNKNOWN_MODEL)
#: A cheap fix with a drawback comes behind those that only replace wheels, and before another release line.
_WITH_DRAWBACK = FixKind.RELEASE_LINE.rank - 0.5


class Ranked(NamedTuple):
    """A candidate, with what decides its place."""

    outcome: CandidateFix
    kind: FixKind
    place: tuple[Any, ...]


def best_of(
    search: FixSearch, outcomes: Sequence[CandidateFix], first: Sequence[CandidateFix] = ()
) -> list[CandidateFix]:
    """Return the few outcomes worth showing, the cheapest first: one of each kind, each another set of changes.

    Those in `first` precede the others of their kind. None leaves an error.
    """
    kept: dict[Any, CandidateFix] = {}
    for outcome in sorted(outcomes, key=lambda item: (len(item.firing), item not in first, search.rank(item))):
        kept.setdefault(outcome.changes, outcome)
    apart = [item for item in kept.values() if not any(map(item.contains, kept.values()))]
    proven = [item for item in apart if refusal(search, item) is None]
    clean = _without_warnings(search, proven)
    ranked = sorted((_ranked(search, item, item in first) for item in clean), key=lambda item: item.place)
    return [item.outcome for item in _one_of_each_kind(search, ranked)]


def _one_of_each_kind(search: FixSearch, ranked: Sequence[Ranked]) -> list[Ranked]:
    """Return the first of each kind; further ones only where a single kind would be shown."""
    most = search.budget.fixes
    kinds = {item.kind: item for item in reversed(ranked)}
    shown = [item for item in ranked if kinds[item.kind] is item][:most]
    rest = [item for item in ranked if item not in shown and item.kind == ranked[0].kind]
    if len(shown) < most and len(kinds) == 1:
        shown += rest[: most - len(shown)]
    return sorted(shown, key=lambda item: item.place)


def refusal(search: FixSearch, outcome: CandidateFix) -> str | None:
    """Return why a candidate is no fix: an error is left, wrong numbers, memory, an image's own build."""
    errors = [rule for rule in sorted(outcome.firing) if search.rulebook.rules[rule].severity == Severity.ERROR]
    if errors:
        return f"{', '.join(errors)} remain{'s' * (len(errors) == 1)}"
    if TORCH in outcome.chosen and search.stack.installed.get(TORCH) is None:
        return "the installed torch is not known"
    own = replaced_build(search, outcome)
    if own is not None:
        return f"`{own}` {search.stack.installed[own]} is a build of the image"
    if unfused_selected(search.rulebook, outcome.known) - unfused_selected(search.rulebook, search.base.known):
        short = scores_exceed_memory(outcome.facts, outcome)
        if short:
            return short
    before = {item.rule for item in search.base.findings}
    brought = sorted(wrong_numbers(search.rulebook, before, search.assessment_after(outcome)))
    return f"it brings {', '.join(brought)}" if brought else None


def wrong_numbers(rulebook: Rulebook, before: Collection[str], after: Assessment) -> set[str]:
    """Return the rules which say that numbers are wrong or a model does not load, and that did not fire before.

    What rests on a value that the job does not state refuses nothing: it is a warning of the fix.
    """
    return {
        item.rule
        for item in after.findings
        if item.rule not in before
        and item.severity in (Severity.ERROR, Severity.WARNING)
        and item.rule in rulebook.rules
        and rulebook.rules[item.rule].category in _REFUSED
        and not (item.assumption or any(piece.key.endswith(".given") for piece in item.evidence))
    }


def replaced_build(search: FixSearch, outcome: CandidateFix) -> str | None:
    """Return the package of a container image that a fix would replace by the registry's: torch of an NGC image."""
    built = (TORCH, *BUILT_PER_INDEX, *BUILT_AGAINST_TORCH) if own_build(search) else ()
    installed = search.stack.installed
    own = (name for name in outcome.chosen if name in built and _is_own(installed.get(name, ABSENT)))
    return next(own, None)


def _is_own(version: str) -> bool:
    """Whether a version is no public release: torch's own, and what an image compiled against it."""
    return version != ABSENT and ("+" in version or parse_version(version).is_prerelease)


def scores_exceed_memory(facts: Facts, outcome: CandidateFix) -> str | None:
    """Return that the written-out scores of one layer do not fit into the GPU's memory, where both are known."""
    scores, memory = outcome.known.value("workload.score_matrix_bytes"), outcome.known.value("gpu.memory_bytes")
    if isinstance(scores, int) and isinstance(memory, int) and scores > memory:
        return f"the scores of one layer take {scores / 2**30:.0f} GiB of {memory / 2**30:.0f} GiB"
    return None


def _ranked(search: FixSearch, outcome: CandidateFix, is_first: bool) -> Ranked:
    kind = kind_of(search.stack, search.base.known, outcome.plan, outcome.chosen)
    level: float = kind.rank
    if any(_drawbacks(search, outcome)):
        level = max(level, _WITH_DRAWBACK) if kind.rank < _WITH_DRAWBACK else kind.rank + 0.5
    unsure = outcome.safety == FixSafety.CONDITIONAL
    errors = len(outcome.firing)
    order = outcome.plan.order or (len(outcome.chosen),)
    weight = build_weight(search.stack, search.base.known, outcome.chosen) if kind == FixKind.BUILD else 0
    older = _older(search, outcome)
    return Ranked(outcome, kind, (errors, unsure, level, weight, not is_first, older, order, outcome.cost))


def _drawbacks(search: FixSearch, outcome: CandidateFix) -> Iterator[bool]:
    """Yield whether it changes numbers, is risky as a whole, is slow, or brings a warning."""
    yield outcome.safety == FixSafety.CHANGES_NUMBERS
    yield outcome.safety == FixSafety.RISKY and not any(owner_of(name) for name in outcome.chosen)
    yield bool(unfused_selected(search.rulebook, outcome.known) - unfused_selected(search.rulebook, search.base.known))
    yield bool(search.new_warnings(outcome))


def _older(search: FixSearch, outcome: CandidateFix) -> bool:
    installed = search.stack.installed
    return any(
        ABSENT not in (version, installed.get(name, ABSENT)) and parse_version(version) < parse_version(installed[name])
        for name, version in outcome.chosen.items()
    )


def _without_warnings(search: FixSearch, candidates: list[CandidateFix]) -> list[CandidateFix]:
    """Drop releases that bring a warning of their own where something else fixes as much without one."""
    if not any(not item.firing and not search.new_warnings(item) for item in candidates):
        return candidates
    return [item for item in candidates if not item.chosen or item.firing or not search.new_warnings(item)]
