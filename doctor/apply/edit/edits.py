"""A fix written into a project's own files: requirements.txt and what it includes, pyproject.toml.

`goals` says what the fix wants, `requirements` and `pyproject` edit one format each, `spec` one requirement in it,
`files` keeps the old file and writes the new one. Nothing but the intended lines changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import TORCH, Report
from doctor.packages.index import load_index
from doctor.sources.watch import Watch
from doctor.util.toml_text import load_toml

from .changes import ChangeSet, PackageChange, changes_of
from .files import Edited, SourceFile
from .pyproject import Pyproject
from .requirements import RequirementsFile, anchors_of, family
from .targets import sorted_out

__all__ = ["Edits", "edits_of"]


@dataclass(frozen=True)
class Edits:
    """What a fix makes of the files of a project."""

    files: tuple[Edited, ...]  # those that change
    notes: tuple[str, ...] = ()  # what the user has to know or to run

    @property
    def diff(self) -> str:
        """All of it as one unified diff; empty where every file says it already."""
        return "".join(file.diff for file in self.files)

    def write(self) -> list[tuple[Path, Path]]:
        """Keep the old files and replace them: (file, backup) of each; none where one of them must not be."""
        for file in self.files:
            file.check()
        return [(file.source.path, file.write()) for file in self.files]


def edits_of(report: Report, names: Sequence[str], watch: Watch | None = None) -> Edits:
    """Return the edits of a report's fix in these files; DoctorError where one must not be edited by hand.

    `watch` comes from the rulebook of the report; it decides which files of a folder declare its environment.
    """
    editable, refusals = sorted_out(names, watch or Watch())
    if not editable:
        raise refusals[0] if refusals else DoctorError("no file to edit", "name one: `--write FILE`")
    goals = changes_of(report)
    if goals is None:
        return Edits(())
    projects = [Pyproject(SourceFile.read(path)) for path in editable if path.suffix == ".toml"]
    requirements = _families([path for path in editable if path.suffix != ".toml"])
    files: list[RequirementsFile | Pyproject] = [*requirements, *projects]
    anchors = anchors_of(requirements)
    for file in requirements:
        file.edit(goals, anchors)
    for project in projects:
        project.edit(goals)
    _add_missing(goals, requirements, projects)
    _add_index(goals, requirements, projects)
    changed = [Edited(file.source, file.text) for file in files if file.text != file.source.text]
    for edited in changed:
        _check(edited)
    notes = [*goals.notes, *(f"{problem.message}; {problem.hint}" for problem in refusals)]
    return Edits(tuple(changed), (*notes, *_to_run(changed)))


def _families(paths: Sequence[Path]) -> list[RequirementsFile]:
    """Every requirements file with those it includes, each once."""
    found: dict[Path, RequirementsFile] = {}
    for path in paths:
        for file in family(SourceFile.read(path)):
            found.setdefault(file.source.path.resolve(), file)
    return list(found.values())


def _add_missing(goals: ChangeSet, requirements: Sequence[RequirementsFile], projects: Sequence[Pyproject]) -> None:
    """Packages that the fix moves and no file names: behind a related line."""
    present = {name for file in requirements for name in file.named}
    present |= {name for project in projects for name in project.named}
    missing = [goal for goal in goals.items.values() if goal.named and goal.version and goal.package not in present]
    if not missing:
        return

    moved = {name for name, goal in goals.items.items() if goal.named}
    for kin in (moved, set(load_index().packages)):
        for file in requirements:
            related = [line for name, lines in file.named.items() if name in kin for line in lines]
            if related and not file.constraint:
                after = max(related, key=lambda line: line.start)
                for goal in missing:
                    file.add(goal, after, goals)
                return
        for project in projects:
            name = project.sibling_of(kin)
            if name and project.can_take():
                project.add(missing, name)
                return
    _add_at_the_end(missing, requirements, projects, goals)


def _add_at_the_end(
    missing: Sequence[PackageChange],
    requirements: Sequence[RequirementsFile],
    projects: Sequence[Pyproject],
    goals: ChangeSet,
) -> None:
    first = next((file for file in requirements if not file.constraint), None)
    project = next((file for file in projects if file.can_take()), None)
    if first is not None:
        for goal in missing:
            first.add(goal, None, goals)
    elif project is not None:
        project.add(missing, None)
    else:
        wanted = ", ".join(f"`{goal.package}=={goal.version}`" for goal in missing)
        raise DoctorError(
            f"`{projects[0].source.path}` names no dependencies that {wanted} could be added to",
            "name the requirements file that its build reads: `--write FILE`",
        )


def _add_index(goals: ChangeSet, requirements: Sequence[RequirementsFile], projects: Sequence[Pyproject]) -> None:
    """The index of another torch build, where no file names one."""
    if goals.index_url is None or any(file.has_index for file in requirements):
        return
    if any(project.has_index for project in projects):
        return
    why = next((goal.why for goal in goals.items.values() if goal.package == TORCH), "another torch build")
    first = next((file for file in requirements if not file.constraint), None)
    if first is not None:
        first.add_index(goals.index_url, why)
    else:
        labelled = [goal.package for goal in goals.items.values() if goal.version and "+" in goal.version]
        projects[0].add_index(goals.index_url, labelled, goals)


def _check(edited: Edited) -> None:
    """A file that could not be read any more is not written."""
    if edited.source.path.suffix == ".toml":
        load_toml(edited.source.path, edited.text)


def _to_run(changed: Sequence[Edited]) -> list[str]:
    """Return the commands that update the lock files next to an edited file."""
    notes = []
    for edited in changed:
        folder = edited.source.path.parent
        if edited.source.path.suffix == ".toml":
            for name, command in (("uv.lock", "uv lock"), ("poetry.lock", "poetry lock"), ("pdm.lock", "pdm lock")):
                if (folder / name).exists():
                    notes.append(f"`{folder / name}` is out of date: run `{command}`")
        elif edited.source.path.suffix == ".in":
            notes.append(f"files compiled from `{edited.source.path}` are out of date: run `uv pip compile`")
    return notes
