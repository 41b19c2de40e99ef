"""The facts of an environment once a user has made a fix: nothing measured is kept, only versions and settings."""

from __future__ import annotations

from typing import Any

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, ChangeKind, Facts, Fix
from doctor.rulebook.evaluate import Assessment

_MEASURED = ("torch.", "cudnn.", "nvidia-", "triton", "binaries.", "files.")
_OF_FILES = (".loads", ".load_problem", ".gpu_code", ".fitting_torch", ".selected", ".available")


def applied(facts: Facts, before: Assessment, fix: Fix) -> Facts:
    """Return the facts after the packages, variables and settings of a fix."""
    packages = {change.name: change.after or ABSENT for change in fix.changes if change.kind == ChangeKind.PACKAGE}
    moves = "torch" in packages or any(name.startswith("nvidia-") for name in packages)
    stale = [key for key in facts if key.endswith(_OF_FILES) or (moves and key.startswith(_MEASURED))]
    changed = facts.without(*stale, *(("distributions.complete",) if moves else ()))
    new: dict[str, Any] = {f"{name}.version": version for name, version in packages.items()}
    if moves and "torch" not in packages:
        new |= {key: facts.value(key) for key in ("torch.version", "torch.cuda") if facts.value(key) is not None}
        new["cudnn.version"] = next((text for name, text in packages.items() if "cudnn-cu" in name), None)
        if new["cudnn.version"] is not None:
            new["cudnn.version"] = ".".join(new["cudnn.version"].split(".")[:3])
    for name, version in fix.plan.along:
        new[f"{name}.version"] = version or ABSENT
    for change in fix.changes:
        if change.kind == ChangeKind.ENV:
            new[f"env.{change.name}"] = change.after or ABSENT
        elif change.kind == ChangeKind.CONFIG:
            new[f"workload.{change.name}"] = change.after or ABSENT
    return changed.with_(*(fact(key, value, "the fix") for key, value in new.items() if value is not None))


def by_code(fix: Fix) -> bool:
    """Whether it includes something that facts cannot show."""
    return any(change.kind == ChangeKind.CALL for change in fix.changes)
