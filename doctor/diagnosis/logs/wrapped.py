"""Messages that a narrow terminal or a box broke into lines: each is looked at once more, on one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from doctor.util.linear_regex import found_in

from .pattern import Pattern
from .scan import Match, Scanner

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
    texts = [(error, lines, text) for error in errors for lines in [_message(error)] for text in _joined(lines)]
    return with_texts(patterns, matches, texts)


def with_texts(
    patterns: Sequence[Pattern],
    matches: Mapping[str, list[Match]],
    texts: Sequence[tuple[Match, Sequence[str], str]],
) -> dict[str, list[Match]]:
    """Return the matches of each pattern, with those in other texts of some lines.

    `texts`: the line of the log, its parts as the log has them, and its other text.
    """
    if not texts:
        return dict(matches)
    scanner = Scanner(patterns)
    scanner.feed(_APART.join(text for *_, text in texts).encode())
    found = {text: list(known) for text, known in matches.items()}
    for index, more in scanner.finish().items():
        pattern = patterns[index].match
        known = found.setdefault(pattern, [])
        for match in more:
            shown, lines, text = texts[(match.line - 1) // len(_APART)]
            in_one_line = any(found_in(pattern, line) for line in lines)
            if not in_one_line and not any(item.line == shown.line for item in known):
                known.append(replace(shown, text=text, added=text, length=match.length, groups=match.groups))
    return {text: sorted(known, key=lambda match: match.line) for text, known in found.items() if known}


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """Yield a message on one line: joined with spaces, and without one after each full line."""
    if len(lines) > 1:
        widest = max(map(len, lines))
        folded = "".join(line if len(line) == widest else f"{line} " for line in lines).rstrip()
        yield from dict.fromkeys((" ".join(lines), folded))


def _message(error: Match) -> list[str]:
    """Return the lines of a message: a line goes on where the next word would not have fitted."""
    shown = error.text.replace("\\", "/")
    after = error.around.partition(f"{shown}\n")[2].removeprefix("\n")
    lines = [error.text.strip(_BORDER)]
    ends = [len(error.text.rstrip(_BORDER))]  # columns, the indentation of a message that hangs included
    for line in after.splitlines():
        text = line.strip(_BORDER)
        word = text.partition(" ")[0]
        fits = ends[-1] + 1 + len(word) <= max(_NARROWEST, *ends)
        if not text or fits or len(lines) == _LINES or _BEGINS.match(text):
            break
        lines.append(text)
        ends.append(len(line.rstrip(_BORDER)))
    return lines
