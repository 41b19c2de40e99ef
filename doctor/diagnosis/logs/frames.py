"""Whose code failed: the last frame of a traceback, and the distribution that its file belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from doctor.rulebook.rule import Library

#: A frame of a traceback, as Python, IPython and Rich print it; Rich may break the line before its number.
_FRAME = re.compile(
    r"(?:File |^(?:│ )?)(?:\\?\")?((?:[A-Z]:)?[^\"\s:][^\"\n:]{0,400}\.pyx?)(?:\\?\")?"
    r"(?:, line |:(?:\s*│\s*│\s*)?)\d+",
    re.MULTILINE,
)
#: Frames that only pass a call on: the frame before them is the one that says whose code failed.
_PASSING = re.compile(
    r"torch/(?:nn/modules/module|nn/parallel/\w+|utils/_contextlib|utils/_python_dispatch|autograd/function|_ops"
    r"|_dynamo/eval_frame|_dynamo/external_utils|_compile|utils/checkpoint)\.py$"
    r"|/(?:contextlib|functools|runpy|threading|importlib/\w+|concurrent/futures/\w+|multiprocessing/\w+)\.py$"
)
_INSTALLED = re.compile(r"-packages[\\/](\w+)")


def last_frame(before: str) -> str:
    """Return the file of the last frame of a traceback that does not only pass a call on; empty if there is none."""
    files = [found[1].replace("\\", "/") for found in _FRAME.finditer(before)]
    return next((file for file in reversed(files) if not _PASSING.search(file)), "")


@dataclass(frozen=True)
class Stack:
    """The libraries of the stack, and whose code a module is."""

    libraries: Mapping[str, Library]

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """Return the distribution of each import name and of each distribution, both with underscores."""
        known = self.libraries.values()
        found = {module: name for library in known for module, name in library.modules.items()}
        return {**{name.replace("-", "_"): name for library in known for name in library.distributions}, **found}

    def owner(self, name: str) -> str | None:
        """Return the distribution that a module or distribution name belongs to; None for one outside the stack."""
        plain = re.sub(r"[-.]+", "_", name)
        return self.owners.get(name) or self.owners.get(plain) or self.owners.get(plain.lower())

    def owner_of_file(self, file: str) -> str | None:
        """Return the distribution that a source file belongs to; None for one outside the stack."""
        installed = _INSTALLED.search(file)
        parts = [installed[1]] if installed else re.split(r"[\\/]", file)[:-1]
        return next((self.owners[part] for part in parts if part in self.owners), None)
