"""What the build of a source distribution needs: read from its own files, kept in the records of releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from doctor.facts.vocabulary import parse_version
from doctor.model import TORCH


class SourceBuild(NamedTuple):
    """What one release needs of the environment in which it is built."""

    requires: tuple[str, ...] | None = None  # `build-system.requires`, names alone; None without that table
    backend: str = ""
    imports: tuple[str, ...] = ()  # modules of others that its set-up imports in any case
    isolated: str = ""  # why it stops in an isolated build; empty where it does not, or that is not known
    without_nvcc: str = ""  # why it stops next to a torch for CUDA where there is no CUDA compiler
    without_gpu: str = ""  # why it stops where no GPU is visible
    compiles_cuda: bool = False
    archs: Mapping[str, tuple[str, ...]] = {}  # release of nvcc -> architectures that it names itself
    standard: str = ""  # of C++, as it passes it to the compiler: 17
    wheels: Mapping[str, str] = {}  # CUDA of torch -> CUDA in the name of the wheel that it downloads instead
    force_build: str = ""  # the variable that keeps it from downloading a wheel
    skip_cuda: str = ""  # the variable that leaves the compiled part out

    def is_compiled(self, environ_value: object) -> bool:
        """Return whether it is compiled and no wheel downloaded, by the value of the variable `force_build`."""
        return not self.wheels or str(environ_value).upper() == "TRUE"

    @property
    def imports_torch(self) -> bool:
        """Whether its set-up imports torch in any case."""
        return TORCH in self.imports

    @property
    def declares_torch(self) -> bool:
        """Whether an isolated build has torch: its newest release, not the environment's."""
        return self.requires is not None and TORCH in self.requires

    def archs_with(self, nvcc: str) -> tuple[str, ...] | None:
        """Return the architectures that it compiles for; None where torch or a variable chooses them."""
        below = [release for release in self.archs if parse_version(release) <= parse_version(nvcc)]
        if not self.archs or not below:
            return None
        return self.archs[max(below, key=parse_version)]

    def as_json(self) -> dict[str, Any]:
        """Return it as a table without what is empty."""
        return {name: value for name, value in self._asdict().items() if value not in (None, "", (), {}, False)} | (
            {"requires": []} if self.requires == () else {}
        )

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SourceBuild:
        """Return what `as_json` wrote."""
        lists = {name: tuple(body[name]) for name in ("requires", "imports") if name in body}
        archs = {release: tuple(names) for release, names in body.get("archs", {}).items()}
        return cls(**{**body, **lists, "archs": archs})
