"""`fix --write` and `fix --diff`: the fix in the project's own files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .errors import DoctorError
from .model import Report

if TYPE_CHECKING:
    from .commands import Streams


def edit(report: Report, options: argparse.Namespace, streams: Streams) -> None:
    """Show the edits as a diff, and make them where they were asked for."""
    names = [name for name in options.write or () if name] or list(options.requirements)
    if not names:
        raise DoctorError("there is no file to edit", "name it: `--write FILE`, or `--requirements FILE`")
    from .edit import edits_of

    edits = edits_of(report, names)
    streams.stdout.write(edits.diff)
    if edits.files and not options.diff:
        for path, backup in edits.write():
            streams.tell(f"edited `{path}`; as it was: `{backup}`")
    if not edits.files:
        listed = ", ".join(f"`{name}`" for name in names)
        streams.tell(f"nothing to change in {listed}: {_why_nothing(report)}")
    for note in edits.notes:
        streams.tell(f"note: {note}")
    _tell_the_rest(report, streams)


def _why_nothing(report: Report) -> str:
    errors = [finding.rule for finding in report.findings if finding.severity == "error"]
    if not report.fixes:
        return f"no fix is known for {', '.join(errors)}" if errors else "nothing is to be fixed"
    from .pins import pinnable

    if any(change.kind == "package" for change in pinnable(report).changes):
        return "what the fix wants stands there already"
    return "the fix changes no package"


def _tell_the_rest(report: Report, streams: Streams) -> None:
    """What a requirements file cannot say: variables, settings, code, and what stays broken."""
    if not report.fixes:
        return
    from .pins import pinnable, settings_of

    fix = pinnable(report)
    if fix is not report.fixes[0]:
        streams.tell(f"note: without any package: {report.fixes[0].title}")
    for text in settings_of(fix):
        streams.tell(f"besides: {text}")
    if fix.note:
        streams.tell(f"note: {' '.join(fix.note.split())}")
    if fix.leaves:
        streams.tell(f"note: {', '.join(fix.leaves)} stay: no fix clears them as well")
