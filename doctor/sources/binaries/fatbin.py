"""Which GPU architectures a library has code for: the headers in its `.nv_fatbin` section.

The section holds fat binaries one after another; `__nv_relfatbin` holds input of the linker, which nothing runs. Each
fat binary begins with a magic number and holds entries of machine code (SASS) or PTX, whose headers name the
architecture. The code itself, compressed or not, is not read.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .elf import BadElf, ElfFile

SECTION = ".nv_fatbin"
_MAGIC = 0xBA55ED50
_PTX, _SASS = 1, 2
_ARCH_AT, _FLAGS_AT = 28, 40
#: Flags of an entry, read off files of nvcc 13.0 and compared with `cuobjdump`.
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 1 << 20, 1 << 21
_LZ4, _ZSTD = 1 << 13, 1 << 15
_MAX_ENTRIES = 1 << 20


@dataclass(frozen=True)
class GpuCode:
    """The architectures of a library, each as `80`, `90a`, `100f`, with the number of entries."""

    sass: tuple[tuple[str, int], ...] = ()
    ptx: tuple[tuple[str, int], ...] = ()
    compressed: int = 0

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures as torch names them: 8.0, 9.0a, 9.0+PTX."""
        return (*(_dotted(arch) for arch, _ in self.sass), *(_dotted(arch) + "+PTX" for arch, _ in self.ptx))


def _dotted(arch: str) -> str:
    digits = arch.rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}{arch[len(digits) :]}"


def read_gpu_code(elf: ElfFile) -> GpuCode:
    """Return the architectures of a mapped library; empty for one without GPU code."""
    sass: Counter[str] = Counter()
    ptx: Counter[str] = Counter()
    compressed = 0
    found = elf.section(SECTION)
    if found is None:
        return GpuCode()
    start, length = found
    if start + length > elf.size:
        raise BadElf("its GPU code is outside the file")
    position, end = start, start + length
    for _ in range(_MAX_ENTRIES):
        position = elf.find(_MAGIC.to_bytes(4, "little"), position, end)
        if position < 0 or position + 16 > end:
            break
        _, _, head, size = struct.unpack("<IHHQ", elf.read(position, 16))
        if head != 16 or size > end - position - head:
            position += 4
            continue
        for kind, arch, squeezed in _entries(elf, position + head, position + head + size):
            (ptx if kind == _PTX else sass)[arch] += 1
            compressed += squeezed
        position += head + size
    return GpuCode(_sorted(sass), _sorted(ptx), compressed)


def _entries(elf: ElfFile, entry: int, end: int) -> Iterator[tuple[int, str, bool]]:
    """Yield kind, architecture and whether it is compressed, of each entry of one fat binary."""
    while entry + 64 <= end:
        kind, _, head, size = struct.unpack("<HHIQ", elf.read(entry, 16))
        if head < 64 or head > 1 << 16 or size > end - entry:
            return
        (number,) = struct.unpack("<I", elf.read(entry + _ARCH_AT, 4))
        (flags,) = struct.unpack("<Q", elf.read(entry + _FLAGS_AT, 8))
        letter = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
        if 20 <= number < 1000 and kind in (_PTX, _SASS):
            yield kind, f"{number}{letter}", bool(flags & (_LZ4 | _ZSTD))
        entry += head + size


def _sorted(found: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(found.items(), key=lambda item: (int(item[0].rstrip("af")), item[0])))
