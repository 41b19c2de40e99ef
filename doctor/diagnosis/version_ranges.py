"""Evaluate the rules for the releases that version ranges allow, and for called packages of unstated release.

All affected is an error, some a warning; a note where the range has one bound and an installer picks another release.

All combinations are evaluated where they are few; else each package individually, with the others unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import fact as make_fact
from doctor.facts.vocabulary import parse_version
from doctor.model import (
    SEVERITIES,
    Facts,
    Finding,
    Prediction,
    Remedy,
    RemedyKind,
    Severity,
    Undetermined,
)
from doctor.packages.index import load_index
from doctor.packages.specifiers import specifier
from doctor.rulebook.evaluate import Assessment, evaluate, with_backend_findings
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.shared import SharedEvaluations
from doctor.sources.manifests.resolve import Declaration
from doctor.sources.manifests.version_ranges import MOST_NAMED, OpenRange, TooMany, combinations, narrowed, pins_of
from doctor.sources.workload.defaults import complete_workload

from .equivalence import Alike, Memory

MOST_COMBINATIONS = 160  # judged
UNSTATED = "the newest release on record that fits, as no input states one"
_MOST_TRIED = 12  # releases of a package that no input states

Choice = tuple[tuple[str, str], ...]  # (package, release), in the order of the open packages


@dataclass(frozen=True)
class Case:
    """Choices of releases that every rule treats alike, judged by the last of them."""

    choices: tuple[Choice, ...]
    assessment: Assessment
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class RangeChoices:
    """What is to be judged of the ranges of one environment: packages, together with the choices they admit."""

    watched: tuple[OpenRange, ...]
    rounds: tuple[tuple[tuple[OpenRange, ...], tuple[Choice, ...]], ...]
    newest: Choice | None = None  # what an installer would take today

    @property
    def count(self) -> int:
        """How often the rulebook is evaluated."""
        return sum(len(choices) for _, choices in self.rounds)


def ranges_of(rulebook: Rulebook, declaration: Declaration) -> RangeChoices:
    """The choices that the ranges of watched packages leave, worked out once for all GPUs and jobs."""
    watched = tuple(item for item in declaration.open if item.name in rulebook.watched_distributions)
    rounds = _rounds(watched, declaration) if watched and not declaration.today else ()
    newest = _newest(watched, declaration) if watched else None
    return RangeChoices(watched, tuple((tuple(some), tuple(_choices(some, declaration))) for some in rounds), newest)


def judge_ranges(
    rulebook: Rulebook,
    facts: Facts,
    declaration: Declaration,
    base: Assessment,
    ranges: RangeChoices | None = None,
    grounds: SharedEvaluations | None = None,
) -> tuple[Assessment, tuple[Finding, ...], Assessment, tuple[str, ...]]:
    """(the base assessment, in which open versions are unknown, sharpened by what their releases have in common;
    the findings; what an installer would take today, judged; notes).

    `ranges` without rounds has only the last of these judged; `grounds` share work between GPUs and jobs.
    """
    found = with_backend_findings(rulebook, base)
    ranges = ranges or ranges_of(rulebook, declaration)
    watched, rounds = ranges.watched, ranges.rounds
    if not watched:
        return base, found, base, ()
    memory = grounds.memory if grounds else None
    fired = {finding.rule for finding in found}
    findings: dict[str, Finding] = {finding.rule: finding for finding in found}
    decided: set[str] = set()
    predictions, newest = base.predictions, None
    for packages, choices in rounds:
        cases = judged_alike(
            rulebook, [(choice, whole(facts, choice, packages, declaration)) for choice in choices], memory
        )
        if not cases:
            continue
        for finding in _judged(cases, packages, fired):
            before = findings.get(finding.rule)
            if before is None or SEVERITIES.index(finding.severity) < SEVERITIES.index(before.severity):
                findings[finding.rule] = finding
        decided |= _decided(base, cases)
        if len(rounds) == 1:
            predictions, newest = _agreed(base, cases), cases[-1]
    notes: tuple[str, ...] = ()
    if len(rounds) != 1:
        names = ", ".join(item.name for item in watched)
        if rounds:
            notes = (f"Too many version combinations ({names}): packages were checked individually, not together",)
        choice = ranges.newest
        if choice is not None:
            (newest,) = judged_alike(rulebook, [(choice, whole(facts, choice, watched, declaration))], memory)
        for finding in newest.findings if newest else ():
            findings.setdefault(finding.rule, _of_today(finding, choice or ()))
        if declaration.today and newest is not None:
            predictions = newest.assessment.predictions
    order = sorted(findings.values(), key=lambda finding: SEVERITIES.index(finding.severity))
    sharpened = base._replace(undetermined=_still_open(base, decided | set(findings)), predictions=predictions)
    return sharpened, tuple(order), newest.assessment if newest else base, notes


def _rounds(opened: Sequence[OpenRange], declaration: Declaration) -> Iterator[list[OpenRange]]:
    """The packages judged together: all of them, or each alone."""
    few = MOST_COMBINATIONS + 1
    try:
        together = len(list(islice(_choices(opened, declaration), few))) < few
    except TooMany:
        together = False
    if together:
        yield list(opened)
    else:
        yield from ([item] for item in opened)


def _choices(
    packages: Sequence[OpenRange], declaration: Declaration, *, newest_first: bool = False
) -> Iterator[Choice]:
    """Every combination whose releases admit one another, the first package's oldest first, or its newest."""
    found = combinations(packages, declaration.platform, declaration.other_index, newest_first=newest_first)
    return (tuple(zip((item.name for item in packages), versions, strict=True)) for versions in found)


def _newest(packages: Sequence[OpenRange], declaration: Declaration) -> Choice | None:
    """What an installer takes today."""
    try:
        return next(_choices(packages, declaration, newest_first=True), None)
    except TooMany:
        return None


def whole(facts: Facts, choice: Choice, packages: Sequence[OpenRange], declaration: Declaration) -> Facts:
    """The facts once these releases are taken, with what they pin in turn."""

    places = {item.name: item.place for item in packages}
    extras = {item.name: item.extras for item in packages if not item.alone}
    chosen = [make_fact(f"{name}.version", version, f"{places[name]}, which admits it") for name, version in choice]
    brought = [
        make_fact(f"{package}.version", pin, places[name])._replace(via=f"{name} {version}")
        for name, version in choice
        if name in extras
        for package, pin in pins_of(name, version, declaration.platform, extras[name])
        if f"{package}.version" not in facts
    ]
    return complete_workload(facts.with_(*brought, *chosen))


def judged_alike(
    rulebook: Rulebook, wholes: Sequence[tuple[Choice, Facts]], memory: Memory | None = None
) -> list[Case]:
    """Every choice, judged; those that are alike once. Only the last case names the facts that are missing."""
    if not wholes:
        return []
    alike = Alike(rulebook, [facts for _, facts in wholes], memory)
    cases = []
    groups = alike.groups()
    for numbers in groups:
        assessment = alike.evaluate(numbers[-1], name_missing=numbers is groups[-1])
        choices = tuple(wholes[number][0] for number in numbers)
        cases.append(Case(choices, assessment, with_backend_findings(rulebook, assessment)))
    return cases


def _judged(cases: Sequence[Case], packages: Sequence[OpenRange], fired: set[str]) -> Iterator[Finding]:
    by_rule: dict[str, list[tuple[Case, Finding]]] = {}
    for case in cases:
        for finding in case.findings:
            if finding.rule not in fired:
                by_rule.setdefault(finding.rule, []).append((case, finding))
    some = []
    every = [choice for case in cases for choice in case.choices]
    for affected in by_rule.values():
        worst = min((finding for _, finding in reversed(affected)), key=lambda item: SEVERITIES.index(item.severity))
        about = {item.key.removesuffix(".version") for item in worst.evidence}
        if len(affected) == len(cases):
            concerned = [item for item in packages if item.name in about] or list(packages)
            named = " with ".join(f"`{item.name}{item.range}`" for item in concerned)
            yield worst._replace(message=f"every release that {named} allows: {worst.message}")
        else:
            ordered = sorted(packages, key=lambda item: item.name not in about)
            bad = [choice for case, _ in affected for choice in case.choices]
            some.append(_affected_range(worst, bad, every, ordered))
    yield from (_of_some(affected, some, dict(every[-1])[affected.package.name]) for affected in some)


@dataclass(frozen=True)
class _AffectedRange:
    """A finding that affected for some releases, and the package whose range is to be narrowed."""

    finding: Finding
    package: OpenRange
    releases: tuple[str, ...]  # of the package, in some bad combination
    clean: tuple[str, ...]  # its releases in none


def _affected_range(
    finding: Finding, bad: Sequence[Choice], every: Sequence[Choice], ordered: Sequence[OpenRange]
) -> _AffectedRange:
    made = []
    for item in ordered:
        hit, possible = ({dict(choice)[item.name] for choice in choices} for choices in (bad, every))
        affected = tuple(version for version in item.versions if version in hit)
        clean = tuple(version for version in item.versions if version in possible - hit)
        made.append(_AffectedRange(finding, item, affected, clean))
    return next((item for item in made if item.clean), made[0])


def _of_some(affected: _AffectedRange, every: Sequence[_AffectedRange], today: str) -> Finding:
    """Name the releases, and the narrowing of the range that clears all findings about it.

    An error becomes a warning. About releases that pip would not pick today, a warning becomes a note, and so does an
    error where the line has one bound only: `torch>=2.0` and `vllm<=0.6.3` are meant for the newest release that they
    admit, which an installer picks.
    """
    finding, item = affected.finding, affected.package
    more = f" and {len(affected.releases) - MOST_NAMED} more" if len(affected.releases) > MOST_NAMED else ""
    spared = "" if today in affected.releases else f" (pip would pick {today} today)"
    named = ", ".join(affected.releases[-MOST_NAMED:])
    lead = f"`{item.name}{item.range}` ({item.place}) allows {named}{more}{spared}. With these: "
    severity = Severity.WARNING if finding.severity == Severity.ERROR else finding.severity
    return finding._replace(
        severity=Severity.NOTE if spared and (finding.severity == Severity.WARNING or _is_open(item)) else severity,
        message=lead + finding.message,
        alternatives=(*_narrowing(affected, every, today), *_other_remedies(finding, item.name if spared else None)),
    )


def _is_open(item: OpenRange) -> bool:
    """Whether the range admits every newer or every older release."""
    used = {clause.operator for clause in specifier(item.range)} - {"!="}
    return used <= {">", ">="} or used <= {"<", "<="}


def _narrowing(affected: _AffectedRange, every: Sequence[_AffectedRange], today: str) -> Iterator[Remedy]:
    """The range without any release of which something is found; where there is none, without those of this finding.

    An old release is no remedy for what a rule fixes by a command alone.
    """
    if not affected.clean or not _fixed_by_release(affected, today):
        return
    item = affected.package
    same = [one for one in every if one.package is item and one.clean and _fixed_by_release(one, today)]
    left = [version for version in affected.clean if all(version in one.clean for one in same)]
    others = [one.finding.rule for one in same if one is not affected] if left else []
    note = f"also fixes {', '.join(others)}" if others else None
    wanted = narrowed(item, left or affected.clean)
    yield Remedy(require={item.name: wanted}, note=note, kind=RemedyKind.NARROWS_RANGE)


def _fixed_by_release(affected: _AffectedRange, today: str) -> bool:
    """Whether another release is a remedy: today's is not affected, or the rule names one, or no remedy at all."""
    ways = affected.finding.alternatives
    return today not in affected.releases or not ways or any(way.require for way in ways)


def _other_remedies(finding: Finding, spared: str | None) -> Iterator[Remedy]:
    """The rule's own ways, without a release to pin where an installer takes one today that is not concerned."""
    yield from (way for way in finding.alternatives if spared is None or spared not in way.require)


def _of_today(finding: Finding, choice: Choice) -> Finding:
    """A finding of the newest releases, where the others were too many to check."""
    about = {item.key.removesuffix(".version") for item in finding.evidence}
    concerned = [(name, version) for name, version in choice if name in about] or choice
    named = ", ".join(f"{name} {version}" for name, version in concerned)
    severity = Severity.WARNING if finding.severity == Severity.ERROR else finding.severity
    return finding._replace(severity=severity, message=f"pip would pick {named} today: {finding.message}")


def _decided(base: Assessment, cases: Sequence[Case]) -> set[str]:
    """Rules that are undetermined in none of the cases."""
    unclear = {rule for case in cases for group in case.assessment.undetermined for rule in group.rules}
    return {rule for group in base.undetermined for rule in group.rules} - unclear


def _still_open(base: Assessment, decided: set[str]) -> tuple[Undetermined, ...]:
    kept = (
        Undetermined(group.missing, tuple(rule for rule in group.rules if rule not in decided), group.problem)
        for group in base.undetermined
    )
    return tuple(group for group in kept if group.rules)


def _agreed(base: Assessment, cases: Sequence[Case]) -> tuple[Prediction, ...]:
    """Return one prediction per library: that of the newest case where all choose the same, else that of the base."""
    by_library: dict[str, list[Prediction]] = {}
    for case in cases:
        for item in case.assessment.predictions:
            by_library.setdefault(item.library, []).append(item)
    agreed = []
    for item in base.predictions:
        found = by_library.get(item.library, [])
        same = {(one.could_tell, one.selected, one.fails_at_run is None, one.import_error is None) for one in found}
        agreed.append(found[-1] if len(found) == len(cases) and len(same) == 1 else item)
    return tuple(agreed)


def judge_unstated(
    rulebook: Rulebook, facts: Facts, called: Sequence[tuple[str, str]], found: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], Assessment | None]:
    """(the findings with warnings where a called package refuses the job; the assessment to fix, if one does).

    `called`: library and distribution. Its newest release that fits the stated packages is judged. Another one may be
    installed, or none.
    """
    before = {item.rule for item in found}
    for library, name in called:
        for release, words in islice(_releases(rulebook, library, name), _MOST_TRIED):
            stated = facts.with_(make_fact(f"{name}.version", release, UNSTATED))
            assessment = evaluate(rulebook, stated)
            errors = [item for item in with_backend_findings(rulebook, assessment) if item.severity == Severity.ERROR]
            new = [item for item in errors if item.rule not in before]
            if any(_is_about_releases(item, name) for item in new):
                continue  # it does not fit what is stated: another one is installed
            if not new:
                break
            refusals = (*found, *(_unsure(item, name, words) for item in new))
            shown = {item.rule for item in refusals}
            to_fix = assessment._replace(findings=tuple(item for item in assessment.findings if item.rule in shown))
            return tuple(sorted(refusals, key=lambda item: SEVERITIES.index(item.severity))), to_fix
    return found, None


def _is_about_releases(finding: Finding, name: str) -> bool:
    """Return whether a finding compares releases of a package with those of another one."""
    return any(item.key.endswith(".version") and item.key != f"{name}.version" for item in finding.evidence)


def _unsure(finding: Finding, name: str, release: str) -> Finding:
    message = f"no release of {name} is stated; with {release}, the newest that fits: {finding.message}"
    return finding._replace(severity=Severity.WARNING, message=message)


def _releases(rulebook: Rulebook, library: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the last release of each line on record, newest first, and how to name it.

    Of a package that the release index lacks, one release on each side of what rules distinguish.
    """
    on_record = load_index().releases(name)
    named = {release: release for release in on_record} or _named_releases(rulebook, library, f"{name}.version")
    seen = set()
    for release in sorted(named, key=parse_version, reverse=True):
        version = parse_version(release)
        if not version.is_prerelease and version.release[:2] not in seen:
            seen.add(version.release[:2])
            yield release, named[release]


def _named_releases(rulebook: Rulebook, library: str, key: str) -> dict[str, str]:
    """Return releases that the rules of a library distinguish, each with its words.

    A bound that is not part of its range counts only where no other is named: `<3` may be ahead of releases.
    """
    clauses = [
        clause
        for rule in rulebook.rules_of(library)
        for leaf in rule.when.leaves()
        if leaf.key == key
        for clause in split_clauses(leaf.text)
    ]
    within = {bound.removesuffix(".*") for operator, bound in clauses if operator in (">=", "==", "<=")}
    ends = {bound for operator, bound in clauses if operator == "<"}
    below = {_before(bound): f"a release below {bound}" for bound in ends}
    return {**below, **{bound: bound for bound in within or ends}}


def _before(bound: str) -> str:
    """Return a number below a bound, in the line before it: 0.14.99 for 0.15."""
    release = parse_version(bound).release
    last = max((place for place, part in enumerate(release) if part), default=0)
    return ".".join(map(str, (*release[:last], max(release[last] - 1, 0), 99)))
