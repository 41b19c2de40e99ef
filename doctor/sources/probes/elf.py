"""Read the dynamic section of a shared library: the libraries it needs, and where the loader searches."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import IO

from doctor.util.reading import open_regular

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_MAX_TABLE = 1 << 20
_MAX_HEADERS = 512


class NotElf(ValueError):
    """The file is not an ELF file that this module can read."""


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section of an ELF file, with `$ORIGIN` replaced in its run paths."""

    needed: tuple[str, ...]
    soname: str | None
    rpath: tuple[str, ...]  # DT_RPATH: searched before LD_LIBRARY_PATH, ignored together with a DT_RUNPATH
    runpath: tuple[str, ...]  # DT_RUNPATH: searched after it


@lru_cache(maxsize=256)
def read_dynamic(path: str) -> Dynamic:
    """Return the dynamic section of `path`; raise NotElf or OSError where it cannot be read."""
    with open_regular(path) as stream:
        head, order = _head(stream, path)
        (table,) = struct.unpack_from(order + "Q", head, 32)
        size, count = struct.unpack_from(order + "HH", head, 54)
        if size < 56 or not 0 < count <= _MAX_HEADERS:
            raise NotElf(f"`{path}`: invalid program headers")
        headers = _at(stream, table, size * count)
        loads: list[tuple[int, int, int]] = []
        dynamic: bytes | None = None
        for index in range(count):
            kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", headers, index * size)
            if kind == _PT_LOAD:
                loads.append((address, offset, length))
            elif kind == _PT_DYNAMIC:
                dynamic = _at(stream, offset, min(length, _MAX_TABLE))
        if dynamic is None:
            return Dynamic((), None, (), ())
        entries = []
        for position in range(0, len(dynamic) - 15, 16):
            tag, value = struct.unpack_from(order + "QQ", dynamic, position)
            if tag == 0:
                break
            entries.append((tag, value))
        strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
        if strings is None:
            return Dynamic((), None, (), ())
        start = next((strings - at + offset for at, offset, length in loads if at <= strings < at + length), None)
        if start is None:
            raise NotElf(f"`{path}`: its string table is outside the file")
        texts = {
            tag: [_text(stream, start + value) for found, value in entries if found == tag]
            for tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)
        }
    # The loader uses the name it opened: `$ORIGIN` is the folder of a link (conda, uv), not of its target.
    origin = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    return Dynamic(
        tuple(texts[_DT_NEEDED]),
        texts[_DT_SONAME][0] if texts[_DT_SONAME] else None,
        _paths(texts[_DT_RPATH], origin),
        _paths(texts[_DT_RUNPATH], origin),
    )


def section(path: str, name: str) -> tuple[int, int] | None:
    """Return offset and size of a named section, or None; raise NotElf or OSError where it cannot be read."""
    with open_regular(path) as stream:
        head, order = _head(stream, path)
        (table,) = struct.unpack_from(order + "Q", head, 40)
        size, count, names_index = struct.unpack_from(order + "HHH", head, 58)
        if size < 64 or names_index >= count:
            return None
        headers = _at(stream, table, size * count)
        fields = [struct.unpack_from(order + "IIQQQQ", headers, index * size) for index in range(count)]
        *_, names_offset, names_size = fields[names_index]
        names = _at(stream, names_offset, min(names_size, _MAX_TABLE))
        for label, _, _, _, offset, length in fields:
            if names[label : label + len(name) + 1] == name.encode() + b"\0":
                return offset, length
    return None


def _head(stream: IO[bytes], path: str) -> tuple[bytes, str]:
    head = stream.read(64)
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] != 2 or head[5] not in (1, 2):
        raise NotElf(f"`{path}` is not a 64-bit ELF file")
    return head, "<" if head[5] == 1 else ">"


def _at(stream: IO[bytes], offset: int, length: int) -> bytes:
    if offset >= 1 << 62:
        raise NotElf("an offset beyond the end of the file")
    stream.seek(offset)
    data = stream.read(length)
    if len(data) < length:
        raise NotElf("the file is cut off")
    return data


def _text(stream: IO[bytes], offset: int) -> str:
    if offset >= 1 << 62:
        raise NotElf("an offset beyond the end of the file")
    stream.seek(offset)
    data = stream.read(16384)
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def _paths(texts: list[str], origin: str) -> tuple[str, ...]:
    paths = (part for text in texts for part in text.split(":") if part)
    return tuple(
        os.path.normpath(
            part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        )  # realpath would leave the wheel's folder
        for part in paths
    )
