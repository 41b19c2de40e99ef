"""The `except` clauses around the code that is run: they decide whether a broken use is reported or caught."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from .frames import Frame, Sink, Violation, catches, exception_of
from .state import Raised, State


class Caught(Raised):
    """A violation that a handler catches; it counts again if the handler raises."""

    def __init__(self, exception: str, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        super().__init__(exception)
        self.frame, self.node, self.state, self.violation = frame, node, state, violation


class Handlers:
    """The handlers of the examined code that are open, and the sink for what none of them catches."""

    def __init__(self, sink: Sink) -> None:
        """Report to `sink`."""
        self.sink = sink
        self._groups: list[list[frozenset[str]]] = []

    @property
    def are_open(self) -> bool:
        """Whether any `try` block is open."""
        return bool(self._groups)

    def catches(self, exception: str) -> bool:
        """Return whether an open handler catches an exception."""
        return any(catches(names, exception) for group in self._groups for names in group)

    def fail(self, frame: Frame, node: ast.AST, state: State, violation: Violation) -> None:
        """Report a violation, or raise it where a handler of the examined code catches it."""
        exception = exception_of(violation.kind)
        if self.catches(exception):
            raise Caught(exception, frame, node, state, violation)
        self.sink.violation(frame, node, state, violation)

    def raise_if_caught(self, exception: str) -> None:
        """Raise an exception of the examined code if a handler catches it."""
        if self.catches(exception):
            raise Raised(exception)

    @contextmanager
    def guarding(self, names: list[frozenset[str]]) -> Iterator[None]:
        """Open the handlers of a `try` block."""
        self._groups.append(names)
        try:
            yield
        finally:
            self._groups.pop()

    @contextmanager
    def none(self) -> Iterator[None]:
        """Close all handlers for a while: a module is imported once, whatever imports it first."""
        outer, self._groups = self._groups, []
        try:
            yield
        finally:
            self._groups = outer
