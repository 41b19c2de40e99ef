"""ldconfig's cache of libraries, read without running ldconfig."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .reading import open_regular

_MAGIC = b"glibc-ld.so.cache1.1"
_MAX_BYTES = 16 << 20
_HEADER, _ENTRY = 48, 24  # bytes
_MOST = 1 << 20


def read_ld_cache(path: str) -> bytes:
    """Return the cache from its present format on; empty without a cache that can be read."""
    try:
        with open_regular(path) as stream:
            data = stream.read(_MAX_BYTES)
    except OSError:
        return b""
    start = data.find(_MAGIC)  # an old-format cache may come first
    return data[start:] if start >= 0 else b""


def ld_cache_entries(body: bytes, order: Literal["little", "big"] = "little") -> Iterator[bytes]:
    """Yield the 24 bytes of each entry; none where their number makes no sense, and no more than there are."""
    count = int.from_bytes(body[20:24], order)
    if not 0 < count < _MOST:
        return
    for start in range(_HEADER, _HEADER + count * _ENTRY, _ENTRY):
        entry = body[start : start + _ENTRY]
        if len(entry) < _ENTRY:
            return
        yield entry


def text_at(body: bytes, at: int) -> str:
    """Return the text that begins at an offset of the cache."""
    return body[at : body.find(b"\0", at)].decode("utf-8", "replace")
