"""The ELF reader on libraries of this interpreter, on made ones, and on damaged ones."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from doctor.sources.binaries.elf import BadElf, ElfFile, expand
from doctor.sources.binaries.fatbin import read_gpu_code
from doctor.sources.binaries.files import Damaged, Disk, read_summary
from doctor.sources.binaries.ldso import loader_cache
from tests.helpers.fake_trees import elf

FATBIN = Path(__file__).parents[2] / "data/fatbin"
LIBC = loader_cache("/etc/ld.so.cache", os.uname().machine).get("libc.so.6")
needs_glibc = pytest.mark.skipif(LIBC is None, reason="no glibc on this machine")


@needs_glibc
def test_the_c_library_defines_what_it_is_known_for() -> None:
    assert LIBC is not None
    with ElfFile(LIBC) as libc:
        summary = libc.summary()
        assert summary.soname == "libc.so.6" and "GLIBC_2.17" in summary.provides
        assert libc.defines("memcpy") and libc.defines("memcpy", "GLIBC_2.14")
        assert not libc.defines("memcpy", "GLIBC_99.0") and not libc.defines("memcpy_of_nobody_at_all")
        exported = set(libc.exported())
        assert {"memcpy", "dlopen" if "dlopen" in exported else "malloc", "printf"} <= exported


def test_a_made_library_has_its_symbols(tmp_path: Path) -> None:
    path = elf(tmp_path / "liba.so", ("libb.so",), runpath="$ORIGIN/x", undefined=("one", "two"), defined=("three",))
    with ElfFile(str(path)) as made:
        assert [reference.name for reference in made.undefined()] == ["one", "two"]
        assert list(made.exported()) == ["three"]
        assert made.defines("three") and not made.defines("one") and not made.defines("four")
        assert made.summary().needed == ("libb.so",) and made.summary().runpath == "$ORIGIN/x"


def test_a_runpath_disables_an_rpath(tmp_path: Path) -> None:
    found = read_summary(str(elf(tmp_path / "liba.so", rpath="/r", runpath="/n")))
    assert not isinstance(found, Damaged) and found is not None
    assert (found.rpath, found.runpath) == ("", "/n")


def test_origin_is_the_folder_of_the_name_that_was_opened() -> None:
    assert expand("$ORIGIN/../lib:${ORIGIN}:/plain:", "/a/b/libc.so") == ("/a/b/../lib", "/a/b", "/plain", ".")


@pytest.mark.parametrize(
    ("name", "sass", "ptx"),
    [  # as `cuobjdump --list-elf --list-ptx` of CUDA 13.5 lists them; it drops the f of 100f
        ("mix", {"80": 1, "90a": 1}, {"120": 1}),
        ("100f", {"100f": 1}, {}),
        ("100a", {"100a": 1}, {}),
        ("nocomp", {"90a": 1}, {"90a": 1}),
        ("zstd", {"75": 1, "100a": 1}, {}),
    ],
)
def test_gpu_code_of_real_libraries(name: str, sass: dict[str, int], ptx: dict[str, int]) -> None:
    with ElfFile(str(FATBIN / f"{name}.so")) as library:
        code = read_gpu_code(library)
    assert (dict(code.sass), dict(code.ptx)) == (sass, ptx)
    assert (code.compressed > 0) == (name in ("nocomp", "zstd", "mix"))


def test_gpu_code_in_the_words_of_torch() -> None:
    with ElfFile(str(FATBIN / "mix.so")) as library:
        assert read_gpu_code(library).archs == ("8.0", "9.0a", "12.0+PTX")


def test_a_library_without_gpu_code(tmp_path: Path) -> None:
    with ElfFile(str(elf(tmp_path / "liba.so"))) as library:
        assert read_gpu_code(library).archs == ()


def _words(path: Path, *changes: tuple[int, str, int]) -> Path:
    body = bytearray(path.read_bytes())
    for offset, form, value in changes:
        struct.pack_into(form, body, offset, value)
    path.write_bytes(bytes(body))
    return path


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b"\x7fELF"), "it has only 4 bytes"),
        (lambda path: path.write_text("#!/bin/sh\n" * 20), "it is no ELF file"),
        (lambda path: os.truncate(path, 300), "it is truncated"),
        (lambda path: _words(path, (56, "<H", 0xFFFF)), "its program headers are invalid"),
        (lambda path: _words(path, (32, "<Q", 1 << 62)), "a table is outside the file"),
        (lambda path: _words(path, (4, "<B", 1)), "it is a 32-bit ELF file"),
        (lambda path: _words(path, (5, "<B", 2)), "it is a big-endian ELF file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "it is no regular file"),
    ],
)
def test_a_damaged_file_costs_one_line(tmp_path: Path, damage: object, reason: str) -> None:
    path = elf(tmp_path / "liba.so", ("libb.so",), undefined=("one",), defined=("two",))
    damage(path)  # type: ignore[operator]
    found = read_summary(str(path))
    assert isinstance(found, Damaged) and found.reason.startswith(reason) and "\n" not in found.reason


def test_a_loop_of_links_and_a_sparse_file(tmp_path: Path) -> None:
    loop = tmp_path / "loop.so"
    loop.symlink_to(loop)
    assert isinstance(read_summary(str(loop)), Damaged)
    sparse = elf(tmp_path / "sparse.so", ("libb.so",))
    os.truncate(sparse, 100 << 30)
    found = read_summary(str(sparse))
    assert found is not None and not isinstance(found, Damaged) and found.needed == ("libb.so",)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = elf(tmp_path / "liba.so")
    path.chmod(0)
    assert read_summary(str(path)) == Damaged("no permission to read it")


def test_random_damage_raises_nothing_else() -> None:
    chance = random.Random(7)
    whole = (FATBIN / "mix.so").read_bytes()
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(chance.choice((1, 3, 9))):
            struct.pack_into("<Q", body, chance.randrange(16, 5000), chance.choice((0, 1, 1 << 31, (1 << 64) - 1)))
        try:
            elf_file = _opened(bytes(body[: chance.choice((len(body), chance.randrange(1, len(body))))]))
        except BadElf:
            continue
        with elf_file:
            try:
                elf_file.summary()
                list(elf_file.undefined())
                list(elf_file.exported())
                elf_file.defines("printf", "GLIBC_2.2.5")
                read_gpu_code(elf_file)
            except BadElf as problem:
                assert "\n" not in str(problem)


def _opened(data: bytes) -> ElfFile:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"attn-doctor-elf-{os.getpid()}.so"
    path.write_bytes(data)
    try:
        return ElfFile(str(path))
    finally:
        path.unlink()


def test_what_is_remembered_holds_while_the_file_does(tmp_path: Path) -> None:
    path = elf(tmp_path / "liba.so", ("libb.so",))
    first = Disk()
    assert first.summary(str(path)) == read_summary(str(path))
    kept = {name: [list(stamp), body] for name, (stamp, body) in first.to_remember().items()}
    kept[str(path)][1] = {**kept[str(path)][1], "needed": ["from memory"]}
    again = Disk(remembered=kept).summary(str(path))
    assert again is not None and not isinstance(again, Damaged) and tuple(again.needed) == ("from memory",)
    elf(path, ("libc.so", "libd.so"))
    changed = Disk(remembered=kept).summary(str(path))
    assert changed is not None and not isinstance(changed, Damaged) and changed.needed == ("libc.so", "libd.so")


def test_symbols_without_a_string_table(tmp_path: Path) -> None:
    path = elf(tmp_path / "liba.so", undefined=("one",))
    body = bytearray(path.read_bytes())
    for offset in range(64 + 112, 64 + 112 + 96, 16):
        if struct.unpack_from("<Q", body, offset)[0] == 5:
            struct.pack_into("<Q", body, offset, 21)  # DT_DEBUG instead of DT_STRTAB
    path.write_bytes(bytes(body))
    with ElfFile(str(path)) as damaged, pytest.raises(BadElf, match="without a string table"):
        list(damaged.undefined())
