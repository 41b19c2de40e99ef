"""Build a fix's install plan: what an installer takes, what stays, what is compiled, what goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from doctor.model import ABSENT, TORCH, Change, ChangeKind, InstallPlan, PinnedRequirement
from doctor.packages.index import load_index
from doctor.packages.records import UNKNOWN_PACKAGE, PackageRecords
from doctor.packages.relations import (
    BUILT_AGAINST_TORCH,
    install_order,
    orphans,
    owner_of,
)
from doctor.packages.release_wheels import PACKAGE, Wheel, WheelTarget, find
from doctor.packages.specifiers import admits
from doctor.rulebook.resolver import FactResolver

from .effects import brings
from .environment import PackageSet, platform_of, stack_of


def install_plan(
    stack: PackageSet,
    known: FactResolver,
    changes: Sequence[Change],
    index_url: str | None,
    records: PackageRecords,
) -> InstallPlan:
    """Return what these changes install, hold, compile and remove in an environment."""
    packages = [change for change in changes if change.kind == ChangeKind.PACKAGE]
    if not packages:
        return InstallPlan()
    chosen = {change.name: change.after or ABSENT for change in packages}
    changed = [_line(stack, chosen, change) for change in packages if change.after is not None]
    overridden = stack.overridden(chosen)
    held, notes = _held(stack, chosen, records)
    built = [line for line in changed + held if line.package in BUILT_AGAINST_TORCH]
    built += _torch_part(stack, chosen, built)
    removed, reinstall = _removals(stack, chosen)
    torch = chosen.get(TORCH, ABSENT)
    brought = brings(stack, torch) if torch != ABSENT else {}
    wheel = _wheel(stack, known, chosen, built)
    return InstallPlan(
        changed=tuple(line for line in changed if line.package not in {*BUILT_AGAINST_TORCH, *overridden}),
        held=tuple(line for line in held if line.package not in BUILT_AGAINST_TORCH),
        built=tuple(built),
        overridden=tuple(line for line in changed if line.package in overridden),
        removed=removed,
        reinstall=reinstall,
        along=_along(stack, chosen),
        notes=tuple(notes),
        moves_torch=TORCH in chosen,
        torch=None if torch == ABSENT else torch,
        index_url=index_url,
        wheel_url=wheel.url if wheel is not None else None,
        cuda=brought.get("torch.cuda"),
        cudnn=brought.get("cudnn.version"),
    )


def _line(stack: PackageSet, chosen: Mapping[str, str], change: Change) -> PinnedRequirement:
    was = f"was {change.before}; " if change.before else ""
    why = f"{was}clears {', '.join(change.resolves)}: {change.why}" if change.resolves else f"{was}{change.why}"
    version = str(change.after)
    return PinnedRequirement(change.name, version, why, extra=_extra(stack, chosen, change.name, version))


def _extra(stack: PackageSet, chosen: Mapping[str, str], package: str, version: str) -> str:
    """Return `[core-cu12]` where the package alone no longer brings its binary part."""
    release = stack.index.release(package, version)
    torch = chosen.get(TORCH) or stack.installed.get(TORCH)
    core = f"core-cu{stack.cuda_major(torch) or '12'}"
    offered = release is not None and any(
        re.search(rf"extra\s*==\s*['\"]{core}['\"]", text) for text in release.requires
    )
    return f"[{core}]" if offered else ""


def _held(
    stack: PackageSet, chosen: Mapping[str, str], records: PackageRecords
) -> tuple[list[PinnedRequirement], list[str]]:
    """Return (installed companions that stay, sentences about those that cannot be held)."""
    lines, notes = [], []
    versions = stack.completed(chosen)
    for package, version in sorted(stack.installed.items(), key=lambda item: install_order(item[0])):
        if package in chosen or owner_of(package) or version == ABSENT:
            continue
        if BUILT_AGAINST_TORCH.get(package) is False and TORCH in chosen:
            notes.append(f"{package} {version} was built against the old torch: rebuild it from its source.")
        held = BUILT_AGAINST_TORCH.get(package) or records.get(package, UNKNOWN_PACKAGE).held_with_torch
        if package not in stack.index and not held:
            continue
        public = version.partition("+")[0]
        if package in stack.index and stack.index.release(package, public) is None:
            notes.append(
                f"{package} {version} is not in the records of {stack.index.refreshed}: `--no-deps` keeps it in place."
            )
            continue
        release = stack.index.release(package, public)
        if release is not None and not release.installs_on(stack.platform):
            notes.append(f"{package} {version} is not held: it does not install on Python {stack.platform.python}.")
            continue
        against = _conflict(stack, package, public, chosen, versions)
        if against:
            notes.append(f"{package} {version} is not held: {against}.")
            continue
        local = public != version
        why = f"installed: {version}" if local else "installed"
        extra = _extra(stack, chosen, package, public)
        lines.append(PinnedRequirement(package, public, why, True, extra, version if local else None))
    return lines, notes


def _conflict(
    stack: PackageSet, package: str, version: str, chosen: Mapping[str, str], versions: Mapping[str, str]
) -> str | None:
    """Return the requirement that keeps a package from staying at its version, as a sentence."""
    for need in stack.needs(package, version, versions.get(TORCH)):
        found = versions.get(need.package)
        if found is not None and (found == ABSENT or not admits(need.range, found)):
            return f"it needs {need.package}{need.range}, which is {found}"
    for other, need in stack.wanting(package, chosen):
        if other not in (package, *BUILT_AGAINST_TORCH) and not admits(need.range, version):
            return f"{other} {versions[other]} needs {package}{need.range}"
    return None


def _removals(stack: PackageSet, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (what to uninstall, what to reinstall because it shares files with that)."""
    versions = stack.completed(chosen)
    gone = [name for name, version in chosen.items() if version == ABSENT]
    gone += orphans(stack.installed, versions, chosen)
    reinstall = []
    for name in gone:
        stem = re.sub(r"-cu\d\d$", "", name)
        twins = (other for other in versions if re.fullmatch(rf"{re.escape(stem)}-cu\d\d", other))
        twin = next((other for other in twins if other != name and versions[other] != ABSENT), None)
        if twin and stem != name:
            reinstall.append(f"{twin}=={versions[twin]}")
    return tuple(gone), tuple(reinstall)


def _along(stack: PackageSet, chosen: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    """Return the bundled packages that change with their owner."""
    versions = stack.completed(chosen)
    names = (name for name in {**stack.installed, **versions} if name not in chosen)
    moved = ((name, versions.get(name, ABSENT)) for name in names if versions.get(name) != stack.installed.get(name))
    return tuple((name, None if version == ABSENT else version) for name, version in moved)


def _torch_part(
    stack: PackageSet, chosen: Mapping[str, str], built: Sequence[PinnedRequirement]
) -> list[PinnedRequirement]:
    """Return TransformerEngine's torch part, which is compiled on installation, at its owner's version."""
    name = "transformer-engine-torch"
    version = stack.completed(chosen).get(name)
    if version in (None, ABSENT) or any(line.package == name for line in built):
        return []
    moved = version != stack.installed.get(name)
    return [PinnedRequirement(name, str(version), "follows transformer-engine" if moved else "installed", not moved)]


def _wheel(
    stack: PackageSet, known: FactResolver, chosen: Mapping[str, str], built: Sequence[PinnedRequirement]
) -> Wheel | None:
    """Return the official flash-attn wheel for the torch of the fix, where its release has one."""
    line = next((line for line in built if line.package == PACKAGE), None)
    if line is None:
        return None
    fitting = find(wheel_target_of(known, chosen.get(TORCH), stack), line.version, near=False).fitting
    return fitting[0] if fitting else None


def has_flash_attn_wheel(stack: PackageSet, known: FactResolver, version: str, torch: str | None) -> bool:
    """Whether this release has an official wheel for the torch of a fix, or the installed one."""
    target = wheel_target_of(known, torch, stack)
    return target.torch is None or bool(find(target, version, near=False).fitting)  # unknown: not said to be compiled


def wheel_target_of(known: Any, torch: str | None = None, stack: PackageSet | None = None) -> WheelTarget:
    """Return what a wheel has to fit; with `torch`, once that torch is installed in `stack`."""

    def value(key: str) -> Any:
        found = known.value(key)
        return None if found in (None, ABSENT) else found

    platform = platform_of(known)
    present = value("torch.version")
    goal = torch or present
    cuda, abi = (value("torch.cuda"), value("torch.cxx11_abi")) if goal == present else (None, None)
    if goal is not None and (cuda is None or abi is None):
        brought = brings(stack or stack_of(known.given, known, load_index()), goal)
        cuda, abi = cuda or brought.get("torch.cuda"), brought.get("torch.cxx11_abi") if abi is None else abi
    return WheelTarget(
        torch=goal,
        cuda=None if cuda is None else str(cuda),
        abi=abi,
        python=platform.python,
        system=platform.system,
        machine=platform.machine,
        glibc=None if value("platform.glibc") is None else str(value("platform.glibc")),
    )
