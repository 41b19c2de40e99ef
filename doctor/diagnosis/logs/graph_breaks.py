"""What torch.compile states of code that it cannot trace: an explanation, hints, and the line of the job."""

from __future__ import annotations

import re

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Explanation, LogLine

from .scan import Match

CAUSE = "graph-break-stated-by-torch"
_RAISED = re.compile(r"torch\._dynamo\.exc\.(?:Unsupported|UserError|TorchRuntimeError): (?P<text>[^\n]{4,300})")
_EXPLANATION = re.compile(r"^ *Explanation: *(?P<text>\S[^\n]{4,500})", re.MULTILINE)
_HINT = re.compile(r"^ *Hint: *(?P<text>\S[^\n]{4,600})", re.MULTILINE)
_CONTEXT = re.compile(r"^ *Developer debug context: *(?P<text>\S[^\n]{4,300})", re.MULTILINE)
_FRIENDLY = re.compile(r"^consider using (?P<text>[^\n]{4,200})", re.MULTILINE | re.IGNORECASE)
_USER_CODE = re.compile(
    r"from user code:\s+(?:File \"(?P<file>[^\"\n]+)\", line (?P<line>\d+), in (?P<function>[\w<>]+))"
)
_OPERATOR = re.compile(r"unsupported operator: (?P<name>[\w.]+)")
_NO_HINT = re.compile(
    r"fundamental - it is unlikely|may result in an error when running in eager|report an issue|docs\.google\.com"
)


def graph_break(match: Match) -> Explanation | None:
    """Return what torch states of a line that its compiler raised; None for any other line."""
    raised = _RAISED.search(match.text)
    if raised is None:
        return None
    after = match.around.partition(match.text)[2]
    stated = _EXPLANATION.search(after)
    operator = _OPERATOR.search(after)
    context = _CONTEXT.search(after)
    if not (stated or context or _FRIENDLY.search(after)):
        return None
    message = f"torch.compile cannot trace this code: {raised['text'].strip().rstrip('.')}"
    if operator is not None:
        message += f" (operator `{operator['name']}` has no fake implementation)"
    why = " ".join(
        part
        for part in (
            stated["text"].strip() if stated else "",
            f"torch names {context['text'].strip()}." if context and operator is None else "",
            _place(after),
        )
        if part
    )
    return Explanation(
        cause=CAUSE,
        rule=None,
        category="backend-unavailable",
        packages=(TORCH,),
        doubts=(),
        signature="",
        line=LogLine(match.line, match.text.strip(), match.rank),
        message=message,
        why=why,
        remedies=_remedies(after, operator is not None),
    )


def _place(after: str) -> str:
    """Return the line of the job whose code it is, as a sentence."""
    found = _USER_CODE.search(after)
    return f"The code is in {found['file']}:{found['line']}, in `{found['function']}`." if found else ""


def _remedies(after: str, without_fake: bool) -> tuple[Remedy, ...]:
    hints = [found["text"].strip() for found in (*_HINT.finditer(after), *_FRIENDLY.finditer(after))]
    made = [Remedy(note=text) for text in hints if not _NO_HINT.search(text)]
    if without_fake:
        made.insert(
            0, Remedy(call='torch.library.register_fake("NAMESPACE::OPERATOR")', note="gives the operator shapes")
        )
    made.append(
        Remedy(call="torch.compile(model, fullgraph=False)", note="runs what cannot be traced without compiling it")
    )
    return tuple(made[:3])
