"""Files of one folder that contradict one another: which of them an install would use, and which is left out.

That is no broken project: a list was frozen long ago, or an image begins with a torch that the project does not use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.util.yaml_text import read_text

from .base import LEFT_OUT, MAX_BYTES, Discovered, Manifest
from .readers import reader_of
from .resolve import resolve


def settled(found: Sequence[Discovered], installs: Sequence[Discovered]) -> list[Discovered]:
    """The same files, those left out that contradict the ones which an install of the project uses.

    `found` has those that count as one environment, an image first; `installs` are those that the image installs.
    """
    sheets = {item.path: sheet for item in found if (sheet := _sheet(item)) is not None}
    image = next((item for item in found if item.kind == "dockerfile" and item.path in sheets), None)
    seen = set(sheets[image.path].included) if image else set()
    apart = (item for item in found if item is not image and item.path in sheets)
    told = {item.path: item for item in found}
    kept: list[Discovered] = []
    for item in apart:  # the project's own file first
        if str(item.path.resolve()) in seen:
            continue
        if kept and (clash := _clash([sheets[one.path] for one in kept], sheets[item.path])):
            first = kept[0].path.name
            why = f"it is another environment than `{first}`, which installing the project uses: {clash}"
            told[item.path] = replace(item, role=LEFT_OUT, why=f"{why}; name it to have it judged")
        else:
            kept.append(item)
    if image is None:
        return list(told.values())
    for item in kept:
        clash = _clash([sheets[image.path]], sheets[item.path])
        if clash and item in installs:
            why = f"how it installs `{item.path.name}` was not read, and what it held before gives way: {clash}"
            told[image.path] = replace(image, role=LEFT_OUT, why=why)
            break
        if clash:
            told[item.path] = replace(item, role=LEFT_OUT, why=f"`{image.path.name}` does not install it, and {clash}")
    return list(told.values())


def _clash(before: Sequence[Manifest], new: Manifest) -> str | None:
    """How a file contradicts others; not what one of them says wrong by itself."""
    alone = {message for sheets in (before, [new]) for message in _faults(sheets)}
    return next((message for message in _faults([*before, new]) if message not in alone), None)


def _faults(sheets: Sequence[Manifest]) -> Iterator[str]:
    return (fault.message for fault in resolve(sheets, Facts()).faults)


def _sheet(item: Discovered) -> Manifest | None:
    """What a file says; None for one that is told when it is read in earnest."""
    try:
        text = read_text(item.path, "declared environment", MAX_BYTES)
        sheet = reader_of(item.kind)(item.path, text)
    except DoctorError:
        return None
    return sheet
