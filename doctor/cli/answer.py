"""The options of every command that writes a report: where it goes, in which formats, and how much it shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from doctor.errors import DoctorError
from doctor.report.style import Style

from . import options
from .output import Destination, Screen, deliver, destinations
from .shared_options import Command, OptionGroup, takes

#: Format -> what writes it, for a terminal or file of this style.
Forms = Mapping[str, Callable[[Style], str]]


class Answer(NamedTuple):
    """Where the report of a command goes, and on which screen."""

    outputs: tuple[Destination, ...]
    screen: Screen

    def give(self, forms: Forms) -> None:
        """Write each requested format to its place."""
        for item in self.outputs:
            deliver(_render, forms[item.format], item.file, self.screen)

    def require_writable(self) -> None:
        """DoctorError for a file that cannot be written, before work that takes minutes."""
        for item in self.outputs:
            if item.file not in (None, "-"):
                _require_writable(Path(str(item.file)))


def reports(subject: str = "", *forms: str) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a report in place of its `answer` parameter.

    forms: the formats that the command writes itself; none where a renderer of the report decides.
    """

    def build(formats: Sequence[str] | None, output: str | None, verbose: bool, quiet: bool, color: str) -> Answer:
        outputs = destinations(formats, output)
        unknown = next((item.format for item in outputs if forms and item.format not in forms), None)
        if unknown is not None:
            raise DoctorError(f"format `{unknown}` cannot show {subject}", f"formats for it are {', '.join(forms)}")
        return Answer(outputs, Screen(verbose, quiet, color))

    shared = {
        "formats": (options.formats_of(forms) if forms else options.Formats, None), "output": (options.Output, None),
        "verbose": (options.Verbose, False), "quiet": (options.Quiet, False), "color": (options.Color, "auto"),
    }  # fmt: skip
    return takes("answer", OptionGroup(shared, build))


def _render(form: Callable[[Style], str], style: Style) -> str:
    return form(style)


def _require_writable(file: Path) -> None:
    if file.is_dir():
        raise DoctorError(f"cannot write `{file}`: is a directory")
    if not file.parent.is_dir():
        raise DoctorError(f"cannot write `{file}`: there is no folder `{file.parent}`")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise DoctorError(f"cannot write `{file}`: permission denied")
