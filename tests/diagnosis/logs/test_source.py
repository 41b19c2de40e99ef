"""Logs as bytes: compressed, damaged, binary, of other encodings, growing."""

import bz2
import gzip
import io
import lzma
import random

import pytest

from doctor.diagnosis.logs.source import LogSource, open_log
from doctor.errors import DoctorError

TEXT = b"".join(b"line %d of the log\n" % number for number in range(2000))


def read(data):
    source = LogSource("x", io.BytesIO(data))
    return b"".join(source.blocks()), source.notes


def zstd(data):
    return pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd], ids=["gz", "xz", "bz2", "zst"])
class TestCompressed:
    def test_whole(self, pack):
        assert read(pack(TEXT)) == (TEXT, [])

    def test_two_members(self, pack):
        assert read(pack(TEXT) + pack(b"second\n"))[0] == TEXT + b"second\n"

    def test_truncated_gives_what_there_is_and_a_note(self, pack):
        noise = random.Random(1).randbytes(500_000).hex().encode()
        text, notes = read(pack(noise)[:-200])
        assert noise.startswith(text) and any("ends early" in note for note in notes)

    def test_damaged_is_no_crash(self, pack):
        data = bytearray(pack(random.Random(1).randbytes(300_000).hex().encode()))
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
        try:
            _, notes = read(bytes(data))
            assert notes
        except DoctorError as error:
            assert "damaged" in error.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_other_encodings(encoding):
    text, _ = read("RuntimeError: broken\nnext\n".encode(encoding))
    assert b"RuntimeError: broken\nnext\n" in text


def test_nuls_and_colors_are_left_out():
    assert read(b"\0\0a\x1b[1;31mred\x1b[0m\0 b\n")[0] == b"ared b\n"


def test_a_binary_file_is_refused_in_one_line():
    with pytest.raises(DoctorError, match="is a binary file"):
        read(b"\x7fELF" + bytes(range(32)) * 200)


def test_an_empty_log_is_no_fault():
    assert read(b"") == (b"", [])


def test_a_growing_file_is_read_up_to_where_it_was(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(TEXT)
    source = open_log(str(path), io.BytesIO())
    blocks = source.blocks()
    first = next(blocks)
    with path.open("ab") as stream:
        stream.write(TEXT)
    assert first + b"".join(blocks) == TEXT


@pytest.mark.parametrize(("name", "words"), [("missing.log", "cannot read"), (".", "is a folder"), ("a\0b", "cannot")])
def test_what_cannot_be_opened(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DoctorError, match=words):
        open_log(name, io.BytesIO())
