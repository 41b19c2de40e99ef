"""The readers of binary files take any bytes: they answer or refuse, and never anything else."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.sources.probes.elf import NotElf, read_dynamic, section
from doctor.sources.probes.library_search import loader_cache
from tests.helpers.fake_trees import elf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("elf") / "libx.so"
    return elf(path, ("libcudnn.so.9", "libc.so.6"), "$ORIGIN/a", "$ORIGIN/b", {".rodata": b"text"}).read_bytes()


def test_what_was_put_in_comes_out(tmp_path: Path) -> None:
    path = elf(
        tmp_path / "lib/libx.so.1",
        ("libcudnn.so.9", "libc.so.6"),
        "$ORIGIN/../a:/b",
        "${ORIGIN}",
        {".rodata": b"hello"},
    )
    dynamic = read_dynamic(str(path))
    assert dynamic.needed == ("libcudnn.so.9", "libc.so.6")
    assert dynamic.soname == "libx.so.1"
    assert dynamic.rpath == (str(tmp_path / "a"), "/b")
    assert dynamic.runpath == (str(tmp_path / "lib"),)
    found = section(str(path), ".rodata")
    assert found is not None
    assert path.read_bytes()[found[0] : sum(found)] == b"hello"
    assert section(str(path), ".rodat") is None


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_library(tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        # Mostly in the headers, where damage leads astray.
        at = data.draw(st.integers(0, 250) | st.integers(0, len(whole) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    path = tmp_path_factory.mktemp("damaged") / "libx.so"
    path.write_bytes(bytes(damaged[:cut]))
    for read in (read_dynamic, lambda name: section(name, ".rodata")):
        with contextlib.suppress(NotElf, OSError):
            read(str(path))


def _cache(entries: dict[str, str]) -> bytes:
    """An ld.so.cache of the format that glibc has written since 2.32."""
    head = 48 + 24 * len(entries)
    strings, table = b"", b""
    for name, path in entries.items():
        key = head + len(strings)
        strings += name.encode() + b"\0"
        value = head + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack("<iIIIQ", 0x0303, key, value, 0, 0)
    return (
        b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI3I", len(entries), len(strings), 2, 0, 0, 0, 0) + table + strings
    )


def test_the_loaders_cache(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    entries = {
        "libcudnn.so.9": "/usr/lib/libcudnn.so.9",
        "libc.so.6": "/usr/lib/libc.so.6",
        "libcudnn.so": "/opt/libcudnn.so",
    }
    path.write_bytes(_cache(entries))
    assert loader_cache(str(path)) == {name: entries[name] for name in ("libcudnn.so.9", "libcudnn.so")}
    path.write_bytes(b"ld.so-1.7.0\0" + bytes(20) + _cache(entries))  # an old cache in front
    assert "libcudnn.so.9" in loader_cache(str(path))
    assert loader_cache(str(tmp_path / "missing")) == {}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_cache(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    damaged = bytearray(_cache({"libcudnn.so.9": "/usr/lib/libcudnn.so.9"}))
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("cache") / "ld.so.cache"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    assert isinstance(loader_cache(str(path)), dict)


@pytest.mark.skipif(not shutil.which("ldconfig") and not Path("/sbin/ldconfig").exists(), reason="no ldconfig")
def test_this_machines_cache_as_ldconfig_reads_it() -> None:
    command = [shutil.which("ldconfig") or "/sbin/ldconfig", "-p"]
    listed: dict[str, str] = {}
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and name.startswith("libc.so"):
            listed.setdefault(name.split(" ")[0], path)
    assert loader_cache(containing="libc.so") == listed
