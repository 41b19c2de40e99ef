"""The command `init`: the project's section of pyproject.toml, written after a look at its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from doctor.errors import DoctorError, reason_of
from doctor.util.atomic_write import write_atomically

from .commands import Streams, write
from .options import parser


def run(arguments: Sequence[str], streams: Streams) -> int:
    """Propose and write."""
    made = parser("init", "Write [tool.attn-doctor], what `check` judges in CI, after a look at the project.")
    made.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the project (default: here)")
    made.add_argument("--dry-run", action="store_true", help="show the section and write nothing")
    made.add_argument("--force", action="store_true", help="write a section anew that is there already")
    made.add_argument("-o", "--output", metavar="FILE", help="put it into another file; `-` shows the section alone")
    options = made.read(arguments)
    from doctor.diagnosis.watch import watch_of
    from doctor.rulebook.rulebook import load_rulebook
    from doctor.sources.project.config import project_defaults
    from doctor.sources.project.propose import insert_section, inspect_project, section

    folder = Path(options.folder)
    rulebook = load_rulebook(project_defaults(folder.absolute()).rules)
    found = inspect_project(folder, watch_of(rulebook))
    text = section(found)
    if options.output == "-":
        write(text, None, streams)
        return 0
    path = Path(options.output) if options.output else folder / "pyproject.toml"
    before = _text(path)
    whole = insert_section(path, before, text, force=options.force)
    if not options.dry_run:
        write_atomically(path, whole)
    told = [f"{name}: {why}" for name, why in found.requirements] or ["no file declares the attention stack"]
    told += [f"{name}: it sets variables of the stack" for name in (*found.scripts, *found.variables)]
    told += [f"{name}: left out: {why}" for name, why in found.left_out]
    count = len(found.models) + found.more_models
    told.append(f"{count} model config{'' if count == 1 else 's'}")
    verb = "would write" if options.dry_run else "wrote"
    head = "".join(f"found: {line}\n" for line in told)
    tail = "hint: `attn-doctor check` judges it; name GPUs and jobs there first, where they are commented out\n"
    write(f"{head}{verb} to `{path}`:\n\n{text}\n{tail}", None, streams)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise DoctorError(f"cannot read `{path}`: it is not UTF-8") from None
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read `{path}`: {reason_of(problem)}") from None
