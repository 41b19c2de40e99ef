"""Checks the shape of one YAML file: kinds of values, known keys; a fault names file, line and the nearest key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest, parse, term
from doctor.util.yaml_text import Lines

from .conditions import check_conditions
from .messages import PLACEHOLDER

At = tuple[str, ...]
Check = Callable[[Any, At], None]


class Shape(NamedTuple):
    """One file under examination: where it is and the line of each part."""

    path: str
    lines: Lines

    def line(self, at: At) -> int:
        """The line of a part, or of the nearest part around it."""
        return next((self.lines[at[:end]] for end in range(len(at), -1, -1) if at[:end] in self.lines), 1)

    def fault(self, at: At, message: str, hint: str | None = None) -> DoctorError:
        """A fault at a part of the file."""
        return DoctorError(f"{self.path}:{self.line(at)}: {message}", hint)

    def mapping(self, value: Any, at: At, checks: dict[str, Check], needed: Iterable[str] = ()) -> None:
        """A mapping with these keys only, each as its check wants it. `x-…` keys hold anchors and are free."""
        if not isinstance(value, dict):
            raise self.fault(at, f"{_name(at)} needs a mapping")
        for key, item in value.items():
            if key.startswith("x-"):
                continue
            if key not in checks:
                raise self.fault((*at, key), f"unknown key `{key}`", nearest(key, checks))
            if item is None:
                raise self.fault((*at, key), f"`{key}` is empty")
            checks[key](item, (*at, key))
        for key in needed:
            if key not in value:
                raise self.fault(at, f"`{key}` is missing")

    def text(self, value: Any, at: At) -> None:
        """A text that is not empty."""
        if not isinstance(value, str) or not value.strip():
            raise self.fault(at, f"{_name(at)} needs a text")

    def sentence(self, value: Any, at: At) -> None:
        """A text in which `{fact.key}` is a fact, and `{log.name}` a part of the log."""
        self.text(value, at)
        for key in PLACEHOLDER.findall(value):
            if not key.startswith("log."):
                self.fact_key(key, at)

    def texts(self, value: Any, at: At) -> None:
        """One text, or a list of at least one."""
        if isinstance(value, list) and value:
            for index, item in enumerate(value):
                self.text(item, (*at, str(index)))
        else:
            self.text(value, at)

    def integer(self, value: Any, at: At) -> None:
        """An integer, as text."""
        try:
            int(value)
        except (TypeError, ValueError):
            raise self.fault(at, f"{_name(at)} needs an integer, found `{value}`") from None

    def boolean(self, value: Any, at: At) -> None:
        """true or false, as text."""
        if str(value).lower() not in ("true", "false"):
            raise self.fault(at, f"{_name(at)} needs true or false, found `{value}`")

    def choice(self, options: Iterable[str]) -> Check:
        """A check for one of these texts."""
        options = tuple(options)

        def check(value: Any, at: At) -> None:
            if value not in options:
                hint = nearest(str(value), options)
                raise self.fault(at, f"{_name(at)} needs one of {', '.join(options)}, found `{value}`", hint)

        return check

    def items(self, check: Check) -> Check:
        """A check for a list of at least one item, each of which passes `check`."""

        def check_all(value: Any, at: At) -> None:
            if not isinstance(value, list) or not value:
                raise self.fault(at, f"{_name(at)} needs a list")
            for index, item in enumerate(value):
                check(item, (*at, str(index)))

        return check_all

    def values(self, check_key: Check, check_value: Check) -> Check:
        """A check for a mapping with any keys, keys and values each checked."""

        def check_all(value: Any, at: At) -> None:
            if not isinstance(value, dict) or not value:
                raise self.fault(at, f"{_name(at)} needs a mapping")
            for key, item in value.items():
                check_key(key, (*at, key))
                check_value(item, (*at, key))

        return check_all

    def fact_key(self, value: Any, at: At) -> None:
        """A key of the vocabulary."""
        self._told(lambda: term(str(value)), at)

    def fact_value(self, value: Any, at: At) -> None:
        """A value that fits the fact its key names; empty means unknown."""
        if value is not None:
            self._told(lambda: parse(at[-1], value), at)

    def condition(self, when: Any, at: At) -> None:
        """A `when:` mapping, each leaf with its own line."""
        if not isinstance(when, dict) or not when:
            raise self.fault(at, "a condition needs a mapping of fact keys")
        for key, wanted in when.items():
            here = (*at, key)
            if key in ("all", "any") and isinstance(wanted, list) and wanted:
                for index, item in enumerate(wanted):
                    self.condition(item, (*here, str(index)))
            elif key == "not":
                self.condition(wanted, here)
            else:
                self._told(lambda key=key, wanted=wanted: check_conditions({key: wanted}), here)  # type: ignore[misc]

    def _told(self, attempt: Callable[[], Any], at: At) -> None:
        try:
            attempt()
        except DoctorError as problem:
            raise self.fault(at, problem.message, problem.hint) from None


def _name(at: At) -> str:
    """How a part is called in a sentence: its key, or the key of its list."""
    named = [part for part in at if not part.isdigit()]
    if not named:
        return "a rule file"
    return f"`{named[-1]}`" if at[-1] == named[-1] else f"an entry of `{named[-1]}`"
