"""Messages that a narrow terminal or a box broke into lines: each is looked at once more, on one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .scan import Match, Pattern, Scanner

_BORDER = " \t│┃|"
_NARROWEST = 64  # characters that every terminal shows in a line, after the name of a rank
_LINES = 8  # of a message that are joined
_APART = "\n\n\n"  # the scan looks at two lines after a match
#: What begins something new after a message.
_BEGINS = re.compile(
    r"Traceback |File \"|During handling|The above exception|\[|\d{4}-\d|[╭╰─>]|frame #|[A-Z]{4,8}[: ]"
    r"|[\w.]{0,80}(?:Error|Exception|Failure|Warning)\b"
)


def with_rejoined(
    patterns: Sequence[Pattern], matches: Mapping[str, list[Match]], errors: Sequence[Match]
) -> dict[str, list[Match]]:
    """Return the matches of each pattern, with those that only show when the lines of an error are joined."""
    whole = [(error, text) for error in errors for text in _variants(error)]
    if not whole:
        return dict(matches)
    scanner = Scanner(patterns)
    scanner.feed(_APART.join(text for _, text in whole).encode())
    found = {text: list(known) for text, known in matches.items()}
    for index, more in scanner.finish().items():
        known = found.setdefault(patterns[index].match, [])
        for match in more:
            error, text = whole[(match.line - 1) // len(_APART)]
            if not any(error.line <= item.line < error.line + _LINES for item in known):  # it shows without
                around = f"{error.around}\n{text}"
                known.append(replace(error, text=text, around=around, length=match.length, groups=match.groups))
    return {text: sorted(known, key=lambda match: match.line) for text, known in found.items() if known}


def _variants(error: Match) -> Iterator[str]:
    """Yield the message of an error on one line: joined with spaces, and without one after each full line."""
    lines = _message(error)
    if len(lines) > 1:
        widest = max(map(len, lines))
        folded = "".join(line if len(line) == widest else f"{line} " for line in lines).rstrip()
        yield from dict.fromkeys((" ".join(lines), folded))


def _message(error: Match) -> list[str]:
    """Return the lines of a message: a line goes on where the next word would not have fitted."""
    shown = error.text.replace("\\", "/")
    after = error.around.partition(f"{shown}\n")[2].removeprefix("\n")
    lines = [error.text.strip(_BORDER)]
    for line in after.splitlines():
        text = line.strip(_BORDER)
        word = text.partition(" ")[0]
        fits = len(lines[-1]) + 1 + len(word) <= max(_NARROWEST, *map(len, lines))
        if not text or fits or len(lines) == _LINES or _BEGINS.match(text):
            break
        lines.append(text)
    return lines
