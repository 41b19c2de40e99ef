"""`fix --write` and `fix --diff`: write the fix into the project's own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from doctor.apply.edit.changes import narrowings
from doctor.apply.edit.edits import edits_of
from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError, NoDiagnosis
from doctor.model import Report, Severity
from doctor.report.install_commands import override_commands
from doctor.report.requirements import settings_of
from doctor.rulebook.rulebook import load_rulebook
from doctor.util.printable import one_printable_line, printable_path

from .output import write


def edit(
    report: Report, files: Sequence[str], requirements: Sequence[str], rules: Sequence[str], *, diff_only: bool
) -> None:
    """Show the edits as a diff that `patch` takes, notes in front, and make them unless `diff_only`."""
    names = [name for name in files if name] or list(requirements)
    if not names:
        raise DoctorError("there is no file to edit", "name it: `--write FILE`, or `--requirements FILE`")
    edits = edits_of(report, names, watch_of(load_rulebook(rules)))
    lines = [*_head(report), *edits.notes] if edits.files else [_why_nothing(report, names), *edits.notes]
    write("".join(f"# {one_printable_line(text)}\n" for text in lines) + edits.diff, None)
    if diff_only:
        return
    done = "".join(
        f"# edited `{printable_path(path)}`; as it was: `{printable_path(backup)}`\n" for path, backup in edits.write()
    )
    try:
        write(done, None)
    except NoDiagnosis as problem:
        edited = ", ".join(f"`{name}`" for name in names)
        raise DoctorError(f"{problem.message}; {edited} was edited", "the old content is in `.bak`") from None


def _why_nothing(report: Report, names: Sequence[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    errors = [finding.rule for finding in report.findings if finding.severity == Severity.ERROR]
    if not report.fixes:
        why = f"no fix is known for {', '.join(errors)}" if errors else "no problem to fix"
    elif report.package_fix is not None and report.package_fix.plan.overridden:
        (command,) = override_commands(report.package_fix.plan)
        why = f"no requirements file overrides a pin: `{command.text}`"
    elif report.package_fix is not None and report.package_fix.changes_packages:
        why = "already up to date"
    else:
        why = f"the fix changes no package: {report.fixes[0].title}"
    return f"nothing to change in {listed}: {why}"


def _head(report: Report) -> Iterator[str]:
    """What the edits are, and what a requirements file cannot say: variables, settings, code, what stays broken."""
    fix = report.package_fix
    if fix is None or not fix.changes_packages:
        rules = ", ".join(finding.rule for finding, _ in narrowings(report))
        yield f"{report.tool}: ranges narrowed to unaffected releases ({rules})"
        return
    yield f"{report.tool}: {fix.title} (clears {', '.join(fix.resolves)})"
    if fix is not report.fixes[0]:
        yield f"without package changes: {report.fixes[0].title}"
    for text in settings_of(fix):
        yield f"also: {text}"
    if fix.note:
        yield fix.note
    if fix.leaves:
        yield f"{', '.join(fix.leaves)} remain: no fix clears them too"
