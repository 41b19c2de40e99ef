"""Find the refusals that a release adds: raise, assert, TORCH_CHECK and warnings in code about attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
#: Code for hardware that no report is about, named by the path or by the message.
_OTHER_HARDWARE = re.compile(
    r"rocm|(?:^|[/_\W])hip(?:[/_\W]|$)|gfx\d|aiter|(?:^|[/_\W])(?:npu|xpu|tpu|mlu|musa)|ascend|gaudi|habana|neuron|_amd|amd/|"
    r"(?:^|[/_\W])mlx|apple",
    re.IGNORECASE,
)
#: A guard on what a report knows of a job: the GPU, releases, types, widths, the cache, backends, variables, options.
_KNOWN = re.compile(
    r"capability|\bsm_?\d|is_sm\d|\barch\b|version|head_dim|head_size|dtype|kv_cache|page_size|block_size|window|softcap|"
    r"logits_soft_cap|\bsinks?\b|backend|environ|envs\.|is_\w+_available|find_spec|server_args|_config\.|has_\w+\(|tp_size|"
    r"cp_size|ulysses|causal",
    re.IGNORECASE,
)
#: A check of what one kernel is called with, which its library makes itself.
_OF_A_TENSOR = re.compile(r"\.shape|\.ndim|\.dim\(|\.stride|\.device\b|\.numel|\buint8|\bint32|contiguous|isinstance\(")
REACH = 8  # lines behind the word that refuses in which its message is
SHORTEST = 20  # letters of a message that is looked up


class Refusal(NamedTuple):
    """A message of code that stops or warns: the file it is in, and its fixed text."""

    path: str
    message: str
    guard: str = ""  # the condition under which the code stops; empty where none is near

    @property
    def decidable(self) -> bool:
        """Whether a report could say it in advance: on hardware that reports are about, guarded by what they know."""
        if _OTHER_HARDWARE.search(f"{self.path} {self.message} {self.guard}"):
            return False
        return self.path.endswith(".py") and bool(_KNOWN.search(self.guard)) and not _OF_A_TENSOR.search(self.guard)


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
            yield Refusal(path, message, guard_of(lines, number))


def guard_of(lines: Sequence[str], number: int) -> str:
    """Return the condition of a line that refuses: its own for an assertion, else that of the `if` around it."""
    own = lines[number].strip()
    if own.startswith("assert "):
        return own
    depth = len(lines[number]) - len(lines[number].lstrip())
    for start in range(number - 1, max(-1, number - 2 * REACH), -1):
        line = lines[start]
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            if re.match(r"\s*(?:if|elif)\b", line):
                return " ".join(part.strip() for part in lines[start : _end_of(lines, start, number)])
            if line.lstrip().startswith(")"):  # the end of a condition that goes over several lines
                continue
            if not re.match(r"\s*(?:else|with|for|try|except)\b", line):
                return ""
            depth = indent
    return ""


def _end_of(lines: Sequence[str], start: int, number: int) -> int:
    """Return the line behind a condition that goes over several lines."""
    return next((at + 1 for at in range(start, number) if lines[at].rstrip().endswith(":")), start + 1)


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
