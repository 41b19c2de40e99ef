"""The recommended fix as lines of a Dockerfile."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.model import Report

from .shell import commands, head, unset
from .style import Style


def fixes(report: Report, style: Style) -> str:
    """RUN and ENV lines, to be put behind those that install the present releases."""
    lines = commands(report)
    out = [*head(report), *(text for name in unset(lines) for text in _argument(name))]
    return "\n".join([*out, *(text for line in lines for text in _instructions(line))]) + "\n"


def _argument(name: str) -> Iterator[str]:
    """A value that only a command can tell, which ENV cannot run."""
    yield f"# to be given as a path: docker build --build-arg {name}=…"
    yield f"ARG {name}"
    yield f'RUN test -n "${name}"'


def _instructions(line: str) -> Iterator[str]:
    if line.startswith("#"):
        yield line
    elif line.startswith("export "):
        yield f"ENV {line.removeprefix('export ')}"
    elif line.startswith("unset "):  # an image cannot unset what an earlier line sets
        yield f"# take out the ENV lines of {', '.join(line.removeprefix('unset ').split())}"
    else:
        yield f"RUN {line}"
