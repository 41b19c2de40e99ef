"""Offer a newer release of the container image: its torch is the publisher's own build, which pip would replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from doctor.facts.vocabulary import parse_version
from doctor.model import ABSENT, TORCH, Remedy
from doctor.packages.relations import owner_of

from .plan import FixPlan, Pick
from .repair import UNNAMED, CandidateFix, FixSearch

_TRIED = 12  # newer releases
_WORDS = ("source", "certainty", "reported")


def newer_images(repair: FixSearch) -> Iterator[CandidateFix]:
    """Yield the next release of the image, on record, with which no error is left."""
    found = _image_of(repair)
    faults = repair.firing_rules()
    if found is None or not faults:
        return
    name, present, rows = found
    newer = sorted((tag for tag in rows if _number(tag) > _number(present)), key=_number)
    for tag in newer[:_TRIED]:
        held = {key: value for key, value in rows[tag].items() if key not in _WORDS}
        held |= {key: value for key, value in rows[tag].get("reported", {}).items() if key not in _WORDS}
        kept = {key: value for key, value in held.items() if key.endswith(".version") or key.startswith("torch.")}
        for part in repair.stack.installed:  # of one release with their owner
            if (owner := owner_of(part)) not in (None, TORCH) and f"{owner}.version" in kept:
                kept[f"{part}.version"] = kept[f"{owner}.version"]
        label = f"{tag}-py3" if name.endswith("nvidia/pytorch") else tag
        remedy = Remedy(call=f"use the image {name}:{label}, and install nothing over its torch", then=kept)
        plan = FixPlan().joined(Pick(faults[0].id, UNNAMED, remedy))
        outcome = repair.evaluate(plan, {}) if plan is not None else None
        if outcome is not None and not outcome.firing:
            yield outcome
            return


def own_build(repair: FixSearch) -> bool:
    """Whether the installed torch is no public release: of an image, or built from source. A nightly is replaceable."""
    torch = repair.stack.installed.get(TORCH, ABSENT)
    return torch != ABSENT and ".dev" not in torch and repair.base.known.value("torch.official_build") is False


def _image_of(repair: FixSearch) -> tuple[str, str, Mapping[str, Mapping[str, Any]]] | None:
    """Return the image's name, its release and all its releases, by the torch that is installed."""
    torch = repair.stack.installed.get(TORCH, ABSENT)
    if not own_build(repair):
        return None
    for name, rows in repair.rulebook.images.items():
        for tag, row in rows.items():
            built = str(row.get("torch.version", ABSENT))
            if built != ABSENT and "+" in built and torch.startswith(built):
                return name, tag, rows
    return None


def _number(tag: str) -> tuple[int, ...]:
    return parse_version(tag).release
