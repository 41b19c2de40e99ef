"""The recommended fix as a shell script: commands to run, variables to set; whatever is no command is a comment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from doctor.model import ChangeKind, Fix, Report, Severity
from doctor.solver.install_plan import InstallPlan

from .fix_text import besides
from .page import printable
from .style import Style

_COMMAND = re.compile(r"(pip|pip3|uv|python|python3|ln|apt|apt-get|conda|export|unset)\s")
_USED = re.compile(r"\$\{?(\w+)")


def fixes(report: Report, style: Style) -> str:
    """A script to run in the environment, or to source where variables change."""
    lines = commands(report)
    guards = [f': "${{{name}:?the comment above says what it is}}"' for name in unset(lines)]
    return "\n".join(["#!/bin/sh", *head(report), *guards, *lines]) + "\n"


def head(report: Report, fix: Fix | None = None) -> list[str]:
    """What it is for, in comments; of the recommended fix unless another is named."""
    if not report.fixes:
        errors = [finding.rule for finding in report.findings if finding.severity == Severity.ERROR]
        return [f"# {report.tool}: no fix for {', '.join(errors)}" if errors else f"# {report.tool}: nothing to fix"]
    item = fix or report.fixes[0]
    told = [f"{report.tool}: clears {', '.join(item.resolves)}", item.title]
    told += [f"leaves {', '.join(item.leaves)}"] if item.leaves else []
    told += [item.note] if item.note else []
    if item is not report.fixes[0]:
        told.append(f"without any package: {report.fixes[0].title}")
    return [f"# {flat(text)}" for text in told]


def fragment(report: Report, lines_of: Callable[[Report, Fix, InstallPlan], Iterator[str]]) -> str:
    """The fix as part of a project's file: `lines_of` its packages; what else is to be done as comments."""
    from doctor.solver.install_plan import install_plan, pinnable

    fix = pinnable(report) if report.fixes else None
    lines = head(report, fix)
    if fix is not None:
        lines += [f"# {flat(line).removeprefix('# ')}" for line in besides(fix)]
        lines += lines_of(report, fix, install_plan(report, fix)) if _moves(fix) else ["# no package changes"]
    return "\n".join(lines) + "\n"


def _moves(fix: Fix) -> bool:
    """Whether any package changes."""
    return any(change.kind == ChangeKind.PACKAGE for change in fix.changes)


def commands(report: Report) -> list[str]:
    """The lines of the recommended fix; code of the job, settings and advice are comments."""
    if not report.fixes:
        return []
    fix = report.fixes[0]
    lines = [flat(line) for line in (*(_packages(report, fix) if _moves(fix) else ()), *besides(fix))]
    return [line if line.startswith("#") or _COMMAND.match(line) else f"# {line}" for line in lines]


def _packages(report: Report, fix: Fix) -> Iterator[str]:
    """The packages, with all that stays held."""
    from doctor.solver.install_plan import install_plan, installing

    pins = install_plan(report, fix)
    yield from (f"# {text}" for text in pins.told)
    yield from installing(pins, held=True)


def unset(lines: Sequence[str]) -> list[str]:
    """Variables that lines use and nobody has set: the note says what they stand for."""
    used = dict.fromkeys(name for line in lines if not line.startswith("#") for name in _USED.findall(line))
    given = {match[1] for line in lines if (match := re.match(r"export (\w+)=", line))}
    return [name for name in used if name not in given and not name.endswith("PATH")]


def flat(text: str) -> str:
    """One line, whatever a rule or a fact put into it."""
    return printable(" ".join(text.split()))
