"""The default text report: verdict, cause, backend and fix on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from textwrap import shorten

from doctor.facts.vocabulary import term
from doctor.model import ChangeKind, Evidence, Fact, Finding, Fix, Prediction, Report, Severity
from doctor.util.patterns import pattern

from .cases import MOST_MESSAGES, messages, readings, where
from .fix_text import alternative_lines, fix_lines
from .page import Page
from .runs import confirmation_lines, run_lines
from .style import Style
from .summary import (
    conclusion,
    inputs_line,
    job_line,
    library_title,
    machine_line,
    needed,
    shown,
    stack_line,
    target_line,
    title_of,
    why_not,
)
from .tables import case_table, reason_text
from .undetermined import count, relevant

_MOST_FINDINGS = 5  # shown with their evidence; further ones in a line each
_MOST_EVIDENCE = 3
_MOST_NOTES = 3
_LABEL = 10  # columns of the labels at the left
_EDITABLE = pattern(r"\S+\.(txt|in|toml):\d+ ")  # the place of a line that `fix --write` changes
_SEVERITY_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def brief(report: Report, style: Style) -> str:
    """Render the report on one screen; `--verbose` shows the rest."""
    page = Page(style)
    headline(page, report)
    findings = [item for item in report.findings if not style.quiet or item.severity == Severity.ERROR]
    worst = [item for item in findings if item.severity == findings[0].severity]
    worst = ([item for item in worst if not _rarely_reached(item)] or worst[:1])[:_MOST_FINDINGS]
    in_full = [item for item in findings if item in worst or item.severity == Severity.ERROR]
    if report.cases and in_full:
        page.gap()
    for finding in in_full:
        if len(in_full) > 1 and not report.cases:
            page.gap()
        _finding(page, finding, report, titled=finding is not headlined(report))
    if 1 < len(in_full) < len(findings) and not report.cases:
        page.gap()
    milder = [item for item in findings if item not in in_full]
    for finding in milder:
        crowded = len(milder) > 1 and worst[0].severity == Severity.ERROR
        _in_short(page, finding, report, one_line=crowded or _rarely_reached(finding))
    if style.quiet:
        return page.text()
    if report.cases:
        page.gap()
        case_table(page, report)
    if report.predictions:
        explained = frozenset(finding.rule for finding in report.findings)
        for prediction in report.predictions:
            attention_line(page, prediction, explained)
    run_lines(page, report)
    if report.fixes:
        page.gap()
        numbered_fixes(page, report)
    else:
        _no_fix(page, report)
    unexpected = [note for note in report.notes if note not in report.expected]
    unexpected.sort(key=lambda note: not _of_drift(report, note))
    for note in unexpected[:_MOST_NOTES]:
        page.say(note, lead="note:", look="note")
    closing_line(page, report)
    return page.text()


def _of_drift(report: Report, note: str) -> bool:
    """Return whether a note says which packages were not analyzed: it is shown, whatever else there is to say."""
    return report.drift is not None and note == report.drift.note


def added(report: Report, before: Report, style: Style) -> str:
    """Render what the installed sources add to a report that was shown without them."""
    page = Page(style)
    new = [item for item in report.findings if item not in before.findings]
    if style.quiet:
        new = [item for item in new if item.severity == Severity.ERROR]
    page.gap()
    if new:
        look, word, text = conclusion(report)
        page.say(text, lead=f"{word} with API drift:", look=look)
    for finding in new:
        if finding.severity == Severity.ERROR or style.verbose:
            _finding(page, finding, report, titled=True)
        else:
            _in_short(page, finding, report, one_line=_rarely_reached(finding))
    if style.quiet:
        return page.text() if new else ""
    if new and report.fixes and report.fixes != before.fixes:
        page.gap()
        numbered_fixes(page, report)
    if report.drift is not None and report.drift.analyzed and not new:
        names = report.drift.analyzed
        page.say(
            f"nothing found in {len(names)} package{'s' * (len(names) > 1)} ({', '.join(names)})",
            lead="API drift:", look="label",
        )  # fmt: skip
    for note in report.notes:
        if note not in before.notes:
            page.say(note, lead="note:", look="note")
    if new:
        closing_line(page, report)
    return page.text()


def headline(page: Page, report: Report) -> None:
    """Write the verdict and what was examined."""
    look, word, text = conclusion(report)
    first = headlined(report)
    rule = f" {first.rule}" if first is not None else ""
    page.say(text, lead=f"{word}{rule}:", look=look)
    for name, text in (
        ("Target", target_line(report)),
        ("Inputs", inputs_line(report)),
        ("Machine", machine_line(report)),
        ("Packages", stack_line(report)),
        ("Workload", job_line(report)),
    ):
        if text:
            page.say(text, lead=f"{name:<{_LABEL - 1}}", look="label", hang=_LABEL)


def headlined(report: Report) -> Finding | None:
    """Return the finding whose summary the verdict line repeats, where it is the only one of its severity."""
    if not report.findings or report.cases:
        return None
    first = report.findings[0]
    alone = sum(item.severity == first.severity for item in report.findings) == 1
    return first if alone and conclusion(report)[2].startswith(first.summary) else None


def _rarely_reached(finding: Finding) -> bool:
    """Return whether a finding rests on uses in other packages that few jobs reach: the analyzer makes it no error."""
    return finding.severity != Severity.ERROR and bool(finding.uses) and not any(use.own_code for use in finding.uses)


def _in_short(page: Page, finding: Finding, report: Report, *, one_line: bool) -> None:
    """Write a milder finding with its own fix where no fix of the report clears it; `one_line`: its start alone."""
    lead = f"{finding.severity} {finding.rule}:"
    if one_line:  # several next to an error leave no room; few jobs reach a use that runs on demand
        start = shorten(finding.summary, page.style.width - len(lead) - 1, placeholder=" …")
        page.say(start, lead=lead, look=finding.severity)
        return
    page.say(finding.summary, lead=lead, look=finding.severity, hang=2)
    _own_fix(page, finding, report)


def _own_fix(page: Page, finding: Finding, report: Report) -> None:
    """Write the commands of the best alternative of a finding that no fix of the report clears."""
    if not finding.alternatives or finding.refuted or any(finding.rule in fix.resolves for fix in report.fixes):
        return
    best = finding.alternatives[0]
    lines = alternative_lines(best)
    risky = "" if best.safe else f" ({best.safety}: see `-v`)"
    if len(lines) == 1:
        page.line(f"  fix:{risky} {lines[0]}", "command")
    elif lines:
        page.line(f"  fix:{risky}", "command")
        for line in lines:
            page.line(f"    {line}", "command")
    elif best.note:
        page.say(best.note, lead="fix:", look="label", indent=2, hang=4)


def _finding(page: Page, finding: Finding, report: Report, *, titled: bool) -> None:
    """Write the cause with the evidence that decides; without its title where the verdict line is the same."""
    if titled or finding.severity == Severity.NOTE:
        page.say(finding.summary, lead=f"{finding.severity} {finding.rule}:", look=finding.severity, hang=2)
    cause(page, finding, report)
    if not report.cases:  # the rows of a matrix differ; `-v` has the evidence of each
        decisive = [item for item in finding.evidence if needed(item) and not _repeated(item, finding.message)]
        for evidence in decisive[:_MOST_EVIDENCE]:
            page.say(_evidence(report, finding, evidence), indent=4, hang=6)
    confirmation_lines(page, finding)
    if finding.severity != Severity.ERROR or not report.fixes:
        _own_fix(page, finding, report)


def cause(page: Page, finding: Finding, report: Report | None, more: str = "") -> None:
    """Write what a finding says, and in which cases; `more` follows the count of messages left out."""
    if report is None or not finding.cases:
        if finding.message != finding.summary:
            page.say(finding.message, indent=2, hang=2)
        return
    page.say(where(report, finding.cases), lead="in:", look="label", indent=2, hang=6)
    texts = messages(report, finding)
    for text, numbers in texts[:MOST_MESSAGES]:
        if text != finding.summary:
            page.say(text, lead=f"{where(report, numbers)}:" if len(texts) > 1 else "", indent=2, hang=4)
    if len(texts) > MOST_MESSAGES:
        page.say(f"and {len(texts) - MOST_MESSAGES} similar messages{more}", indent=2, hang=4)


def _repeated(evidence: Evidence, message: str) -> bool:
    """Return whether the message names the value found and the value needed."""
    words = message.replace(" ", "")
    return all(text in words for text in (str(evidence.fact.value), needed(evidence).replace(" ", "")))


def _evidence(report: Report, finding: Finding, evidence: Evidence) -> str:
    place = evidence.fact.source
    key = evidence.key.removeprefix("workload.")
    where_from = f"  ({place.removesuffix(f': {key}')})" if ":" in place and not evidence.fact.assumed else ""
    return comparison(key, evidence, [fact for fact, _ in readings(report, finding, evidence)]) + where_from


def comparison(key: str, evidence: Evidence, found: Sequence[Fact]) -> str:
    """Return `cudnn.version: found 9.1.0, needs >=9.3`; of a yes that should be a no, what it means."""
    values = ", ".join(shown(fact.value, fact.key) for fact in found)
    wanted = needed(evidence)
    if wanted == shown(False) and all(fact.value is True for fact in found):
        return f"{key}: found {values} ({term(evidence.key).meaning.partition(';')[0]})"
    needs = f", needs {wanted}" if wanted else ""
    return f"{key}: found {values}{needs}"


def attention_line(page: Page, prediction: Prediction, explained: frozenset[str]) -> None:
    """Write which backend one library will select; rules in `explained` were described above."""
    library = library_title(prediction.library)
    lead, look = f"{'Attention':<{_LABEL - 1}}", "label"
    refusal, failure = prediction.import_error, prediction.fails_at_run
    if refusal is not None and refusal.holds:
        reason = refusal.rule if refusal.rule in explained else reason_text(refusal)
        text = f"{library} does not import: {reason}"
    elif not prediction.could_tell:
        text = f"{library}: backend unknown ({_missing(prediction)})"
    elif prediction.selected is None:
        text = f"{library}: no backend available"
    else:
        text = f"{library} selects {title_of(prediction, prediction.selected)}"
        if failure is not None:
            reason = failure.rule if failure.rule in explained else reason_text(failure)
            text += f": fails at run time ({reason})" if reason != failure.rule else f": fails ({reason})"
    page.say(text, lead=lead, look=look, hang=_LABEL)


def _missing(prediction: Prediction) -> str:
    keys = {key for item in prediction.candidates for reason in item.reasons for key in reason.missing}
    if not keys:
        return "missing information"
    named = sorted(keys)[:3]
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"missing: {', '.join(f'`{key}`' for key in named)}{more}"


def numbered_fixes(page: Page, report: Report, *, commands_of_all: bool = False) -> None:
    """Write the fixes, the first with its commands; the others with theirs where they are short."""
    fixes = report.fixes
    hidden = not commands_of_all and any(_hides_commands(fix) for fix in fixes[1:])
    more = "pick one; `attn-doctor fix` with the same options shows all commands" if hidden else "pick one"
    page.line("Fix" if len(fixes) == 1 else f"Fix ({more})", "label", lead=len("Fix"))
    for number, fix in enumerate(fixes, 1):
        risky = "" if fix.safe else str(fix.safety)
        effort = "; ".join(filter(None, (fix.time, risky)))
        title = fix.title if commands_of_all or len(fix.changes) < 4 else _short_title(fix)
        texts = [text for text in fix.costs if commands_of_all or len(fix.changes) > 1 or not _in_title(text)]
        texts += [fix.risk] if fix.risk else []
        if fix.note and (commands_of_all or not (fix.safe or fix.risk)):
            texts.append(fix.note)
        lines = fix_lines(fix)
        if len(lines) == 1 and lines[0] in title and len(title) > page.style.width - 4:
            title = "Run this command"  # one that is broken into lines cannot be copied
        headed = f"{title}{_clears(fix, fixes)}" + (f" ({effort})" if effort else "")
        if number == 1 and texts and len(whole := f"{headed} ({'; '.join(texts)})") <= page.style.width - 4:
            headed, texts = whole, []
        page.say(headed, lead=f"  {number}", look="label", hang=4)
        if not commands_of_all:  # comments explain, and settings are in the title
            lines = [line for line in lines if not line.startswith("#") and line not in title]
        if number == 1 or commands_of_all:
            _edits(page, report, fix)
        if number == 1 or commands_of_all or (len(lines) == 1 and len(lines[0]) <= page.style.width - 6):
            for line in lines:
                page.line(f"      {line}", "command")
        if (number == 1 or commands_of_all) and texts:
            page.say("; ".join(texts), indent=6, hang=6)


def _edits(page: Page, report: Report, fix: Fix) -> None:
    """Write which lines of the project's own files have to change, and the command that changes them."""
    texts = [change.edit for change in fix.changes if change.edit]
    if texts and fix == report.package_fix and any(_EDITABLE.match(text) for text in texts):
        page.line(f"      attn-doctor fix {report.options} --write", "command")
    for text in texts:
        page.say(text, indent=6, hang=6)


def _in_title(cost: str) -> bool:
    """Return whether the title of a fix that changes one package says the same: `Downgrade …`."""
    return cost.startswith("a downgrade of")


def _hides_commands(fix: Fix) -> bool:
    """Return whether the brief report leaves out commands of an alternative that its title does not imply."""
    return any(change.kind == ChangeKind.PACKAGE for change in fix.changes)


def _short_title(fix: Fix) -> str:
    """Return what a fix of many changes changes, without the versions, which its commands show."""
    names = [f"`{change.name}`" for change in fix.changes if change.kind != ChangeKind.CALL]
    return f"Change {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else fix.title


def _clears(fix: Fix, fixes: tuple[Fix, ...]) -> str:
    """Say what a fix clears and leaves where the fixes differ in it."""
    parts = []
    if len({item.resolves for item in fixes}) > 1:
        parts.append(f"fixes {', '.join(fix.resolves)}")
    if fix.leaves:
        parts.append(f"leaves {', '.join(fix.leaves)}")
    return f" ({'; '.join(parts)})" if parts else ""


def _no_fix(page: Page, report: Report) -> None:
    for finding in report.findings:
        if finding.severity == Severity.ERROR and (reason := why_not(report, finding)):
            page.gap()
            page.say(reason, lead=f"No fix for {finding.rule}:", look="label")
            return


def closing_line(page: Page, report: Report) -> None:
    """Write counts, skipped checks and the next command."""
    counts = []
    for severity, word in _SEVERITY_WORDS.items():
        number = sum(finding.severity == severity for finding in report.findings)
        if number:
            counts.append(f"{number} {word}{'s' if number > 1 else ''}")
    parts = [", ".join(counts) or "No findings"]
    if report.known:
        parts.append(f"{len(report.known)} known finding{'s' if len(report.known) > 1 else ''} in the baseline")
    if report.ignored:
        parts.append(f"{len(report.ignored)} ignored by the project")
    if report.unconcerned:
        parts.append(f"{len(report.unconcerned)} of no concern to this job")
    skipped = relevant(report)
    if skipped:
        why = _why_skipped(report)
        parts.append(f"{count(skipped)} skipped" + (f" ({why})" if why else ""))
    ours = (finding for finding in report.findings if finding.references)  # others have no rule file to show
    first = next(ours, None)
    folders = "".join(f" --rules {quote(item.path)}" for item in report.inputs if item.kind == "rules")
    more = f"`attn-doctor rules show {first.rule}{folders}`, " if first is not None and not first.uses else ""
    page.say(f"{'; '.join(parts)}. See {more}`-v`", look="dim")


def _why_skipped(report: Report) -> str:
    missing = [key for item in relevant(report) for key in item.missing]
    words = []
    if any(key.startswith("workload.") for key in missing) and not report.facts.has_workload:
        words.append("no workload")
    if any(key.startswith("gpu.") for key in missing):
        words.append("no GPU")
    if any(key.startswith("driver.") for key in missing):
        words.append("no driver")
    return ", ".join(words)
