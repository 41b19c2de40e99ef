"""The recommended fix as a shell script: commands to run, variables to set; everything else is a comment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from doctor.model import Fix, InstallPlan, Report, Severity
from doctor.util.printable import printable

from .fix_text import FixLine, LineKind, ordered_lines, other_lines
from .style import Style

_USED = re.compile(r"\$\{?(\w+)")


def fixes(report: Report, style: Style) -> str:
    """Render a script to run in the environment, or to source where variables change."""
    lines = commands(report)
    guards = [f': "${{{name}:?the comment above says what it is}}"' for name in undefined_variables(lines)]
    return "\n".join(["#!/bin/sh", *head(report), *guards, *map(shell_line, lines)]) + "\n"


def shell_line(line: FixLine) -> str:
    """Return one line of a script: what no shell runs becomes a comment."""
    text = flat(line.shown)
    return text if line.runnable or text.startswith("#") else f"# {text}"


def head(report: Report, fix: Fix | None = None) -> list[str]:
    """Return comments that describe the recommended fix, or the one that is given."""
    if not report.fixes:
        errors = [finding.rule for finding in report.findings if finding.severity == Severity.ERROR]
        return [f"# {report.tool}: no fix for {', '.join(errors)}" if errors else f"# {report.tool}: nothing to fix"]
    item = fix or report.fixes[0]
    texts = [f"{report.tool}: clears {', '.join(item.resolves)}", item.title]
    texts += [f"leaves {', '.join(item.leaves)}"] if item.leaves else []
    texts += [item.note] if item.note else []
    if item is not report.fixes[0]:
        texts.append(f"without package changes: {report.fixes[0].title}")
    return [f"# {flat(text)}" for text in texts]


def fragment(report: Report, lines_of: Callable[[Report, Fix, InstallPlan], Iterator[str]]) -> str:
    """Render the fix as part of a project's file: `lines_of` yields its packages, the rest becomes comments."""
    fix = report.package_fix
    lines = head(report, fix)
    if fix is not None:
        lines += [f"# {flat(line.shown).removeprefix('# ')}" for line in other_lines(fix)]
        lines += lines_of(report, fix, fix.plan) if fix.changes_packages else ["# no package changes"]
    return "\n".join(lines) + "\n"


def commands(report: Report) -> list[FixLine]:
    """Return the lines of the recommended fix, with all packages held that stay."""
    return ordered_lines(report.fixes[0], held=True) if report.fixes else []


def undefined_variables(lines: Sequence[FixLine]) -> list[str]:
    """Return the variables that lines use and none of them sets; the fix's note says what they hold."""
    used = dict.fromkeys(name for line in lines if line.runnable for name in _USED.findall(line.text))
    defined = {name for line in lines if line.kind == LineKind.SET for name in line.names}
    return [name for name in used if name not in defined and not name.endswith("PATH")]


def flat(text: str) -> str:
    """Return the text as one printable line, for any text of a rule or a fact."""
    return printable(" ".join(text.split()))
