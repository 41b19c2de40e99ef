"""Failures without an error line: losses that become NaN, and ranks that hang, as their stack dumps show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Doubt, Explanation, LogLine
from doctor.util.redact import shortened

from .pattern import Pattern
from .scan import Match

NOT_FINITE = Pattern(
    r"(?i:\b(?:loss|grad_?norm|lm_loss|ppl)\b)['\"]?[ :=|]{1,4}(?:tensor\(|np\.float\d\d\()?(?:nan|NaN)\b",
    ("nan", "NaN"),
)
#: What faulthandler and py-spy print above the frames of a process that they interrupt.
DUMP = Pattern(
    r"\bTimeout \(\d{1,2}:\d\d:\d\d\)!|Thread \d{1,9} \((?:idle|active)[\w+]{0,12}\): \"MainThread\"",
    ("Timeout (", '"MainThread"'),
    64,
)
_FRAME = re.compile(
    r"^[^\n\"]{0,40}?(?:File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d+) in (?P<function>[\w<>.]+)"
    r"|(?P<named>[\w<>.]+) \((?P<path>[^:()\n]{1,300}):(?P<at>\d+)\))",
    re.MULTILINE,
)
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|\b(?:send|recv|isend|irecv|wait)\b|batch_isend"
    r"|synchronize|_join"
)
#: Files of packages; py-spy names them below their folder.
_INSTALLED = re.compile(r"-packages/|/lib/python|^[^./][^:]*/")
_NEXT_DUMP = re.compile(r"^[^\n\"]{0,40}?(?:Timeout \(|Thread \d+ \(|(?:Current t|T)hread 0x)", re.MULTILINE)


@dataclass(frozen=True)
class _Held:
    """Where a process was held: the outer function it waits in, and the line of the job."""

    function: str
    place: str
    waits: bool


def hang(matches: Mapping[str, Sequence[Match]]) -> tuple[Explanation, ...]:
    """Return the cause of a hang whose stack dumps are in a log; empty where no rank waits in a collective."""
    dumps = matches.get(DUMP.match, ())
    held = [place for dump in dumps if (place := _held(dump)) is not None]
    if not held or not any(place.waits for place in held):
        return ()
    waiting = list(dict.fromkeys(f"`{place.function}` ({place.place})" for place in held if place.waits))
    others = list(dict.fromkeys(f"`{place.function}` ({place.place})" for place in held if not place.waits))
    message = f"the job hangs: a rank waits in {' and in '.join(waiting[:2])}"
    message += f", and another one is in {others[0]}" if others else ""
    first = dumps[0]
    found = Explanation(
        cause="hang-in-collective",
        rule=None,
        category="other",
        packages=(TORCH,),
        doubts=(Doubt.VAGUE,) if others or len(waiting) > 1 else (Doubt.GENERAL,),
        signature=DUMP.match,
        line=LogLine(first.line, first.text.strip(), first.rank),
        message=message,
        why=(
            "A collective call returns when every rank of its group makes it, in the same order. One rank took another "
            "branch, died, or still works."
        ),
        remedies=(
            Remedy(note=f"let every rank reach the call: see why a rank is in {(others or waiting)[-1]}"),
            Remedy(set_env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, note="names the call in which the ranks differ"),
        ),
    )
    return (found,)


def _held(dump: Match) -> _Held | None:
    """Return where the process of a dump is; the innermost frame comes first."""
    after = dump.place.after.decode("utf-8", "replace")
    ends = [found.start() for found in _NEXT_DUMP.finditer(after) if found.start() > 2]
    first_frame = _FRAME.search(after)
    if first_frame is None:
        return None
    end = next((at for at in ends if at > first_frame.start()), len(after))
    frames = [
        (found["function"] or found["named"], found["file"] or found["path"], found["line"] or found["at"])
        for found in _FRAME.finditer(after[:end])
    ]
    own = next((frame for frame in frames if not _INSTALLED.search(frame[1])), frames[-1])
    called = next((name for name, _, _ in reversed(frames) if _COLLECTIVE.search(name)), None)
    return _Held(called or own[0], f"{own[1].rpartition('/')[2]}:{own[2]}", called is not None)


def not_finite(matches: Mapping[str, Sequence[Match]]) -> tuple[str, ...]:
    """Return from where on the loss is NaN, and how to find out why: many causes lead there."""
    lines = matches.get(NOT_FINITE.match, ())
    if not lines:
        return ()
    first = lines[0]
    return (
        f"the training gives NaN from line {first.line} on: {shortened(first.text.strip(), 160)}",
        "`torch.autograd.set_detect_anomaly(True)` names the first operation that gives NaN; `attn-doctor check --run` "
        "compares each attention backend with a reference; a row of a mask that is all False gives NaN",
    )
