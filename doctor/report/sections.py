"""A short answer in sections of lines, tables and commands, for the formats that people read: text, Markdown, HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .bar_chart import BarChart
from .html import rendered
from .line_chart import LineChart
from .markdown_text import code_block, prose
from .page import Page
from .style import Style

TEMPLATE = "sections.html.j2"
SIGNS = {"error": "❌", "warning": "⚠️", "note": "ℹ️", "ok": "✅", "unclear": "❔"}
_WIDEST = 60  # characters of a cell that is aligned in text


@dataclass(frozen=True)
class Cell:
    """One cell of a table and what it is: a look of the page."""

    text: str
    look: str = ""


Row = tuple["Cell | str", ...]


@dataclass(frozen=True)
class Table:
    """A table; `grid` where every cell is a verdict and its look colors the cell."""

    head: tuple[str, ...]
    rows: tuple[Row, ...]
    grid: bool = False


@dataclass(frozen=True)
class Section:
    """One part of an answer."""

    title: str
    lines: tuple[tuple[str, str], ...] = ()  # look or empty, text
    table: Table | None = None
    commands: tuple[str, ...] = ()
    only_html: bool = False
    chart: BarChart | None = None  # of the page only
    lines_chart: LineChart | None = None  # of the page only


@dataclass(frozen=True)
class Answer:
    """The verdict and what is behind it."""

    look: str
    word: str
    sentence: str
    lines: tuple[tuple[str, str], ...]  # what follows the verdict at once: lead and text
    sections: tuple[Section, ...]
    tool: str


def text(answer: Answer, style: Style) -> str:
    """Return the answer as plain text."""
    page = Page(style)
    page.say(answer.sentence, lead=f"{answer.word}:", look=answer.look)
    for lead, line in answer.lines:
        page.say(line, lead=f"{lead}:", look="label", hang=2)
    for section in answer.sections:
        if section.only_html:
            continue
        page.gap()
        page.line(section.title, "label")
        for look, line in section.lines:
            page.say(line, lead=f"{look}:" if look in SIGNS else "", look=look or None, indent=2, hang=4)
        if section.table is not None:
            _text_table(page, section.table)
        for command in section.commands:
            page.line(f"  {command}", "command")
    return page.text()


def _text_table(page: Page, table: Table) -> None:
    rows = [tuple(_text_of(cell) for cell in row) for row in table.rows]
    widths = [
        min(_WIDEST, max(len(row[column]) for row in (table.head, *rows))) for column in range(len(table.head) - 1)
    ]
    for number, row in enumerate((table.head, *rows)):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, (*widths, 0), strict=True)]
        page.line("  " + "  ".join(cells), "dim" if number == 0 else None)


def markdown(answer: Answer, style: Style) -> str:
    """Return the answer as Markdown; no text of a fact becomes markup."""
    out = [f"## {SIGNS.get(answer.look, '')} {prose(answer.word)}: {prose(answer.sentence)}", ""]
    out += [f"- **{prose(lead)}**: {prose(line)}" for lead, line in answer.lines] + [""]
    for section in answer.sections:
        if section.only_html:
            continue
        out += [f"### {prose(section.title)}", ""]
        out += [f"- {f'{SIGNS[look]} ' if look in SIGNS else ''}{prose(line)}" for look, line in section.lines]
        out += [""] if section.lines else []
        if section.table is not None:
            out += [*_markdown_row(section.table.head), f"|{'---|' * len(section.table.head)}"]
            for row in section.table.rows:
                out += _markdown_row([_text_of(cell) for cell in row])
            out.append("")
        if section.commands:
            out += code_block(list(section.commands))
    out.append(f"<sub>{prose(answer.tool)}</sub>")
    return "\n".join(out) + "\n"


def _markdown_row(cells: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(prose(cell, cell=True) for cell in cells)} |"]


def html(answer: Answer, style: Style) -> str:
    """Return the answer as one self-contained page."""
    return rendered(TEMPLATE, {"answer": answer, "cell": _cell})


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _text_of(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell
