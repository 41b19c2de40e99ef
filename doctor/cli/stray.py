"""Words of a command line that no option takes: which command reads such a file."""

from __future__ import annotations

import shlex
from collections.abc import Set
from pathlib import Path

from doctor.diagnosis.path_kind import option_of
from doctor.errors import DoctorError
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.project.config import project_defaults


def complaint(command: str, words: str, options: Set[str]) -> DoctorError:
    """Return the complaint about words without an option; the hint is the command that takes such a file."""
    word = words if _exists(words) else words.split(" ")[0]
    hint = f"see `{command} --help`"
    if "--requirements" in options and _exists(word):
        try:
            option = option_of(Path(word), load_rulebook(project_defaults().rules).trainers)
        except DoctorError as problem:
            return problem
        if option is None:
            hint = f"`attn-doctor explain {shlex.quote(word)}` names the cause of an error in a log"
        elif option in options:
            hint = f"`{command} {option} {shlex.quote(word)}` reads it"
    return DoctorError(f"`{command}` does not know what to do with `{word}`", hint)


def _exists(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # a word that cannot be a path
        return False
