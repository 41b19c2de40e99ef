"""What a project suppresses: rules it ignores until a date, and the findings of its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from doctor.facts.vocabulary import nearest
from doctor.model import SEVERITIES, Case, Evidence, Fact, Finding, Severity, Undetermined, Verdict
from doctor.rulebook.evaluate import Assessment
from doctor.rulebook.rulebook import Rulebook
from doctor.sources.project.config import Defaults, Ignore
from doctor.util.patterns import pattern

from .request import Request

EXPIRED, UNKNOWN = "IGNORE_EXPIRED", "IGNORE_UNKNOWN"
_OWN = (EXPIRED, UNKNOWN, "NO_BACKEND", "UNPREDICTED")  # findings that no rule file states
_ALIKE = str.maketrans("OoIl", "0011")
_API = pattern(r"API\d{3}")  # likewise: what the installed sources show


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
    visible = [finding for finding in found if finding.rule not in silent]
    left_out = tuple(finding for finding in found if finding.rule in silent)
    visible += [_expired(entry, entry.rule in fired) for entry in request.defaults.expired]
    visible += _strangers(ignored, request.defaults, rulebook)
    visible.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if request.baseline is None:
        return Suppressed(tuple(visible), (), left_out, silent, tuple(notes))

    unsure = frozenset(rule for item in undetermined for rule in item.rules) - fired
    from .baseline import compare, read_baseline

    compared = compare(read_baseline(Path(request.baseline)), visible, cases, silent, unsure)
    gone = silent | ({item.rule for item in compared.known} - {item.rule for item in compared.new})
    return Suppressed(compared.new, compared.known, left_out, gone, (*notes, *compared.notes))


def without_ignored(rulebook: Rulebook, assessment: Assessment, defaults: Defaults) -> tuple[Rulebook, Assessment]:
    """Return both without the ignored rules: no fix acts on them, and none is rejected because of them."""
    ignored = frozenset(_by_current_id(defaults.ignored, rulebook))
    if ignored.isdisjoint(finding.rule for finding in assessment.findings):
        return rulebook, assessment
    findings = tuple(finding for finding in assessment.findings if finding.rule not in ignored)
    return rulebook.only(set(rulebook.rules) - ignored), assessment._replace(findings=findings)


def _expired(entry: Ignore, fires: bool) -> Finding:
    """Return the finding for an expired ignore entry."""
    owner = f" by {entry.owner}" if entry.owner else ""
    now = "it triggers and counts again" if fires else "it does not trigger here: remove the entry"
    key = f"ignore.{entry.rule}"
    return _of_entry(
        EXPIRED,
        Evidence(key, "past", "a later day, or no entry", Fact(key, entry.until, entry.place), True),
        f"Ignore entry for {entry.rule} expired on {entry.until}",
        f"{entry.rule} was ignored{owner} until {entry.until} ({entry.reason}); {now}",
        "Ignored rules must be reviewed by their `until` date, which has passed.",
    )


def _of_entry(rule: str, evidence: Evidence, summary: str, message: str, why: str) -> Finding:
    """Return the warning for an ignore entry."""
    return Finding(
        rule=rule,
        name=rule.lower().replace("_", "-"),
        severity=Severity.WARNING,
        verdict=Verdict.FIRES,
        summary=summary,
        message=message,
        why=why,
        evidence=(evidence,),
        references=(),
    )


def _by_current_id(ignored: Mapping[str, str], rulebook: Rulebook) -> Mapping[str, str]:
    """Return the ignored rules; a former id becomes that of the rule that replaces it."""
    if all(rule in rulebook.rules for rule in ignored):
        return ignored
    return {rule if rule in rulebook.rules else rulebook.replaced.get(rule, rule): why for rule, why in ignored.items()}


def _strangers(ignored: Mapping[str, str], defaults: Defaults, rulebook: Rulebook) -> Iterator[Finding]:
    """Yield a warning for each ignored rule that does not exist: what it was meant for still counts."""
    for rule in ignored:
        if rule not in rulebook.rules and rule not in _OWN and not _API.fullmatch(rule):
            hint = _meant(rule, rulebook)
            key = f"ignore.{rule}"
            yield _of_entry(
                UNKNOWN,
                Evidence(key, "unknown", "the id of a rule", Fact(key, rule, defaults.ignored_at.get(rule, "")), True),
                f"Ignored rule {rule} does not exist" + (f": {hint}" if hint else ""),
                f"the project ignores {rule}, but there is no such rule" + (f": {hint}" if hint else ""),
                "An entry with a wrong id ignores nothing.",
            )


def _meant(rule: str, rulebook: Rulebook) -> str | None:
    """Return `did you mean …`: letters that look like digits are read as these first."""
    head = rule.rstrip("0123456789OoIl")
    alike = head.upper() + rule[len(head) :].translate(_ALIKE)
    return f"did you mean `{alike}`?" if alike != rule and alike in rulebook.rules else nearest(rule, rulebook.rules)
