"""What a part of a rule file may hold: one definition for the reader, the JSON Schema and the page of the format.

A `Kind` checks a value, describes it as a JSON Schema, and has words for readers. A `Field` is one key: its kind, what
it means, an example, and whether it is needed. `rule_fields` and `library_fields` define the two kinds of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from doctor.facts.vocabulary import parse_version

from .shape import At, Shape

Schema = dict[str, Any]
Checked = Callable[[Shape, Any, At], None]
_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_BACKEND = re.compile(r"[a-z][a-z0-9]*\.[a-z][a-z0-9_]*")


class Kind(NamedTuple):
    """What a value may be."""

    words: str  # in the table of a page
    check: Checked  # DoctorError, at the line of the value, for what does not fit
    schema: Callable[[], Any]  # refuses nothing that `check` takes


class Field(NamedTuple):
    """One key of a mapping."""

    kind: Kind
    meaning: str
    example: str  # the value, as YAML
    needed: bool = False


Fields = Mapping[str, Field]


def plain(words: str, check: Checked, schema: Any) -> Kind:
    """Return a kind without parts."""
    return Kind(words, check, lambda: schema)


def _nothing(shape: Shape, value: Any, at: At) -> None:
    """Demand nothing of a value that another program reads."""


def _distribution(shape: Shape, value: Any, at: At) -> None:
    if not isinstance(value, str) or not _DISTRIBUTION.fullmatch(value):
        normal = re.sub(r"[-_.]+", "-", str(value)).lower()
        raise shape.fault(at, f"`{value}` is no normalized distribution name", f"did you mean `{normal}`?")


def _version(shape: Shape, value: Any, at: At) -> None:
    try:
        parse_version(value)
    except (InvalidVersion, TypeError):
        raise shape.fault(at, f"`{value}` is no version") from None


def _ranges(shape: Shape, value: Any, at: At) -> None:
    shape.texts(value, at)
    for text in [value] if isinstance(value, str) else value:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise shape.fault(at, f"`{text}` is no range of releases") from None


def _pattern(shape: Shape, value: Any, at: At) -> None:
    shape.text(value, at)
    try:
        with catch_warnings():
            simplefilter("ignore")  # of Python, on a pattern that it will read differently some day
            re.compile(value)
    except (re.error, RecursionError, OverflowError) as problem:
        raise shape.fault(at, f"`{value}` is no regular expression: {problem}") from None


def backend_id(shape: Shape, value: str, at: At) -> None:
    """DoctorError for what is no id of a backend."""
    if not _BACKEND.fullmatch(value):
        raise shape.fault(at, f"a backend id reads library.backend, found `{value}`")


def _backends(shape: Shape, value: Any, at: At) -> None:
    shape.texts(value, at)
    for item in [value] if isinstance(value, str) else value:
        backend_id(shape, item, at)


def _outcome(shape: Shape, value: Any, at: At) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"\{[^{}]+\}", value):
        shape.fact_value(value, at)
    else:
        shape.fact_key(value[1:-1], at)


_TEXT: Schema = {"type": ["string", "number", "boolean"], "pattern": r"\S"}  # the reader takes every scalar as text
_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]}
_WHOLE: Schema = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[-+]?\d[\d_]*\s*$"}]}
_SWITCH: Schema = {
    "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"}]
}
_CONDITION: Schema = {"$ref": "#/$defs/condition"}
_NAME: Schema = {"type": ["string", "number"], "pattern": f"^{_DISTRIBUTION.pattern}$"}

TEXT = plain("text", Shape.text, _TEXT)
TEXTS = plain("text or list of texts", Shape.texts, _TEXTS)
SENTENCE = plain("text with `{fact.key}`", Shape.sentence, _TEXT)
INTEGER = plain("integer", Shape.integer, _WHOLE)
BOOLEAN = plain("`true` or `false`", Shape.boolean, _SWITCH)
CONDITION = plain("[condition](#conditions)", Shape.condition, _CONDITION)
FACT_KEY = plain("fact key", Shape.fact_key, _TEXT)
FACT_VALUE = plain("value", Shape.fact_value, True)
DISTRIBUTION = plain("distribution", _distribution, _NAME)
VERSION = plain("version", _version, _TEXT)
RANGES = plain("range of releases, or list of them", _ranges, _TEXTS)
PATTERN = plain("regular expression", _pattern, _TEXT)
BACKENDS = plain("backend, or list of them", _backends, _TEXTS)
OUTCOME = plain("value, or `{fact.key}`", _outcome, True)
ANYTHING = plain("any value", _nothing, True)


def one_of(options: Iterable[str], words: str = "") -> Kind:
    """Return the kind that is one of some texts."""
    options = tuple(options)
    listed = " · ".join(f"`{option}`" for option in options)
    return Kind(
        words or listed, lambda shape, value, at: shape.choice(options)(value, at), lambda: {"enum": [*options]}
    )


def list_of(kind: Kind, words: str = "", *, or_empty: bool = False) -> Kind:
    """Return the kind that is a list, of at least one item unless it may be empty."""

    def check(shape: Shape, value: Any, at: At) -> None:
        if not (or_empty and value == []):
            shape.items(lambda item, here: kind.check(shape, item, here))(value, at)

    least = {} if or_empty else {"minItems": 1}
    return Kind(words or f"list: {kind.words}", check, lambda: {"type": "array", **least, "items": kind.schema()})


def table_of(key: Kind, value: Kind, words: str = "", *, or_empty: bool = False) -> Kind:
    """Return the kind that is a mapping with any keys, of at least one unless it may be empty."""

    def check(shape: Shape, content: Any, at: At) -> None:
        if not (or_empty and content == {}):
            check_key, check_value = (lambda item, here, one=one: one.check(shape, item, here) for one in (key, value))
            shape.values(check_key, check_value)(content, at)

    least = {} if or_empty else {"minProperties": 1}
    return Kind(
        words or f"{key.words} → {value.words}",
        check,
        lambda: {"type": "object", **least, "additionalProperties": value.schema()},
    )


def either(first: Kind, second: Kind, is_second: Callable[[Any], bool], words: str = "") -> Kind:
    """Return the kind that is one of two; the shape of the value says which of them it is to be."""

    def check(shape: Shape, value: Any, at: At) -> None:
        (second if is_second(value) else first).check(shape, value, at)

    return Kind(
        words or f"{first.words}, or {second.words}", check, lambda: {"anyOf": [first.schema(), second.schema()]}
    )


def record(fields: Fields, words: str = "mapping", *, also: Checked = _nothing, more: Schema | None = None) -> Kind:
    """Return the kind that is a mapping with these keys; `also` checks what joins several of them, `more` says it."""
    needed = [key for key, field in fields.items() if field.needed]

    def check(shape: Shape, value: Any, at: At) -> None:
        checks = {key: _bound(field.kind.check, shape) for key, field in fields.items()}
        shape.mapping(value, at, checks, needed)
        also(shape, value, at)

    return Kind(words, check, lambda: {**record_schema(fields), **(more or {})})


def record_schema(fields: Fields) -> Schema:
    """Return the JSON Schema of a mapping with these keys; `x-…` keys are free."""
    needed = [key for key, field in fields.items() if field.needed]
    return {
        "type": "object",
        **({"required": needed} if needed else {}),
        "properties": {key: _described(field) for key, field in fields.items()},
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
    }


def _described(field: Field) -> Any:
    schema = field.kind.schema()
    return {"description": field.meaning} if schema is True else {"description": field.meaning, **schema}


def _bound(check: Checked, shape: Shape) -> Callable[[Any, At], None]:
    return lambda value, at: check(shape, value, at)
