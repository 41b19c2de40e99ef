"""Whose code failed: the distribution that the file of a frame belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from doctor.facts.libraries.frameworks import servers
from doctor.model import TORCH
from doctor.packages.records import ATTENTION, names_with, records_of
from doctor.rulebook.rule import Library

_INSTALLED = re.compile(r"-packages[\\/](\w+)")
#: A source file of a compiled extension, as its own checks print it.
_NATIVE = re.compile(r"[\w.:/\\+-]{3,300}\.(?:cuh?|cpp|cc|cxx|hpp|h|inl)\b")
#: A word that may be the name of a package.
_WORD = re.compile(r"[A-Za-z][\w-]{2,40}")


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

    @cached_property
    def of_attention(self) -> frozenset[str]:
        """Return the distributions that are there for attention and its kernels."""
        tables = (library.table("packages") for library in self.libraries.values())
        return names_with(records_of(tables), ATTENTION)

    @cached_property
    def _registered(self) -> frozenset[str]:
        names = {name for library in self.libraries.values() for name in library.unregistered}
        return frozenset(self.owners.values()) - names

    @cached_property
    def plain_words(self) -> frozenset[str]:
        """Return the names of packages that are words of the language, too."""
        return frozenset(word for library in self.libraries.values() for word in library.plain_words)

    @cached_property
    def _spoken(self) -> Mapping[str, re.Pattern[str]]:
        """How people write the names of packages; a name that others contain comes last."""
        libraries = sorted(self.libraries.values(), key=lambda library: library.spoken_inside_others)
        return {name: re.compile(words) for library in libraries for name, words in library.spoken.items()}

    @cached_property
    def _printers(self) -> Mapping[str, re.Pattern[str]]:
        """What each server writes before each of its lines."""
        return {server.package: re.compile(server.prints) for server in servers().values() if server.prints}

    def is_registered(self, distribution: str | None) -> bool:
        """Return whether the package registry has a distribution of the stack under its own name."""
        return distribution in self._registered

    def owner_of_file(self, file: str) -> str | None:
        """Return the distribution that a source file belongs to; None for one outside the stack."""
        installed = _INSTALLED.search(file)
        parts = [installed[1]] if installed else re.split(r"[\\/]", file)[:-1]
        return next((self.owners[part] for part in parts if part in self.owners), None)

    def owner_of_line(self, text: str) -> str | None:
        """Return the distribution whose compiled code a message names by its source file; None if it names none.

        Files of torch do not count: its warnings and checks are part of what any package prints.
        """
        owners = (self.owner_of_file(file) for file in _NATIVE.findall(text))
        return next((owner for owner in owners if owner not in (None, TORCH)), None)

    def named(self, text: str) -> str | None:
        """Return the distribution that a line without any frame speaks of; torch only where it names no other."""
        names = [*(name for name, words in self._spoken.items() if words.search(text)), *_WORD.findall(text)]
        found = (self.owner(name) for name in names if name.lower() not in self.plain_words)
        owners = [owner for owner in found if owner is not None]
        return next((owner for owner in owners if owner != TORCH), owners[0] if owners else None)

    def printer(self, text: str) -> str | None:
        """Return the server that wrote a line of its log."""
        return next((name for name, prefix in self._printers.items() if prefix.search(text)), None)
