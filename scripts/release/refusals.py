"""Find the refusals that a release adds: raise, assert, TORCH_CHECK and warnings in code about attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

#: Code about attention: the file's path or the message has one of these words.
_ABOUT = re.compile(
    r"attention|attn|flash|sdpa|cudnn|kv_?cache|paged|sliding_window|rotary|rope|context_parallel|ulysses|ring|mla\b|"
    r"head_dim|softcap|varlen|cu_seqlens|triton|flex",
    re.IGNORECASE,
)
_REFUSES = re.compile(
    r"\braise\s+\w*(?:Error|Exception)\(|\bassert\b|\b(?:TORCH|NVTE|TVM_FFI_I?)_?CHECK\(|\blog(?:ger|ging)?\.warning\w*\(|"
    r"warnings\.warn\("
)
_TEXT = re.compile(r"""(?<![\w])[fr]{0,2}("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
_SLOT = re.compile(r"\{[^{}]*\}|%[sdr]")
REACH = 8  # lines behind the word that refuses in which its message is
SHORTEST = 20  # letters of a message that is looked up


class Refusal(NamedTuple):
    """A message of code that stops or warns: the file it is in, and its fixed text."""

    path: str
    message: str


def refusals_in(path: str, content: str) -> Iterator[Refusal]:
    """Yield the refusals of one file; the parts of a message that the code fills in are `…`."""
    lines = content.splitlines()
    for number, line in enumerate(lines):
        if not _REFUSES.search(line) or line.lstrip().startswith(("#", "//")):
            continue
        parts = []
        for later in lines[number : number + REACH]:
            found = _TEXT.findall(later)
            parts += [text[1:-1] for text in found]
            if later is not line and (_REFUSES.search(later) or (not found and parts)):
                break
        message = _SLOT.sub("…", "".join(parts)).strip()
        if len(message) >= SHORTEST and (_ABOUT.search(message) or _ABOUT.search(path)):
            yield Refusal(path, message)


def added(before: Mapping[str, str], after: Mapping[str, str]) -> list[Refusal]:
    """Return the refusals of a release whose message no file of the release before has."""
    known = {one.message for path, content in before.items() for one in refusals_in(path, content)}
    found: dict[str, Refusal] = {}
    for path in sorted(after):
        if after[path] != before.get(path):
            for one in refusals_in(path, after[path]):
                if one.message not in known:
                    found.setdefault(one.message, one)
    return list(found.values())


def unknown(found: Iterable[Refusal], signatures: Iterable[re.Pattern[str]], texts: Iterable[str]) -> list[Refusal]:
    """Return the refusals that no signature matches and whose fixed parts no rule quotes."""
    patterns, quoted = list(signatures), "\n".join(texts)
    return [
        one for one in found
        if not any(pattern.search(one.message.replace("…", "0")) for pattern in patterns)
        and not any(len(part.strip()) >= SHORTEST and part.strip() in quoted for part in one.message.split("…"))
    ]  # fmt: skip
