"""The recommended fix as lines of a Dockerfile."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Report
from . import Style
from .shell import commands, head


def fixes(report: Report, style: Style) -> str:
    """RUN and ENV lines, to be put behind those that install the present releases."""
    return "\n".join([*head(report), *(out for line in commands(report) for out in _instructions(line))]) + "\n"


def _instructions(line: str) -> Iterator[str]:
    if line.startswith("#"):
        yield line
    elif line.startswith("export "):
        yield f"ENV {line.removeprefix('export ')}"
    elif line.startswith("unset "):  # an image cannot unset what an earlier line sets
        yield f"# take out the ENV lines of {', '.join(line.removeprefix('unset ').split())}"
    else:
        yield f"RUN {line}"
