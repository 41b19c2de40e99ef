"""Findings that follow from a backend prediction where no rule states them as such."""

from __future__ import annotations

from doctor.model import Candidate, Finding, Prediction

from .backends import order_that_counts
from .evaluate import Assessment, finding_of
from .resolver import Known
from .rulebook import Rulebook

NO_BACKEND = "NO_BACKEND"


def foretold(rulebook: Rulebook, assessment: Assessment) -> tuple[Finding, ...]:
    """The findings, and one for each library whose attention cannot run although no error says so."""
    findings = assessment.findings
    if any(finding.severity == "error" for finding in findings):
        return findings
    added = []
    for prediction in assessment.predictions:
        reason = prediction.import_error or prediction.fails_at_run
        if reason is not None and reason.holds:
            added.append(finding_of(rulebook.rules[reason.rule], assessment.known, "error", reason.message))
        elif prediction.could_tell and prediction.selected is None:
            added.append(_nothing_left(rulebook, prediction, assessment.known))
    return (*added, *findings)


def _nothing_left(rulebook: Rulebook, prediction: Prediction, known: Known) -> Finding:
    """Each candidate that counts with its first reason; what puts one of them back is a way out."""
    described = rulebook.libraries[prediction.library]
    library = described.body.get("title") or prediction.library
    order = order_that_counts(described.preferences, known) or ()
    asked = [item for item in prediction.candidates if item.backend in order] or list(prediction.candidates)
    if len(asked) == 1 and asked[0].reasons and asked[0].reasons[0].rule in rulebook.rules:
        reason = asked[0].reasons[0]  # nothing else was asked for: the refusal itself is the finding
        return finding_of(rulebook.rules[reason.rule], known, "error", reason.message)
    rules = dict.fromkeys(candidate.reasons[0].rule for candidate in asked if candidate.reasons)
    known_rules = [rulebook.rules[rule] for rule in rules if rule in rulebook.rules]
    return Finding(
        rule=NO_BACKEND,
        name="no-attention-backend",
        severity="error",
        verdict="fires",
        summary=f"no attention backend of {library} serves this job",
        message="; ".join(map(_said, asked)),
        why=f"{library} stops with an error when every backend is ruled out.",
        evidence=(),
        references=tuple(dict.fromkeys(source for rule in known_rules for source in rule.references)),
        alternatives=tuple(item for rule in known_rules for item in rule.alternatives),
        backends=tuple(candidate.backend for candidate in asked),
    )


def _said(candidate: Candidate) -> str:
    reason = candidate.reasons[0] if candidate.reasons else None
    return f"{candidate.title}: {f'{reason.message} [{reason.rule}]' if reason else 'not available'}"
