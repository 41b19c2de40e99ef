"""Which releases of a package have a name, from the records in `rules/index/names`: one release of each minor."""

from __future__ import annotations

import functools
import gzip
import json
import typing
from typing import Any

from packaging.version import Version

from doctor.errors import DoctorError
from doctor.util.resources import rules_dir


class NameRecord:
    """The record of one package; what it does not name is in every release."""

    def __init__(self, package: str, content: dict[str, Any]) -> None:
        """Use a record as `make_name_history.py` writes it."""
        self._content = content
        self._of_models = package == "transformers"  # modules of it take names from others at their first use
        self.releases: tuple[str, ...] = tuple(content["releases"])

    def has(self, name: str, version: str) -> bool:
        """Say whether a release has `module.name`, by its module, by the module's names or by all names."""
        module, _, last = name.rpartition(".")
        at = self.releases.index(version)
        if self._of_models:
            return self._has_anywhere(last, at)
        return (
            self._within("m", module, at)
            and (self._within("n", f"{module} {last}", at) or self._within("m", name, at, default=False))
            and self._has_anywhere(last, at)
        )

    def _has_anywhere(self, name: str, at: int) -> bool:
        if hasattr(typing, name):
            return True  # no record has what a module imports from elsewhere
        later = Version(self.releases[at]) >= Version("5.0") and self._of_models
        if later and name.endswith(("Tokenizer", "TokenizerFast")):
            return True  # another class has the names of tokenizers that are gone
        return self._within("g", name, at)

    def _within(self, kind: str, name: str, at: int, *, default: bool = True) -> bool:
        spans = self._content[kind].get(name)
        if spans is None:
            return default
        bounds = [tuple(map(int, span.split("-"))) for span in spans.split(",")]
        return any(span[0] <= at <= span[-1] for span in bounds)


@functools.cache
def name_record(package: str) -> NameRecord:
    """Return the record of a package; DoctorError where there is none."""
    path = rules_dir() / "index" / "names" / f"{package}.json.gz"
    if not path.is_file():
        raise DoctorError(f"there is no record of the names of `{package}`")
    return NameRecord(package, json.loads(gzip.decompress(path.read_bytes())))
