"""The text report: one screen by default, everything with `--verbose`."""

from __future__ import annotations

from collections.abc import Iterable

from doctor.model import ApiUse, ChangeKind, Evidence, Finding, Fix, Report, Severity

from .brief import brief, cause, closing_line, comparison, headline, numbered_fixes
from .cases import readings
from .costs import cost_tables
from .fix_text import alternative_lines, no_pin_lead, safety_text
from .page import Page
from .proof import proof_lines
from .runs import confirmation_lines, run_lines, timing_line
from .style import Style
from .summary import job_line, machine_line, shown, stack_line, why_not
from .tables import backend_lines, backend_table, case_table
from .undetermined import count, lines, relevant

#: Sources that read as half a sentence already.
_SENTENCES = ("derived ", "assumed", "predicted ", "default")
_MOST_USES = 6  # of one finding
_MOST_GAPS = 12  # combinations of facts that rules lack
_NO_WAY = "no release, variable or setting on record clears it without breaking something else"


def diagnosis(report: Report, style: Style) -> str:
    """Render the report on one screen, or with `style.verbose` everything that is known."""
    if not style.verbose:
        return brief(report, style)
    page = Page(style)
    headline(page, report)
    for finding in report.findings:
        page.gap()
        _finding(page, finding, report)
    if report.cases:
        page.gap()
        case_table(page, report)
    if report.predictions:
        page.gap()
        explained = frozenset(finding.rule for finding in report.findings)
        for prediction in report.predictions:
            backend_lines(page, prediction, explained)
    cost_tables(page, report)
    run_lines(page, report)
    if report.fixes:
        page.gap()
        _fixes(page, report)
    if report.undetermined:
        page.gap()
        _undetermined(page, report)
    if report.unconcerned:
        page.gap()
        _unconcerned(page, report)
    _assumed(page, report)
    if report.notes:
        page.gap()
        _notes(page, report)
    page.gap()
    closing_line(page, report)
    timing_line(page, report)
    return page.text()


def backends(report: Report, style: Style) -> str:
    """Every candidate with its verdict, reason and source."""
    page = Page(style)
    if not report.predictions:
        page.say(
            "no library that selects an attention backend was found, or no workload was given",
            look="unclear", lead="INCOMPLETE:",
        )  # fmt: skip
        page.line("hint: name one with `--set workload.framework=…`, describe the job with `--workload` or `--model`")
    for prediction in report.predictions:
        page.gap()
        backend_table(page, prediction)
    cost_tables(page, report)
    page.gap()
    page.say(machine_line(report), lead="Machine:", look="label", hang=4)
    page.say(stack_line(report), lead="Packages:", look="label", hang=4)
    page.say(job_line(report), lead="Workload:", look="label", hang=4)
    _notes(page, report)
    return page.text()


def fixes(report: Report, style: Style) -> str:
    """The changes that clear the findings, or why there are none; what was done about them."""
    page = Page(style)
    done = report.proof.kind if report.proof is not None else ""
    if done == "apply":
        page.line("before:", "label")
    headline(page, report)
    page.gap()
    if report.proof is not None and done == "rollback":
        proof_lines(page, report.proof)
        _notes(page, report)
        return page.text()
    if report.fixes:
        _fixes(page, report)
        if any(change.kind == ChangeKind.PACKAGE for change in report.fixes[0].changes):
            page.line("hint: `--pin FILE` writes the packages as a requirements file, with what has to stay held")
    cleared = {rule for item in report.fixes for rule in item.resolves}
    for finding in _one_of_each_id(report.findings):
        if finding.severity == Severity.ERROR and finding.rule not in cleared:
            page.say(why_not(report, finding) or _NO_WAY, lead=f"no fix for {finding.rule}:", look="error")
        elif finding.no_pin:
            page.say(finding.no_pin, lead=f"{finding.rule}:", look="label")
        if finding.myth:
            page.say(finding.myth, lead=f"{finding.rule}, common wrong fix:", look="label")
    if report.proof is not None:
        page.gap()
        proof_lines(page, report.proof)
    _notes(page, report)
    return page.text()


def _one_of_each_id(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding of each id: API drift has one for each pair of packages, and one text for all."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.rule, finding)
    return list(first.values())


def finding_text(finding: Finding) -> str:
    """One finding as plain lines, as other formats quote it."""
    page = Page(Style())
    _finding(page, finding)
    return page.text()


def details_text(report: Report, finding: Finding) -> str:
    """Return what follows a finding's headline and message, as plain lines."""
    page = Page(Style())
    _details(page, finding, report)
    return page.text()


def _finding(page: Page, finding: Finding, report: Report | None = None) -> None:
    page.say(finding.summary, lead=f"{finding.severity} {finding.rule}:", look=finding.severity)
    cause(page, finding, report, " (`--format json` lists them all)")
    _details(page, finding, report)


def _details(page: Page, finding: Finding, report: Report | None) -> None:
    """Write what was found where, why it matters, and the fixes."""
    for evidence in finding.evidence:
        found = readings(report, finding, evidence) if report is not None else []
        differ = len(found) > 1
        text = comparison(evidence.key, evidence, [fact for fact, _ in found] if differ else [evidence.fact])
        page.say(f"{text}, {'different per case' if differ else _origin(evidence)}", indent=4, hang=6)
    for use in finding.uses[:_MOST_USES]:
        page.say(use_text(use), lead="at:", look="label", indent=2, hang=6)
    if len(finding.uses) > _MOST_USES:
        page.say(f"and {len(finding.uses) - _MOST_USES} more uses (`--format json` lists them all)", indent=2, hang=6)
    if finding.why:
        page.say(finding.why, lead="why:", look="label", indent=2, hang=7)
    confirmation_lines(page, finding)
    _ways_out(page, finding)
    if finding.no_pin:
        page.say(finding.no_pin, lead=f"{no_pin_lead(finding)}:", look="label", indent=2, hang=4)
    if finding.myth:
        page.say(finding.myth, lead="Common wrong fix:", look="label", indent=2, hang=4)
    for number, source in enumerate(finding.references):
        lead = "sources:" if number == 0 else "        "
        page.line(f"  {lead} {source}", "dim")


def use_text(use: ApiUse) -> str:
    """Say where a use of another package breaks, and what is defined there."""
    scope = f" in `{use.scope}`" if use.scope else ""
    parts = [f"{use.file}:{use.line}{scope}: {use.message}"]
    if use.definition is not None:
        parts.append(f"defined at {use.definition}" + (f" as `{use.signature}`" if use.signature else ""))
    if use.broken_since:
        parts.append(f"broken since {use.broken_since}")
    if use.works_again_in:
        parts.append(f"works again in {use.works_again_in}")
    if use.fixed_in:
        parts.append(f"fixed in {use.fixed_in} of the caller")
    return "; ".join(parts)


def _origin(evidence: Evidence) -> str:
    source = evidence.fact.origin
    return source if source.startswith(_SENTENCES) else f"from {source}"


def _ways_out(page: Page, finding: Finding) -> None:
    for number, item in enumerate(finding.alternatives):
        safe = safety_text(item)
        page.line(f"  {'fix' if number == 0 else 'or'}:{safe}", "label", lead=6 if number == 0 else 5)
        for line in alternative_lines(item):
            page.line(f"    {line}", "command")
        if item.note:
            page.say(item.note, indent=4, hang=4)


def _fixes(page: Page, report: Report) -> None:
    numbered_fixes(page, report, commands_of_all=True)
    for fix in report.fixes:
        _changes(page, fix, {finding.summary for finding in report.findings})
        if fix.regressions:
            page.say("; ".join(fix.regressions), lead="No longer supported:", look="label", indent=4, hang=6)


def _changes(page: Page, fix: Fix, known: set[str]) -> None:
    """Write what each change replaces, and why where the findings have not said it."""
    plain = []
    for change in fix.changes:
        if change.kind == ChangeKind.CALL:
            continue  # shown as a line to paste
        swap = f"`{change.name}` {change.before or 'none'} → {change.after or 'none'}"
        new = change.why if not any(change.why.startswith(summary) for summary in known) else ""
        new = new or "; ".join(part for part in change.why.split("; ")[1:])
        if new:
            page.say(f"{swap}: {new}", indent=4, hang=6)
        else:
            plain.append(swap)
    if plain:
        page.say(", ".join(plain), indent=4, hang=6)


def _undetermined(page: Page, report: Report) -> None:
    page.say(f"{count(relevant(report))} (missing information)", lead="Skipped:", look="unclear")
    for line in lines(report, most=_MOST_GAPS):
        page.say(line, indent=2, hang=4)


def _unconcerned(page: Page, report: Report) -> None:
    """Write what is true of the environment but of no concern to the job, which calls other packages."""
    page.line("Of no concern to this job, which does not call these parts:", "label")
    for finding in report.unconcerned:
        page.say(finding.summary, lead=f"{finding.severity} {finding.rule}:", indent=2, hang=4)


def _assumed(page: Page, report: Report) -> None:
    """What the workload does not say and was taken as usual."""
    assumed = [fact for fact in report.facts.values() if fact.assumed]
    if not assumed:
        return
    page.gap()
    page.line("Assumptions (override with --set):", "label")
    for fact in assumed:
        why = fact.source.removeprefix("assumed:").strip()
        page.say(f"{fact.key.removeprefix('workload.')} = {shown(fact.value, fact.key)}: {why}", indent=2)


def _notes(page: Page, report: Report) -> None:
    for note in report.notes:
        page.say(note, lead="note:", look="note")
