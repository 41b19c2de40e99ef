"""What a diagnosis starts from: facts, and what else is known of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from doctor.model import Facts, ReadInput

from .request import Requirements

if TYPE_CHECKING:
    from doctor.sources.manifests.resolve import Declaration
    from doctor.sources.workload.layers import LayerKind


class DiagnosisInput(NamedTuple):
    """What is known before any rule is evaluated, and the interpreter in which a kernel can be run."""

    facts: Facts
    python: str | None = None
    why_not: str = ""  # nothing can be run
    requirements: Requirements | None = None  # Requires-Dist of what is installed
    declaration: Declaration | None = None  # where files declare the environment
    target: str = ""  # what was examined, for the report
    variables: Mapping[str, str | None] = MappingProxyType({})  # of kernels, over our own; None removes one
    site_dirs: tuple[Path, ...] = ()  # folders of installed packages whose sources can be read
    launch: Facts = Facts()  # what commands in the declared files state of the job
    remarks: tuple[str, ...] = ()  # what the inputs state differently, and what was taken
    read: tuple[ReadInput, ...] = ()  # the inputs, and what each of them gave
    layers: tuple[LayerKind, ...] = ()  # other layers of the model, and what differs there
    today: tuple[str, ...] = ()  # releases that an installer takes today, where none is stated
    faults: tuple[str, ...] = ()  # declared files that could not be read, where another input states the packages

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the report should know of the declared files."""
        return (*self.remarks, *(() if self.declaration is None else self.declaration.notes))

    @property
    def job_facts(self) -> Facts:
        """The facts that may describe the job; what commands in declared files state gives way to a stated job."""
        return self.facts if self.declaration is None else Facts()

    @property
    def unread(self) -> tuple[str, ...]:
        """Declared files that could not be read: file, line and reason of each."""
        own = () if self.declaration is None else tuple(fault.message for fault in self.declaration.faults)
        return (*self.faults, *own)
