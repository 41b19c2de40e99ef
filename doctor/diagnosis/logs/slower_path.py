"""Logs without an error of jobs that are slow or need much memory: the lines that say which slower path runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from doctor.model import TORCH, Remedy
from doctor.report.log_model import Doubt, Explanation, LogLine
from doctor.rulebook.categories import NONE, UNAVAILABLE
from doctor.util.redact import shortened

from .pattern import Pattern
from .scan import Match

CAUSE = "slower-path-stated-by-the-log"
#: A program says that it takes another path than the one it was made for, or that torch.compile gives up.
STATED = Pattern(
    r"(?i:\bfall(?:s|ing)? ?back\b|\bfallback\b|unfused implementation)"
    r"|hit config\.(?:recompile|cache_size|accumulated\w*)_limit|Graph break(?:s)? (?:in|from|due)"
    r"|(?:less efficient|(?:much|significantly|very) slow)",
    (
        *("all back", "alling back", "alls back", "fallback", "Fallback", "nfused implementation", "hit config."),
        *("Graph break", "less efficient", "much slow", "ntly slow", "very slow"),
    ),
    64,
)
#: A report says that the job is slow, or that it needs too much memory.
COMPLAINT = Pattern(
    r"(?i)\b(?:is|are|was|runs?|got|became|step)\b[^.\n]{0,30}\bslow(?:er|ly)?\b"
    r"|\btakes? (?:far )?(?:too long|hours|forever)|\d(?:\.\d+)?\s?(?:x|times|%) slower|memory (?:keeps )?grow",
    (
        *("slower", "is slow", "as slow", "re slow", "ns slow", "un slow", "o slow", "ly slow", "ry slow", "oo long"),
        *("akes hours", "akes forever", "ory grow", "eeps grow"),
    ),
)
_OF_ATTENTION = re.compile(
    r"(?i)att(?:entio)?n|sdpa|scaled_dot|flash|\bfa ?[234]\b|eager|flex|xformers|unfused|fused|torch\._dynamo|dynamo"
    r"|graph break|triton|kernel"
)
_COMPILER = re.compile(r"hit config\.|[Gg]raph break")
_SAYS_SLOW = re.compile(r"(?i)less efficient|slow")
_NEAR = 3  # lines after a statement in which the program says what it costs


def slower_path(
    matches: Mapping[str, Sequence[Match]], known: Sequence[Explanation]
) -> tuple[tuple[Explanation, ...], tuple[str, ...]]:
    """Return the likely cause of a job that is slow, else what the log shows of a slower path; both may be empty.

    `known`: what rules say of lines that are no failure; a line that they call harmless counts only in a log whose
    job is slow. A log in which nothing says so gets no cause.
    """
    complains = bool(matches.get(COMPLAINT.match))
    harmless = {item.line.number for item in known if item.category == NONE and not complains}
    stated = [
        match
        for match in matches.get(STATED.match, ())
        if match.line not in harmless and _OF_ATTENTION.search(match.text)
    ]
    if not stated:
        return (), ()
    first = next((match for match in stated if not _SAYS_SLOW.match(match.text)), stated[0])
    slow = any(0 <= match.line - first.line <= _NEAR and _SAYS_SLOW.search(match.text) for match in stated)
    if not complains and not slow:
        return (), (f"a slower path runs from line {first.line} on: {shortened(first.text.strip(), 160)}",)
    doubts = (Doubt.VAGUE,) if complains else (Doubt.GENERAL,)
    causes = (item for item in known if item.category != NONE and item.line.number == first.line and item.remedies)
    rule = next(causes, None)
    return (replace(rule, doubts=doubts) if rule is not None else _made(first, doubts),), ()


def _made(match: Match, doubts: tuple[Doubt, ...]) -> Explanation:
    text = match.text.strip()
    compiler = _COMPILER.search(text) is not None
    return Explanation(
        cause=CAUSE,
        rule=None,
        category=UNAVAILABLE,
        packages=(TORCH,),
        doubts=doubts,
        signature=STATED.match,
        line=LogLine(match.line, text, match.rank),
        message=f"the job runs a slower path, as the log states: {shortened(text, 200)}",
        why=(
            "Code that torch.compile cannot keep compiled runs as plain Python, kernel by kernel."
            if compiler
            else "The faster attention backend was not available or not chosen; no error follows from that."
        ),
        remedies=_COMPILED if compiler else _ATTENTION,
    )


_COMPILED = (
    Remedy(set_env={"TORCH_LOGS": "recompiles,graph_breaks"}, note="names each recompilation and graph break"),
    Remedy(call="torch.compile(model, dynamic=True)", note="or torch._dynamo.mark_dynamic for the length that changes"),
)
_ATTENTION = (
    Remedy(note="give what the line names as missing, or request a backend that this machine has"),
    Remedy(call="attn-doctor backends --set workload.framework=torch_sdpa", note="names the backend that will run"),
)
