"""What a fix costs people: its kind, and the time it takes. No other module states a time of a fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH, FixKind
from doctor.packages.flash_attn_build import build
from doctor.packages.relations import BUILT_AGAINST_TORCH, owner_of
from doctor.packages.release_wheels import PACKAGE as FLASH_ATTN
from doctor.rulebook.resolver import FactResolver
from doctor.util.call_text import CallKind, call_kind
from doctor.util.machine import Machine
from doctor.util.patterns import pattern

from .cost import series
from .environment import PackageSet
from .install_plan import has_flash_attn_wheel
from .plan import FixPlan

#: Minutes of compiling that a package other than flash-attn takes on 8 to 64 cores.
BUILD_MINUTES = (5, 30)
_TIMES: Mapping[FixKind, str] = {
    FixKind.SETTING: "1 minute", FixKind.CODE: "5 minutes", FixKind.WHEEL: "1 minute",
    FixKind.COMPANIONS: "2 minutes", FixKind.OVERRIDE: "1 minute", FixKind.RELEASE_LINE: "10 minutes",
}  # fmt: skip
_OF_TORCH = "5 minutes"  # a wheel of torch with its libraries is 3 GB
_BUILDS = pattern(r"no-build-isolation|no-binary|FORCE_BUILD|from (its )?source|\bcompile\b|\bbuild\b", re.I)
_MACHINE = pattern(r"\bdriver\b|\bimage\b|\bapt(-get)?\b|\bsystem'?s? \w*cuDNN|\btoolkit\b|\bnvcc\b", re.I)
_INSTALLS = pattern(r"\b(pip3?|uv|conda)\b.*\b(install|uninstall|add|remove)\b")
_VARIABLE = pattern(r"(export|unset)\s")


def kind_of(stack: PackageSet, known: FactResolver, plan: FixPlan, chosen: Mapping[str, str]) -> FixKind:
    """Return the costliest kind of what is changed."""
    calls = (pick.alternative.call for pick in plan.picks if pick.alternative.call)
    kinds = [FixKind.SETTING, *map(_of_call, calls)]
    if chosen:
        kinds.append(_of_packages(stack, known, chosen))
    return max(kinds, key=lambda kind: kind.rank)


def _of_call(call: str) -> FixKind:
    if _VARIABLE.match(call):
        return FixKind.SETTING
    if _BUILDS.search(call) and call_kind(call) != CallKind.CODE:
        return FixKind.BUILD
    if _INSTALLS.search(call):
        return FixKind.OVERRIDE if "--no-deps" in call else FixKind.WHEEL
    return FixKind.RELEASE_LINE if _MACHINE.search(call) and call_kind(call) != CallKind.CODE else FixKind.CODE


def _of_packages(stack: PackageSet, known: FactResolver, chosen: Mapping[str, str]) -> FixKind:
    if next(iter(compiled_packages(stack, known, chosen)), None) is not None:
        return FixKind.BUILD
    if any(_another_line(stack, name, version) for name, version in chosen.items()):
        return FixKind.RELEASE_LINE
    if stack.overridden(chosen):
        return FixKind.OVERRIDE
    return FixKind.COMPANIONS if len(chosen) > 1 else FixKind.WHEEL


def _another_line(stack: PackageSet, package: str, version: str) -> bool:
    """Whether the change is felt in code: torch's release line, any other package's major release."""
    present = stack.installed.get(package, ABSENT)
    if ABSENT in (version, present):
        return False
    if package == TORCH:
        return series(version) != series(present)
    before, after = (parse_version(text).major for text in (present, version))
    return before != after and before > 0


def compiled_packages(stack: PackageSet, known: FactResolver, chosen: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the packages that are compiled once these are chosen, with their releases."""
    versions = stack.completed(chosen)
    torch = chosen.get(TORCH, ABSENT)
    for name, version in versions.items():
        moved = version != stack.installed.get(name)
        if version == ABSENT or not (moved or (torch != ABSENT and name in BUILT_AGAINST_TORCH)):
            continue
        if name == FLASH_ATTN:
            if not has_flash_attn_wheel(stack, known, version, chosen.get(TORCH)):
                yield name, version
        elif name in BUILT_AGAINST_TORCH or (moved and owner_of(name) is None and _lacks_wheel(stack, name, version)):
            yield name, version


def _lacks_wheel(stack: PackageSet, name: str, version: str) -> bool:
    """Whether a release is compiled on installation, where others of the package have a wheel for some machine."""
    release = stack.index.release(name, version)
    if release is None or "+" in version or release.has_wheel(stack.platform):
        return False
    return any(set(other.machines) - {"any"} for other in stack.index.releases(name).values())


def build_weight(stack: PackageSet, known: FactResolver, chosen: Mapping[str, str]) -> int:
    """Return how much is compiled: flash-attn takes core-hours, all else together minutes."""
    names = {name for name, _ in compiled_packages(stack, known, chosen)} if chosen else set()
    return 2 * (FLASH_ATTN in names) + bool(names)


def time_of(
    stack: PackageSet, known: FactResolver, kind: FixKind, chosen: Mapping[str, str], cuda: str | None = None
) -> str:
    """Return the time that a fix takes, as text."""
    if kind != FixKind.BUILD:
        torch = TORCH in chosen and kind in (FixKind.WHEEL, FixKind.COMPANIONS)
        return _OF_TORCH if torch else _TIMES[kind]
    compiled = dict(compiled_packages(stack, known, chosen)) if chosen else {}
    if FLASH_ATTN in compiled:
        return f"{build(compiled[FLASH_ATTN], known.value('gpu.sm'), cuda, Machine()).cost} of compiling"
    low, high = BUILD_MINUTES
    return f"{low} to {high} minutes of compiling"
