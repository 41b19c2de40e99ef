"""`attn-doctor init`: the project's section of pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doctor.diagnosis.watch import watch_of
from doctor.errors import DoctorError, reason_of
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults
from doctor.sources.project.propose import insert_section, inspect_project, section
from doctor.util.atomic_write import write_atomically
from doctor.util.reading import read_bytes

from .output import write

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command("init")
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The project (default: here).")] = ".",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the section and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing section.")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to another file; `-` shows the section alone."),
    ] = None,
) -> int:
    """Write the project's section of pyproject.toml: the GPUs, workloads and files that `check` reads in CI."""
    rulebook = load_rulebook(project_defaults(Path(folder).absolute()).rules)
    found = inspect_project(Path(folder), watch_of(rulebook))
    text = section(found)
    if output == "-":
        write(text, None)
        return 0
    path = Path(output) if output else Path(folder) / "pyproject.toml"
    whole = insert_section(path, _text(path), text, force=force)
    if not dry_run:
        write_atomically(path, whole)
    lines = [f"{name}: {why}" for name, why in found.requirements] or ["no file declares attention libraries"]
    lines += [f"{name}: sets variables that rules read" for name in (*found.scripts, *found.variables)]
    lines += [f"{name}: skipped: {why}" for name, why in found.left_out]
    count = len(found.models) + found.more_models
    lines.append(f"{count} model config{'' if count == 1 else 's'}")
    verb = "would write" if dry_run else "wrote"
    head = "".join(f"found: {line}\n" for line in lines)
    tail = "hint: run `attn-doctor check`; first name GPUs and workloads where they are commented out\n"
    write(f"{head}{verb} to `{path}`:\n\n{text}\n{tail}", None)
    return 0


def _text(path: Path) -> str:
    try:
        if not path.exists() and not path.is_symlink():
            return ""
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read `{path}`: {reason_of(problem)}") from None
    try:
        return read_bytes(path, "project file").decode("utf-8")
    except UnicodeDecodeError:
        raise DoctorError(f"cannot read `{path}`: it is not UTF-8") from None
