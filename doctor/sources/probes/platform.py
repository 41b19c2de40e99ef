"""Python, system, machine and C library of the target."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.vocabulary import fact
from doctor.model import Fact
from doctor.sources.watch import Watch

from .target import Target, TargetKind

PROMISES = (
    "target.path", "python.version", "python.implementation", "platform.system", "platform.machine", "platform.glibc",
)  # fmt: skip


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield Python, system, machine and C library of the target."""
    tree = target.kind == TargetKind.SITE_PACKAGES
    source = "names of folders and compiled modules" if tree else f"{target.python}"
    yield Fact("target.path", str(target.site_dirs[0] if tree else target.python), "the command line")
    for key, value in (
        ("python.version", target.version),
        ("python.implementation", target.implementation),
        ("platform.system", target.system),
        ("platform.machine", target.machine),
        ("platform.glibc", target.glibc),
    ):
        problem = "a folder of packages does not determine it" if tree else "the interpreter did not report it"
        if key == "platform.glibc" and not tree and target.system == "Linux":
            problem = "the C library is not glibc"
        yield fact(key, value or None, source, problem=None if value else problem)
