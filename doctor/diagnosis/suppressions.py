"""What a project suppresses: rules it ignores until a date, and the findings of its baseline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from doctor.facts.vocabulary import nearest
from doctor.model import SEVERITIES, Case, Evidence, Fact, Finding, Severity, Undetermined, Verdict
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.project.config import Ignore

from .request import Request

EXPIRED = "IGNORE_EXPIRED"
_OWN = (EXPIRED, "NO_BACKEND", "UNPREDICTED")  # findings that no rule file states
_API = re.compile(r"API\d{3}")  # likewise: what the installed sources show


class Suppressed(NamedTuple):
    """The findings that are reported, those of the baseline, those that are ignored, the suppressed rules, and why."""

    findings: tuple[Finding, ...]
    known: tuple[Finding, ...]
    ignored: tuple[Finding, ...]
    silent: frozenset[str]
    notes: tuple[str, ...]


def apply_suppressions(
    request: Request, rulebook: Rulebook, found: Sequence[Finding], undetermined: Sequence[Undetermined],
    cases: Sequence[Case] = (),
) -> Suppressed:  # fmt: skip
    """Return the findings without the suppressed ones, with one for each expired ignore entry."""
    ignored = _by_current_id(request.defaults.ignored, rulebook)
    fired = {finding.rule for finding in found}
    silent = frozenset(fired & set(ignored))
    notes = [f"{rule} is ignored by this project: {ignored[rule]}" for rule in sorted(silent)]
    notes += _strangers(ignored, rulebook)
    visible = [finding for finding in found if finding.rule not in silent]
    left_out = tuple(finding for finding in found if finding.rule in silent)
    visible += [_expired(entry, entry.rule in fired) for entry in request.defaults.expired]
    visible.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if request.baseline is None:
        return Suppressed(tuple(visible), (), left_out, silent, tuple(notes))

    unsure = frozenset(rule for item in undetermined for rule in item.rules) - fired
    from .baseline import compare, read_baseline

    compared = compare(read_baseline(Path(request.baseline)), visible, cases, silent, unsure)
    gone = silent | ({item.rule for item in compared.known} - {item.rule for item in compared.new})
    return Suppressed(compared.new, compared.known, left_out, gone, (*notes, *compared.notes))


def _expired(entry: Ignore, fires: bool) -> Finding:
    """Return the finding for an expired ignore entry."""
    key = f"ignore.{entry.rule}"
    owner = f" by {entry.owner}" if entry.owner else ""
    now = "it triggers and counts again" if fires else "it does not trigger here: remove the entry"
    day = Evidence(key, "past", "a later day, or no entry", Fact(key, entry.until, entry.place), True)
    return Finding(
        rule=EXPIRED,
        name="ignore-expired",
        severity=Severity.WARNING,
        verdict=Verdict.FIRES,
        summary=f"Ignore entry for {entry.rule} expired on {entry.until}",
        message=f"{entry.rule} was ignored{owner} until {entry.until} ({entry.reason}); {now}",
        why="Ignored rules must be reviewed by their `until` date, which has passed.",
        evidence=(day,),
        references=(),
    )


def _by_current_id(ignored: Mapping[str, str], rulebook: Rulebook) -> Mapping[str, str]:
    """Return the ignored rules; a former id becomes that of the rule that replaces it."""
    if all(rule in rulebook.rules for rule in ignored):
        return ignored
    return {rule if rule in rulebook.rules else rulebook.replaced.get(rule, rule): why for rule, why in ignored.items()}


def _strangers(ignored: Mapping[str, str], rulebook: Rulebook) -> Iterator[str]:
    for rule in ignored:
        if rule not in rulebook.rules and rule not in _OWN and not _API.fullmatch(rule):
            hint = nearest(rule, rulebook.rules)
            yield f"the project ignores {rule}, but there is no such rule" + (f": {hint}" if hint else "")
