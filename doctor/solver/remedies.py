"""Adapt a rule's remedies to the target: another build of the same release, and settings in the job's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from doctor.facts.libraries.frameworks import caller_named
from doctor.model import ABSENT, TORCH, Remedy
from doctor.rulebook.resolver import FactResolver

from .cost import series
from .effects import brings
from .environment import PackageSet

_INDEX = "https://download.pytorch.org/whl/"


def builds_of(stack: PackageSet, remedy: Remedy) -> Iterator[Remedy]:
    """Yield a remedy for each build of the installed torch release on record, the one nearest to its default first.

    Whether the driver serves a build is not decided here: the rulebook judges each one.
    """
    package = remedy.build or ""
    present = stack.installed.get(package, ABSENT)
    if package != TORCH or present == ABSENT:
        return
    public, _, label = present.partition("+")
    line = ".".join(map(str, series(public)))
    labels = {key.partition("+")[2]: build.cuda for key, build in stack.index.torch_builds.items()
              if key.partition("+")[0] == line}  # fmt: skip
    default = str(brings(stack, public).get("torch.cuda", ""))
    for name in sorted(labels, key=lambda name: (labels[name] != default, -_number(name))):
        if name != label:
            note = f"the CUDA {labels[name]} build of the same release"
            yield remedy._replace(build=None, require={**remedy.require, package: f"=={public}+{name}"},
                index_url=_INDEX + name, note=remedy.note or note,
            )  # fmt: skip


def _number(label: str) -> int:
    digits = re.sub(r"\D", "", label)
    return int(digits) if digits else 0


def in_terms_of_job(known: FactResolver, remedy: Remedy) -> Remedy:
    """Return the remedy with `workload.framework` replaced by the setting that a user of this framework has."""
    wanted = remedy.config.get("workload.framework")
    implementation = caller_named(wanted).implementation
    if not implementation or not caller_named(known.value("workload.framework")).takes_attn_implementation:
        return remedy
    others = {key: value for key, value in remedy.config.items() if key != "workload.framework"}
    return remedy._replace(config={**others, "workload.attn_implementation": implementation})
