"""What a system's own loader brings: its default folders, its hardware subfolders, and ldconfig's cache.

The default folders are compiled into the loader, and differ by distribution: they are read from its file. Subfolders
follow `_dl_important_hwcaps` of glibc: `glibc-hwcaps/x86-64-v3` from 2.33 on, `tls/haswell/…` up to 2.36.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from doctor.util.ld_cache import ld_cache_entries, read_ld_cache, text_at
from doctor.util.reading import open_regular

_FOLDERS = re.compile(rb"(?:/[\w.+-]+(?:/[\w.+-]+)*/\0){2,}")
_RELEASE = re.compile(rb"release version (\d+)\.(\d+)")
_MAX_LOADER = 4 << 20
_EXTENSION_MAGIC = 0xEAA42174
_FLAGS = {"x86_64": 0x303, "aarch64": 0xA03}  # of cache entries for libraries of a machine
_NAMED_HWCAP = 1 << 62
#: CPU flags that each level needs on top of the one before (x86-64 psABI).
_LEVELS = (
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)
_HASWELL = {"avx2", "bmi1", "bmi2", "abm", "movbe", "popcnt"}
_LEGACY_BITS = {"x86_64": 1 << 1, "avx512_1": 1 << 2, "haswell": 1 << 50, "tls": 1 << 63}
_AVX512_1 = {"avx512cd", "avx512bw", "avx512dq", "avx512vl"}
_FALLBACK = ("/lib/{machine}-linux-gnu", "/usr/lib/{machine}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclass(frozen=True)
class System:
    """What the loader of a system knows without any file of the job."""

    folders: tuple[str, ...]  # searched last
    lib: str  # the value of $LIB
    platform: str  # the value of $PLATFORM
    subfolders: tuple[str, ...] = ()  # of each folder, searched before it
    legacy: int = 0  # bits of the CPU in cache entries, up to glibc 2.36


def read_system(loader: str, machine: str, cpuinfo: str = "/proc/cpuinfo") -> System:
    """Return what a loader's file and the CPU determine; common folders where the file cannot be read."""
    try:
        with open_regular(loader) as stream:
            data = stream.read(_MAX_LOADER)
    except OSError:
        data = b""
    found = _FOLDERS.search(data)
    if found is None:
        return System(tuple(folder.format(machine=machine) for folder in _FALLBACK), "lib64", machine)
    folders = tuple(part.decode().rstrip("/") for part in found[0].split(b"\0") if part)
    version = _RELEASE.search(data)
    release = (int(version[1]), int(version[2])) if version else (2, 0)  # it names its release from 2.33 on
    vendor, flags = _cpu(cpuinfo) if machine == "x86_64" else ("", frozenset())
    platform = "haswell" if vendor == "GenuineIntel" and flags >= _HASWELL else machine
    named = _named_subfolders(release, flags)
    words = _legacy_words(platform, vendor, flags) if flags and release < (2, 37) else []
    chosen = (itertools.compress(words, bits) for bits in itertools.product((1, 0), repeat=len(words)))
    legacy = tuple(path for path in ("/".join(part) for part in chosen) if path)
    bits = sum({_LEGACY_BITS[word] for word in words if word in _LEGACY_BITS})
    return System(folders, folders[0].lstrip("/"), platform, (*named, *legacy), bits)


def _cpu(path: str) -> tuple[str, frozenset[str]]:
    """Return vendor and flags of the CPU."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            text = stream.read(1 << 14)
    except OSError:
        return "", frozenset()
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)$", text, re.MULTILINE)
    return (vendor[1] if vendor else ""), frozenset(flags[1].split()) if flags else frozenset()


def _named_subfolders(release: tuple[int, int], flags: frozenset[str]) -> tuple[str, ...]:
    if release < (2, 33):
        return ()
    levels = itertools.takewhile(lambda level: flags >= level[1], _LEVELS)
    return tuple(f"glibc-hwcaps/{name}" for name, _ in levels)[::-1]


def _legacy_words(platform: str, vendor: str, flags: frozenset[str]) -> list[str]:
    """Return the folder names that are combined, up to glibc 2.36."""
    has_avx512 = vendor == "GenuineIntel" and flags >= _AVX512_1
    return ["tls", platform, *(["avx512_1"] if has_avx512 else []), "x86_64"]


def loader_cache(path: str, machine: str, subfolders: Iterable[str] = (), legacy: int = 0) -> dict[str, str]:
    """Return library name -> file from ldconfig's cache, without running ldconfig; empty without a cache.

    Of several files of one library, the one in the best subfolder counts.
    """
    body = read_ld_cache(path)
    names = [name.removeprefix("glibc-hwcaps/") for name in subfolders if name.startswith("glibc-hwcaps/")]
    ranks = {name: rank for rank, name in enumerate(names)}
    capabilities = _named(body)
    best: dict[str, tuple[int, str]] = {}
    for entry in ld_cache_entries(body):
        flags, key, value, _, processors = struct.unpack("<IIIIQ", entry)
        rank = len(ranks)
        if processors & _NAMED_HWCAP:
            rank = ranks.get(capabilities.get(processors & 0xFFFFFFFF, ""), -1)
        elif processors & ~legacy:  # for other processors; of the rest, the first counts
            continue
        if rank < 0 or flags != _FLAGS.get(machine, flags):
            continue
        name, target = text_at(body, key), text_at(body, value)
        if name and (name not in best or rank < best[name][0]):
            best[name] = rank, target
    return {name: target for name, (_, target) in best.items()}


def _named(body: bytes) -> dict[int, str]:
    """Return the names of hardware subfolders by their numbers, from the cache's extensions."""
    at = int.from_bytes(body[32:36], "little")
    if not at or len(body) < at + 8 or int.from_bytes(body[at : at + 4], "little") != _EXTENSION_MAGIC:
        return {}
    found: dict[int, str] = {}
    for index in range(min(int.from_bytes(body[at + 4 : at + 8], "little"), 64)):
        section = body[at + 8 + index * 16 : at + 24 + index * 16]
        if len(section) < 16:
            break
        kind, _, offset, size = struct.unpack("<IIII", section)
        if kind == 1:  # the names of the subfolders, each as an offset
            values = body[offset : offset + size // 4 * 4]
            found = {number: text_at(body, value) for number, (value,) in enumerate(struct.iter_unpack("<I", values))}
    return found
