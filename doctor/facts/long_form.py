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


def read_fact(key: str, given: Any, source: str) -> Fact:
    """Return the fact of a plain value or of the long form; a null is unknown. DoctorError for a bad value."""
    if isinstance(given, (str, int, float)):
        return _plain_fact(key, given, source)
    return _of_long_form(key, given, source) if isinstance(given, dict) else _fact(key, given, source)


@lru_cache(maxsize=16384, typed=True)  # True is not 1
def _plain_fact(key: str, value: str | float, source: str) -> Fact:
    """Remember the facts of a batch, which repeat each other."""
    return Fact(key, parse(key, value), source)


def _of_long_form(key: str, fields: Mapping[str, Any], source: str) -> Fact:
    stray = next((name for name in fields if name not in FIELDS), None)
    if stray is not None:
        raise DoctorError(f"`{key}`: unknown key `{stray}`", nearest(stray, FIELDS))
    raw, problem, via = (_text(fields, name) for name in ("raw", "problem", "via"))
    assumed = str(fields.get("assumed", "")).lower() == "true"
    return _fact(key, fields.get("value"), _text(fields, "source") or source, raw, problem, assumed, via)


def _fact(
    key: str,
    value: Any,
    source: str,
    raw: str | None = None,
    problem: str | None = None,
    assumed: bool = False,
    via: str | None = None,
) -> Fact:
    """Return the fact in canonical form; DoctorError for another kind of value, or for a list inside a list."""
    if value is None:
        term(key)
        return Fact(key, None, source, raw, problem or UNKNOWN, assumed, via)
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        raise DoctorError(f"`{key}`: needs a value of kind {term(key).kind}, found {kind_of(value)}")
    return Fact(key, parse(key, value), source, raw, problem, assumed, via)


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
