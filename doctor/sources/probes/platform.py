"""What the target's interpreter said of itself and of the system it runs on."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.facts.vocabulary import fact
from doctor.model import Fact

from .target import SITE_PACKAGES, Target, Watch

PROMISES = (
    "target.path", "python.version", "python.implementation", "platform.system", "platform.machine", "platform.glibc",
)  # fmt: skip


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Python, system, machine and C library of the target."""
    tree = target.kind == SITE_PACKAGES
    source = "names of folders and compiled modules" if tree else f"{target.python}"
    yield Fact("target.path", str(target.site_dirs[0] if tree else target.python), "the command line")
    for key, value in (
        ("python.version", target.version),
        ("python.implementation", target.implementation),
        ("platform.system", target.system),
        ("platform.machine", target.machine),
        ("platform.glibc", target.glibc),
    ):
        problem = "a tree of packages does not tell" if tree else "the interpreter did not tell"
        if key == "platform.glibc" and not tree and target.system == "Linux":
            problem = "the C library is not glibc"
        yield fact(key, value or None, source, problem=None if value else problem)
