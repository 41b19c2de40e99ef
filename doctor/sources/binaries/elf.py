"""Read 64-bit ELF files as the dynamic loader does: from the program headers, through a memory map.

Only pages that are looked at are read, so that a library of one gigabyte costs a few milliseconds. Every offset of the
file is checked against its size: a damaged file raises `BadElf` with one line, whatever its tables contain.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import TracebackType

from doctor.util.open_flags import BINARY, CLOSE_ON_EXEC, NO_WAIT

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_ET_DYN, _ET_EXEC = 3, 2
_MAX_HEADERS = 4096
_MAX_DYNAMIC = 1 << 20
_MAX_STRING = 1 << 14
_MAX_SYMBOLS = 1 << 22
_MAX_VERSIONS = 1 << 14
_MAX_CHAIN = 1 << 16
_MAX_RELOCATIONS = 1 << 26  # bytes
_RELOCATION = 24  # bytes: address, kind with the symbol's number, addend
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_TAGS = {
    1: "needed", 4: "hash", 5: "strtab", 6: "symtab", 10: "strsz", 14: "soname", 15: "rpath", 29: "runpath",
    0x6FFFFFFB: "flags_1", 0x6FFFFEF5: "gnu_hash", 0x6FFFFFF0: "versym", 0x6FFFFFFC: "verdef", 0x6FFFFFFD: "verdefnum",
    0x6FFFFFFE: "verneed", 0x6FFFFFFF: "verneednum", 2: "pltrelsz", 7: "rela", 8: "relasz", 23: "jmprel",
}  # fmt: skip
#: e_machine of the ELF header -> `platform.machine`.
MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
_LOCAL, _GLOBAL, _WEAK, _UNIQUE = 0, 1, 2, 10
_NO_DEFAULT_FOLDERS = 0x800  # DF_1_NODEFLIB
_HIDDEN = 0x8000  # of a version index: only a reference that names the version may bind


class BadElf(ValueError):
    """The file is not an ELF file that the loader could map; the text is one line."""


@dataclass(frozen=True)
class Reference:
    """One symbol that a library leaves undefined, with the version and the library that it names."""

    name: str
    version: str | None
    library: str | None  # the file name in the version table, as `libc.so.6`
    weak: bool


@dataclass(frozen=True)
class Summary:
    """What the loader needs to know about a file before it looks up symbols."""

    machine: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: str  # DT_RPATH as written, empty where a DT_RUNPATH makes the loader ignore it
    runpath: str  # DT_RUNPATH as written
    requires: tuple[tuple[str, str, bool], ...]  # library, version, weak: the version tables it was linked against
    provides: tuple[str, ...]  # versions that it defines
    interpreter: str = ""  # of a program: the loader that starts it
    no_default_folders: bool = False


class ElfFile:
    """One mapped file. Use it as a context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | BINARY | NO_WAIT | CLOSE_ON_EXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BadElf("it is no regular file")
            self.size = status.st_size
            if self.size < 64:
                raise BadElf("it is empty" if not self.size else f"it has only {self.size} bytes")
            self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        try:
            self._read_headers()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._map.close()

    def _read_headers(self) -> None:
        head = self._map[:64]
        if head[:4] != b"\x7fELF":
            raise BadElf("it is no ELF file")
        if head[4] != 2:
            raise BadElf("it is a 32-bit ELF file" if head[4] == 1 else "its ELF class is invalid")
        if head[5] != 1:
            raise BadElf("it is a big-endian ELF file")
        kind, machine = struct.unpack_from("<HH", head, 16)
        if kind not in (_ET_DYN, _ET_EXEC):
            raise BadElf("it is an ELF file, but neither a library nor a program")
        self.machine = MACHINES.get(machine, f"machine {machine}")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        if size != 56 or not 0 < count <= _MAX_HEADERS:
            raise BadElf("its program headers are invalid")
        headers = self.read(table, size * count)
        self._loads: list[tuple[int, int, int]] = []  # address, offset, size in the file
        self._dynamic: tuple[int, int] | None = None
        self.interpreter = ""
        for kind, _, offset, address, _, length in (
            struct.unpack_from("<IIQQQQ", headers, index * 56) for index in range(count)
        ):
            if kind == _PT_LOAD:
                if offset + length > self.size:
                    raise BadElf(f"it is truncated: {self.size} of at least {offset + length} bytes")
                self._loads.append((address, offset, length))
            elif kind == _PT_DYNAMIC:
                self._dynamic = (offset, length)
            elif kind == _PT_INTERP:
                self.interpreter = self.read(offset, min(length, _MAX_STRING)).rstrip(b"\0").decode("utf-8", "replace")

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; BadElf where they are not in it."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise BadElf("a table is outside the file")
        return self._map[offset : offset + length]

    def at(self, address: int) -> int:
        """Return the offset in the file of a virtual address."""
        for start, offset, length in self._loads:
            if start <= address < start + length:
                return address - start + offset
        raise BadElf("a table is at an address outside the file")

    @cached_property
    def entries(self) -> tuple[tuple[str, int], ...]:
        """The entries of the dynamic section by their names; empty for a static program."""
        if self._dynamic is None:
            return ()
        offset, length = self._dynamic
        data = self.read(offset, min(length, _MAX_DYNAMIC))
        found = []
        for tag, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
            if tag == 0:
                break
            if name := _TAGS.get(tag):
                found.append((name, value))
        return tuple(found)

    @cached_property
    def _tags(self) -> dict[str, int]:
        return dict(reversed(self.entries))  # the first of each counts

    @cached_property
    def _strings(self) -> tuple[int, int]:
        """Offset and end of the string table."""
        if "strtab" not in self._tags:
            raise BadElf("it has symbols without a string table")
        start = self.at(self._tags["strtab"])
        return start, min(start + self._tags.get("strsz", self.size), self.size)

    def text(self, index: int) -> str:
        """Return a text of the dynamic string table."""
        start, end = self._strings
        begin = start + index
        if begin >= end:
            raise BadElf("a name is outside its string table")
        stop = self._map.find(b"\0", begin, min(end, begin + _MAX_STRING))
        if stop < 0:
            raise BadElf("a name has no end")
        return self._map[begin:stop].decode("utf-8", "replace")

    def summary(self) -> Summary:
        """Return names, search paths and version tables."""
        if "strtab" not in self._tags:
            return Summary(self.machine, None, (), "", "", (), ())
        texts: dict[str, list[str]] = {"needed": [], "soname": [], "rpath": [], "runpath": []}
        for name, value in self.entries:
            if name in texts:
                texts[name].append(self.text(value))
        runpath = ":".join(texts["runpath"])
        return Summary(
            self.machine,
            texts["soname"][0] if texts["soname"] else None,
            tuple(texts["needed"]),
            "" if "runpath" in self._tags else ":".join(texts["rpath"]),
            runpath,
            tuple((library, version, weak) for library, version, weak, _ in self._required.values()),
            tuple(dict.fromkeys(self._defined_versions.values())),
            self.interpreter,
            bool(self._tags.get("flags_1", 0) & _NO_DEFAULT_FOLDERS),
        )

    @cached_property
    def _required(self) -> dict[int, tuple[str, str, bool, int]]:
        """Index of a version -> library, version, weak, index."""
        found: dict[int, tuple[str, str, bool, int]] = {}
        if "verneed" not in self._tags:
            return found
        offset = self.at(self._tags["verneed"])
        left = _MAX_VERSIONS  # of all libraries together: a damaged table may lead in circles
        for _ in range(min(self._tags.get("verneednum", 0), _MAX_VERSIONS)):
            _, count, file, first, following = struct.unpack("<HHIII", self.read(offset, 16))
            library = self.text(file)
            inner = offset + first
            for _ in range(min(count, left)):
                left -= 1
                _, flags, index, name, onward = struct.unpack("<IHHII", self.read(inner, 16))
                found[index & 0x7FFF] = (library, self.text(name), bool(flags & 2), index & 0x7FFF)
                if not onward:
                    break
                inner += onward
            if not following or not left:
                break
            offset += following
        return found

    @cached_property
    def _defined_versions(self) -> dict[int, str]:
        """Index of a version -> its name, without the base version, which is the file's own name."""
        found: dict[int, str] = {}
        if "verdef" not in self._tags:
            return found
        offset = self.at(self._tags["verdef"])
        for _ in range(min(self._tags.get("verdefnum", 0), _MAX_VERSIONS)):
            _, flags, index, count, _, first, following = struct.unpack("<HHHHIII", self.read(offset, 20))
            if count:
                (name,) = struct.unpack("<I", self.read(offset + first, 4))
                if not flags & 1:
                    found[index & 0x7FFF] = self.text(name)
            if not following:
                break
            offset += following
        return found

    @cached_property
    def _table(self) -> HashTable | None:
        if "symtab" not in self._tags:
            return None
        if "gnu_hash" in self._tags:
            return GnuHash(self, self.at(self._tags["gnu_hash"]))
        if "hash" in self._tags:
            return SysvHash(self, self.at(self._tags["hash"]))
        return None

    @cached_property
    def _symbols(self) -> int:
        return self.at(self._tags["symtab"])

    @cached_property
    def _versyms(self) -> int | None:
        return self.at(self._tags["versym"]) if "versym" in self._tags else None

    def _symbol(self, index: int) -> tuple[int, int, int]:
        """Return name, info and section of a symbol."""
        offset = self._symbols + index * 24
        if offset + 24 > self.size:
            raise BadElf("a symbol is outside the file")
        name, info, _, section, _, _ = _SYMBOL.unpack_from(self._map, offset)
        return name, info, section

    def undefined(self) -> Iterator[Reference]:
        """Yield the symbols that the loader has to bind to another library."""
        if self._table is None:
            return
        start, end = self._strings
        count = min(self._table.undefined_end(), _MAX_SYMBOLS)
        data = self.read(self._symbols, count * 24)
        versions = b"" if self._versyms is None else self.read(self._versyms, count * 2)
        for index, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(data)):
            bind = info >> 4
            if section or not name or bind == _LOCAL or start + name >= end:
                continue
            library = version = None
            if versions:
                number = int.from_bytes(versions[index * 2 : index * 2 + 2], "little") & 0x7FFF
                if number in self._required:
                    library, version, _, _ = self._required[number]
            yield Reference(self.text(name), version, library, bind == _WEAK)

    def looked_up(self, names: Iterable[str]) -> set[str]:
        """Return those of its undefined symbols that a relocation uses: the loader looks up no others.

        All of them where the file has no relocations with symbols, or too many to be read.
        """
        wanted = set(names)
        used: set[int] = set()
        for table, size in (("rela", "relasz"), ("jmprel", "pltrelsz")):
            length = self._tags.get(size, 0)
            if length > _MAX_RELOCATIONS:
                return wanted
            if table in self._tags:
                data = self.read(self.at(self._tags[table]), length // _RELOCATION * _RELOCATION)
                used.update(info >> 32 for info in memoryview(data).cast("Q")[1::3].tolist())
        if not used - {0}:
            return wanted
        numbers = range(min(self._table.undefined_end(), _MAX_SYMBOLS)) if self._table is not None else ()
        named = ((number, self._symbol(number)) for number in numbers)
        found = {self.text(name): number in used for number, (name, _, section) in named if name and not section}
        return {name for name in wanted if found.get(name, True)}

    def exported(self) -> Iterator[str]:
        """Yield the names of all symbols that other libraries can bind to; reads the whole table."""
        if self._table is None:
            return
        count = min(self._table.end(), _MAX_SYMBOLS)
        data = self.read(self._symbols, count * 24)
        start, _ = self._strings
        for name, info, other, section, _, _ in _SYMBOL.iter_unpack(data):
            if section and name and info >> 4 != _LOCAL and other & 3 in (0, 3):
                stop = self._map.find(b"\0", start + name)
                yield self._map[start + name : stop].decode("utf-8", "replace")

    def defines(self, name: str, version: str | None = None) -> bool:
        """Return whether a reference to this symbol, with or without a version, binds to this file."""
        table = self._table
        if table is None:
            return False
        wanted = name.encode("utf-8", "surrogateescape") + b"\0"
        start, end = self._strings
        for index in table.candidates(name):
            text, info, section = self._symbol(index)
            if not section or info >> 4 == _LOCAL or start + text + len(wanted) > end:
                continue
            if self._map[start + text : start + text + len(wanted)] == wanted and self._fits(index, version):
                return True
        return False

    def _fits(self, index: int, version: str | None) -> bool:
        if self._versyms is None:
            return True
        number = int.from_bytes(self.read(self._versyms + index * 2, 2), "little")
        if version is None:
            return True
        own = self._defined_versions.get(number & 0x7FFF)
        return own == version or (own is None and not number & _HIDDEN)  # the base version serves any

    def section(self, name: str) -> tuple[int, int] | None:
        """Return offset and size of a named section, None where the file has none or was stripped of its headers."""
        (table,) = struct.unpack_from("<Q", self._map, 40)
        size, count, names_index = struct.unpack_from("<HHH", self._map, 58)
        if size != 64 or names_index >= count:
            return None
        headers = self.read(table, size * count)
        fields = list(struct.iter_unpack("<IIQQQQIIQQ", headers))
        names_offset, names_size = fields[names_index][4:6]
        names = self.read(names_offset, min(names_size, _MAX_DYNAMIC))
        for label, _, _, _, offset, length, *_ in fields:
            if names[label : label + len(name) + 1] == name.encode() + b"\0":
                return offset, length
        return None

    def find(self, pattern: bytes, start: int, end: int) -> int:
        """Return the offset of a text within a part of the file, or -1."""
        return self._map.find(pattern, start, min(end, self.size))


class GnuHash:
    """The hash table DT_GNU_HASH: a Bloom filter, buckets, and the defined symbols sorted by bucket."""

    def __init__(self, elf: ElfFile, offset: int) -> None:
        self._elf = elf
        head: tuple[int, int, int, int] = struct.unpack("<IIII", elf.read(offset, 16))
        self._buckets, self._first, self._words, self._shift = head
        if not self._buckets or not self._words:
            raise BadElf("its symbol hash table is invalid")
        self._filter = offset + 16
        self._bucket_at = self._filter + self._words * 8
        self._chain_at = self._bucket_at + self._buckets * 4
        if self._chain_at > elf.size:
            raise BadElf("its symbol hash table is outside the file")

    def undefined_end(self) -> int:
        """Return the number of the first symbol that is defined."""
        return self._first

    def end(self) -> int:
        """Return the number of symbols."""
        buckets = self._elf.read(self._bucket_at, self._buckets * 4)
        last = max((number for (number,) in struct.iter_unpack("<I", buckets)), default=0)
        if last < self._first:
            return self._first
        for index in range(last, last + _MAX_CHAIN):
            if self._word(self._chain_at + (index - self._first) * 4) & 1:
                return index + 1
        raise BadElf("its symbol hash table has no end")

    def candidates(self, name: str) -> Iterator[int]:
        """Yield the symbols whose hash is that of the name."""
        value = gnu_hash(name)
        offset = self._filter + (value // 64 % self._words) * 8
        word = int.from_bytes(self._elf.read(offset, 8), "little")
        if not (word >> (value & 63)) & (word >> ((value >> self._shift) & 63)) & 1:
            return
        index = self._word(self._bucket_at + value % self._buckets * 4)
        if index < self._first:
            return
        for number in range(index, index + _MAX_CHAIN):
            found = self._word(self._chain_at + (number - self._first) * 4)
            if found | 1 == value | 1:
                yield number
            if found & 1:
                return

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._elf.read(offset, 4), "little")


class SysvHash:
    """The older hash table DT_HASH, which also counts the symbols."""

    def __init__(self, elf: ElfFile, offset: int) -> None:
        self._elf = elf
        head: tuple[int, int] = struct.unpack("<II", elf.read(offset, 8))
        self._buckets, self._count = head
        if not self._buckets:
            raise BadElf("its symbol hash table is invalid")
        self._bucket_at = offset + 8
        self._chain_at = self._bucket_at + self._buckets * 4

    def undefined_end(self) -> int:
        """Return the number of symbols: undefined ones are anywhere among them."""
        return self._count

    def end(self) -> int:
        """Return the number of symbols."""
        return self._count

    def candidates(self, name: str) -> Iterator[int]:
        """Yield the symbols in the name's bucket."""
        index = self._word(self._bucket_at + _sysv_hash(name) % self._buckets * 4)
        for _ in range(_MAX_CHAIN):
            if not index or index >= self._count:
                return
            yield index
            index = self._word(self._chain_at + index * 4)

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._elf.read(offset, 4), "little")


HashTable = GnuHash | SysvHash


@lru_cache(maxsize=1 << 16)
def gnu_hash(name: str) -> int:
    """Return the hash of a symbol's name in DT_GNU_HASH."""
    value = 5381
    for byte in name.encode("utf-8", "surrogateescape"):
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=1 << 12)
def _sysv_hash(name: str) -> int:
    value = 0
    for byte in name.encode("utf-8", "surrogateescape"):
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def expand(path: str, file: str, lib: str = "lib64", platform: str = "x86_64") -> tuple[str, ...]:
    """Return the folders of a run path, with `$ORIGIN` as the folder of the name under which the file was opened.

    `..` is kept: behind a linked folder, it leads to the parent of the link's target.
    """
    origin = os.path.dirname(file if file.startswith("/") else f"{os.getcwd()}/{file}")  # noqa: PTH109, PTH120
    folders = []
    for part in path.split(":"):
        for name, value in (("ORIGIN", origin), ("LIB", lib), ("PLATFORM", platform)):
            part = part.replace(f"${{{name}}}", value).replace(f"${name}", value)
        folders.append(part.rstrip("/") or ("/" if part else "."))
    return tuple(folders)
