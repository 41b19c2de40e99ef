"""Classify the `call` of a rule's fix: a command to run, code to write, or advice in words."""

from __future__ import annotations

import re
from functools import lru_cache

from doctor.model import TextEnum

from .patterns import pattern

_COMMAND = pattern(r"(pip|pip3|uv|python|python3|ln|apt|apt-get|conda|export|unset)\s")
_WORD = pattern(r"(?<![\w.])[a-z]{2,}(?=\s)")
_MOST_WORDS_IN_CODE = 3


class CallKind(TextEnum):
    """What the user does with a `call`."""

    COMMAND = "command"
    CODE = "code"
    ADVICE = "advice"


@lru_cache(maxsize=1024)
def call_kind(call: str) -> CallKind:
    """Classify the text of a `call`."""
    if _COMMAND.match(call):
        return CallKind.COMMAND
    prose = not re.search(r"[=().]", call) or len(_WORD.findall(call)) > _MOST_WORDS_IN_CODE
    return CallKind.ADVICE if prose else CallKind.CODE


def describe_call(call: str) -> str:
    """Return a `call` as an instruction: `run …` for a command, `write …` for code, the text itself for advice."""
    verb = {CallKind.COMMAND: "run", CallKind.CODE: "write", CallKind.ADVICE: ""}[call_kind(call)]
    return f"{verb} `{call}`" if verb else call
