"""The bytes of a log as UTF-8 text without color codes and NULs: plain or compressed, from a file or a pipe."""

from __future__ import annotations

import bz2
import codecs
import importlib
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from doctor.errors import DoctorError, reason_of
from doctor.util.reading import open_stream

BLOCK = 1 << 20  # bytes read at a time; compressed data is unpacked in pieces of this size too
XZ_MEMORY = 256 << 20  # bytes that a decoder may take; `xz -9` makes files that need 65 MiB
STDIN = "stdin"
_COLOR = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}\x07?|[@-Z\\^_])")
_ENTITIES = {
    **{b"&#39;": b"'", b"&#x27;": b"'", b"&apos;": b"'", b"&quot;": b'"', b"&#34;": b'"'},
    **{b"&gt;": b">", b"&lt;": b"<", b"&amp;": b"&"},
}
_ENTITY = re.compile(b"|".join(_ENTITIES))
#: No-break and thin spaces and marks without width, which web pages and editors put into a copied text, in UTF-8.
_SPACE = re.compile(rb"\xc2\xa0|\xe2\x80[\x80-\x8a\xaf]|\xe3\x80\x80")
_NO_WIDTH = re.compile(rb"\xe2\x80[\x8b-\x8d]|\xe2\x81\xa0|\xef\xbb\xbf")
_ESCAPED = re.compile(rb"\\(['\"_])")
_CONTROL = bytes(sorted({*range(1, 32)} - {7, 8, 9, 10, 11, 12, 13, 27}))  # no text has these
_BINARY = 0.1  # share of such bytes above which a file is no text
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class _Damaged(Exception):
    """The compressed data cannot be read on."""


@dataclass
class LogSource:
    """One log that is read once; `notes` says what could not be read."""

    name: str
    stream: IO[bytes] | Iterator[bytes]
    notes: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks, without NULs and color codes; DoctorError for a file that is no text."""
        raw = self._raw()
        head = next(raw, b"")
        unpack = _unpacker(head)
        parts = self._unpacked(_chain(head, raw), unpack) if unpack else _chain(head, raw)
        head = next(parts, b"")
        if not head and self.notes:
            raise DoctorError(f"cannot read `{self.name}`: {self.notes[-1]}")
        decode = _decoder(head)
        for number, block in enumerate(_chain(head, parts)):
            text = block if decode is None else decode(block).encode("utf-8", "replace")
            if b"\0" in text:
                text = text.replace(b"\0", b"")
            if number == 0:
                self._require_text(text)
            yield _unescaped(_COLOR.sub(b"", text) if b"\x1b" in text else text)

    def close(self) -> None:
        """Close the file, unless it is stdin."""
        if self.name != STDIN and hasattr(self.stream, "close"):
            self.stream.close()

    def _raw(self) -> Iterator[bytes]:
        """Yield what the file holds now: one that grows faster than it is read would have no end."""
        if isinstance(self.stream, Iterator) and not hasattr(self.stream, "read"):
            yield from self.stream
            return
        stream = cast("IO[bytes]", self.stream)
        left = _size(stream)
        try:
            while left is None or left > 0:
                block = stream.read(BLOCK if left is None else min(BLOCK, left))
                if not block:
                    return
                left = None if left is None else left - len(block)
                yield block
        except (OSError, ValueError) as problem:
            self.notes.append(f"reading stopped: {reason_of(problem)}")

    def _unpacked(self, raw: Iterator[bytes], unpack: _Unpacker) -> Iterator[bytes]:
        try:
            for block in raw:
                yield from unpack.feed(block)
            if not unpack.finished:
                self.notes.append("the compressed data ends early; everything before its end was read")
        except _Damaged:
            self.notes.append("the compressed data is damaged; everything before that place was read")

    def _require_text(self, text: bytes) -> None:
        sample = text[:65536]
        strange = len(sample) - len(sample.translate(None, _CONTROL))
        if sample and strange > len(sample) * _BINARY:
            raise DoctorError(f"`{self.name}` is a binary file, no log", "give the text that the program printed")


def _unescaped(text: bytes) -> bytes:
    """Return text without the escapes of HTML, Markdown and quoted strings, which pages and wrappers leave in a log.

    The spaces of web pages become plain ones.
    """
    if not text.isascii():
        text = _NO_WIDTH.sub(b"", _SPACE.sub(b" ", text))
    if b"&" in text and _ENTITY.search(text):
        text = _ENTITY.sub(lambda found: _ENTITIES[found[0]], text)
    if b"\\" not in text:
        return text
    return _ESCAPED.sub(rb"\1", text)


def open_log(name: str, stdin: IO[bytes]) -> LogSource:
    """Return the log of a file name, `-` for stdin; DoctorError if it cannot be opened."""
    if name == "-":
        return LogSource(STDIN, stdin)
    try:
        if Path(name).is_dir():
            raise DoctorError(f"`{name}` is a folder", "name its log files, or use `cat FOLDER/*.log | … explain -`")
        return LogSource(name, open_stream(Path(name)))
    except (OSError, ValueError) as problem:
        raise DoctorError(f"cannot read log `{name}`: {reason_of(problem)}") from None


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _size(stream: IO[bytes]) -> int | None:
    """Return the bytes that are left in a regular file; None for a pipe."""
    try:
        status = os.fstat(stream.fileno())
        return status.st_size - stream.tell() if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        return None


@dataclass
class _Unpacker:
    """A decompressor that yields pieces of at most `BLOCK` bytes and goes on with the next member of a file."""

    make: Callable[[], Any]
    bounded: bool = True  # whether `decompress` takes a limit
    _current: Any = None

    @property
    def finished(self) -> bool:
        """Whether the data is complete so far."""
        return self._current is None or bool(self._current.eof)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the data unpacks to; _Damaged if it is no valid data."""
        try:
            while data:
                if self._current is None or self._current.eof:
                    self._current = self.make()
                unpacker = self._current
                piece = unpacker.decompress(data, BLOCK) if self.bounded else unpacker.decompress(data)
                if piece:
                    yield piece
                data = self._rest(unpacker)
                while not unpacker.eof and not data and self.bounded and not getattr(unpacker, "needs_input", True):
                    piece = unpacker.decompress(b"", BLOCK)
                    if piece:
                        yield piece
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as problem:
            raise _Damaged from problem
        except Exception as problem:  # zstandard.ZstdError, an own class that cannot be named without its import
            if type(problem).__name__ != "ZstdError":
                raise
            raise _Damaged from problem

    @staticmethod
    def _rest(unpacker: Any) -> bytes:
        tail = getattr(unpacker, "unconsumed_tail", b"") or unpacker.unused_data
        return bytes(tail)


def _unpacker(head: bytes) -> _Unpacker | None:
    """Return the decompressor for what a file starts with; None for plain text."""
    if head.startswith(b"\x1f\x8b"):
        return _Unpacker(lambda: zlib.decompressobj(wbits=31))
    if head.startswith(b"\xfd7zXZ\0"):
        return _Unpacker(lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY))
    if head.startswith(b"BZh"):
        return _Unpacker(bz2.BZ2Decompressor)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd()
    return None


def _zstd() -> _Unpacker:
    try:
        return _Unpacker(importlib.import_module("compression.zstd").ZstdDecompressor)  # Python 3.14
    except ImportError:
        pass
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise DoctorError(
            "this Python cannot read `.zst` files", "pip install zstandard, or `zstd -dc FILE | attn-doctor explain -`"
        ) from None
    return _Unpacker(lambda: zstandard.ZstdDecompressor().decompressobj(write_size=BLOCK), bounded=False)


def _decoder(head: bytes) -> Callable[[bytes], str] | None:
    """Return the decoder of a log that is not UTF-8: by its mark, or by the NULs of ASCII text in UTF-16."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return codecs.getincrementaldecoder(encoding)("replace").decode
    even, odd = head[:4096:2], head[1:4096:2]
    for filled, empty, encoding in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
        if len(empty) >= 2 and empty.count(0) > 0.8 * len(empty) and filled.count(0) < 0.1 * len(filled):
            return codecs.getincrementaldecoder(encoding)("replace").decode
    return None
