"""`[tool.poetry]` of a pyproject.toml, and Pipfile, which has the same syntax: name = range, or a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier
from packaging.utils import canonicalize_name

from doctor.errors import fault
from doctor.model import TORCH, Fact
from doctor.packages.specifiers import specifier
from doctor.sources.manifests.base import PLAIN_RANGE, DeclaredRequirement, cuda_of_index, pin_of
from doctor.sources.manifests.version_ranges import any_of
from doctor.util.redact import shortened
from doctor.util.toml_text import Places

from .requirements import Reader

Table = dict[str, Any]
_CLAUSE = re.compile(r"(===|==|>=|<=|!=|~=|\^|~|>|<|=)?\s*(v?[0-9][\w.!+*-]*|\*)")


def dependencies(path: Path, given: Any, table: str, places: Places, notes: list[str]) -> Iterator[DeclaredRequirement]:
    """Yield every package of a table but `python`; optional ones belong to an extra and are left out."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise fault(path, places.key(table), f"`{table}` needs to be a table")
    for name, value in given.items():
        if name.lower() == "python":
            continue
        line = places.key(table, name)
        for one in value if isinstance(value, list) else [value]:
            found = _entry(path, name, one, line, places, notes)
            if found is not None:
                yield found


def _entry(
    path: Path, name: str, value: Any, line: int, places: Places, notes: list[str]
) -> DeclaredRequirement | None:
    table = {"version": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise fault(path, line, f"`{shortened(name, 40)}` needs a version range or a table")
    if table.get("optional") is True:
        return None
    marker = _marker(table)
    extras = tuple(item for item in (table.get("extras") or ()) if isinstance(item, str))
    raw = places.raw(line)
    address = _address(table)
    if address is not None:
        reader = Reader(path.resolve().parent)
        reader.line(f"{name} @ {address}" + (f" ; {marker}" if marker else ""), path, line, raw)
        notes += reader.notes
        return reader.entries[0] if reader.entries else None
    if isinstance(table.get("path"), str):
        problem = f"`{canonicalize_name(name)}` comes from a folder of the project"
        return DeclaredRequirement(
            canonicalize_name(name), str(path), line, extras=extras, marker=marker, raw=raw, problem=problem
        )
    version = table.get("version", "*")
    if not isinstance(version, str):
        raise fault(path, line, f"the version of `{shortened(name, 40)}` needs to be text")
    several = [pep440(part) for part in re.split(r"\|\|?", version)]
    ranges = several[0] if len(several) == 1 else None if None in several else _any(name, several)
    if ranges is None:
        raise fault(path, line, f"`{shortened(version, 60)}` is not a version range")
    return DeclaredRequirement(
        canonicalize_name(name), str(path), line, ranges, pin_of(ranges, path, line), extras, marker, raw
    )


def _any(name: str, ranges: Sequence[str | None]) -> str:
    """Return alternatives as one range; empty where one of them allows every release."""
    whole = [text for text in ranges if text]
    return any_of(canonicalize_name(name), whole) if len(whole) == len(ranges) else ""


def _marker(table: Table) -> str | None:
    markers = [table["markers"]] if isinstance(table.get("markers"), str) and table["markers"] else []
    if isinstance(table.get("platform"), str):
        markers.append(f"sys_platform == '{table['platform']}'")
    if isinstance(table.get("sys_platform"), str):
        markers.append(f"sys_platform {table['sys_platform']}")
    python = pep440(table["python"]) if isinstance(table.get("python"), str) else None
    if python and all(re.fullmatch(r"[<>=!]=?[0-9.]+", clause) for clause in python.split(",")):
        markers += [re.sub(r"([<>=!]+)(.*)", r"python_version \1 '\2'", clause) for clause in python.split(",")]
    return " and ".join(f"({marker})" for marker in markers) or None if len(markers) > 1 else (markers or [None])[0]


def _address(table: Table) -> str | None:
    if isinstance(table.get("url"), str):
        return str(table["url"])
    if isinstance(table.get("file"), str) and "://" in table["file"]:
        return str(table["file"])
    if isinstance(table.get("git"), str):
        reference = table.get("tag") or table.get("ref") or table.get("rev") or table.get("branch")
        return f"git+{table['git']}" + (f"@{reference}" if isinstance(reference, str) else "")
    return None


def pep440(text: str) -> str | None:
    """Return poetry's `^2.4`, `~2.4`, `2.4.*` or `2.4.0` as a PEP 440 range, None for anything else."""
    text = text.strip()
    if PLAIN_RANGE.fullmatch(text):
        return text
    if text in ("", "*") or "|" in text:
        return ""
    clauses: list[str] = []
    for part in filter(None, (piece.strip() for piece in re.split(r",|(?<=[\w*])\s+(?=[<>=!~^])", text))):
        match = _CLAUSE.fullmatch(part)
        if match is None:
            return None
        operator, bound = match[1] or "==", match[2].removeprefix("v")
        if bound == "*":
            continue
        if operator in ("^", "~"):
            numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", bound)
            assert numbers is not None
            clauses += [f">={bound}", f"<{_next([int(number) for number in numbers[0].split('.')], operator)}"]
        else:
            clauses.append(("==" if operator == "=" else operator) + bound)
    if len(clauses) == 1 and PLAIN_RANGE.fullmatch(clauses[0]):
        return clauses[0]

    try:
        specifier(",".join(clauses))
    except InvalidSpecifier:
        return None
    return ",".join(clauses)


def _next(numbers: list[int], operator: str) -> str:
    """Return the first release that `^` or `~` excludes."""
    if operator == "~":
        at = 0 if len(numbers) == 1 else 1
    else:
        at = next((index for index, number in enumerate(numbers) if number), len(numbers) - 1)
    return ".".join(str(number) for number in [*numbers[:at], numbers[at] + 1])


def python_of(poetry: Table) -> str:
    """Return the Pythons of `[tool.poetry.dependencies]` as a PEP 440 range."""
    listed = poetry.get("dependencies")
    given = listed.get("python") if isinstance(listed, dict) else None
    return (pep440(given) or "") if isinstance(given, str) else ""


def facts(path: Path, poetry: Table, places: Places) -> list[Fact]:
    """Return torch's CUDA, where a source is PyTorch's index for one CUDA."""
    sources = poetry.get("source")
    tables = [table for table in (sources if isinstance(sources, list) else []) if isinstance(table, dict)]
    listed = poetry.get("dependencies")
    torch = listed.get(TORCH) if isinstance(listed, dict) else None
    wanted = torch.get("source") if isinstance(torch, dict) else None
    for table in tables:
        url = table.get("url")
        if not isinstance(url, str) or (wanted is not None and table.get("name") != wanted):
            continue
        if wanted is None and table.get("priority") == "explicit":
            continue
        if cuda := cuda_of_index(url):
            return [Fact("torch.cuda", cuda, f"{path}:{places.text(url, places.key('tool.poetry.source'))}")]
    return []
