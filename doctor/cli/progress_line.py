"""The live line of a slow command: spinner, a bar where there is a total, text, elapsed time."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column


class _Counted(ProgressColumn):
    """Another column, empty while the amount of work is unknown."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self.column = column

    def render(self, task: Any) -> Any:
        return self.column(task) if task.total else ""


def live_line() -> Progress:
    """Return a progress display on stderr with one task, number 0."""
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    line = Progress(
        SpinnerColumn(), _Counted(BarColumn(20)), _Counted(MofNCompleteColumn()), text, TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    line.add_task("", total=None)
    return line
