"""What the user gets to see of a report: one module per format, each only reading.

A format module has one function per view it knows: `diagnosis(report, style)`, `backends(report, style)`,
`fixes(report, style)`. Adding a format is adding its file and its name here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from doctor.errors import DoctorError
from doctor.report.style import Style

#: Format → module; imported when requested.
FORMATS = {
    "text": "text", "json": "json", "sarif": "sarif", "junit": "junit", "github": "github", "markdown": "markdown",
    "gitlab": "gitlab", "html": "html", "shell": "shell", "docker": "docker", "uv": "uv", "conda": "conda",
    "cyclonedx": "cyclonedx",
}  # fmt: skip


#: View of something else than a diagnosis -> the module that has one function per format.
VIEWS = {"comparison": "comparison", "fleet": "fleet", "sharded": "sharded", "speed": "speed"}

Renderer = Callable[[Any, Style], str]


def renderer(name: str, view: str = "diagnosis") -> Renderer:
    """The function that renders `view` as format `name`; DoctorError lists what there is."""

    if name not in FORMATS:
        raise DoctorError(f"unknown format `{name}`", f"formats are {', '.join(FORMATS)}")
    found: Renderer | None = _find(name, view)
    if found is None:
        fitting = [other for other in FORMATS if _find(other, view) is not None]
        raise DoctorError(f"format `{name}` cannot show {view}", f"formats for it are {', '.join(fitting)}")
    return found


def _find(name: str, view: str) -> Renderer | None:
    own = VIEWS.get(view)
    place, wanted = (own, f"as_{name}") if own is not None else (FORMATS[name], view)
    found: Renderer | None = getattr(import_module(f"doctor.report.{place}"), wanted, None)
    return found
