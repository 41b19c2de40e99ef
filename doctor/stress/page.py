"""The result of a sweep as one page: error over bound, coverage, faults with their scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from doctor._version import __version__
from doctor.report import sections
from doctor.report.bar_chart import bar_chart
from doctor.report.sections import Answer, Cell, Row, Section, Table
from doctor.report.style import Style
from doctor.util.redact import shortened

from .compare_rules import Comparison
from .failures import Failure
from .report import SHOWN_BY, error_lines, headline, short, speeds, timing
from .sweep import SweepResult, by_backend, margins
from .verdict import BAD, CaseVerdict

#: How a number of cases with a verdict looks.
_LOOKS = {**dict.fromkeys(BAD, "error"), CaseVerdict.RIGHT: "ok", CaseVerdict.NOT_REACHED: "unclear"}


def as_html(result: SweepResult, comparison: Comparison | None = None) -> str:
    """Return the page; DoctorError where jinja2 is not installed."""
    return sections.html(answer_of(result, comparison), Style())


def answer_of(result: SweepResult, comparison: Comparison | None) -> Answer:
    """Return the result in sections."""
    look, word = "ok", "OK"
    if result.bad:
        look, word = "error", "FAIL"
    elif result.totals.get(CaseVerdict.NOT_REACHED):
        look, word = "unclear", "INCOMPLETE"
    versions = result.hello.get("versions")
    packages = versions.items() if isinstance(versions, Mapping) else ()
    lines = [
        ("Devices", ", ".join(device.label for device in result.devices)),
        ("Packages", ", ".join(f"{name} {version}" for name, version in packages if version)),
        ("Time", timing(result).removeprefix("time: ")),
    ]
    parts = [_margins(result), _coverage(result), *_faults(result), *_devices(result), *_rules(comparison)]
    parts += _unavailable(result)
    if result.notes:
        parts.append(Section("Notes", tuple(("", note) for note in result.notes)))
    shown = tuple((lead, line) for lead, line in lines if line)
    return Answer(look, word, headline(result), shown, tuple(parts), f"attn-doctor {__version__}")


def _margins(result: SweepResult) -> Section:
    """Return the largest error of a right result over its bound, by backend and dtype."""
    values = sorted(margins(result.records).items())
    summary = "Largest error of a right result over its bound, by backend and dtype; beyond 1 a result is wrong."
    if values:
        (backend, dtype), nearest = max(values, key=lambda item: item[1])
        summary += f" The largest is {nearest:.2f}, of {backend} in {dtype}."
    chart = bar_chart([(f"{backend} {dtype}", value) for (backend, dtype), value in values], summary)
    return Section("Error over bound", () if chart else (("", "No case has a right result."),), chart=chart)


def _coverage(result: SweepResult) -> Section:
    """Return the table of backends: cases by verdict, covered pairs of values, time and memory."""
    table, speed = by_backend(result), speeds(result)
    used = [name for name in CaseVerdict if any(counts[name] for counts in table.values())]
    head = ("backend", *map(str, used), "pairs covered", "ms", "memory over need")
    rows: list[Row] = []
    for name, counts in table.items():
        covered, total = result.plan.pairs.get(name, (0, 0))
        about = speed.get(name, {})
        numbers = ("" if about.get(key) is None else f"{about[key]:.2f}" for key in ("median_ms", "memory_over_need"))
        cells = (Cell(str(counts[word]), _LOOKS.get(word, "") if counts[word] else "") for word in used)
        share = f" ({100 * covered // total} %)" if total else ""
        rows.append((name, *cells, f"{covered} of {total}{share}", *numbers))
    lines = (("", "A pair is a combination of two values of the axes, such as a dtype and a mask."),)
    return Section("Coverage by backend", lines, Table(head, tuple(rows)))


def _faults(result: SweepResult) -> Iterator[Section]:
    for number, item in enumerate(result.failures, 1):
        lines = [("error", f"`{item.backend}`: {', '.join(item.kinds)}; seen in {item.seen} of the cases")]
        lines += [("", f"first seen: {short(item.case)}")] if "mask" in item.case else []
        lines += [("", f"smallest case: {short(item.small)}")] if item.small else []
        lines += [("", f"message: {shortened(' '.join(item.reason.split()), 300)}")] if item.reason else []
        lines += [("", f"{name}: {text}") for name, text in error_lines(item)]
        lines += [("", item.prediction)] if item.prediction else []
        lines += [("", f"reproduction: {SHOWN_BY[item.shown]}")] if item.script else []
        yield Section(f"Fault {number}", tuple(lines), commands=_script(item))


def _script(item: Failure) -> tuple[str, ...]:
    return tuple(item.script.splitlines()) if item.script else ()


def _devices(result: SweepResult) -> Iterator[Section]:
    lines = [
        ("error", f"lost during the sweep: {label}: {shortened(' '.join(text.split()), 300)}")
        for label, text in result.vanished
    ]
    lines += [
        ("error", f"GPUs disagree: {' and '.join(item['gpus'])}, {item['difference']}: {short(item['case'])}")
        for item in result.disagreements
    ]
    if lines:
        yield Section("GPUs", tuple(lines))


def _rules(comparison: Comparison | None) -> Iterator[Section]:
    """Yield what the rules predicted, what they do not know, and where the GPU refutes them."""
    if comparison is None:
        return
    rows: list[Row] = [
        (rule, "predicted", str(group.count), str(became), short(group.case))
        for (rule, became), group in sorted(comparison.predicted.items())
    ]
    rows += [
        (rule, Cell("refuted", "error"), str(group.count), f"right on {backend}", short(group.case))
        for (rule, backend), group in sorted(comparison.refuted.items())
    ]
    rows += [
        ("no rule", Cell("not predicted", "unclear"), str(group.count), f"refused by {backend}", short(group.case))
        for backend, group in comparison.unpredicted.items()
    ]
    head = ("rule", "state", "cases", "result", "first case")
    lines = (("", f"{comparison.covered} cases are covered by rules; {comparison.undetermined} refusals lack facts."),)
    yield Section("Compared with the rules", lines, Table(head, tuple(rows)) if rows else None)


def _unavailable(result: SweepResult) -> Iterator[Section]:
    missing = {name: why for name, why in (result.hello.get("backends") or {}).items() if why}
    if missing:
        rows = tuple((name, " ".join(str(why).split())[:200]) for name, why in missing.items())
        yield Section("Unavailable backends", (), Table(("backend", "reason"), rows))
