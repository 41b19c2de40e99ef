"""Start a rule file: valid at once; the lint names what its author still has to fill in."""

from __future__ import annotations

import os
import re
from pathlib import Path

from doctor.errors import DoctorError, reason_of
from doctor.facts.vocabulary import nearest
from doctor.rulebook.cache import rule_files
from doctor.rulebook.schema import LIBRARY
from doctor.rulebook.tables import TABLES, row_ids
from doctor.util.resources import rules_dir

from .format import formatted
from .tests import load_libraries

TODO = "FILL IN"  # the lint looks for it

_SKELETON = """\
id: {id}
name: {name}
severity: error            # error: fails or computes wrong; warning: slow or fragile; note
summary: {todo} the flaw as a headline, without a period
why: |
  {todo} one or two sentences that a user understands.
references:
  - {todo} a URL, path@tag or owner/repository#number that a reader can open
when:                      # all of these hold; any:, all: and not: nest
  {key}: present
message: "{todo} what was found ({{{key}}}) and what is needed"
fix:                       # alternatives, best first
  - require: {{{distribution}: ">=0"}}
    note: {todo} what it brings, or what it costs
tests:                     # one that fires, and for each condition one that it alone keeps silent
  fires with {todo}: {{given: {{{key}: "0"}}, expect: fires}}
"""


def new_rule(library: str, rule_id: str, name: str, folder: Path) -> Path:
    """Write `<folder>/<library>/<id>.yaml`, never over another rule; the path of the new file."""

    if not ID.fullmatch(rule_id):
        raise DoctorError(f"`{rule_id}` is no rule id", "a library's letters and three digits, as TE103")
    if not KEBAB.fullmatch(name):
        raise DoctorError(f"`{name}` is no rule name", "lower-case words joined by hyphens, that say the flaw")
    libraries = load_libraries([folder] if _holds_rules(folder) else []).libraries
    if library not in libraries:
        near = nearest(library, libraries) or f"a new library starts with {folder / library / 'library.yaml'}"
        raise DoctorError(f"there is no library `{library}`", near)
    taken = _ids(folder).get(rule_id)
    if taken is not None:
        raise DoctorError(f"`{rule_id}` is taken by `{taken}`")
    distribution = (*libraries[library].distributions, library.replace("_", "-"))[0]
    key = f"{distribution}.version"
    text = formatted(_SKELETON.format(id=rule_id, name=name, todo=TODO, key=key, distribution=distribution))
    path = folder / library / f"{rule_id}.yaml"
    if os.path.lexists(path):
        raise DoctorError(f"`{path}` exists already")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:  # never over a file that appears just now
            stream.write(text)
    except OSError as problem:
        raise DoctorError(f"cannot write `{path}`: {reason_of(problem)}") from None
    return path


def next_id(library: str, folder: Path) -> str:
    """The id after the last one of the library, built in or in `folder`; a new library takes its initials."""
    ids = [rule_id for rule_id, path in _ids(folder).items() if path.parent.name == library or path.stem == library]
    if not ids:
        initials = "".join(word[0] for word in re.split(r"[^a-z0-9]+", library.lower()) if word[:1].isalpha())
        return f"{(initials if len(initials) > 1 else library[:8]).upper()}001"
    prefixes = [re.sub(r"\d+$", "", rule_id) for rule_id in ids]
    prefix = max(sorted(set(prefixes)), key=prefixes.count)
    return f"{prefix}{max(int(rule_id[len(prefix) :]) for rule_id in ids if rule_id[len(prefix) :].isdigit()) + 1:03}"


def _ids(folder: Path) -> dict[str, Path]:
    folders = (rules_dir(), *([folder] if _holds_rules(folder) else []))
    files = [path for path in rule_files(folders) if path.name != LIBRARY]
    return {
        rule_id: path for path in files for rule_id in (row_ids(path) if path.parent.name == TABLES else [path.stem])
    }


def _holds_rules(folder: Path) -> bool:
    return folder.is_dir() and any(folder.rglob("*.yaml"))


ID = re.compile(r"[A-Z]{2,8}\d{3}")


KEBAB = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
