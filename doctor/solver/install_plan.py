"""What a fix does to packages, sorted: what any installer takes, what stays, what is built, what goes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from doctor.model import ABSENT, Change, ChangeKind, Fix, Report
from doctor.packages.flash_attn_build import TOOLS
from doctor.packages.flash_attn_wheels import Wheel, WheelTarget, find
from doctor.packages.index import admits, load_index
from doctor.packages.relations import BUILT_AGAINST_TORCH, FROM_THE_REGISTRY, FROM_THEIR_SOURCE, orphans, owner_of
from doctor.rulebook.resolver import FactResolver
from doctor.util.resources import rules_dir

from .effects import brings
from .environment import PackageSet, platform_of, stack_of

#: Companions outside the index whose newer releases ask for a newer torch: left open, a resolver moves it.
_NEED_TORCH = (
    "accelerate", "bitsandbytes", "lightning", "liger-kernel", "peft", "pytorch-lightning", "sentence-transformers",
    "timm", "torchao", "torchdata", "torchmetrics", "torchtext", "trl",
)  # fmt: skip


@dataclass(frozen=True)
class PinnedRequirement:
    """One requirement and why it is there."""

    package: str
    version: str
    why: str
    held: bool = False
    extra: str = ""

    @property
    def requirement(self) -> str:
        """As pip and uv read it."""
        return f"{self.package}{self.extra}=={self.version}"


@dataclass(frozen=True)
class InstallPlan:
    """A fix's packages, sorted by what has to be done with them."""

    changed: tuple[PinnedRequirement, ...] = ()  # any installer takes them
    held: tuple[PinnedRequirement, ...] = ()  # companions that stay
    built: tuple[PinnedRequirement, ...] = ()  # compiled against the torch that is there: a second step
    removed: tuple[str, ...] = ()  # to be uninstalled first
    again: tuple[str, ...] = ()  # their files went along with a removed one: to be laid down anew
    told: tuple[str, ...] = ()  # about companions that cannot be held
    moves_torch: bool = False
    index_url: str | None = None
    wheel: Wheel | None = None  # for flash-attn, where its release has one
    cuda: str | None = None  # that the new torch is built for
    cudnn: str | None = None  # that it brings


def pinnable(report: Report) -> Fix:
    """The fix that the pins write out: the first that changes packages and leaves as little as the recommended one."""
    best = report.fixes[0]
    with_packages = [fix for fix in report.fixes if any(change.kind == ChangeKind.PACKAGE for change in fix.changes)]
    return next((fix for fix in with_packages if len(fix.leaves) <= len(best.leaves)), best)


def install_plan(report: Report, fix: Fix) -> InstallPlan:
    """What a fix installs, holds, builds and removes, in the environment of the report."""

    known = FactResolver(report.facts)
    return pins_in(stack_of(report.facts, known, load_index()), known, fix.changes, fix.index_url)


def pins_in(stack: PackageSet, known: FactResolver, changes: Sequence[Change], index_url: str | None) -> InstallPlan:
    """The same of changes to a stack."""
    packages = [change for change in changes if change.kind == ChangeKind.PACKAGE]
    chosen = {change.name: change.after or ABSENT for change in packages}
    changed = [_line(stack, chosen, change) for change in packages if change.after is not None]
    held, told = _held(stack, chosen)
    built = [line for line in changed + held if line.package in BUILT_AGAINST_TORCH]
    built += _torch_part(stack, chosen, built)
    removed, again = _removals(stack, chosen)
    torch = chosen.get("torch", ABSENT)
    brought = brings(stack, torch) if torch != ABSENT else {}
    return InstallPlan(
        changed=tuple(line for line in changed if line.package not in BUILT_AGAINST_TORCH),
        held=tuple(line for line in held if line.package not in BUILT_AGAINST_TORCH),
        built=tuple(built),
        removed=removed,
        again=again,
        told=tuple(told),
        moves_torch="torch" in chosen,
        index_url=index_url,
        wheel=_wheel(stack, known, chosen, built),
        cuda=brought.get("torch.cuda"),
        cudnn=brought.get("cudnn.version"),
    )


def stale(pins: InstallPlan) -> tuple[PinnedRequirement, ...]:
    """What has to be compiled where the present packages are: what is new, and what met the old torch."""
    return tuple(line for line in pins.built if not line.held or pins.moves_torch)


def compiling(pins: InstallPlan, lines: Sequence[PinnedRequirement]) -> Iterator[str]:
    """The commands that compile these against the torch that is there, from a wheel where one may fit.

    No build in pip's cache may be taken, for it may have met another torch.
    """
    if not lines:
        return
    yield f"pip install {' '.join(TOOLS)}"
    afresh = " --no-cache-dir" if pins.moves_torch else ""
    again = f" --force-reinstall --no-deps{afresh}" if pins.moves_torch else ""
    for options, group in (
        (afresh, [line for line in lines if not line.held]),
        (again, [line for line in lines if line.held]),
    ):
        names = []
        for line in group:
            if pins.wheel is not None and line.package == "flash-attn":
                build = f"pip install --no-build-isolation{options} {line.requirement}"
                yield f'pip install{options} "flash-attn @ {pins.wheel.url}" || {build}'
            else:
                names.append(line.requirement)
        if names:
            yield f"pip install --no-build-isolation{options} {' '.join(names)}"


def published(line: PinnedRequirement) -> tuple[str, ...]:
    """What the release of a line requires, as the registry tells it; empty where it is not on record."""
    release = load_index().release(line.package, line.version)
    return () if release is None else release.requires


def installing(pins: InstallPlan, *, held: bool = False) -> Iterator[str]:
    """What goes, what comes (beside all that stays, where that is `held`), what shared its files with what went, what
    is compiled.
    """

    if pins.removed:
        yield f"pip uninstall --yes {' '.join(pins.removed)}"
    if pins.changed:
        # Not --index-url: an index of torch builds lacks most other packages, and the next one would not be found.
        index = f" --extra-index-url {quote(pins.index_url)}" if pins.index_url else ""
        lines = (*pins.changed, *pins.held) if held else pins.changed
        yield f"pip install{index} {' '.join(quote(line.requirement) for line in lines)}"
    if pins.again:
        yield f"pip install --force-reinstall --no-deps {' '.join(pins.again)}"
    if stale(pins):
        yield "# compiled against the torch that is there by now:"
        yield from compiling(pins, stale(pins))


@functools.cache
def conda_names() -> dict[str, str]:
    """What conda-forge calls a distribution; without an entry it does not have it."""
    names: dict[str, str] = json.loads((rules_dir() / "index" / "conda_forge.json").read_text("utf-8"))["names"]
    return names


def _line(stack: PackageSet, chosen: dict[str, str], change: Change) -> PinnedRequirement:
    was = f"was {change.before}; " if change.before else ""
    why = f"{was}clears {', '.join(change.resolves)}: {change.why}" if change.resolves else f"{was}{change.why}"
    version = str(change.after)
    return PinnedRequirement(change.name, version, why, extra=_extra(stack, chosen, change.name, version))


def _extra(stack: PackageSet, chosen: dict[str, str], package: str, version: str) -> str:
    """`[core-cu12]` where the package alone no longer brings its binary part."""
    release = stack.index.release(package, version)
    torch = chosen.get("torch") or stack.installed.get("torch")
    core = f"core-cu{stack.cuda_major(torch) or '12'}"
    offered = release is not None and any(
        re.search(rf"extra\s*==\s*['\"]{core}['\"]", text) for text in release.requires
    )
    return f"[{core}]" if offered else ""


def _held(stack: PackageSet, chosen: dict[str, str]) -> tuple[list[PinnedRequirement], list[str]]:
    """(installed companions that stay, sentences about those that cannot be held)."""
    lines, told = [], []
    versions = stack.completed(chosen)
    for package, version in sorted(stack.installed.items(), key=lambda item: (item[0] != "torch", item[0])):
        if package in chosen or owner_of(package) or version == ABSENT:
            continue
        if package in FROM_THEIR_SOURCE and "torch" in chosen:
            told.append(f"{package} {version} was built against the old torch: build it again from its source.")
        if package not in stack.index and package not in (*_NEED_TORCH, *FROM_THE_REGISTRY):
            continue
        public = version.partition("+")[0]
        if package in stack.index and stack.index.release(package, public) is None:
            told.append(f"{package} {version} is not in the registry: install without replacing it (`--no-deps`).")
            continue
        release = stack.index.release(package, public)
        if release is not None and not release.installs_on(stack.platform):
            told.append(f"{package} {version} is not held: no installer takes it on Python {stack.platform.python}.")
            continue
        against = _against(stack, package, public, chosen, versions)
        if against:
            told.append(f"{package} {version} is not held: {against}.")
            continue
        extra = _extra(stack, chosen, package, public)
        lines.append(
            PinnedRequirement(
                package, public, f"installed: {version}" if public != version else "installed", True, extra
            )
        )
    return lines, told


def _against(
    stack: PackageSet, package: str, version: str, chosen: Mapping[str, str], versions: Mapping[str, str]
) -> str | None:
    """The requirement that forbids to hold a package at its version, in a sentence."""
    for need in stack.needs(package, version, versions.get("torch")):
        found = versions.get(need.package)
        if found is not None and (found == ABSENT or not admits(need.range, found)):
            return f"it needs {need.package}{need.range}, which is {found}"
    for other, need in stack.wanting(package, chosen):
        if other not in (package, *BUILT_AGAINST_TORCH) and not admits(need.range, version):
            return f"{other} {versions[other]} needs {package}{need.range}"
    return None


def _removals(stack: PackageSet, chosen: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what to uninstall, what to lay down anew): uninstalling is no requirement."""
    versions = stack.completed(chosen)
    gone = [name for name, version in chosen.items() if version == ABSENT]
    gone += orphans(stack.installed, versions, chosen)
    again = []
    for name in gone:
        stem = re.sub(r"-cu\d\d$", "", name)
        twins = (other for other in versions if re.fullmatch(rf"{re.escape(stem)}-cu\d\d", other))
        twin = next((other for other in twins if other != name and versions[other] != ABSENT), None)
        if twin and stem != name:  # both wheels own the same files: one takes the other's along
            again.append(f"{twin}=={versions[twin]}")
    return tuple(gone), tuple(again)


def _torch_part(stack: PackageSet, chosen: dict[str, str], built: list[PinnedRequirement]) -> list[PinnedRequirement]:
    """TransformerEngine's torch part, which is compiled on the spot, at its leader's version."""
    name = "transformer-engine-torch"
    version = stack.completed(chosen).get(name)
    if version in (None, ABSENT) or any(line.package == name for line in built):
        return []
    moved = version != stack.installed.get(name)
    return [PinnedRequirement(name, str(version), "follows transformer-engine" if moved else "installed", not moved)]


def _wheel(
    stack: PackageSet, known: FactResolver, chosen: dict[str, str], built: list[PinnedRequirement]
) -> Wheel | None:
    """The official flash-attn wheel for the torch of the fix, where its release has one."""
    line = next((line for line in built if line.package == "flash-attn"), None)
    if line is None:
        return None

    fitting = find(wheel_target_of(known, chosen.get("torch"), stack), line.version, near=False).fitting
    return fitting[0] if fitting else None


def wheel_target_of(known: Any, torch: str | None = None, stack: PackageSet | None = None) -> WheelTarget:
    """The place that facts describe; with `torch`, the same place once that torch is installed in their `stack`."""

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
