"""The recommended fix as lines of a Dockerfile."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.model import Report

from .fix_text import FixLine, LineKind
from .shell import commands, flat, head, shell_line, undefined_variables
from .style import Style


def fixes(report: Report, style: Style) -> str:
    """Render RUN and ENV lines, to be placed after those that install the present releases."""
    lines = commands(report)
    out = [*head(report), *(text for name in undefined_variables(lines) for text in _argument(name))]
    for line in lines:
        out += _argument(line.names[0], line.text) if line.computed else [_instruction(line)]
    return "\n".join(out) + "\n"


def _argument(name: str, computed: str = "") -> Iterator[str]:
    """Yield the lines for a value that only a command can compute, which ENV cannot run."""
    how = f", the output of {flat(computed)} in the image" if computed else ""
    yield f"# docker build --build-arg {name}=…{how}"
    yield f"ARG {name}"
    yield f'RUN test -n "${name}"'


def _instruction(line: FixLine) -> str:
    if line.foreign:
        return shell_line(line)
    if line.kind == LineKind.SET:
        return f"ENV {line.names[0]}={flat(line.text)}"
    if line.kind == LineKind.UNSET:  # an image cannot unset what an earlier line sets
        return f"# remove the ENV lines of {', '.join(line.names)}"
    return f"RUN {flat(line.text)}" if line.kind == LineKind.COMMAND else shell_line(line)
