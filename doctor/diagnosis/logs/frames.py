"""Whose code failed: the distribution that the file of a frame belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from doctor.rulebook.rule import Library

_INSTALLED = re.compile(r"-packages[\\/](\w+)")


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
