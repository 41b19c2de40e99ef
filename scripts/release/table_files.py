"""Read and write the rows of `rules/tables/`; templates and comments above `rows:` are written by hand and stay."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from packaging.version import Version  # noqa: E402

from doctor.rulebook.table_ranges import following  # noqa: E402
from doctor.rulebook.tables import ROWS, RowKey  # noqa: E402
from doctor.util.yaml_text import parse_yaml  # noqa: E402

TABLES = ROOT / "rules" / "tables"
WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z0-9_./(][^#:\[\]{},&*!|'\"%@`<>=\n\t\\]*(?<! )")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "~")


def read_table(name: str) -> dict[str, Any]:
    """Return the content of a table."""
    path = TABLES / f"{name}.yaml"
    content: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"), str(path))[0]
    return content


def write_rows(name: str, rows: Mapping[str, Any]) -> None:
    """Write the rows of a table, in their order."""
    path = TABLES / f"{name}.yaml"
    head = path.read_text(encoding="utf-8").partition(f"\n{ROWS}:")[0]
    lines = [line for key, row in rows.items() for line in _entry(key, row, 2)]
    path.write_text("\n".join([head.rstrip("\n"), f"{ROWS}:", *lines, ""]), encoding="utf-8")


def write_pairs(
    name: str, letters: str, found: Mapping[tuple[str, str, str], dict[str, Any]], callers: Collection[str]
) -> None:
    """Write the rows of pairs (caller, verb, callee); a pair keeps its id and what was reviewed by hand.

    Rows of packages that were not read stay as they are; those that these callers no longer need go.
    """
    old = read_table(name)["rows"]
    ids = {(key.caller, key.verb, key.callee): (key.id, old[text]) for text in old if (key := RowKey.of(text))}
    free = numbers_for(letters, (number for number, _ in ids.values()))
    rows = {number: (pair, row) for pair, (number, row) in ids.items() if pair[0] not in callers}
    for pair, row in found.items():
        number, before = ids.get(pair) or (next(free), {})
        kept = {key: before[key] for key in REVIEWED if key in before}
        rows[number] = (pair, dict(sorted((kept | row).items(), key=lambda item: _rank(item[0]))))
    write_rows(name, {f"{number} {' '.join(pair)}": row for number, (pair, row) in sorted(rows.items())})
    print(len(rows), "rows,", len(rows.keys() - {number for number, _ in ids.values()}), "of them new")


#: What a person decides about a row, and no script.
REVIEWED = ("yields_to", "replaces")
_ORDER = ("name", "severity", "reach", *REVIEWED, "shipped", "extras", "unreleased")


def _rank(key: str) -> int:
    return _ORDER.index(key) if key in _ORDER else len(_ORDER)


def numbers_for(letters: str, taken: Iterable[str]) -> Iterator[str]:
    """Yield the ids behind the last one: those of deleted rows are not used again."""
    last = max((int(text.removeprefix(letters)) for text in taken), default=0)
    return (f"{letters}{number:03}" for number in range(last + 1, 1000))


def span_text(
    first: Version, last: Version, later: Version | None, *, open_end: bool = False, to_later: bool = False
) -> str:
    """Return releases as the text of a row; `later` is the release after the last one.

    The next patch release ends the range, or with `to_later` that release alone.
    """
    text = str(first) if first == last else f"{first} to {last}"
    if open_end:
        return f"{text} on"
    end = Version(following(last))
    if later is None or later == end or (later > end and not to_later):
        return text
    return f"{text} before {later}"


def _entry(key: str, value: Any, indent: int) -> Iterator[str]:
    """Yield a key with its value: on one line where it fits, but a row and a list of releases take several."""
    pad = " " * indent
    one = f"{pad}{_scalar(key)}: {_flow(value)}"
    if isinstance(value, Mapping) and (indent == 2 or len(one) > WIDTH):
        yield f"{pad}{_scalar(key)}:"
        for name, item in value.items():
            yield from _entry(name, item, indent + 2)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{pad}{_scalar(key)}:"
        for item in value:
            yield from _item(item, indent + 2)
    elif isinstance(value, list) and len(one) > WIDTH:
        yield from _wrapped(f"{pad}{_scalar(key)}: [", [_scalar(item) for item in value], indent + 2)
    elif len(one) > WIDTH and isinstance(value, str):
        yield f"{pad}{_scalar(key)}: >-"
        yield from _filled(value.split(" "), indent + 2)
    else:
        yield one


def _item(item: Mapping[str, Any], indent: int) -> Iterator[str]:
    one = f"{' ' * indent}- {_flow(item)}"
    if len(one) <= WIDTH:
        yield one
        return
    lines = [line for name, value in item.items() for line in _entry(name, value, indent + 2)]
    yield f"{' ' * indent}- {lines[0].lstrip()}"
    yield from lines[1:]


def _wrapped(start: str, items: list[str], indent: int) -> Iterator[str]:
    line = start
    for number, item in enumerate(items):
        part = item + ("]" if number == len(items) - 1 else ",")
        if len(line) + len(part) + 1 > WIDTH:
            yield line.rstrip()
            line = " " * indent
        line += part if line.endswith(("[", " ")) else f" {part}"
    yield line


def _filled(words: Iterable[str], indent: int) -> Iterator[str]:
    line = " " * indent
    for word in words:
        if len(line) + len(word) + 1 > WIDTH and line.strip():
            yield line
            line = " " * indent
        line += word if not line.strip() else f" {word}"
    yield line


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return f"'{text}'" if "\\" in text and "'" not in text else json.dumps(text, ensure_ascii=False)
