"""How sure an answer is: what the evidence of a log leaves open, in one place for rules and for what the code says.

An answer without a doubt is of high confidence (`doctor.report.log_model.confidence_of`). The doubts were chosen on
logs whose own rule was taken away: what another rule then says is wrong where that rule covers many messages with few
fixed words, and nothing else in the log speaks for it. docs/explain.md lists the doubts.
"""

from __future__ import annotations

from collections.abc import Sequence

from doctor.model import TORCH
from doctor.report.log_model import Doubt
from doctor.rulebook.anchors import fixed_length

from .attribution import Attribution, Origin
from .choose import Candidate, owned_by_line
from .kinds import is_compiled_fault
from .notices import warns
from .scan import Match
from .sites import Site

_MANY = 5  # expressions of a rule from which on its words fit a line only if the expression has many words of it
_MANY_WORDS = 30  # fixed characters of such an expression
_FEW_WORDS = 16  # fixed characters of an expression, below which messages of other causes match it too


def doubts_of_rule(item: Candidate, rivals: Sequence[Candidate], root: Candidate, end: int) -> tuple[Doubt, ...]:
    """Return what leaves the cause of a rule open.

    `rivals`: other causes of the same line. `root`: the candidate of the log that is reported first. `end`: the line of
    the last error.
    """
    if item.history is not None and item.weight < 0:  # the releases that have what the message misses are known
        return ()
    found = {
        Doubt.GENERAL: item.kind > 1,
        Doubt.VAGUE: item.kind == 1 and not item.holds and item.rule.explains_only,
        Doubt.WIDE: item.kind == 0 and not item.holds and _is_wide(item),
        Doubt.SHARED: bool(rivals) and not item.holds,
        Doubt.UNDECIDED: item.undecided,
        Doubt.LATER: root.match.line < item.match.line,
        Doubt.OTHER_RANK: item.follows,
        Doubt.NOTICE: not item.holds and item.match.line < end and warns(item.match.text),
        Doubt.UNATTRIBUTED: not item.holds and _is_unattributed(item),
    }
    return tuple(doubt for doubt, holds in found.items() if holds)


def doubts_of_code(
    places: Sequence[Site], match: Match, blame: Attribution, *, exact: bool, proposes: bool, looked_up: bool = False
) -> tuple[Doubt, ...]:
    """Return what leaves a place in the code open, where a message comes from.

    `places`: those that have the message. `exact`: the place is the one of the frame, or of the C++ trace. `proposes`:
    the message, or what calls it, says what to do. `looked_up`: a table lacks a value, and nothing says why.
    """
    found = {
        Doubt.SHARED: len({(site.package, site.guard) for site in places}) > 1,
        Doubt.UNATTRIBUTED: blame.package is None and blame.origin != Origin.JOB,
        Doubt.VAGUE: looked_up or (not exact and (bool(match.frames) or not places[0].is_clear)),
        Doubt.NO_FIX: not proposes,
    }
    return tuple(doubt for doubt, holds in found.items() if holds)


def _is_wide(item: Candidate) -> bool:
    """Return whether a rule covers so much that its words hardly fit this line: many messages with few words.

    A rule that takes the package from the line, or needs further lines, is one of its own.
    """
    if not item.rule.explains_only or item.signature.conditions or owned_by_line(item.rule) is not None:
        return False
    if is_compiled_fault(item.match.text):  # the package that failed decides
        return False
    fixed = fixed_length(item.signature.match)
    return fixed < (_MANY_WORDS if len(item.rule.signatures) >= _MANY else _FEW_WORDS)


def _is_unattributed(item: Candidate) -> bool:
    """Return whether any compiled code prints such a message, and the log does not show whose code it was."""
    if not is_compiled_fault(item.match.text):
        return False
    if item.blame.origin == Origin.JOB:
        return item.blame.frame is None or TORCH not in item.blame.frame.code
    named = any(
        name.replace("-", "_") in item.match.text.replace("-", "_") for name in item.rule.packages if name != TORCH
    )
    return item.blame.origin == Origin.UNKNOWN and not named and not item.signature.conditions
