"""Two environments compared, in every format: the change and its cause first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote
from typing import Any

from doctor.model import ABSENT, ChangeKind, Prediction, Severity
from doctor.report.comparison_model import (
    BackendChange,
    Comparison,
    DiffArea,
    Difference,
    DiffRow,
    DiffSide,
    FindingChange,
)
from doctor.util.credentials import without_credentials

from . import sections
from .json import document, prediction
from .sections import Answer, Cell, Section, Table
from .style import Style
from .summary import conclusion, library_title, shown, target_line, title_of

MOST_ROWS = 40  # differences in the text report; the other formats have all
MOST_CHANGES = 12


def as_text(comparison: Comparison, style: Style) -> str:
    """Return the comparison as text."""
    return sections.text(answer_of(comparison, every=style.verbose), style)


def as_markdown(comparison: Comparison, style: Style) -> str:
    """Return the comparison as Markdown."""
    return sections.markdown(answer_of(comparison, every=True), style)


def as_html(comparison: Comparison, style: Style) -> str:
    """Return the comparison as one page."""
    return sections.html(answer_of(comparison, every=True), style)


def as_json(comparison: Comparison, style: Style) -> str:
    """Return the comparison as one JSON object."""
    own = {"A": document(comparison.a), "B": document(comparison.b)}
    findings = {side: {item["id"]: item for item in content["findings"]} for side, content in own.items()}
    content = {
        "schema": comparison.schema,
        "tool": own["A"]["tool"],
        "a": _side_json(comparison, DiffSide.A),
        "b": _side_json(comparison, DiffSide.B),
        "cause": cause_line(comparison),
        "findings": [
            {
                "only_in": str(change.side),
                "other_unknown": change.other_unknown,
                "causes": list(change.causes),
                "finding": findings[change.side][change.finding.rule],
            }
            for change in comparison.findings
        ],
        "backends": [
            {
                "library": change.library,
                "a": prediction(change.a) if change.a is not None else None,
                "b": prediction(change.b) if change.b is not None else None,
                "causes": list(change.causes),
                "reasons": list(change.reasons),
            }
            for change in comparison.backends
        ],
        "differences": [
            {
                "name": item.name,
                "area": str(item.area),
                "explains": list(item.explains),
                "facts": [{"key": row.key, "a": _plain(row.a), "b": _plain(row.b)} for row in item.rows],
            }
            for item in comparison.differences
        ],
        "pins": [
            {
                "kind": str(pin.kind),
                "name": pin.name,
                "from": pin.before,
                "to": pin.after,
                "why": pin.why,
                "resolves": list(pin.resolves),
            }
            for pin in comparison.pins
        ],
        "timing": dict(comparison.timing),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _side_json(comparison: Comparison, side: DiffSide) -> dict[str, Any]:
    report, name = _side(comparison, side)
    _, word, sentence = conclusion(report)
    return {"name": name, "target": report.target, "verdict": word, "summary": sentence}


def _side(comparison: Comparison, side: DiffSide) -> tuple[Any, str]:
    number = 0 if side == DiffSide.A else 1
    return (comparison.a, comparison.b)[number], comparison.names[number]


def answer_of(comparison: Comparison, *, every: bool) -> Answer:
    """Return the comparison in sections; the cause of the change is in the second line."""
    look, word, sentence = _verdict(comparison)
    lines = []
    top, cause = first_change(comparison), cause_line(comparison)
    if cause:
        lines.append(("Cause" if top is not None else "Differs", cause))
    if isinstance(top, FindingChange):
        lines.append((top.finding.rule, top.finding.message))
    elif isinstance(top, BackendChange) and top.reasons:
        lines.append(("Because", top.reasons[0]))
    for side in DiffSide:
        report, name = _side(comparison, side)
        _, own_word, own_sentence = conclusion(report)
        lines.append((str(side), f"{name} ({target_line(report)}): {own_word}, {own_sentence}"))
    parts = [
        *_changes(comparison, every=every),
        *_differences(comparison, every=every),
        *_pins(comparison, every=every),
    ]
    return Answer(look, word, sentence, tuple(lines), tuple(parts), comparison.a.tool)


def first_change(comparison: Comparison) -> FindingChange | BackendChange | None:
    """Return the change that matters most: an error, then another backend, then milder findings."""
    worst = comparison.findings[0] if comparison.findings else None
    if worst is not None and (worst.finding.severity == Severity.ERROR or not comparison.backends):
        return worst
    return comparison.backends[0] if comparison.backends else None


def _verdict(comparison: Comparison) -> tuple[str, str, str]:
    top = first_change(comparison)
    if top is None:
        count = len([item for item in comparison.differences if item.known])
        changed = f"{count} difference{'s' if count != 1 else ''}, no finding and no attention backend changes"
        return "ok", "SAME", changed if count else "no difference that is known"
    if isinstance(top, FindingChange):
        other = DiffSide.A if top.side == DiffSide.B else DiffSide.B
        kind = f"{top.finding.severity} {top.finding.rule}"
        where = f"only in {top.side}" + (f", unknown in {other}" if top.other_unknown else "")
        word = "WORSE" if top.side == DiffSide.B else "BETTER"
        if top.other_unknown or top.finding.severity == Severity.NOTE:
            word = "CHANGED"
        look = top.finding.severity if top.side == DiffSide.B else "ok"
        return str(look), word, f"{kind} {where}: {top.finding.summary}{_more(comparison)}"
    library = library_title(top.library)
    text = f"{library} selects {_selected(top.a)} in A, {_selected(top.b)} in B"
    failing = top.b is not None and _fails(top.b)
    return "error" if failing else "warning", "CHANGED", text + _more(comparison)


def _more(comparison: Comparison) -> str:
    count = len(comparison.findings) + len(comparison.backends) - 1
    return f" (and {count} more change{'s' if count != 1 else ''})" if count else ""


def cause_line(comparison: Comparison) -> str:
    """Return the differences behind the first change, or the most relevant ones where nothing changes."""
    top = first_change(comparison)
    names = top.causes if top is not None else ()
    found = [item for item in comparison.differences if item.name in names]
    if found:
        return "; ".join(difference_line(item) for item in found)
    if isinstance(top, FindingChange):
        keys = {evidence.key for evidence in top.finding.evidence}
        near = [item for item in comparison.differences if any(row.key in keys for row in item.rows)]
        if near:
            return "; ".join(difference_line(item) for item in near[:3])
    known = [item for item in comparison.differences if item.known]
    if top is None:
        return "; ".join(difference_line(item) for item in known[:3])
    return "no single set of differences was found by trial" if known else "one side lacks the facts"


def difference_line(item: Difference) -> str:
    """Return `cuDNN 9.19.0 in A, 9.1.0 in B`, by the row that names the difference."""
    row = next((row for row in item.rows if row.known), item.rows[0])
    more = [other for other in item.rows if other.known and other is not row and _says_more(item, other)]
    natural = row.key.endswith("version") or row.key.startswith(("env.", "workload.")) or row.key == "gpu.name"
    name = item.name if natural else row.key
    text = f"{name} {row_value(row, row.a)} in A, {row_value(row, row.b)} in B"
    return text + "".join(
        f" ({other.key} {row_value(other, other.a)}, {row_value(other, other.b)})" for other in more[:1]
    )


def _says_more(item: Difference, row: DiffRow) -> bool:
    return row.key.endswith("_path") or (item.name == "GPU" and row.key == "gpu.sm")


def row_value(row: DiffRow, value: Any) -> str:
    """Return the value of one side as people write it, shortened."""
    if value == ABSENT and row.key.startswith("cudnn."):
        return "none"
    text = shown(value, row.key)
    text = without_credentials(text)
    return text if len(text) <= 120 else f"{text[:80]} … {text[-30:]}"


def _changes(comparison: Comparison, *, every: bool) -> Iterator[Section]:
    limit = None if every else MOST_CHANGES
    backends = [
        ("", f"{library_title(item.library)}: {_selected(item.a)} in A, {_selected(item.b)} in B" + _by(item.causes)
         + "".join(f"; {reason}" for reason in item.reasons))
        for item in comparison.backends
    ]  # fmt: skip
    if backends:
        yield Section("Attention backends that change", tuple(backends[:limit]))
    for side in DiffSide:
        lines = [
            (str(item.finding.severity), f"{item.finding.rule}: {item.finding.message}" + _by(item.causes)
             + (" (unknown on the other side)" if item.other_unknown else ""))
            for item in comparison.findings if item.side == side
        ]  # fmt: skip
        if lines:
            left = [("", f"and {len(lines) - limit} more (`-v` shows all)")] if limit and len(lines) > limit else []
            yield Section(f"Findings only in {side}", (*lines[:limit], *left))


def _by(causes: tuple[str, ...]) -> str:
    return f", because of {' and '.join(causes)}" if causes else ""


def _differences(comparison: Comparison, *, every: bool) -> Iterator[Section]:
    known = [item for item in comparison.differences if item.known]
    relevant = known if every else [item for item in known if item.area != DiffArea.OTHER or item.explains]
    rows = [
        (
            Cell(item.name),
            row_value(row, row.a),
            row_value(row, row.b),
            Cell(row.key if row.key != f"{item.name}.version" else str(item.area)),
            Cell(", ".join(item.explains) if number == 0 else ""),
        )
        for item in relevant
        for number, row in enumerate(row for row in item.rows if row.known)
    ]
    limit = None if every else MOST_ROWS
    if rows:
        table = Table(("what", "A", "B", "fact", "explains"), tuple(rows[:limit]))
        left = len(known) - len(relevant)
        notes = [("", f"{left} more packages differ that no rule reads (`-v` shows all)")] if left else []
        yield Section(f"Differences ({len(known)})", tuple(notes), table)
    unclear = [item for item in comparison.differences if not item.known and item.area != DiffArea.OTHER]
    if unclear:
        names = ", ".join(
            f"{item.name} (only in {'A' if item.rows[0].a is not None else 'B'})"
            for item in unclear[: None if every else 15]
        )
        more = f" and {len(unclear) - 15} more" if not every and len(unclear) > 15 else ""
        yield Section("Known on one side only", (("", names + more),))


def _pins(comparison: Comparison, *, every: bool) -> Iterator[Section]:
    packages = [pin for pin in comparison.pins if pin.kind == ChangeKind.PACKAGE]
    lines = []
    wanted = [f"{pin.name}=={pin.after}" for pin in packages if pin.after is not None]
    gone = [pin.name for pin in packages if pin.after is None]
    if gone:
        lines.append(f"pip uninstall --yes {' '.join(map(quote, gone))}")
    if wanted:
        lines.append(f"pip install {' '.join(map(quote, wanted))}")
    for pin in comparison.pins:
        if pin.kind == ChangeKind.ENV:
            lines.append(f"unset {pin.name}" if pin.after is None else f"export {pin.name}={quote(pin.after)}")
    settings = [
        f"{pin.name}: {pin.after or 'none'} (now {pin.before or 'none'})"
        for pin in comparison.pins
        if pin.kind == ChangeKind.CONFIG
    ]
    machine = [
        item for item in comparison.differences if item.area in (DiffArea.DRIVER, DiffArea.GPU) and item.explains
    ]
    notes = [("", f"workload {text}") for text in settings]
    notes += [("", f"no package changes this: {difference_line(item)}") for item in machine]
    if lines or notes:
        yield Section("To make B like A", tuple(notes), None, tuple(lines))


def _selected(item: Prediction | None) -> str:
    if item is None:
        return "nothing (not examined)"
    if item.import_error is not None and item.import_error.holds:
        return "nothing (does not import)"
    if not item.could_tell:
        return "an unknown backend"
    if item.selected is None:
        return "no backend"
    return title_of(item, item.selected) + (", which fails" if _fails(item) else "")


def _fails(item: Prediction) -> bool:
    return any(reason is not None and reason.holds for reason in (item.import_error, item.fails_at_run))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
