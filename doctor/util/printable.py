"""Make text safe to print: control characters and workflow commands of input files do not reach a terminal or a CI log.

Every answer of the program passes `safe_text` once, in the one function that writes answers.
"""

from __future__ import annotations

import re

#: C0 without tab and newline, DEL, C1, line separators, and the characters that reorder the text around them.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
_COLOR = r"\x1b\[[0-9;]*m"  # what we print ourselves where colors are on
_COMMAND = r"(?m)^([^\S\n]*):(?=:)"  # `::error::…` starts a workflow command of GitHub, also after blanks


def printable(text: str) -> str:
    """Return the text with control characters spelled out: a fact from a file must not steer the terminal."""
    if text.isprintable():  # none of them is, and most text is: the pattern need not be compiled
        return text
    return re.sub(_CONTROL, _spelled, text)


def one_printable_line(text: str) -> str:
    """Return the text as one printable line, whatever a file put into it."""
    return printable(" ".join(text.split()))


def one_line(text: str) -> str:
    """Return the text without line breaks and lone surrogates, which user input may contain."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def printable_path(path: object) -> str:
    """Return the name of a file as it is, with line breaks and control characters spelled out."""
    return printable(str(path)).replace("\n", "\\n").replace("\t", "\\t")


def safe_text(text: str, *, colored: bool = False) -> str:
    """Return a whole answer with control characters spelled out; with `colored`, color sequences stay."""
    if not colored:
        return printable(text)
    return re.sub(f"({_COLOR})|{_CONTROL}", lambda match: match[1] or _spelled(match), text)


def without_commands(text: str) -> str:
    """Return the text so that no line of it is a workflow command of GitHub."""
    if "::" in text:
        text = re.sub(_COMMAND, r"\1\\u003a", text)
    return text.replace("##[", "#\\u0023[")  # an escape that JSON takes too


def _spelled(match: re.Match[str]) -> str:
    # Four digits also for \x9b: the escape is then right in JSON too.
    return f"\\u{ord(match[0]):04x}" if ord(match[0]) > 0x7E else ascii(match[0])[1:-1]
