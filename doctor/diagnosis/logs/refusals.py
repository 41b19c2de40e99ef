"""Why each backend refused: what torch warns before the error of SDPA, and what xFormers lists after its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from doctor.report.log_model import LogLine

from .scan import Match

#: `Memory efficient kernel not used because:`, and each reason, end with the file that checked it.
WARNED = r"Warning: [^\n]{8,400}?\s?\(Triggered internally at [^)\n]{0,240}sdp_utils"
REFUSED = re.compile(r"No available kernel|No viable backend for scaled_dot_product|Invalid backend")
#: xFormers: a line for each operator, and its reasons below, further to the right.
LISTED = re.compile(r"No operator found for `memory_efficient_attention")
_OPERATOR = re.compile(r"^ *`(?P<name>[\w@.+-]{2,60})` is not supported because:\s*$")
_WARNED = re.compile(r"Warning: (?P<text>[^\n]{8,400}?)\s?\(Triggered internally at ")
_BACKEND = re.compile(r"^(?P<name>[\w .-]{3,40}?)(?: kernel| attention)? not used because")
_NO_REASON = re.compile(r"compiled with|not compiled")


def reasons(warned: Sequence[Match], error: LogLine | None = None) -> tuple[str, ...]:
    """Return `backend: reason` for what is printed before an error; a build without a backend comes last."""
    found = list(dict.fromkeys(_reasons(warned, error)))
    return tuple(sorted(found, key=lambda text: _NO_REASON.search(text) is not None))


def listed(match: Match) -> tuple[str, ...]:
    """Return `operator: reasons` for each operator that xFormers lists around a line."""
    found: dict[str, list[str]] = {}
    name = ""
    start = LISTED.search(match.around)
    for line in match.around[start.end() :].splitlines() if start is not None else ():
        operator = _OPERATOR.match(line)
        if operator is not None:
            name = operator["name"]
        elif name and line.startswith("  ") and line.strip():
            found.setdefault(name, []).append(line.strip())
        elif name and line.strip():  # what is around a line has a blank one after it
            break
    return tuple(f"{operator}: {'; '.join(reasons)}" for operator, reasons in found.items())


def _reasons(warned: Sequence[Match], error: LogLine | None) -> Iterator[str]:
    backend = ""
    for match in warned:
        if error is not None and (match.line > error.number or match.rank != error.rank):
            continue
        found = _WARNED.search(match.text)
        text = found["text"].strip().rstrip(":") if found else ""
        named = _BACKEND.match(text)
        if named is not None:
            backend = named["name"]
        elif text and backend:
            yield f"{backend}: {text}"
