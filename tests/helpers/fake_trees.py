"""Small but real trees: dist-info folders as pip leaves them, ELF libraries that ldd would read."""

from __future__ import annotations

import struct
from pathlib import Path


def install(site: Path, name: str, version: str, requires: tuple[str, ...] = (), metadata: str | None = None) -> Path:
    """A distribution as pip installs it; `metadata` replaces the METADATA file's text."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n" if metadata is None else metadata)
    (folder / "RECORD").write_text("")
    (folder / "INSTALLER").write_text("pip\n")
    return folder


def elf(
    path: Path,
    needed: tuple[str, ...] = (),
    rpath: str | None = None,
    runpath: str | None = None,
    sections: dict[str, bytes] | None = None,
    undefined: tuple[str, ...] = (),
    defined: tuple[str, ...] = (),
    machine: int = 62,
    relocated: tuple[str, ...] | None = None,
) -> Path:
    """A 64-bit little-endian ELF file with a dynamic section, symbols and the named sections.

    relocated: the undefined symbols that a relocation uses; None for a file without relocations.
    """
    strings = b"\0"

    def put(text: str) -> int:
        nonlocal strings
        at = len(strings)
        strings += text.encode() + b"\0"
        return at

    entries = [(1, put(name)) for name in needed]
    entries += [(14, put(path.name))]
    entries += [(15, put(rpath))] if rpath is not None else []
    entries += [(29, put(runpath))] if runpath is not None else []
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for section, names in ((0, undefined), (1, defined)):
        for name in names:
            symbols += struct.pack("<IBBHQQ", put(name), 0x12, 0, section, 0, 0)
    count = len(symbols) // 24
    strings += bytes(-len(strings) % 8)
    base = 0x400000  # addresses differ from offsets, as in a linked library
    headers_end = 64 + 2 * 56
    dynamic_size = (len(entries) + (5 if relocated is None else 7)) * 16
    strings_at = headers_end + dynamic_size
    symbols_at = strings_at + len(strings)
    hash_at = symbols_at + len(symbols)
    # DT_HASH with one bucket: a chain through all symbols
    hash_table = struct.pack("<4I", 1, count, min(1, count - 1), 0)
    hash_table += b"".join(struct.pack("<I", (n + 1) % count) for n in range(1, count))
    tags = [(5, base + strings_at), (10, len(strings)), (6, base + symbols_at), (4, base + hash_at)]
    numbers = [undefined.index(name) + 1 for name in relocated or ()]
    relocations = b"".join(struct.pack("<QQQ", base, number << 32 | 6, 0) for number in numbers)
    if relocated is not None:
        tags += [(7, base + hash_at + len(hash_table)), (8, len(relocations))]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in [*entries, *tags, (0, 0)])
    body = dynamic + strings + symbols + hash_table + relocations
    names, table, offset = b"\0", [struct.pack("<IIQQQQIIQQ", *[0] * 10)], headers_end + len(body)
    for name, data in {**(sections or {}), ".shstrtab": b""}.items():
        label = len(names)
        names += name.encode() + b"\0"
        if name == ".shstrtab":
            data = names
        table.append(struct.pack("<IIQQQQIIQQ", label, 1, 0, 0, offset, len(data), 0, 0, 1, 0))
        body += data
        offset += len(data)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, offset, 0, 64, 56, 2, 64, len(table), len(table) - 1)
    loads = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, offset, offset, 4096)
    loads += struct.pack("<IIQQQQQQ", 2, 6, headers_end, base + headers_end, 0, dynamic_size, dynamic_size, 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + loads + body + b"".join(table))
    return path


def cudnn_wheel(site: Path, version: str, major: int = 12) -> Path:
    """The nvidia-cudnn wheel's files; returns its main library."""
    install(site, f"nvidia-cudnn-cu{major}", f"{version}.1")
    return cudnn_at(site / "nvidia/cudnn/lib", version)


def cudnn_at(folder: Path, version: str) -> Path:
    """cuDNN without a number in its file names: the graph library has it, as since 9.0."""
    soname = f"so.{version.split('.')[0]}"
    text = b"\0cudnn_version != (9 * 10000)\0cudnn_version_" + version.replace(".", "_").encode() + b"_64_\0"
    elf(folder / f"libcudnn_graph.{soname}", sections={".rodata": text})
    return elf(folder / f"libcudnn.{soname}", runpath="$ORIGIN")


TORCH_RPATH = "$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"


def torch(
    site: Path,
    version: str = "2.6.0",
    label: str = "cu124",
    cuda: str | None = "12.4",
    rpath: str | None = TORCH_RPATH,
    runpath: str | None = None,
) -> Path:
    """A torch as its wheel lays it out, as far as a probe looks."""
    install(site, "torch", version)
    folder = site / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('nothing may import this')\n")
    (folder / "version.py").write_text(
        "from typing import Optional\n\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = '{version}+{label}'\n"
        "debug = False\n"
        f"cuda: Optional[str] = {cuda!r}\n"
        "git_version = '2236df1770800ffea5697b11b0bb0d910b2e59e1'\n"
        "hip: Optional[str] = None\n"
    )
    elf(folder / "lib/libtorch_global_deps.so", ("libm.so.6",), rpath, runpath)
    if cuda:
        elf(folder / "lib/libtorch_cuda.so", ("libc10.so", "libcudnn.so.9", "libc.so.6"), rpath, runpath)
    return folder
