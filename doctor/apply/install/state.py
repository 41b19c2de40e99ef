"""What is installed, remembered: release, origin and kind of every package, in a file that outlives any crash."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError, reason_of
from doctor.sources.probes.metadata import scan
from doctor.util.atomic_write import write_atomically

SCHEMA = 1
BEGUN, DONE, FAILED, TAKEN_BACK = "begun", "done", "failed", "taken back"


@dataclass(frozen=True)
class Kept:
    """One package as it was."""

    version: str
    origin: str | None = None  # where it came from, if from no registry: an address, a folder
    editable: bool = False
    by: str = ""  # who installed it: pip, uv, conda

    def requirement(self, name: str) -> list[str]:
        """The arguments that bring it back."""
        if self.editable and self.origin:
            return ["--editable", self.origin.removeprefix("file://")]
        return [f"{name} @ {self.origin}" if self.origin else f"{name}=={self.version}"]


@dataclass(frozen=True)
class Freeze:
    """An environment before a change, and what became of the change."""

    python: str
    when: str
    packages: Mapping[str, Kept]
    state: str = BEGUN
    changed: tuple[str, ...] | None = None  # None: it never came to its end
    rebuilt: tuple[str, ...] = ()  # same release, other build
    fix: str = ""
    path: Path | None = None


def packages_of(site_dirs: Iterable[Path]) -> dict[str, Kept]:
    """Every distribution on these import paths; what comes first shadows the rest."""

    found: dict[str, Kept] = {}
    for item in scan(site_dirs):
        if item.name and item.version and item.name not in found:
            origin, editable = _origin(Path(item.path))
            found[item.name] = Kept(item.version, origin, editable, _text(Path(item.path) / "INSTALLER").strip())
    return found


def _origin(folder: Path) -> tuple[str | None, bool]:
    """(where it came from, whether it is editable) by `direct_url.json`; nothing for the registry's."""
    text = _text(folder / "direct_url.json")
    if not text:
        return None, False
    try:
        said = json.loads(text)
        url = str(said["url"])
        vcs = said.get("vcs_info") or {}
        if vcs:
            url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', '')}".rstrip("@")
        if said.get("subdirectory"):
            url += f"#subdirectory={said['subdirectory']}"
        return url, bool((said.get("dir_info") or {}).get("editable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, False


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def save(freeze: Freeze, folder: Path) -> Freeze:
    """Write it as a new file, before anything is touched."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise DoctorError(f"cannot make `{folder}`: {reason_of(problem)}") from None
    stem = f"freeze-{freeze.when.replace(':', '').replace('-', '')}"
    for number in range(1000):
        path = folder / (f"{stem}.json" if not number else f"{stem}-{number}.json")
        if not path.exists():
            write_atomically(path, _document(freeze), force=False)
            return replace(freeze, path=path)
    raise DoctorError(f"cannot write a freeze into `{folder}`: too many of them")


def update(freeze: Freeze, **changes: Any) -> Freeze:
    """The same file with another state."""
    newer = replace(freeze, **changes)
    assert newer.path is not None
    write_atomically(newer.path, _document(newer), force=True)
    return newer


def _document(freeze: Freeze) -> str:
    packages = {
        name: {key: value for key, value in (("version", kept.version), ("origin", kept.origin),
                                             ("editable", kept.editable), ("by", kept.by)) if value}
        for name, kept in sorted(freeze.packages.items())
    }  # fmt: skip
    content = {
        "schema": SCHEMA, "state": freeze.state, "when": freeze.when, "python": freeze.python, "fix": freeze.fix,
        "changed": None if freeze.changed is None else list(freeze.changed), "rebuilt": list(freeze.rebuilt),
        "packages": packages,
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Freeze:
    """A freeze from its file; DoctorError if it is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
        packages = {
            str(name): Kept(str(item["version"]), item.get("origin"), bool(item.get("editable")), item.get("by", ""))
            for name, item in content["packages"].items()
        }
        changed = content.get("changed")
        return Freeze(
            str(content["python"]), str(content["when"]), packages, str(content["state"]),
            None if changed is None else tuple(changed), tuple(content.get("rebuilt", ())),
            str(content.get("fix", "")), path,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = str(getattr(problem, "strerror", None) or problem)
        raise DoctorError(
            f"freeze `{path}` cannot be read: {reason}", "move it away to undo an earlier change instead"
        ) from None


def last(folders: Iterable[Path]) -> Freeze | None:
    """The latest change that was not rolled back."""
    found = [path for folder in folders if folder.is_dir() for path in folder.glob("freeze-*.json")]
    for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True):
        freeze = read(path)
        if freeze.state != TAKEN_BACK:
            return freeze
    return None


def folders_for(prefix: Path) -> tuple[Path, ...]:
    """The folder of an environment's freezes: itself if it can be written, else among the user's caches."""

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(prefix.resolve()).encode()).hexdigest()[:16]
    return prefix / ".attn-doctor", cache / "attn-doctor" / "freezes" / name


def now() -> str:
    """The time as a freeze carries it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def difference(before: Mapping[str, Kept], after: Mapping[str, Kept]) -> tuple[str, ...]:
    """The packages that are not what they were."""
    names = {*before, *after}
    return tuple(sorted(name for name in names if _key(before.get(name)) != _key(after.get(name))))


def _key(kept: Kept | None) -> tuple[Any, ...]:
    return () if kept is None else (kept.version, kept.origin, kept.editable)
