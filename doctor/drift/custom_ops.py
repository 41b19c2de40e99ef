"""The Python functions behind `torch.ops.namespace.name`, as decorators in the sources register them."""

from __future__ import annotations

import re

from .program import Program
from .values import Function

#: The start of `@torch.library.custom_op("namespace::name", …)` or of a wrapper of it, or of a function.
_STARTS = re.compile(rb"^@[\w.]*custom_op\w*\(\s*[\"'](\w+)::(\w+)[\"']|^(?:async )?def (\w+)", re.M)
OPS = "torch.ops."


class CustomOps:
    """Looks custom operators up by name; the sources are searched when the first one is needed."""

    def __init__(self, program: Program) -> None:
        """Search the readable packages of `program`."""
        self._program = program
        self._places: dict[str, tuple[str, str]] | None = None

    def find(self, path: str) -> Function | None:
        """Return the function behind `torch.ops.a.b`; None where no source registers it."""
        if self._places is None:
            self._places = dict(self._registered())
        place = self._places.get(path.removeprefix(OPS).removesuffix(".default"))
        if place is None:
            return None
        found = self._program.member(*place)
        value = self._program.force(found) if found is not None else None
        return value if isinstance(value, Function) else None

    def _registered(self) -> list[tuple[str, tuple[str, str]]]:
        environment = self._program.environment
        found = []
        for package in environment.packages.values():
            if not self._program.readable(package):
                continue
            for path in environment.files(package):
                data = environment.peek(path)
                if b"custom_op" not in data:
                    continue
                module = environment.module_name(package, path)
                waiting: list[str] = []
                for namespace, name, function in _STARTS.findall(data):
                    if not function:
                        waiting.append(f"{namespace.decode()}.{name.decode()}")
                        continue
                    found += [(operator, (module, function.decode())) for operator in waiting]
                    waiting = []
        return found
