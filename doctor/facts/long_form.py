"""The long form of a fact, which `snapshot` writes: value, source, raw, problem. Only this form states an unknown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from doctor.errors import DoctorError
from doctor.model import Fact

from .vocabulary import nearest, parse, term

FIELDS = ("value", "source", "raw", "problem", "assumed", "via")
UNKNOWN = "unknown when the file was written"  # the problem of a null that names none
#: `parse` for the many facts of a batch, which repeat each other; True is not 1.
_parsed = lru_cache(maxsize=16384, typed=True)(parse)


def read_fact(key: str, given: Any, source: str) -> Fact:
    """Return the fact of a plain value or of the long form; a null is unknown. DoctorError for a bad value."""
    fields: Mapping[str, Any] = given if isinstance(given, dict) else {"value": given}
    stray = next((name for name in fields if name not in FIELDS), None)
    if stray is not None:
        raise DoctorError(f"`{key}`: unknown key `{stray}`", nearest(stray, FIELDS))
    raw, problem, via = (_text(fields, name) for name in ("raw", "problem", "via"))
    source = _text(fields, "source") or source
    assumed = str(fields.get("assumed", "")).lower() == "true"
    value = fields.get("value")
    if value is None:
        term(key)
        return Fact(key, None, source, raw, problem or UNKNOWN, assumed, via)
    return Fact(key, read_value(key, value), source, raw, problem, assumed, via)


def read_value(key: str, value: Any) -> Any:
    """Return a value in canonical form; DoctorError for another kind of value, or for a list inside a list."""
    if isinstance(value, (str, int, float)):
        return _parsed(key, value)
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        raise DoctorError(f"`{key}`: needs a value of kind {term(key).kind}, found {kind_of(value)}")
    return parse(key, value)


def kind_of(value: Any) -> str:
    """Return what a value of a file is, for messages."""
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "a single value"


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if isinstance(value, (dict, list)):
        raise DoctorError(f"`{name}` needs a text, found {kind_of(value)}")
    return None if value is None else str(value)
