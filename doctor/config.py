"""A project's own defaults: `[tool.attn-doctor]` of the nearest pyproject.toml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import DoctorError
from .model import SEVERITIES, Facts
from .records import dataclass, field

SECTION = "tool.attn-doctor"
KEYS = ("fail-on", "gpu", "workload", "model", "rules", "ignore")
IGNORE_KEYS = ("rule", "reason", "until")


@dataclass(frozen=True)
class Defaults:
    """What a project says once instead of on every command line."""

    fail_on: str | None = None
    gpu: str | None = None  # for a machine that has none, such as a CI runner
    model: str | None = None
    workload: str | None = None
    workload_facts: Facts = field(default_factory=Facts)
    rules: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)  # rule id → reason and expiry
    notes: tuple[str, ...] = ()


def project_defaults(start: Path | None = None) -> Defaults:
    """The defaults of the project around `start` (the current folder); none where there is no such section."""
    try:
        folder = start or Path.cwd()
    except OSError:  # the current folder is gone
        return Defaults()
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            text = path.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            if (parent / ".git").exists():
                return Defaults()
            continue
        except (OSError, UnicodeDecodeError):
            return Defaults()  # not ours to complain about: we may have no business in it
        return read_defaults(path, text) if f"[{SECTION}" in text else Defaults()
    return Defaults()


def read_defaults(path: Path, text: str) -> Defaults:
    """The section of one pyproject.toml; DoctorError says what in it does not fit."""
    section = _section(path, text)
    if not isinstance(section, dict):
        raise DoctorError(f"{path}: `[{SECTION}]` needs to be a table")
    _known(path, section, KEYS, f"[{SECTION}]")
    fail_on = _text(path, section, "fail-on")
    if fail_on not in (None, *SEVERITIES, "never"):
        raise DoctorError(f"{path}: `fail-on` needs one of {', '.join(SEVERITIES)}, never, found `{fail_on}`")
    rules = section.get("rules") or []
    if not isinstance(rules, list) or not all(isinstance(item, str) for item in rules):
        raise DoctorError(f"{path}: `rules` needs a list of folders")
    ignored, notes = _ignored(path, section.get("ignore") or [])
    workload, job = section.get("workload"), Facts()
    if isinstance(workload, dict):
        from .workload import workload_facts

        job = workload_facts(workload, lambda key: f"{path.name}: workload.{key}", lambda key: f"{path}: ")
        workload = None
    elif not isinstance(workload, (str, type(None))):
        raise DoctorError(f"{path}: `workload` needs a file name or a table")
    return Defaults(
        fail_on=fail_on,
        gpu=_text(path, section, "gpu"),
        model=_beside(path, _text(path, section, "model")),
        workload=_beside(path, workload),
        workload_facts=job,
        rules=tuple(str(path.parent / item) for item in rules),
        ignored=ignored,
        notes=notes,
    )


def _section(path: Path, text: str) -> Any:
    from importlib import import_module

    try:
        tomllib = import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        try:
            tomllib = import_module("tomli")
        except ModuleNotFoundError:
            raise DoctorError(
                f"{path} has a `[{SECTION}]` section, and Python 3.10 cannot read it",
                "install `tomli` beside attn-doctor, or run it with Python 3.11 or newer",
            ) from None
    try:
        return (tomllib.loads(text).get("tool") or {}).get("attn-doctor") or {}
    except (tomllib.TOMLDecodeError, AttributeError) as problem:
        raise DoctorError(f"{path}: not TOML: {problem}") from None


def _ignored(path: Path, items: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    """Rule id → reason for what is still ignored, and a note for each entry that has run out."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DoctorError(f"{path}: `ignore` needs tables `{{rule = …, reason = …, until = …}}`")
    import datetime

    ignored: dict[str, str] = {}
    notes = []
    for item in items:
        _known(path, item, IGNORE_KEYS, "ignore")
        missing = [key for key in IGNORE_KEYS if not item.get(key)]
        if missing:
            raise DoctorError(
                f"{path}: an entry of `ignore` lacks `{missing[0]}`",
                "an ignored rule needs a reason and a day on which it is looked at again",
            )
        rule, reason = str(item["rule"]), " ".join(str(item["reason"]).split())
        try:
            until = datetime.date.fromisoformat(str(item["until"])[:10])
        except ValueError:
            raise DoctorError(f"{path}: `until` needs a day as 2026-12-31, found `{item['until']}`") from None
        if until < datetime.date.today():
            notes.append(f"{rule} was ignored until {until} and counts again ({reason})")
        else:
            ignored[rule] = f"{reason} (until {until})"
    return ignored, tuple(notes)


def _text(path: Path, section: Mapping[str, Any], key: str) -> str | None:
    value = section.get(key)
    if value is not None and not isinstance(value, str):
        raise DoctorError(f"{path}: `{key}` needs a text, found `{value}`")
    return value


def _beside(path: Path, name: str | None) -> str | None:
    """A file named in the section, as seen from the section's folder."""
    return None if name is None else str(path.parent / name)


def _known(path: Path, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    from .vocabulary import nearest

    for key in table:
        if key not in known:
            raise DoctorError(f"{path}: {where} has no key `{key}`", nearest(key, known) or f"keys: {', '.join(known)}")
