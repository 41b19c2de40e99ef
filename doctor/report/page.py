"""Lines of text under construction: the words are the same with and without colour."""

from __future__ import annotations

import io
import textwrap

from doctor.util.outgoing import outgoing_part

from .style import Style

#: What a line is, and how a terminal with colours shows it.
LOOKS = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "ok": "bold green",
    "unclear": "bold magenta",
    "label": "bold",
    "command": "green",
    "dim": "dim",
}


class Page:
    """Collects lines; a line is a lead word with a look of its own and a text behind it."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._lines: list[tuple[str, int, str | None]] = []  # text, length of the part with the look, look

    def line(self, text: str = "", look: str | None = None, *, lead: int | None = None) -> None:
        """One line as it is, never wrapped: commands to paste, headings. `lead` characters get the look."""
        text = outgoing_part(text)
        self._lines.append((text, len(text) if lead is None else lead, look))

    def gap(self) -> None:
        """An empty line, unless there is one already."""
        if self._lines and self._lines[-1][0]:
            self.line()

    def say(
        self, text: str, *, lead: str = "", look: str | None = None, indent: int = 0, hang: int | None = None
    ) -> None:
        """A text wrapped to the width, after a `lead` word that carries the look; `hang` indents the further lines."""

        margin = " " * indent
        head = f"{margin}{lead} " if lead else margin
        hanging = " " * (indent + 2 if hang is None else hang)
        text = " ".join(outgoing_part(text).split())
        wrapped = textwrap.wrap(
            text,
            width=max(self.style.width, 40),
            initial_indent=head,
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [head.rstrip()]
        for number, line in enumerate(wrapped):
            first = number == 0 and bool(lead)
            self._lines.append((line, len(head.rstrip()) if first else 0, look if first else None))

    def text(self) -> str:
        """The page as one string that ends in a newline."""
        plain = "".join(f"{text.rstrip()}\n" for text, _, _ in self._lines)
        return self._painted() if self.style.color else plain

    def _painted(self) -> str:
        from rich.console import Console

        stream = io.StringIO()
        # Wide and soft: the lines are wrapped already, and a command must stay on its line.
        console = Console(file=stream, force_terminal=True, color_system="standard", width=10_000, highlight=False)
        for line, lead, look in self._lines:
            text = console.render_str(line.rstrip(), markup=False, highlight=False, emoji=False)
            if look:
                text.stylize(LOOKS[look], 0, lead)
            text.highlight_regex(r"`[^`]+`", "bold")
            console.print(text, soft_wrap=True)
        return stream.getvalue()
