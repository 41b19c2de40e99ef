"""Text as Markdown that shows it as it is: no input becomes HTML, a link, a mention, a table or a heading."""

from __future__ import annotations

import re
from collections.abc import Callable

from doctor.util.outgoing import outgoing_part

#: One backtick, a text and one backtick. CommonMark pairs runs of the same length, so every other run is escaped.
_CODE = re.compile(r"(?<!`)(`[^`\n]+`)(?!`)")
_ACTIVE = re.compile(r"[\\`*<\[\]|#~]|(?<!\w)@")  # what would format, link, mention someone or become HTML
_BLOCK = re.compile(r"^(?:[-+>=]|\d{1,9}[.)](?=\s|$))")  # what would begin a list, a quote or a heading


def prose(text: str, *, cell: bool = False) -> str:
    """Return a text on one line; what is in single backticks stays code. `cell`: of a table, where `|` ends a cell."""
    return with_code(" ".join(outgoing_part(text).split()), _safe, cell=cell)


def with_code(text: str, escape: Callable[[str], str], *, cell: bool = False) -> str:
    """Return a text with `escape` applied to all but the code in it."""
    parts = _CODE.split(text)
    return "".join(
        (part.replace("|", "\\|") if cell else part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _safe(text: str) -> str:
    return _ACTIVE.sub(lambda match: {"<": "&lt;", "@": "@\u200b"}.get(match[0], f"\\{match[0]}"), text)


def paragraph(text: str) -> str:
    """Return a text that begins a line."""
    shown = prose(text)
    begins = _BLOCK.match(shown)
    return shown if begins is None else f"{shown[: begins.end() - 1]}\\{shown[begins.end() - 1 :]}"


def code_span(text: object) -> str:
    """Return a code span that no content can leave."""
    shown = outgoing_part(" ".join(str(text).split())).replace("`", "'")
    return f"`{shown}`".replace("|", "\\|") if shown else ""


def code_block(lines: list[str], language: str = "sh") -> list[str]:
    """Return lines to paste; the fence is longer than any run of backticks in them."""
    if not lines:
        return [""]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return ["", f"{fence}{language}", *map(outgoing_part, lines), fence, ""]
