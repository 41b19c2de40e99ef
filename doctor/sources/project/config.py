"""Project defaults: `[tool.attn-doctor]` of the nearest pyproject.toml."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest
from doctor.facts.workload import workload_facts
from doctor.model import SEVERITIES, Facts
from doctor.util.patterns import pattern
from doctor.util.reading import MAX_BYTES, TRUST_HINT, contained, is_trusted, project_top, regular_bytes
from doctor.util.redact import shortened
from doctor.util.toml_text import parse_toml

SECTION = "tool.attn-doctor"
KEYS = ("fail-on", "gpu", "model", "workload", "requirements", "environments", "rules", "ignore")
IGNORE_KEYS = ("rule", "reason", "owner", "until")
#: A header or key that may start the section in any TOML notation; without one, the file is not parsed.
_SECTION = pattern(
    r"""^\s*(?:\[+\s*["']?tool["']?\s*\.\s*["']?attn-doctor["']?\s*[].]"""
    r"""|(?:["']?tool["']?\s*\.\s*)?["']?attn-doctor["']?\s*(?:\.|=(?!=)))""",
    re.MULTILINE,
)
_NEEDED = ("rule", "reason", "until")


class Ignore(NamedTuple):
    """One entry of `ignore`: a rule that is ignored until a date."""

    rule: str
    reason: str
    until: str
    owner: str | None
    place: str  # file and line

    @property
    def summary(self) -> str:
        """Return reason, owner and date, for notes."""
        return f"{self.reason} ({f'{self.owner}, ' if self.owner else ''}until {self.until})"


class Defaults(NamedTuple):
    """The defaults of a project for command-line options."""

    fail_on: str | None = None
    gpus: tuple[str, ...] = ()  # for machines without one, such as CI runners
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    workload_facts: Facts = Facts()
    requirements: tuple[str, ...] = ()  # the files that declare its environment
    environments: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # name -> files, where it has several
    rules: tuple[str, ...] = ()
    ignored: Mapping[str, str] = MappingProxyType({})  # rule id -> reason and expiry
    ignored_at: Mapping[str, str] = MappingProxyType({})  # rule id -> file and line
    expired: tuple[Ignore, ...] = ()  # entries whose date has passed
    folder: Path | None = None  # of the pyproject.toml
    places: Mapping[str, str] = MappingProxyType({})  # file that the section names -> line that names it

    @contextlib.contextmanager
    def naming(self, names: Iterable[str]) -> Iterator[None]:
        """Put the section's line in front of an error about one of these files, where the section names it."""
        try:
            yield
        except DoctorError as problem:
            place = next((self.places[name] for name in names if name in self.places), None)
            if place is None:
                raise
            raise type(problem)(f"{place}: {problem.message}", problem.hint) from None

    @property
    def gpu(self) -> str | None:
        """Return the first GPU, for commands that take one."""
        return self.gpus[0] if self.gpus else None

    @property
    def model(self) -> str | None:
        """Return the first model."""
        return self.models[0] if self.models else None

    @property
    def workload(self) -> str | None:
        """Return the first workload file."""
        return self.workloads[0] if self.workloads else None


def project_defaults(start: Path | None = None) -> Defaults:
    """Return the defaults of the project around `start` (default: the current folder); empty without a section."""
    try:
        folder = start or Path.cwd()
    except OSError:  # the current folder was removed
        return Defaults()
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        try:
            data = regular_bytes(path, MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            if (parent / ".git").exists():
                return Defaults()
            continue
        except OSError:
            return Defaults()  # it may not be meant for us
        text = data.decode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            if _SECTION.search(text):
                raise DoctorError(f"`{_relative(path)}` is larger than {MAX_BYTES // (1024 * 1024)} MiB")
            return Defaults()
        return read_defaults(path, text) if _SECTION.search(text) else Defaults()
    return Defaults()


def read_defaults(path: Path, text: str) -> Defaults:
    """Return the section of one pyproject.toml; DoctorError names the line of an error."""
    page = _Section(path, text)
    section = page.section()
    page.known(section, KEYS, f"[{SECTION}]", "")
    fail_on = page.text(section, "fail-on")
    if fail_on not in (None, *SEVERITIES, "never"):
        raise page.fault(f"`fail-on` needs one of {', '.join(SEVERITIES)}, never, found `{fail_on}`", "fail-on")
    workload, job = section.get("workload"), Facts()
    if isinstance(workload, dict):
        job = workload_facts(
            workload, lambda key: f"{path.name}: workload.{key}", lambda key: f"{page.at(key, '.workload')}: "
        )
    elif not isinstance(workload, (str, list, type(None))):
        raise page.fault("`workload` needs a file name, a list of them or a table", "workload")
    requirements, environments = page.files(section, "requirements"), _environments(page, section)
    if requirements and environments:
        raise page.fault("`requirements` and `environments` exclude each other", "environments")
    ignored, expired, ignored_at = _ignored(page, section.get("ignore"))
    return Defaults(
        fail_on=fail_on,
        gpus=split_names(page.texts(section, "gpu")),
        models=page.files(section, "model"),
        workloads=() if isinstance(workload, dict) else page.files(section, "workload"),
        workload_facts=job,
        requirements=requirements,
        environments=environments,
        rules=_folders(page, section),
        ignored=ignored,
        ignored_at=ignored_at,
        expired=expired,
        folder=path.parent,
        places=page.places,
    )


def split_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names in comma-separated texts, each once."""
    names: dict[str, str] = {}
    for name in (part.strip() for text in given for part in text.split(",")):
        if name:
            names.setdefault(name.lower(), name)
    return tuple(names.values())


def _folders(page: _Section, section: Mapping[str, Any]) -> tuple[str, ...]:
    rules = section.get("rules") or []
    if not isinstance(rules, list) or not all(isinstance(item, str) for item in rules):
        raise page.fault("`rules` needs a list of folders", "rules")
    folders = tuple(page.relative(item, "rules") for item in rules)
    for folder in folders:
        if not os.path.isdir(folder):  # noqa: PTH112 - does not raise for what cannot be a name
            raise page.fault(f"rules folder `{shortened(folder, 200)}` does not exist", "rules")
    return folders


def _environments(page: _Section, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    table = section.get("environments") or {}
    if not isinstance(table, dict):
        raise page.fault("`environments` needs a table of names, each with its files", "environments")
    found = {str(name): page.files(table, name, ".environments") for name in table}
    empty = next((name for name, files in found.items() if not files), None)
    if empty is not None:
        raise page.fault(f"environment `{empty}` names no file", empty, ".environments")
    return found


def _ignored(page: _Section, items: Any) -> tuple[dict[str, str], tuple[Ignore, ...], dict[str, str]]:
    """Return rule id -> why it is ignored, the expired entries, and rule id -> file and line of its entry."""
    items = [] if items is None else items
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise page.fault("`ignore` needs tables `{rule = …, reason = …, owner = …, until = …}`", "ignore")

    ignored: dict[str, str] = {}
    places: dict[str, str] = {}
    expired = []
    for number, item in enumerate(items):
        place = page.entry(number, str(item.get("rule")))
        page.known(item, IGNORE_KEYS, "an entry of `ignore`", ".ignore", place)
        missing = [key for key in _NEEDED if not item.get(key)]
        if missing:
            raise DoctorError(
                f"{place}: an entry of `ignore` lacks `{missing[0]}`",
                "an ignored rule needs a reason and a date for its review",
            )
        wrong = next((key for key in ("rule", "reason", "owner") if not isinstance(item.get(key, ""), str)), None)
        if wrong is not None:
            raise DoctorError(f"{place}: `{wrong}` needs a text, found `{item[wrong]}`")
        texts = {key: " ".join(str(item[key]).split()) for key in IGNORE_KEYS if item.get(key)}
        try:
            until = datetime.date.fromisoformat(texts["until"][:10])
        except ValueError:
            raise DoctorError(f"{place}: `until` needs a date such as 2026-12-31, found `{item['until']}`") from None
        entry = Ignore(texts["rule"], texts["reason"], str(until), texts.get("owner"), place)
        if until < datetime.date.today():
            expired.append(entry)
        else:
            ignored[entry.rule], places[entry.rule] = entry.summary, entry.place
    return ignored, tuple(entry for entry in expired if entry.rule not in ignored), places


def section_of(path: Path, text: str) -> Any:
    """Return the content of `tool.attn-doctor`, None without one; DoctorError where the text is not TOML."""
    tool = parse_toml(text, _relative(path)).get("tool")
    return tool.get("attn-doctor") if isinstance(tool, dict) else None


class _Section:
    """One pyproject.toml: its section and the lines of its keys."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text
        self.name = _relative(path)
        self.places: dict[str, str] = {}

    def section(self) -> Mapping[str, Any]:
        """Return the table `[tool.attn-doctor]`."""
        found = section_of(self._path, self._text) or {}
        if not isinstance(found, dict):
            raise DoctorError(f"{self.name}: `[{SECTION}]` needs to be a table")
        return found

    def at(self, key: str, table: str = "") -> str:
        """Return file and line of a key in the section, or in a table such as `.ignore` below it."""
        written = rf"""(?:"{re.escape(key)}"|'{re.escape(key)}'|{re.escape(key)})\s*="""
        inside = False
        for number, line in enumerate(self._text.split("\n"), 1):
            if line.lstrip().startswith("["):
                header = re.sub(r"[\s'\"]", "", line.partition("#")[0]).strip("[]")
                if table and header == SECTION + table:
                    inside = True
                elif not table and header == f"{SECTION}.{key}":
                    return f"{self.name}:{number}"
                else:
                    inside = header == SECTION
            elif inside and re.search(rf"(?:^|[{{,.])\s*{written}", line):
                return f"{self.name}:{number}"
        return self.name

    def entry(self, number: int, rule: str) -> str:
        """Return file and line of an entry of `ignore`."""
        lines = self._text.split("\n")
        heads = [at for at, line in enumerate(lines, 1) if re.sub(r"\s", "", line).startswith(f"[[{SECTION}.ignore]]")]
        if number < len(heads):
            return f"{self.name}:{heads[number]}"
        named = re.compile(rf"rule\s*=\s*[\"']{re.escape(rule)}[\"']")
        found = next((at for at, line in enumerate(lines, 1) if named.search(line)), None)
        return f"{self.name}:{found}" if found else self.at("ignore")

    def fault(self, message: str, key: str, table: str = "", hint: str | None = None) -> DoctorError:
        """Return an error about a key, with its line."""
        return DoctorError(f"{self.at(key, table)}: {message}", hint)

    def known(self, table: Mapping[str, Any], keys: tuple[str, ...], where: str, below: str, at: str = "") -> None:
        """Raise DoctorError for an unknown key, with the nearest known one."""
        for key in table:
            if key not in keys:
                hint = nearest(key, keys) or f"keys: {', '.join(keys)}"
                raise DoctorError(f"{at or self.at(key, below)}: {where} has no key `{key}`", hint)

    def text(self, section: Mapping[str, Any], key: str) -> str | None:
        """Return a text, None where it is missing."""
        value = section.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(f"`{key}` needs a text, found `{value}`", key)
        return value

    def texts(self, section: Mapping[str, Any], key: str, table: str = "") -> tuple[str, ...]:
        """Return a text or a list of texts as a tuple."""
        value = section.get(key)
        items = [] if value is None else value if isinstance(value, list) else [value]
        wrong = next((item for item in items if not isinstance(item, str) or not item.strip()), None)
        if wrong is not None:
            raise self.fault(f"`{key}` needs a text or a list of texts, found `{wrong}`", key, table)
        return tuple(dict.fromkeys(items))

    def files(self, section: Mapping[str, Any], key: str, table: str = "") -> tuple[str, ...]:
        """Return the files named in the section, relative to its folder."""
        return tuple(self.relative(name, key, table) for name in self.texts(section, key, table))

    def relative(self, name: str, key: str, table: str = "") -> str:
        """Return one file or folder named in the section; DoctorError where it leads out of the project."""
        path = self._path.parent / name
        if not is_trusted():
            bare = re.sub(r"\[[^\[\]]*\]$", "", name)
            top = project_top(self._path.parent) or self._path.parent
            if not all(contained(self._path.parent / text, top) for text in (name, bare)):
                raise self.fault(f"`{shortened(name, 80)}` is outside the project", key, table, TRUST_HINT)
        found = _relative(path)
        self.places.setdefault(found, self.at(key, table))
        return found


def _relative(path: Path) -> str:
    """Return the path relative to the current folder where it is inside it, as code hosts need it in reports."""
    try:
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    except OSError:
        return str(path)
