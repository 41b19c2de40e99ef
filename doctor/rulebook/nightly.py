"""Judge a nightly build of torch by the releases before and after it, a release candidate by its release.

2.6.0.dev20241004 was cut at some point between 2.5.0 and 2.6.0: rules bounded by 2.6 are undetermined for it. A rule on
the job that triggers in one of the two releases is a warning that names the release.
"""

from __future__ import annotations

import re

from doctor.facts.vocabulary import fact as make_fact
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, Facts, Finding, Severity

from .evaluate import Assessment, evaluate
from .rule import Rule
from .rulebook import Rulebook
from .usual import weigh

_KEY = "torch.version"
#: Packages that a build of torch brings or that every environment has: a rule that reads others is on their match.
_OWN = frozenset((_KEY, "cudnn.version", "triton.version", "python.version"))
_SOURCE = "a release next to the nightly"


def neighbours(version: str) -> tuple[str, ...]:
    """Return the releases next to a nightly, the later one first: 2.6.0 and 2.5.0 of 2.6.0.dev20241004+cu124.

    A candidate (2.5.0rc10) is cut from the branch of its release.
    """
    public, _, label = version.partition("+")
    if candidate := re.fullmatch(r"(\d+\.\d+\.\d+)rc\d+", public):
        return (f"{candidate[1]}+{label}" if label else candidate[1],)
    if not re.fullmatch(r"\d+\.\d+\.0\.dev\d{8}", public):
        return ()
    major, minor = parse_version(public).release[:2]
    known = f"+{label}" if label else ""
    return tuple(f"{major}.{number}.0{known}" for number in (minor, minor - 1) if number >= 0)


def judge_nightly(rulebook: Rulebook, facts: Facts, assessment: Assessment) -> Assessment:
    """Return the assessment with the findings, as warnings, that a release next to a nightly of torch has."""
    found = facts.value(_KEY)
    releases = neighbours(found) if isinstance(found, str) and found != ABSENT else ()
    if not releases:
        return assessment
    open_ = {name for group in assessment.undetermined for name in group.rules if _on_the_job(rulebook.rules[name])}
    added: dict[str, Finding] = {}
    for release in releases:
        as_release = facts.with_(make_fact(_KEY, release, _SOURCE))
        for item in weigh(rulebook, as_release, evaluate(rulebook, as_release)).findings:
            if item.rule in open_ and item.rule not in added:
                added[item.rule] = _of_nightly(item, found, release)
    if not added:
        return assessment
    order = sorted((*assessment.findings, *added.values()), key=lambda item: item.severity.rank)
    left = (
        group._replace(rules=rules)
        for group in assessment.undetermined
        if (rules := tuple(name for name in group.rules if name not in added))
    )
    return assessment._replace(findings=tuple(order), undetermined=tuple(left))


def _on_the_job(rule: Rule) -> bool:
    """Whether a rule is on what a job does with this torch, not on which packages go together."""
    keys = {leaf.key for leaf in rule.when.leaves()}
    others = {key for key in keys if key.endswith(".version") and key not in _OWN}
    return not others and any(key.startswith("workload.") or key.endswith(".selected") for key in keys)


def _of_nightly(finding: Finding, nightly: str, release: str) -> Finding:
    """Return the finding of a release as one of the nightly, of an error a warning."""
    build = "candidate" if "rc" in nightly else "nightly"
    said = f"if the {build} {nightly} is like {release.partition('+')[0]} here"
    severity = Severity.WARNING if finding.severity == Severity.ERROR else finding.severity
    return finding._replace(severity=severity, message=f"{finding.message} ({said})", assumption=said)
