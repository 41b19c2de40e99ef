"""attn-doctor: diagnoses the attention stack of LLM training before a job runs.

For programs: `from doctor import diagnose` (see `doctor.api`). Importing the package loads nothing else.
"""

from __future__ import annotations

from ._version import __version__

TYPE_CHECKING = False  # `typing` takes longer to import than all that `run -- CMD` needs of this package
if TYPE_CHECKING:
    from typing import Any

    from .api import diagnose, diagnose_ranks, render
    from .errors import DoctorError, NoDiagnosis
    from .model import Finding, Fix, Report


__all__ = [
    "DoctorError",
    "Finding",
    "Fix",
    "NoDiagnosis",
    "Report",
    "__version__",
    "diagnose",
    "diagnose_ranks",
    "render",
]

_HOMES = {
    "DoctorError": "errors", "NoDiagnosis": "errors", "Finding": "model", "Fix": "model", "Report": "model",
    "diagnose": "api", "diagnose_ranks": "api", "render": "api",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, loaded at its first use: the command line needs none of them at its start."""
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(import_module(f"{__name__}.{home}"), name)
