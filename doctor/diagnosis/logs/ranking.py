"""Which causes of a log are reported: one, and another only for another failure; and how sure each is."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from doctor.report.log_model import Doubt, Explanation
from doctor.rulebook.resolver import FactResolver
from doctor.util.redact import shortened

from . import refusals
from .answer import explanation
from .attribution import Origin, attributed
from .choose import Candidate, owned_by_line, packages_of
from .confidence import doubts_of_rule
from .frames import Stack
from .scan import Match

MOST = 2  # causes of one log that are reported: the root, and one of another failure
_SHOWN = 2  # causes that share the message of the one that is reported
_APART = 12  # lines between two failures that are not one
_FIRST_LINE = 160  # characters of a message that goes on in further lines
_MORE = 3  # further lines of a message that are shown
_LONGEST = 300  # characters of them
#: What begins another record of a log.
_NEXT = re.compile(
    r"^(?:Traceback|\s*File \"|[^\n]{0,60}\d\d:\d\d:\d\d|[\w.]+(?:Error|Exception|Warning)\b|\[|\(|During|The above)"
)
_OF_MODEL = re.compile(r"(?:^|/)model(?:ing|s)?_?\w*\.py$|/models/[\w/]+\.py$")
_RAISED = re.compile(r"[\w.]{2,60}(?:Error|Exception|Warning)\b|CUDA error")


def explanations(found: Sequence[Candidate], known: FactResolver, stack: Stack, end: int) -> tuple[Explanation, ...]:
    """Return the root cause, and a cause of another failure if there is one; general ones only if nothing is better.

    What several rules say of one line is one cause: the best is reported, and the others only leave it open. `end`: the
    line of the last error.
    """
    if not found:
        return ()
    first: dict[str, Candidate] = {}
    for item in found:
        first.setdefault(item.rule.cause, item)
    distinct = [item for item in first.values() if item.kind <= found[0].kind + 1]
    others = [item for item in distinct if not _repeats(item, distinct[0])]
    shown = [item for at, item in enumerate(distinct) if all(_is_another(item, before) for before in distinct[:at])]
    return tuple(_explained(item, _rivals(item, others), distinct[0], known, stack, end) for item in shown[:MOST])


def _explained(
    item: Candidate, rivals: Sequence[Candidate], root: Candidate, known: FactResolver, stack: Stack, end: int
) -> Explanation:
    """Return what is said of a candidate; the causes that share its message are named among the reasons."""
    doubts = doubts_of_rule(item, rivals, root, end)
    decisive = [other for other in (item, *rivals) if other.undecided]
    made = explanation(item, doubts, decisive, known, stack)
    if Doubt.WIDE in doubts and made.line.text not in made.message:
        made = replace(made, message=f"{made.message}: {shortened(made.line.text, _FIRST_LINE)}")
    shared = [explanation(other, (), (), known, stack) for other in rivals[:_SHOWN] if Doubt.SHARED in doubts]
    reasons = (*refusals.listed(item.match), *(f"or {other.message} ({other.rule})" for other in shared))
    return replace(made, reasons=(*reasons, *continued(item.match), *_place(item.match, stack)))


def continued(match: Match) -> Iterator[str]:
    """Yield what an exception goes on to say below its first line: what a compiler wrote, the value that is refused."""
    if not _RAISED.match(match.text.strip()) or len(match.text) > _FIRST_LINE:
        return
    after = match.around.partition(match.text)[2].lstrip("\n").splitlines()
    own = list(itertools.takewhile(lambda line: line.strip() and not _NEXT.match(line), after))[:_MORE]
    if own:
        yield shortened(f"the message goes on: {' '.join(line.strip() for line in own)}", _LONGEST)


def _place(match: Match, stack: Stack) -> Iterator[str]:
    """Yield which code of the stack raised an error, and whose call it was."""
    blame = attributed(match, stack)
    frame = blame.frame
    if blame.origin in (Origin.STACK, Origin.INSTALLED) and frame is not None and "-packages/" in frame.file:
        caller = f", called by {blame.caller}" if blame.caller is not None else ""
        file = frame.file.rpartition("-packages/")[2]
        yield f"`{frame.function}` of {blame.package} was running ({file}:{frame.line}){caller}"
    model = next((frame for frame in reversed(match.frames) if _OF_MODEL.search(frame.file)), None)
    if model is not None and model != frame:
        yield f"the call comes from the model code: {model.file.rpartition('-packages/')[2]}:{model.line}"


def _is_another(item: Candidate, other: Candidate) -> bool:
    """Return whether two causes are of different failures: other lines, other words, and other packages."""
    near = abs(item.match.line - other.match.line) <= _APART and item.match.rank == other.match.rank
    if near and not _is_own_failure(item, other):
        return False
    return item.match.text.strip() != other.match.text.strip()


def _is_own_failure(item: Candidate, other: Candidate) -> bool:
    """Return whether a line near another one begins a failure of its own: each names an exception of its own."""
    different = {*packages_of(item.rule), *item.rule.packages}.isdisjoint(
        {*packages_of(other.rule), *other.rule.packages}
    )
    return different and all(_RAISED.match(part.match.text.strip()) for part in (item, other)) and item.kind == 0


def _repeats(item: Candidate, root: Candidate) -> bool:
    """Return whether a rule for messages of any package says less of a line than the rule that is reported first."""
    return item is not root and item.match.line == root.match.line and owned_by_line(item.rule) is not None


def _rivals(item: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """Return the other causes that rest on the same line, and fit as well or would with facts that are missing."""
    return [
        other
        for other in others
        if other is not item
        and other.match.line == item.match.line
        and (other.score >= item.score or (other.rule.explains_only and other.undecided))
    ]
