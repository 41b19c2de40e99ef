"""What torch.compile states of code that it cannot trace: an explanation, hints, and the line of the job."""

from __future__ import annotations

import re

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Explanation, LogLine
from doctor.rulebook.categories import UNAVAILABLE

from .scan import Match

CAUSE = "graph-break-stated-by-torch"
_RAISED = re.compile(
    r"torch\.(?:_dynamo\.exc\.(?:Unsupported|UserError|TorchRuntimeError)|fx\.[\w.]{0,40}symbolic_shapes\.\w{3,60}): "
    r"(?P<text>[^\n]{4,300})"
)
_EXPLANATION = re.compile(r"^ *Explanation: *(?P<text>\S[^\n]{4,500})", re.MULTILINE)
_HINT = re.compile(r"^ *Hint: *(?P<text>\S[^\n]{4,600})", re.MULTILINE)
_CONTEXT = re.compile(r"^ *Developer debug context: *(?P<text>\S[^\n]{4,300})", re.MULTILINE)
_FRIENDLY = re.compile(r"^consider using (?P<text>[^\n]{4,200})", re.MULTILINE | re.IGNORECASE)
_USER_CODE = re.compile(
    r"(?:from user code|The following call raised this error):\s+"
    r"(?:File \"(?P<file>[^\"\n]+)\", line (?P<line>\d+), in (?P<function>[\w<>]+))"
)
#: What torch.export states of a length that is no longer dynamic.
_MARKED = re.compile(r"^ *- (?P<text>(?:You marked|Not all values of)[^\n]{4,600})", re.MULTILINE)
_SUGGESTED = re.compile(r"^Suggested fixes:\s*\n(?P<text>[^\n]{3,200})", re.MULTILINE)
_OPERATOR = re.compile(r"unsupported operator: (?P<name>[\w.]+)")
_NO_FAKE = "no fake impl registered"
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
    marked = _MARKED.search(after)
    if not (stated or context or marked or _FRIENDLY.search(after)):
        return None
    message = f"{_caller(after)} cannot trace this code: {raised['text'].strip().rstrip('.')}"
    if operator is not None:
        message += f" (operator `{operator['name']}` has no fake implementation)"
    why = " ".join(
        part
        for part in (
            stated["text"].strip() if stated else "",
            marked["text"].strip() if marked else "",
            f"torch names {context['text'].strip()}." if context and operator is None else "",
            _place(after),
        )
        if part
    )
    return Explanation(
        cause=CAUSE,
        rule=None,
        category=UNAVAILABLE,
        packages=(TORCH,),
        doubts=(),
        signature="",
        line=LogLine(match.line, match.text.strip(), match.rank),
        message=message,
        why=why,
        remedies=_remedies(after, operator is not None or _NO_FAKE in after),
    )


def _caller(after: str) -> str:
    """Return which of torch's two compilers reads the code."""
    return "torch.export" if "calling torch.export" in after else "torch.compile"


def _place(after: str) -> str:
    """Return the line of the job whose code it is, as a sentence."""
    found = _USER_CODE.search(after)
    return f"The code is in {found['file']}:{found['line']}, in `{found['function']}`." if found else ""


def _remedies(after: str, without_fake: bool) -> tuple[Remedy, ...]:
    hints = [found["text"].strip() for found in (*_HINT.finditer(after), *_FRIENDLY.finditer(after))]
    made = [Remedy(note=text) for text in hints if not _NO_HINT.search(text)]
    if (marked := _MARKED.search(after)) is not None:
        made.append(Remedy(note=marked["text"].partition(". ")[2].strip() or marked["text"].strip()))
    if (suggested := _SUGGESTED.search(after)) is not None:
        made.append(Remedy(note=f"torch suggests {suggested['text'].strip()} in dynamic_shapes"))
    if without_fake:
        made.insert(
            0, Remedy(call='torch.library.register_fake("NAMESPACE::OPERATOR")', note="gives the operator shapes")
        )
    if _caller(after) == "torch.compile":
        made.append(
            Remedy(call="torch.compile(model, fullgraph=False)", note="runs what cannot be traced without compiling it")
        )
    elif not marked:
        made.append(Remedy(call="torch.cond(pred, true_fn, false_fn, operands)", note="for a branch on values"))
    return tuple(made[:3])
