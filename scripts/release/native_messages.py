"""The messages that compiled libraries of x86-64 Linux raise: file, function and text of each check of torch.

A failed check calls `torchCheckFail(function, file, line, message)`. The compiler loads each of these texts with one
instruction, `lea register, [rip + distance]`, right before the call: function and file next to each other, the message
before them, whole or in the pieces around its values. So the order of these instructions says which text belongs to
which place. Nothing is loaded or run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_LOAD = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]....", re.DOTALL)
_FILE = re.compile(r"(?:^|/)(?P<file>(?:aten|c10|torch|caffe2)/[\w./+-]+\.(?:cpp|cc|cuh?|hpp|h))$")
_FUNCTION = re.compile(r"[A-Za-z_~][\w~]{2,120}|operator\(\)")
_LONGEST = 600  # characters of a piece
_NEXT_TO = 40  # bytes between the instructions for function and file
_APART = 0x200  # bytes between two pieces of a message; between its last one and the place
_MOST = 12  # pieces of a message
_NO_TEXT = re.compile(r"[^\t\n\x20-\x7e]")
_INTERNAL = re.compile(r"INTERNAL ASSERT FAILED|ASSERT FAILED at")
_UNWORDED = re.compile(r"Expected (.{1,300}?) to be true, but got false\. .*", re.DOTALL)
HOLE = "\0\0"  # a value without a name, in a template


@dataclass(frozen=True)
class CompiledMessage:
    """One place that raises: file and function as the source names them, and the message as a template."""

    file: str
    function: str
    template: str

    @property
    def fixed(self) -> int:
        """Return how many characters of the message do not depend on values."""
        return len(self.template) - len(HOLE) * self.template.count(HOLE)


@dataclass(frozen=True)
class _Text:
    """One text that the code loads: where the instruction is, and the text."""

    at: int
    text: str


def compiled_messages(binary: bytes) -> Iterator[CompiledMessage]:
    """Yield the checks of a shared library, in the order of its code; nothing for another kind of file."""
    texts = list(_texts(binary))
    done = 0  # texts before this one belong to an earlier place
    for index, (first, second) in enumerate(pairwise(texts)):
        if index < done or second.at - first.at > _NEXT_TO:
            continue
        found = _place(first.text, second.text)
        if found is None:
            continue
        pieces = _pieces(texts[done:index], first.at)
        done = index + 2
        if pieces and not any(_INTERNAL.search(piece) for piece in pieces):
            yield CompiledMessage(*found, _worded(pieces))


def _worded(pieces: list[str]) -> str:
    """Return a template; of a check without words of its own, the condition."""
    return _UNWORDED.sub(r"Expected \1 to be true, but got false", HOLE.join(pieces))


def _place(first: str, second: str) -> tuple[str, str] | None:
    """Return file and function of two texts next to each other, in either order; None for other texts."""
    for file, function in ((first, second), (second, first)):
        found = _FILE.search(file)
        if found is not None and _FUNCTION.fullmatch(function):
            return found["file"], function
    return None


def _pieces(before: list[_Text], place: int) -> list[str]:
    """Return the pieces of the message that a place reports: the last texts before it, without a gap in the code."""
    pieces: list[str] = []
    for item in reversed(before):
        if place - item.at > _APART or len(pieces) == _MOST or _FILE.search(item.text):
            break
        place = item.at
        if len(item.text) > 1:
            pieces.append(item.text[:_LONGEST])
    return pieces[::-1]


def _texts(binary: bytes) -> Iterator[_Text]:
    """Yield the texts that the code of a library loads."""
    found = _sections(binary)
    if ".rodata" not in found or ".text" not in found:
        return
    base, start, size = found[".rodata"]
    constants = binary[start : start + size]
    address, start, size = found[".text"]
    code = binary[start : start + size]
    known: dict[int, str] = {}
    for load in _LOAD.finditer(code):
        target = address + load.end() + struct.unpack_from("<i", code, load.start() + 3)[0] - base
        if not 0 < target < len(constants):
            continue
        if target not in known:
            known[target] = _text_at(constants, target)
        if known[target]:
            yield _Text(load.start(), known[target])


def _text_at(constants: bytes, start: int) -> str:
    """Return the text at a place of the constants; empty where there is none."""
    raw = constants[start : start + _LONGEST].partition(b"\0")[0]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return "" if _NO_TEXT.search(text) else text


def _sections(binary: bytes) -> dict[str, tuple[int, int, int]]:
    """Return address, place and size of each section of a 64-bit ELF file; empty for another kind of file."""
    if binary[:5] != b"\x7fELF\x02":
        return {}
    table = struct.unpack_from("<Q", binary, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", binary, table + number * size) for number in range(count)]
    texts = rows[names][4]
    return {
        binary[texts + row[0] : binary.index(b"\0", texts + row[0])].decode(): (row[3], row[4], row[5]) for row in rows
    }
