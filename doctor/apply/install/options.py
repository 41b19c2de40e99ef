"""What `fix` is to verify or install, and how."""

from __future__ import annotations

from dataclasses import dataclass

TIMEOUT = 1800.0  # seconds for one program of the installer


@dataclass(frozen=True)
class InstallOptions:
    """The options of `fix` that verify or install."""

    dry_run: bool = False
    verify: bool = False
    apply: bool = False
    rollback: bool = False
    yes: bool = False
    installer: str | None = None
    proof_timeout: float = TIMEOUT
    break_system_packages: bool = False
    allow_builds: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the fix is to be verified or applied once it is found."""
        return self.dry_run or self.verify or self.apply
