"""Answers that fit an agent: at most 8 KiB, what decides first, and a way to the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from doctor.util.redact import shortened

LARGEST_ANSWER = 8 << 10  # bytes of one answer in UTF-8
_HEAD = 120  # bytes for the line that names the page
_LONGEST_TEXT = 400  # characters of one text in a short answer
_MORE = "`detail` = true gives the whole answer, in pages"

#: What a short answer keeps of the items of a list; other keys of the document go, or are counted.
_KEPT = {
    "findings": ("id", "severity", "verdict", "message", "change", "side", "finding"),
    "fixes": ("title", "changes", "commands", "resolves", "leaves", "safe", "note"),
    "backends": ("library", "selected", "fails_at_run", "import_error", "a", "b"),
    "diagnosis": ("cause", "rule", "confidence", "line", "message", "fixes"),
    "errors": ("line", "text"),
}
_DROPPED = frozenset(
    {"timing", "runs", "facts", "workload", "rulebook", "kernels_run", "benign", "unrelated", "versions"}
)
_COUNTED = frozenset({"undetermined"})


def page_of(text: str, page: int) -> str:
    """Return one page of an answer: all of it where it fits; ValueError for a page that does not exist."""
    whole = text.encode()
    if len(whole) <= LARGEST_ANSWER and page == 1:
        return text
    pages = _pages(whole, LARGEST_ANSWER - _HEAD)
    if not 1 <= page <= len(pages):
        raise ValueError(f"there is no page {page}: the answer has {len(pages)}")
    following = f"; `page` = {page + 1} goes on" if page < len(pages) else ""
    return f"page {page} of {len(pages)}{following}\n{pages[page - 1]}"


def _pages(whole: bytes, most: int) -> list[str]:
    """Cut a text behind a line where one ends in the second half of a page, else behind a character."""
    found, start = [], 0
    while start < len(whole):
        end = start + most
        if end < len(whole):
            line = whole.rfind(b"\n", start + most // 2, end)
            end = line + 1 if line >= 0 else end
            while whole[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        found.append(whole[start:end].decode())
        start = end
    return found


def short_answer(text: str) -> str:
    """Return a JSON answer reduced to what decides, at most 8 KiB; `left_out` counts what is missing."""
    document = json.loads(text)
    if not isinstance(document, dict):
        document = {"answer": document}
    whole = json.dumps(document, ensure_ascii=False)
    if len(whole.encode()) <= LARGEST_ANSWER:
        return whole
    counts = {key: len(value) for key, value in document.items() if key in _COUNTED and value}
    kept = {
        key: _shorter(_projected(key, value))
        for key, value in document.items()
        if key not in _DROPPED and key not in _COUNTED and value not in (None, [], {})
    }
    left_out: dict[str, int] = dict(counts)
    while len(_dump(kept, left_out).encode()) > LARGEST_ANSWER and _drop_one(kept, left_out):
        pass
    return _dump(kept, left_out)


def _dump(kept: Mapping[str, Any], left_out: Mapping[str, int]) -> str:
    return json.dumps({**kept, "left_out": left_out, "more": _MORE}, ensure_ascii=False)


def _projected(key: str, value: Any) -> Any:
    names = _KEPT.get(key)
    if names is None or not isinstance(value, list):
        return value
    return [
        {name: item[name] for name in names if item.get(name) not in (None, [], {})} if isinstance(item, dict) else item
        for item in value
    ]


def _shorter(value: Any) -> Any:
    """Shorten every text."""
    if isinstance(value, str):
        return shortened(value, _LONGEST_TEXT)
    if isinstance(value, list):
        return [_shorter(item) for item in value]
    return {key: _shorter(item) for key, item in value.items()} if isinstance(value, dict) else value


def _drop_one(kept: dict[str, Any], left_out: dict[str, int]) -> bool:
    """Leave out the end of the longest list, or the largest part of its only item; False where nothing is left."""
    if not kept:
        return False
    largest = max(kept, key=lambda key: len(json.dumps(kept[key])))
    value = kept[largest]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) and len(value[0]) > 1:
        del value[0][max(value[0], key=lambda key: len(json.dumps(value[0][key])))]
        return True
    gone = max(1, len(value) // 8) if isinstance(value, list) and len(value) > 1 else 0
    if gone:
        del value[-gone:]
    else:
        del kept[largest]
    left_out[largest] = left_out.get(largest, 0) + max(gone, 1)
    return True
