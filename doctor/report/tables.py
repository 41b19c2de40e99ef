"""Backend predictions as lines and as a table."""

from __future__ import annotations

from doctor.model import Candidate, Prediction, Reason, Report

from .cases import rows
from .page import Page
from .summary import library_title, title_of

_WIDEST = 40  # a cell that is wider pushes its line and no other


def backend_lines(page: Page, prediction: Prediction, explained: frozenset[str] = frozenset()) -> None:
    """Write which backend is selected, and why the others are not; rules in `explained` were explained above."""
    _headline(page, prediction, explained)
    for candidate in prediction.candidates:
        if candidate.available is True:
            continue
        reason = candidate.reasons[0] if candidate.reasons else None
        more = f" (and {len(candidate.reasons) - 1} more)" if len(candidate.reasons) > 1 else ""
        page.say(
            f"{'unavailable' if candidate.available is False else 'unknown'}: {reason_text(reason)}{more}",
            lead=f"{candidate.backend}:", look="dim", indent=2, hang=4,
        )  # fmt: skip


def backend_table(page: Page, prediction: Prediction) -> None:
    """Every candidate: verdict, every reason, its rule and source."""
    _headline(page, prediction)
    width = max((len(candidate.backend) for candidate in prediction.candidates), default=0)
    for candidate in prediction.candidates:
        word, look = _word(candidate, prediction)
        page.say(candidate.title, lead=f"{candidate.backend:<{width}}  {word:<11}", look=look, indent=2)
        for reason in candidate.reasons:
            page.say(reason_text(reason), lead="-", look="dim", indent=6, hang=8)
            if reason.source:
                page.line(f"        {reason.source}", "dim")


def case_table(page: Page, report: Report) -> None:
    """Every case with its verdict and what runs there, GPUs that end alike in one line."""
    made = rows(report)
    several = len({row.environment for row in made}) > 1
    heads = ("environment",) * several + ("job", "GPU", "verdict", "findings")
    lines = [
        (*((row.environment,) * several), row.workload, row.gpus, row.verdict, ", ".join(row.findings)) for row in made
    ]
    shown = [index for index in range(len(heads)) if any(line[index] for line in lines)]
    widths = {index: min(max(len(line[index]) for line in (heads, *lines)), _WIDEST) for index in shown}
    page.line(f"{len(report.cases)} cases:", "label")
    page.line("  " + "  ".join(f"{heads[index]:<{widths[index]}}" for index in shown) + "  attention backend", "dim")
    for row, line in zip(made, lines, strict=True):
        explained = "  ".join(f"{line[index]:<{widths[index]}}" for index in shown)
        page.line(f"  {explained}  {row.backends or '-'}", row.look, lead=0)


def _headline(page: Page, prediction: Prediction, explained: frozenset[str] = frozenset()) -> None:
    library = library_title(prediction.library)
    refusal = prediction.import_error
    if refusal is not None and refusal.holds:
        page.say(
            f"see {refusal.rule} above" if refusal.rule in explained else reason_text(refusal),
            lead=f"{library} does not import:",
            look="error",
        )
    elif not prediction.could_tell:
        why = f", and it may not start at all: {reason_text(refusal)}" if refusal is not None else ""
        page.say(f"backend unknown{why}", lead=f"{library}:", look="unclear")
    elif prediction.selected is None:
        page.say("no attention backend is available", lead=f"{library}:", look="error")
    elif prediction.fails_at_run:
        reason = prediction.fails_at_run
        page.say(
            f"{title_of(prediction, prediction.selected)} is selected and fails at run time: "
            + (f"see {reason.rule} above" if reason.rule in explained else reason_text(reason)),
            lead=f"{library}:", look="error",
        )  # fmt: skip
    else:
        page.say(f"selects {title_of(prediction, prediction.selected)}", lead=f"{library}:", look="ok")


def _word(candidate: Candidate, prediction: Prediction) -> tuple[str, str]:
    if candidate.backend == prediction.selected:
        return ("fails", "error") if prediction.fails_at_run else ("selected", "ok")
    if candidate.available is None:
        return "unknown", "unclear"
    return ("usable", "label") if candidate.available else ("unavailable", "dim")


def reason_text(reason: Reason | None) -> str:
    """A reason with its rule, and what it needs to know."""
    if reason is None:
        return "no reason on record"
    missing = f"; missing: {', '.join(f'`{key}`' for key in reason.missing)}" if reason.missing else ""
    return f"{reason.message} [{reason.rule}]{missing}"


def headline(prediction: Prediction) -> str:
    """Return what happens, without the library's name: which backend is selected, or why none is."""
    if prediction.import_error and prediction.import_error.holds:
        return f"does not import: {reason_text(prediction.import_error)}"
    if not prediction.could_tell:
        return "backend unknown"
    if prediction.selected is None:
        return "no attention backend is available"
    chosen = title_of(prediction, prediction.selected)
    failing = prediction.fails_at_run
    return f"{chosen} is selected and fails at run time: {reason_text(failing)}" if failing else f"selects {chosen}"
