"""What facts follow from what library files say, by fact key; a file is read for it when a key is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .effects import Sources
from .rule import Library


class LibraryImplications(Mapping[str, Sources]):
    """What implies each fact, of some libraries; what follows from a release comes first."""

    def __init__(self, libraries: Iterable[Library]) -> None:
        self._released: dict[str, list[Library]] = {}
        self._conditional: dict[str, list[Library]] = {}
        for library in libraries:
            for table, keys in ((self._released, library.effects.released),
                                (self._conditional, library.effects.concluded)):  # fmt: skip
                for key in keys:
                    table.setdefault(key, []).append(library)
        self._found: dict[str, Sources] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Return what implies a fact; faster than what Mapping makes of `__getitem__`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __getitem__(self, key: str) -> Sources:
        if key not in self._found:
            found: Sources = [
                (f"{library.distributions[0]}.version", library.releases) for library in self._released.get(key, ())
            ]
            for library in self._conditional.get(key, ()):
                found += [(condition, implied) for condition, implied in library.implies if key in implied]
            if not found:
                raise KeyError(key)
            self._found[key] = found
        return self._found[key]

    def __contains__(self, key: object) -> bool:
        return key in self._released or key in self._conditional

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._released, *self._conditional)))

    def __len__(self) -> int:
        return len({*self._released, *self._conditional})
