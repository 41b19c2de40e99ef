"""Typed reading of a trainer's options: each value becomes a workload word, with the option that states it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from doctor.facts.libraries.record import OptionTable, OtherWord
from doctor.facts.vocabulary import SPELLINGS

#: How trainers spell the dtype of weights and autocast, which is never FP8.
DTYPES: Mapping[str, str] = {
    **{name: name for name in ("bfloat16", "float16", "float32")},
    **{spelling: dtype for spelling, dtype in SPELLINGS["workload.dtype"].items() if dtype != "float8"},
}
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off", "none", "null", "")

#: The value of an option that only the running job knows.
LATER = object()
#: Opens the config file that an option names; None where it is not there or not a mapping.
ReadConfig = Callable[[str], "Mapping[str, Any] | None"]


class Statement(NamedTuple):
    """One workload word, without its prefix, and the option that states it; None where only the job knows it."""

    word: str
    value: Any
    option: str
    assumed: bool = False  # the usual case of a job with this option


class Options:
    """Options by name, `table.option` inside a table of the config.

    A value of another kind than the trainer takes states nothing: the trainer reports it.
    """

    def __init__(self, given: Mapping[str, Any], script: str = "") -> None:
        self.script = script  # the command or script that has the options
        self.given = {str(name).replace("-", "_"): value for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def named(self, *names: str) -> str | None:
        """Return the first of the names that is given."""
        return next((name for name in names if name in self), None)

    def value(self, name: str) -> Any:
        """Return the value as it was written; None where the option is not given."""
        if name in self.given or "." not in name:
            return self.given.get(name)
        table, _, rest = name.partition(".")
        inner = self.mapping(table)
        return None if inner is None else Options(inner).value(rest)

    def flag(self, name: str) -> bool | None:
        """Return a switch; a bare `--name` is true, None for another kind of value."""
        value = self.value(name)
        if isinstance(value, str):
            lower = value.lower()
            return True if lower in _TRUE else False if lower in _FALSE else None
        return value if isinstance(value, bool) else None

    def integer(self, name: str) -> int | None:
        """Return a number of things, from 1 up."""
        value = self.value(name)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 12:
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def number(self, name: str) -> float | None:
        """Return a probability or factor."""
        value = self.value(name)
        try:
            return None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            return None

    def text(self, name: str) -> str | None:
        """Return a name; None for an empty one and for `none`."""
        value = self.value(name)
        return value if isinstance(value, str) and value.lower() not in ("", "none", "null") else None

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """Return a table inside the config."""
        value = self.value(name)
        return value if isinstance(value, dict) else None


def stated(options: Options, rows: OptionTable) -> Iterator[Statement]:
    """Yield what each given option says by itself."""
    for name, (word, kind) in rows.items():
        if name not in options:
            continue
        found: Any
        if options.value(name) is LATER:
            yield Statement(word, None, name)
            continue
        if not isinstance(kind, str):
            text = str(options.value(name))
            of_hub = "/" in text and word == "attn_implementation"  # the repository of a kernel
            found = kind.get(text.lower(), text if of_hub else None)
        elif kind == "dtype":
            found = DTYPES.get((options.text(name) or "").lower())
        elif kind == "integer":
            found = options.integer(name)
        elif kind == "flag":
            found = options.flag(name)
        else:
            found = options.text(name)
        if isinstance(found, OtherWord):
            yield Statement(found.word, found.value, name)
        elif found is not None:
            yield Statement(word, found, name)
