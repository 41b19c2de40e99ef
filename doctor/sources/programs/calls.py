"""The table of calls that state something of a job, from the `script_calls` of the libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from doctor.facts.libraries.record import Trainer

from .values import Dotted, Value

ANY = "*"  # in `values`: any value that is given and is not None
NOT_GIVEN = "absent"  # in `values`: the argument is not given


@dataclass(frozen=True)
class CallRow:
    """What one kind of call states; the rows of a library in `script_calls` have the same names."""

    call: tuple[str, ...]  # patterns of the path: `transformers.AutoModel*.from_pretrained`, `?.backward` for a method
    facts: Mapping[str, Any] = field(default_factory=dict)  # by the call itself
    arguments: Mapping[str, str | Sequence[str]] = field(default_factory=dict)  # argument -> the facts that it gives
    values: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # argument -> text -> facts
    positional: tuple[str, ...] = ()  # names of the arguments without one
    rank: int = 0  # of two calls that state the same fact, the higher counts
    options: str | None = None  # the trainer whose options the arguments are
    assigned: bool = False  # what the program assigns to attributes counts as such options, too

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> CallRow:
        """Return a row of a library file."""
        called = (row["call"],) if isinstance(row["call"], str) else tuple(row["call"])
        positional, rank = tuple(row.get("positional") or ()), int(row.get("rank", 0))
        assigned = str(row.get("assigned")).lower() == "true"
        return cls(**{**row, "call": called, "positional": positional, "rank": rank, "assigned": assigned})


class CallTable:
    """The rows by the last part of their pattern, and the trainers whose options are arguments."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], trainers: Mapping[str, Trainer]) -> None:
        self.trainers = trainers
        self._by_name: dict[str, list[tuple[str, CallRow]]] = {}
        for row in map(CallRow.of, rows):
            for pattern in row.call:
                self._by_name.setdefault(pattern.rpartition(".")[2], []).append((pattern.replace("?", "[?]"), row))

    def rows(self, path: str) -> Iterator[CallRow]:
        """Yield the rows of a call by its path."""
        last = path.rpartition(".")[2]
        for name, rows in self._by_name.items():
            if name == last or (ANY in name and fnmatchcase(last, name)):
                yield from (row for pattern, row in rows if fnmatchcase(path, pattern))


def plain(value: Any) -> Any:
    """Return a value as options are written: `flash_attention_2`, `true`, the last part of an enumeration."""
    if isinstance(value, Dotted):
        return value if value.startswith("torch.") and value.count(".") == 1 else value.rpartition(".")[2]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def text_of(value: Any) -> str:
    """Return the text by which `values` names a value; of a list with one item, that item's."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    value = plain(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def stated(row: CallRow, given: Mapping[str, Value]) -> Iterator[tuple[str, Any, bool, str]]:
    """Yield (fact key, value, whether it is assumed, argument) of one call; the value None is unknown."""
    for key, fixed in row.facts.items():
        yield key, fixed, False, ""
    for name, direct in row.arguments.items():
        value = given.get(name)
        if value is not None and value.value is not None and text_of(value.value) not in row.values.get(name, ()):
            yield from ((key, found, value.assumed, name) for key, found in _each(direct, value))
    for name, meanings in row.values.items():
        value = given.get(name)
        if value is None:
            yield from ((key, fixed, True, name) for key, fixed in meanings.get(NOT_GIVEN, {}).items())
            continue
        text = text_of(value.value) if value.known else None
        if text is None and ANY not in meanings:
            keys = dict.fromkeys(key for facts in meanings.values() for key in facts)
            yield from ((key, None, value.assumed, name) for key in keys)
        elif text != "none":
            chosen = meanings.get(str(text), meanings.get(ANY, {}))
            yield from ((key, fixed, value.assumed, name) for key, fixed in chosen.items())


def _each(keys: str | Sequence[str], value: Value) -> Iterator[tuple[str, Any]]:
    """Yield each fact key with its value: of a pair, as of different head widths, each has its own."""
    found = plain(value.value) if value.known else None
    several = (keys,) if isinstance(keys, str) else keys
    pair = found if isinstance(found, list) and 1 < len(several) == len(found) else None
    own: Sequence[Any] = pair or [found] * len(several)
    yield from zip(several, own, strict=True)


def named(row: CallRow, positional: Iterable[Value], keywords: Mapping[str, Value]) -> dict[str, Value]:
    """Return all arguments of a call by name."""
    return {**dict(zip(row.positional, positional, strict=False)), **keywords}
