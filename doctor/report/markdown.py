"""The report as Markdown, for a pull-request comment or a job summary."""

from __future__ import annotations

import re
from html import escape

from doctor.model import ChangeKind, Evidence, Fact, Finding, Fix, Prediction, Report
from doctor.util.printable import printable

from .cases import messages, readings, rows, where
from .fix_text import alternative_lines, fix_lines, no_pin_lead, safety_text
from .locations import place_of
from .markdown_text import code_block, code_span, paragraph, prose
from .proof import proof_text
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
    why_not,
)
from .tables import headline, reason_text
from .undetermined import count, lines, relevant

_SIGNS = {"error": "❌", "warning": "⚠️", "note": "ℹ️", "ok": "✅", "unclear": "❔"}


def diagnosis(report: Report, style: Style) -> str:
    """Render verdict, findings with evidence, backends, fixes and skipped checks."""
    look, word, sentence = conclusion(report)
    out = [f"## {_SIGNS[look]} attn-doctor: {prose(word)}", "", f"**{prose(sentence)}**", ""]
    out += [*_subject(report)]
    for finding in report.findings:
        out += _finding(report, finding)
    out += _cases(report)
    for prediction in report.predictions:
        out += _backends(prediction)
    out += _runs(report) + _fixes(report) + _undetermined(report) + _assumed(report)
    out += [f"> {prose(note)}\n" for note in report.notes]
    out.append(f"<sub>{prose(report.tool)}, {report.rulebook.get('rules', '?')} rules</sub>")
    return "\n".join(out) + "\n"


def backends(report: Report, style: Style) -> str:
    """Every candidate with its verdict, reasons and sources."""
    out = [*_subject(report)]
    if not report.predictions:
        out += ["INCOMPLETE: no library that selects an attention backend was found, or no workload was given.", ""]
    for prediction in report.predictions:
        out += _backends(prediction)
    out += [f"> {prose(note)}\n" for note in report.notes]
    return "\n".join(out) + "\n"


def fixes(report: Report, style: Style) -> str:
    """Render the changes that clear the findings, or why there are none."""
    look, word, sentence = conclusion(report)
    out = [f"## {_SIGNS[look]} {prose(word)}: {prose(sentence)}", "", *_fixes(report)]
    for finding in report.findings:
        myth = finding.myth and f"common wrong fix: {finding.myth}"
        texts = [text for text in (why_not(report, finding), myth) if text]
        out += [f"- {finding.rule}: {prose(text)}" for text in texts]
    if report.proof is not None:
        out += ["```", proof_text(report.proof).rstrip(), "```", ""]
    out += [f"> {prose(note)}\n" for note in report.notes]
    return "\n".join(out) + "\n"


def _subject(report: Report) -> list[str]:
    """Return what was examined, a line each; empty lines are left out."""
    pairs = (
        ("Target", target_line(report)), ("Inputs", inputs_line(report)), ("Machine", machine_line(report)),
        ("Packages", stack_line(report)),
        ("Workload", job_line(report)),
    )  # fmt: skip
    return [*(f"- {name}: {prose(text)}" for name, text in pairs if text), ""]


def rule_help(finding: Finding) -> str:
    """Return why, fixes and sources of one rule, for viewers that show a rule next to its results."""
    return "\n".join([f"**{prose(finding.summary)}**", "", *_explained(finding)])


def _finding(report: Report, finding: Finding) -> list[str]:
    out = [f"### {_SIGNS[finding.severity]} {finding.rule}: {prose(finding.summary)}", ""]
    place = place_of(report, finding)
    at = f" ({code_span(f'{place.file}:{place.line}')})" if place else ""
    said = messages(report, finding)
    if finding.cases:
        out += [f"In {prose(where(report, finding.cases))}{at}:", ""]
        at = ""
    if len(said) > 1:
        out += [f"- {prose(where(report, numbers))}: {prose(text)}" for text, numbers in said] + [""]
    else:
        out += [f"{paragraph(finding.message)}{at}", ""]
    if finding.evidence:
        out += ["| fact | found | needed | from |", "|---|---|---|---|"]
        out += [_row(evidence, readings(report, finding, evidence)) for evidence in finding.evidence] + [""]
    if finding.confirmation:
        ran = finding.confirmation
        out += [f"{ran.verdict}: {code_span(ran.kernel)} {ran.outcome}: {prose(ran.reason)}", ""]
    if finding.reproduction:
        out += ["To reproduce:", *code_block(finding.reproduction.rstrip("\n").split("\n"), "python")]
    return out + _explained(finding)


def _row(evidence: Evidence, found: list[tuple[Fact, tuple[int, ...]]]) -> str:
    wanted = needed(evidence)
    cells = (evidence.key, ", ".join(shown(fact.value, fact.key) for fact, _ in found), wanted)
    source = evidence.fact.origin if len(found) == 1 else "different per case"
    return f"| {' | '.join(code_span(cell) if cell else '' for cell in cells)} | {prose(source, cell=True)} |"


def _cases(report: Report) -> list[str]:
    """The table of cases; GPUs that end alike share a row."""
    if not report.cases:
        return []
    made = rows(report)
    several = len({row.environment for row in made}) > 1
    heads = [*(["environment"] if several else []), "job", "GPU", "verdict", "findings", "attention backend"]
    out = [f"### {len(report.cases)} cases", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in made:
        cells = [row.workload, row.gpus, f"{_SIGNS[row.look]} {row.verdict}", ", ".join(row.findings), row.backends]
        out.append(
            f"| {' | '.join(prose(cell, cell=True) for cell in ([row.environment] if several else []) + cells)} |"
        )
    return [*out, ""]


def _explained(finding: Finding) -> list[str]:
    out = [paragraph(finding.why), ""] if finding.why else []
    for number, item in enumerate(finding.alternatives):
        lead = "Fix" if number == 0 else "Or"
        note = f" {prose(item.note)}" if item.note else ""
        out += [f"{lead}{safety_text(item)}:{note}", *code_block(alternative_lines(item))]
    if finding.no_pin:
        out += [f"{no_pin_lead(finding)}: {prose(finding.no_pin)}", ""]
    if finding.myth:
        out += [f"Common wrong fix: {prose(finding.myth)}", ""]
    if finding.references:
        out += ["Sources:", *(f"- {_source(source)}" for source in finding.references), ""]
    return out


def _fixes(report: Report) -> list[str]:
    out = []
    for number, fix in enumerate(report.fixes):
        time = f" ({fix.time})" if fix.time else ""
        out += [f"### {'Fix' if number == 0 else 'Or'}: {prose(fix.title + time + safety_text(fix))}", "", *_fix(fix)]
    return out


def _fix(fix: Fix) -> list[str]:
    out = code_block(fix_lines(fix))[1:]
    for change in fix.changes:
        if change.kind == ChangeKind.CALL:
            continue  # shown as a line to paste
        swap = f"{shown(change.before or 'absent')} → {shown(change.after or 'absent')}"
        clears = f" (fixes {', '.join(change.resolves)})" if change.resolves else ""
        out.append(f"- {code_span(change.name)} {prose(swap)}: {prose(change.why)}{clears}")
    effects = [
        f"{word} {', '.join(rules)}." for word, rules in (("Fixes", fix.resolves), ("Leaves", fix.leaves)) if rules
    ]
    out += ["", " ".join(effects), ""] if effects else [""]
    for lead, texts in (("Costs", fix.costs), ("No longer supported", fix.regressions)):
        out += [f"{lead}: {prose('; '.join(texts))}.", ""] if texts else []
    return out + ([paragraph(fix.note), ""] if fix.note else [])


def _backends(prediction: Prediction) -> list[str]:
    title = f"Backends of {library_title(prediction.library)}: {headline(prediction)}"
    out = [f"<details><summary>{_html(title)}</summary>", ""]
    out += ["| backend | | reasons |", "|---|---|---|"]
    for item in prediction.candidates:
        word = {True: "usable", False: "unavailable", None: "unknown"}[item.available]
        word = ("fails" if prediction.fails_at_run else "selected") if item.backend == prediction.selected else word
        reasons = "; ".join(
            prose(reason_text(reason), cell=True) + (f" ({prose(reason.source, cell=True)})" if reason.source else "")
            for reason in item.reasons
        )
        out.append(f"| {code_span(item.backend)} | {word} | {reasons} |")
    return [*out, "", "</details>", ""]


def _runs(report: Report) -> list[str]:
    out = [
        f"- {code_span(run.kernel)}: {run.verdict} in {run.seconds:.1f} s: {prose(run.reason)}" for run in report.runs
    ]
    return [*out, ""] if out else []


def _undetermined(report: Report) -> list[str]:
    skipped = relevant(report)
    if not skipped:
        return []
    out = [f"<details><summary>Skipped {count(skipped)} (missing information)</summary>", ""]
    out += [f"- {prose(line)}" for line in lines(report)]
    return [*out, "", "</details>", ""]


def _assumed(report: Report) -> list[str]:
    assumed = [fact for fact in report.facts.values() if fact.assumed]
    if not assumed:
        return []
    texts = "; ".join(
        f"{code_span(fact.key.removeprefix('workload.'))} = {prose(shown(fact.value, fact.key))}: "
        + prose(fact.source.removeprefix("assumed:").strip())
        for fact in assumed
    )
    return [f"Assumptions (override with `--set`): {texts}", ""]


def _html(text: str) -> str:
    """Text inside a tag, where Markdown is not read."""

    return re.sub(r"(?<!\w)@", "@\u200b", escape(printable(" ".join(text.split())), quote=False))


def _source(source: str) -> str:
    return f"<{source}>" if re.fullmatch(r"https://[^\s<>|`]+", source) else prose(source)
