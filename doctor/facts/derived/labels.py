"""Derived facts of wheels whose local label names the torch that they were compiled with."""

from __future__ import annotations

import re

from doctor.facts.kinds import TEXT
from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT

from .registry import derived

#: Packages with compiled files whose wheels carry such a label, without a rule of their own.
_LABELLED = (
    "block-sparse-attn", "exllamav2", "exllamav3", "gptqmodel", "natten", "nunchaku", "sageattn3", "spas-sage-attn",
    "torch-cluster", "torch-scatter", "torch-sparse",
)  # fmt: skip
#: +torch2.8, +cu128torch2.8.0, +cu121.torch2.5.0, +cu128torch2.9.0andhigher
_DOTTED = re.compile(r"torch(?P<release>\d+\.\d+)[\d.]*(?P<later>andhigher)?")
#: +torch250cu124 (NATTEN, with the patch release), +pt24cu121 (PyG) and +cu128.torch27 (Cosmos, without)
_COMPACT = re.compile(
    r"torch(?P<with_patch>\d{3,4})(?=cu|$)|pt(?P<minor_only>\d{2,3})(?=cu|cpu|$)|torch(?P<short>\d{2})(?=[.c]|$)"
)


def _named(label: str) -> tuple[tuple[int, ...], bool] | None:
    """Return the (major, minor) release of torch that a label names, and whether later ones fit too."""
    dotted = _DOTTED.search(label)
    if dotted:
        return parse_version(dotted["release"]).release[:2], dotted["later"] is not None
    compact = _COMPACT.search(label)
    if compact is None:
        return None
    digits = compact["minor_only"] or compact["short"] or compact["with_patch"][:-1]
    return (int(digits[0]), int(digits[1:])), False


def label_fits(version: str, torch: str) -> bool:
    """Return whether torch is of the minor release that the label of `version` names; true without a label."""
    named = _named(version.partition("+")[2])
    if named is None or torch == ABSENT:
        return True
    installed = parse_version(torch).release[:2]
    return installed >= named[0] if named[1] else installed == named[0]


@derived(
    "labels.other_torch", TEXT,
    "compiled packages whose label names another torch than the installed one",
    needs=("torch.version",), uses=tuple(f"{name}.version" for name in _LABELLED),
)  # fmt: skip
def _other_torch(torch: str, *versions: str | None) -> str:
    wrong = [
        f"{name} {version}"
        for name, version in zip(_LABELLED, versions, strict=True)
        if version not in (None, ABSENT) and not label_fits(str(version), torch)
    ]
    return ", ".join(wrong) or ABSENT
