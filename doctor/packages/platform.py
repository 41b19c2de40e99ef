"""Where packages are installed: Python, operating system, machine."""

from __future__ import annotations

from typing import NamedTuple


class Platform(NamedTuple):
    """What a distribution has to run on; an unknown Python excludes nothing."""

    python: str | None = None
    system: str = "Linux"
    machine: str = "x86_64"

    @property
    def markers(self) -> dict[str, str]:
        """Return the variables of PEP 508 markers; an unknown Python counts as 3.11."""
        full = self.python or "3.11.0"
        return {
            "python_version": ".".join(full.split(".")[:2]),
            "python_full_version": full if full.count(".") > 1 else full + ".0",
            "platform_system": self.system,
            "sys_platform": {"Linux": "linux", "Darwin": "darwin", "Windows": "win32"}.get(self.system, "linux"),
            "os_name": "nt" if self.system == "Windows" else "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "implementation_version": full,
            "platform_release": "",
            "platform_version": "",
        }
