"""Compute the facts after a fix: new versions, without what was measured on the old ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from doctor.facts.versions import cuda_of_label
from doctor.facts.vocabulary import fact, parse_version
from doctor.model import ABSENT, TORCH, Fact, Facts
from doctor.packages.relations import other_build, owner_of
from doctor.rulebook.evaluate import know
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook
from doctor.util.patterns import pattern

from .cost import series
from .environment import PackageSet

SOURCE = "the proposed fix"
#: Facts read from the compiled files of a package, and those that other packages change.
_OF_LOADING = (".loads", ".load_problem")
_OF_FILES = (*_OF_LOADING, ".gpu_code", ".fitting_torch")
_CUDNN_WHEEL = pattern(r"nvidia-cudnn-cu(\d\d)")


def changed_facts(
    rulebook: Rulebook,
    facts: Facts,
    known: FactResolver,
    stack: PackageSet,
    chosen: Mapping[str, str],
    env: Mapping[str, str],
    config: Mapping[str, Any],
) -> Facts:
    """Return the facts with these versions, variables and settings, without what followed from the old ones."""
    versions = stack.completed(chosen)
    new: list[Fact] = [
        fact(f"{name}.version", version, SOURCE)
        for name, version in versions.items()
        if version != stack.installed.get(name)
    ]
    new += [fact(f"env.{name}", value, SOURCE) for name, value in env.items()]
    new += [fact(key, value, SOURCE) for key, value in config.items()]
    stale = _outdated_facts(facts, known, stack, chosen)
    changed = facts.without(*stale).with_(*new)
    if chosen.get(TORCH, ABSENT) != ABSENT:
        changed = _completed(rulebook, changed, stack, chosen[TORCH])
    if "cudnn.copies" in stale:
        brought = know(rulebook, changed)[0].value("cudnn.wheel_version")
        changed = changed.with_(*_recounted(facts, stale, brought))
    return changed


_LOADED = (("cudnn.version", "cudnn.path"), ("cudnn.te_version", "cudnn.te_path"))  # by torch, by TransformerEngine


def _of_wheel(facts: Facts, known: FactResolver, stack: PackageSet, version: str, path: str) -> bool:
    """Whether this cuDNN is a wheel's, so that another wheel changes it; a system copy stays what it is."""
    where, found = facts.value(path), facts.value(version)
    if where not in (None, ABSENT):
        return "nvidia/cudnn/" in str(where)
    wheels = {version for name, version in stack.installed.items() if _CUDNN_WHEEL.fullmatch(name)}
    wheels |= {str(known.value("cudnn.wheel_version") or ABSENT)} - {ABSENT}
    if found in (None, ABSENT) or not wheels:
        return bool(found != ABSENT)
    return parse_version(str(found)).release[:3] in {parse_version(wheel).release[:3] for wheel in wheels}


def _outdated_facts(facts: Facts, known: FactResolver, stack: PackageSet, chosen: Mapping[str, str]) -> set[str]:
    stale = {key for key in facts if key.endswith((".selected", ".available"))}  # predictions of the old stack
    stale |= {key for key in facts if key.endswith(_OF_FILES) and key.rpartition(".")[0] in chosen}
    if any(name == TORCH or name.startswith("nvidia-") for name in chosen):  # other libraries to load next to
        stale |= {key for key in facts if key.endswith(_OF_LOADING) or key.startswith("binaries.")}
    wheels = {name for name in chosen if _CUDNN_WHEEL.fullmatch(name)}
    torch = TORCH in chosen
    if torch:
        stale |= {key for key in facts if key.startswith("torch.") and key != "torch.version"}
    if "+" in chosen.get(TORCH, ""):  # another index's build brings its own libraries; which is not all on record
        brought = (name for name in stack.installed if owner_of(name) == TORCH)
        stale |= {f"{name}.version" for name in brought if other_build(chosen[TORCH], name)}  # a stray one stays
    if torch or wheels:
        stale |= {version for version, path in _LOADED if _of_wheel(facts, known, stack, version, path)}
        stale.add("cudnn.copies")
    return stale


def _recounted(old: Facts, stale: set[str], brought: Any) -> Iterator[Fact]:
    """The copies of cuDNN once the wheel's is replaced, for torch, for TransformerEngine and in the list."""
    if brought in (None, ABSENT):
        return
    if "cudnn.te_version" in stale and old.value("cudnn.te_version") not in (None, ABSENT):
        yield fact("cudnn.te_version", brought, SOURCE)
    copies = old.value("cudnn.copies")
    if "cudnn.copies" in stale and isinstance(copies, tuple):
        listed = [
            f"{brought} {copy.split(' ', 1)[1]}" if "nvidia/cudnn/" in copy and " " in copy else copy for copy in copies
        ]
        yield fact("cudnn.copies", listed, SOURCE)


def _completed(rulebook: Rulebook, facts: Facts, stack: PackageSet, torch: str) -> Facts:
    """What the new torch brings, from its pins, where the rulebook's release data do not have it."""
    known, _ = know(rulebook, facts)
    brought = {key: value for key, value in brings(stack, torch).items() if known.value(key) in (None, ABSENT)}
    if "cudnn.version" in facts:  # a system copy shadows the wheel's and stays
        brought.pop("cudnn.version", None)
    return facts.with_(*(fact(key, value, f"what torch {torch} pins") for key, value in brought.items()))


def brings(stack: PackageSet, torch: str) -> dict[str, Any]:
    """Return the facts that a torch release determines, as far as its pins and the build tables say."""
    label = re.search(r"\+(cu\d+)", torch)
    parts = stack.bundled_packages(TORCH, torch)
    found: dict[str, Any] = {}
    if label is None:
        runtime = next((v for k, v in parts.items() if k in ("cuda-toolkit", *_RUNTIMES)), None)
        if runtime:
            found["torch.cuda"] = ".".join(runtime.split(".")[:2])
        cudnn = next((v for k, v in parts.items() if _CUDNN_WHEEL.fullmatch(k)), None)
        label_text = "cu" + found.get("torch.cuda", "").replace(".", "")
    else:
        label_text, cudnn = label[1], None
    build = stack.index.torch_builds.get(".".join(map(str, series(torch))) + f"+{label_text}")
    if build is not None:
        found["torch.cuda"], found["torch.cxx11_abi"] = build.cuda, bool(build.abi)
        found["torch.arch_list"] = build.archs
        if label is not None:
            cudnn = build.cudnn
            found[f"nvidia-cudnn-{label_text[:4]}.version"] = cudnn
    elif label is not None and (cuda := cuda_of_label(label_text)):
        found["torch.cuda"] = cuda
    if cudnn:
        found["cudnn.version"] = ".".join(cudnn.split(".")[:3])
    return found


_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13")
