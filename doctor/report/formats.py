"""What the user gets to see of a report: one module per format, each only reading.

A format module has one function per view it knows: `diagnosis(report, style)`, `backends(report, style)`,
`fixes(report, style)`. Adding a format is adding its file and its name here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from doctor.errors import DoctorError
from doctor.model import Report
from doctor.report.style import Style

#: Format → module; imported when requested.
FORMATS = {
    "text": "text", "json": "json", "sarif": "sarif", "junit": "junit", "github": "github", "markdown": "markdown",
    "gitlab": "gitlab", "html": "html", "shell": "shell", "docker": "docker", "uv": "uv", "conda": "conda",
}  # fmt: skip


Renderer = Callable[[Report, Style], str]


def renderer(name: str, view: str = "diagnosis") -> Renderer:
    """The function that renders `view` as format `name`; DoctorError lists what there is."""

    module = FORMATS.get(name)
    if module is None:
        raise DoctorError(f"unknown format `{name}`", f"formats are {', '.join(FORMATS)}")
    found: Renderer | None = getattr(import_module(f"doctor.report.{module}"), view, None)
    if found is None:
        fitting = [other for other, path in FORMATS.items() if hasattr(import_module(f"doctor.report.{path}"), view)]
        raise DoctorError(f"format `{name}` cannot show {view}", f"formats for it are {', '.join(fitting)}")
    return found
