"""The kinds of values that facts have."""

from __future__ import annotations

from doctor.model import TextEnum


class FactKind(TextEnum):
    """How the value of a fact is parsed and compared."""

    VERSION = "version"
    SM = "sm"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    WINDOW = "window"
    LIST = "list"


VERSION, SM, INTEGER, NUMBER, TEXT, BOOLEAN, WINDOW, LIST = tuple(FactKind)
