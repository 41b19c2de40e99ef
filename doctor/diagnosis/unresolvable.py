"""Requirements of a project that no resolver meets together, as the metadata of the packages on record says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from doctor.facts.versions import split_clauses
from doctor.facts.vocabulary import fact, parse_version
from doctor.model import Finding, Severity
from doctor.packages.specifiers import named_release
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook

from .diagnosis_input import DiagnosisInput

if TYPE_CHECKING:
    from doctor.sources.manifests.base import DeclaredRequirement

#: Files whose lines one command installs together; in a script, a later command may replace what was there.
_TOGETHER = (".txt", ".in", ".toml")
_VERSION = ".version"


def unresolvable(
    rulebook: Rulebook, examined: DiagnosisInput, found: Sequence[Finding], category: str, chosen: frozenset[str]
) -> tuple[tuple[Finding, ...], Assessment | None]:
    """Return an error for each pair of lines of one file that no resolver meets together; `found` has some milder.

    Where lines without a recorded release are part of it, also what the rules say at their lower bounds.
    """
    declared = examined.declaration.requested if examined.declaration is not None else {}
    if len(declared) < 2:
        return (), None
    warned = {item.rule for item in found}
    at_bounds = _at_bounds(rulebook, examined, declared)
    more = tuple(_of_open_lines(rulebook, *at_bounds, category)) if at_bounds is not None else ()
    errors = tuple(
        item._replace(severity=Severity.ERROR)
        for item in (*found, *(item for item in more if item.rule not in warned))
        if item.rule not in chosen and _refused(rulebook, declared, item, category)
    )
    new = {item.rule for item in errors} - warned
    return errors, at_bounds[1] if at_bounds is not None and new else None


def _refused(rulebook: Rulebook, declared: Mapping[str, DeclaredRequirement], item: Finding, category: str) -> bool:
    """Whether a finding is about two lines that one command installs, and about what one of them requires."""
    rule = rulebook.rules.get(item.rule)
    if rule is None or rule.category != category or item.severity != Severity.WARNING:
        return False
    names = {piece.key.removesuffix(_VERSION) for piece in item.evidence if piece.key.endswith(_VERSION)}
    lines = [declared[name] for name in names if name in declared]
    plain = all(not (line.alone or line.locked or line.constraint or line.source) for line in lines)
    files = {line.file for line in lines}
    return len(names) >= 2 and len(lines) == len(names) and plain and len(files) == 1 and _together(files.pop())


def _together(file: str) -> bool:
    return PurePath(file).suffix in _TOGETHER or PurePath(file).name == "Pipfile"


def _at_bounds(
    rulebook: Rulebook, examined: DiagnosisInput, declared: Mapping[str, DeclaredRequirement]
) -> tuple[Mapping[str, str], Assessment] | None:
    """Return the lower bounds of the lines whose releases no record has, and what the rules say at them."""
    known = examined.facts
    bounds = {
        name: bound
        for name, line in declared.items()
        if line.range and known.value(f"{name}{_VERSION}") is None and (bound := named_release(line.range)) is not None
    }
    if not bounds:
        return None
    new = (fact(f"{name}{_VERSION}", bound, declared[name].place) for name, bound in bounds.items())
    return bounds, evaluate(rulebook, known.with_(*new))


def _of_open_lines(
    rulebook: Rulebook, bounds: Mapping[str, str], assessment: Assessment, category: str
) -> Iterator[Finding]:
    """Yield what is found at lower bounds, and holds for all newer releases that the rule knows."""
    for item in assessment.findings:
        rule = rulebook.rules.get(item.rule)
        if rule is None or rule.category != category:
            continue
        read = [name for name in bounds if any(piece.key == f"{name}{_VERSION}" for piece in item.evidence)]
        if read and all(_newest_on_record(rule, name, bounds[name]) for name in read):
            yield item


def _newest_on_record(rule: Rule, package: str, bound: str) -> bool:
    """Whether the newest releases that a rule knows of are those from the bound on: no later requirement is known."""
    ends = {
        end
        for leaf in rule.when.leaves()
        if leaf.key == f"{package}{_VERSION}"
        for operator, end in split_clauses(leaf.text)
        if operator == "<"
    }
    return len([end for end in ends if parse_version(end) > parse_version(bound)]) == 1
