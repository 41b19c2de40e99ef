"""Order candidate fixes: which are shown, and which one is recommended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, FixSafety

from .repair import CandidateFix, FixSearch


def best_of(
    search: FixSearch, outcomes: Sequence[CandidateFix], first: Sequence[CandidateFix] = ()
) -> list[CandidateFix]:
    """Return the few outcomes worth showing, each another set of changes, the recommended one first.

    Those in `first` precede the others wherever they leave as little broken. Where only releases would be shown and a
    setting does as well, the setting replaces the costliest release.
    """
    most = search.budget.fixes
    kept: dict[Any, CandidateFix] = {}
    for outcome in sorted(outcomes, key=lambda item: (len(item.firing), item not in first, item.rank(search.firing))):
        kept.setdefault(outcome.changes, outcome)
    ordered = [item for item in kept.values() if not any(map(item.contains, kept.values()))]
    ordered = _builds_without_warnings_first(search, _settings_before_drawbacks(search, ordered))
    ordered = _without_warnings(search, ordered)
    shown, rest = ordered[:most], ordered[most:]
    setting = next((item for item in rest if not item.chosen and not item.firing), None)
    if setting is not None and all(item.chosen for item in shown) and len(shown) > 1:
        shown.remove(max(shown[1:], key=lambda item: item.cost))
        shown.append(setting)
    return shown


def _without_warnings(search: FixSearch, ordered: list[CandidateFix]) -> list[CandidateFix]:
    """Drop releases that bring a warning of their own where something else fixes as much without one."""
    if not any(not item.firing and not search.new_warnings(item) for item in ordered):
        return ordered
    return [item for item in ordered if not item.chosen or item.firing or not search.new_warnings(item)]


def _settings_before_drawbacks(search: FixSearch, ordered: list[CandidateFix]) -> list[CandidateFix]:
    """Move a setting or call that fixes everything before the releases that have a drawback."""
    settings = [item for item in ordered if not item.chosen and not item.firing and item.safety == FixSafety.SAFE]
    if not settings or not ordered[0].chosen:
        return ordered
    settings = [item for item in settings if not search.new_warnings(item)]
    if not settings:
        return ordered
    good = [item for item in ordered if item in settings or not (item.chosen and _has_drawback(search, item))]
    return [*good, *(item for item in ordered if item not in good)]


def _builds_without_warnings_first(search: FixSearch, ordered: list[CandidateFix]) -> list[CandidateFix]:
    """Among builds of the installed torch release, put one that brings no warning, such as of the driver, first."""
    if not ordered or not _is_build(search, ordered[0]) or not search.new_warnings(ordered[0]):
        return ordered
    good = next(
        (item for item in ordered if _is_build(search, item) and not item.firing and not search.new_warnings(item)),
        None,
    )
    return ordered if good is None else [good, *(item for item in ordered if item is not good)]


def _is_build(search: FixSearch, outcome: CandidateFix) -> bool:
    """Whether it only replaces torch by another build of the same release."""
    installed = search.stack.installed.get("torch", ABSENT)
    return [(name, version.partition("+")[0]) for name, version in outcome.chosen.items()] == [
        ("torch", installed.partition("+")[0])
    ]


def _has_drawback(search: FixSearch, outcome: CandidateFix) -> bool:
    """Whether it brings a warning of its own, an older release, or many changed packages."""
    installed = search.stack.installed
    is_older = any(
        ABSENT not in (version, installed.get(name, ABSENT)) and parse_version(version) < parse_version(installed[name])
        for name, version in outcome.chosen.items()
    )
    return is_older or len(outcome.chosen) >= search.budget.suspicious_size or bool(search.new_warnings(outcome))
