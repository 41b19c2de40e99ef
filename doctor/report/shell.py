"""The recommended fix as a shell script: commands to run, variables to set; whatever is no command is a comment."""

from __future__ import annotations

import re

from ..model import Fix, Report
from ..records import replace
from . import Style
from .page import printable
from .remedies import fix_lines

_COMMAND = re.compile(r"(pip|pip3|uv|python|python3|ln|apt|apt-get|conda|export|unset)\s")


def fixes(report: Report, style: Style) -> str:
    """A script to run in the environment, or to source where variables change."""
    return "\n".join(["#!/bin/sh", *head(report), *commands(report)]) + "\n"


def head(report: Report, fix: Fix | None = None) -> list[str]:
    """What it is for, in comments; of the recommended fix unless another is named."""
    if not report.fixes:
        errors = [finding.rule for finding in report.findings if finding.severity == "error"]
        return [f"# {report.tool}: no fix for {', '.join(errors)}" if errors else f"# {report.tool}: nothing to fix"]
    item = fix or report.fixes[0]
    told = [f"{report.tool}: clears {', '.join(item.resolves)}", item.title]
    told += [f"leaves {', '.join(item.leaves)}"] if item.leaves else []
    told += [item.note] if item.note else []
    if item is not report.fixes[0]:
        told.append(f"without any package: {report.fixes[0].title}")
    return [f"# {flat(text)}" for text in told]


def plain_commands(fix: Fix) -> list[str]:
    """What is to be done besides packages, as comments."""
    rest = replace(fix, changes=tuple(change for change in fix.changes if change.kind != "package"))
    return [f"# {flat(line).removeprefix('# ')}" for line in fix_lines(rest)]


def commands(report: Report) -> list[str]:
    """The lines of the recommended fix; code of the job, settings and advice are comments."""
    if not report.fixes:
        return []
    lines = (flat(line) for line in fix_lines(report.fixes[0]))
    return [line if line.startswith("#") or _COMMAND.match(line) else f"# {line}" for line in lines]


def flat(text: str) -> str:
    """One line, whatever a rule or a fact put into it."""
    return printable(" ".join(text.split()))
