"""One pass over a log: where which pattern matches, with the lines around it.

A scan for fixed texts (one automaton for all of them) finds candidate lines; only there a pattern is tried. Both steps
use RE2, whose time is linear in the text. Each pattern keeps its first matches only, and a text whose patterns have all
they need leaves the scan. A text that many lines contain for no match is replaced by its patterns themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from doctor.util.linear_regex import compiled, compiled_once, named_groups
from doctor.util.traceback_frames import last_frame

BEFORE = 12_288  # bytes kept before a match, to see its traceback
AFTER = 4_096
LONGEST = 8_192  # bytes of a line that are looked at around a match
MOST = 16  # matches of a pattern that are kept
_REBUILD = 2_000  # matches of texts that are no longer needed, before the scan is built again without them
_COMMON = 1_000  # lines with a text in vain, before its patterns take its place
_MEMORY = 64 << 20  # of the automaton that finds texts
_PREFIX = re.compile(
    r"^\s*(?:"
    r"\[(?:[\w.-]+:)?rank(?P<a>\d+)\]:?|"  # torchrun: [rank3]:, [default0]:
    r"\[(?:default)(?P<b>\d+)\]:|"
    r"\((?:[\w.:<>() -]{0,80}?)pid=(?P<c>\d+)[^)\n]{0,60}\)|"  # Ray, vLLM
    r"(?P<d>\d{1,5}): (?=\S)|"  # srun --label
    r"\[(?P<e>\d{1,4})\]: (?=\S)"
    r") ?"
)
#: Lines that any run prints: its options, and the notice of torch for Windows. They say nothing of a failure near them.
_NOTICE = re.compile(
    r"Torch was not compiled with flash attention|You are attempting to use Flash Attention"
    r"|^\W{0,4}(?:config|args|arguments|options|settings|hparams)\b *[:=(]",
    re.I,
)


@dataclass(frozen=True)
class Pattern:
    """One regular expression to look for, and the texts of which every match contains one."""

    match: str
    anchors: tuple[str, ...]
    most: int = MOST  # matches that are kept


@dataclass(frozen=True)
class Match:
    """One match: the line it is in, the text around it, and the groups."""

    line: int  # from 1
    text: str  # of the line, without rank prefix
    rank: str | None
    around: str  # the lines before and after that are of the same rank, with `/` in paths of Windows too
    length: int  # of the matched text
    groups: tuple[tuple[str, str], ...] = ()
    frame: str = ""  # file of the last frame of the traceback before it


@lru_cache(maxsize=4)
def _first_automaton(
    patterns: tuple[Pattern, ...],
) -> tuple[dict[bytes, list[int]], dict[bytes, tuple[int, ...]], Any]:
    """Return for each text the patterns that have it and those to try where it is found, and the automaton of all."""
    by_anchor: dict[bytes, list[int]] = {}
    for index, pattern in enumerate(patterns):
        for anchor in pattern.anchors:
            by_anchor.setdefault(anchor.encode(), []).append(index)
    return (by_anchor, *_automaton(by_anchor, ()))


def _automaton(
    by_anchor: Mapping[bytes, Sequence[int]], direct: Sequence[str]
) -> tuple[dict[bytes, tuple[int, ...]], Any]:
    """Return the patterns to try at each text, and the automaton: a text comes before its own prefixes."""
    texts = sorted(by_anchor, reverse=True)
    tried = {
        text: tuple(dict.fromkeys(i for end in range(1, len(text) + 1) for i in by_anchor.get(text[:end], ())))
        for text in texts
    }
    union = [re.escape(text).decode("utf-8") for text in texts] + [f"(?:{pattern})" for pattern in direct]
    return tried, compiled_once("|".join(union), _MEMORY) if union else None


@dataclass
class Scanner:
    """The scan of one log; feed it blocks of text, then `finish`."""

    patterns: Sequence[Pattern]
    matches: dict[int, list[Match]] = field(default_factory=dict)
    lines: int = 0

    def __post_init__(self) -> None:
        self._text = b""
        self._done = 0  # position in `_text` up to which everything was looked at
        self._counted = 0  # position in `_text` up to which lines were counted
        self._passed = 0  # lines before that position
        self._tried_to: dict[bytes, int] = {}  # text -> end of the line on which its patterns were tried
        self._wasted = 0
        self._vain: dict[bytes, int] = {}
        self._direct: list[int] = []  # patterns that are searched themselves
        self._by_anchor, self._tried, self._union = _first_automaton(tuple(self.patterns))

    def _build(self) -> None:
        """Make the automaton again, of the texts and patterns that are still needed."""
        needed = {
            anchor: open_
            for anchor, indices in self._by_anchor.items()
            if (open_ := [index for index in indices if not self._full(index)])
        }
        self._by_anchor, self._wasted = needed, 0
        self._direct = [index for index in self._direct if not self._full(index)]
        self._tried, self._union = _automaton(needed, [self.patterns[index].match for index in self._direct])

    def _full(self, index: int) -> bool:
        return len(self.matches.get(index, ())) >= self.patterns[index].most

    def feed(self, block: bytes) -> None:
        """Look through one more block."""
        self._text += block
        if len(self._text) - self._done > AFTER:
            self._scan(len(self._text) - AFTER)
            keep = max(self._done - BEFORE, 0)
            self._line(keep)
            self._text, self._done, self._counted = self._text[keep:], self._done - keep, 0
            self._tried_to = {text: end - keep for text, end in self._tried_to.items() if end > keep}

    def finish(self) -> dict[int, list[Match]]:
        """Look through the rest; return the matches of each pattern by its index."""
        self._scan(len(self._text))
        self.lines = self._line(len(self._text)) - (self._text.endswith(b"\n") or not self._text)
        return self.matches

    def _scan(self, limit: int) -> None:
        text, position = self._text, self._done
        while self._union is not None:
            found = self._union.search(text, position)
            if found is None or found.start() >= limit:
                break
            at, anchor = found.start(), found.group(0)
            position = at + 1
            if at < self._tried_to.get(anchor, 0):  # an earlier one on this line led to the same search
                continue
            useful = [index for index in (*self._tried.get(anchor, ()), *self._direct) if not self._full(index)]
            if useful:
                self._look(anchor, useful, at)
            else:
                self._wasted += 1
                if self._wasted > _REBUILD:
                    self._build()
        self._done = limit

    def _look(self, anchor: bytes, indices: Sequence[int], at: int) -> None:
        """Try patterns where their text was found; a text that is common and leads to nothing gives way to them."""
        end, matched = self._try(indices, at)
        if anchor in self._by_anchor:
            self._tried_to[anchor] = end
            if not matched:
                self._vain[anchor] = self._vain.get(anchor, 0) + 1
                if self._vain[anchor] > _COMMON:
                    self._direct = list(dict.fromkeys((*self._direct, *self._by_anchor[anchor])))
                    self._by_anchor = {text: found for text, found in self._by_anchor.items() if text != anchor}
                    self._build()

    def _try(self, indices: Iterable[int], at: int) -> tuple[int, bool]:
        """Try patterns on the line at a position and two more; return the end of the line, and if any matched."""
        text = self._text
        start = _line_start(text, at)
        end = stop = _line_end(text, at)
        for _ in range(2):
            stop = _line_end(text, stop + 1) if stop < len(text) else stop
        part = text[start:stop]
        matched = False
        for index in indices:
            found = compiled(self.patterns[index].match).search(part)
            if found is not None and start + found.start() <= end:
                matched = True
                known = self.matches.setdefault(index, [])
                line = self._line(start)
                if not any(match.line == line for match in known[-3:]):
                    known.append(self._match(line, start, end, found))
        return end, matched

    def _line(self, position: int) -> int:
        """Return the number of the line at a position, counted from the last one."""
        if position >= self._counted:
            self._passed += self._text.count(b"\n", self._counted, position)
        else:
            self._passed -= self._text.count(b"\n", position, self._counted)
        self._counted = position
        return self._passed + 1

    def _match(self, line: int, start: int, end: int, found: Any) -> Match:
        raw = self._text[start:end].decode("utf-8", "replace").rstrip()
        rank, shown = without_prefix(raw)
        before = self._text[max(start - BEFORE, 0) : start].decode("utf-8", "replace")
        after = self._text[end : end + AFTER].decode("utf-8", "replace")
        earlier = "\n".join(_same_rank(before.splitlines()[-60:], rank))
        same = self._text[start : start + found.start()].decode("utf-8", "replace")  # a traceback may be one line
        around = "\n".join([earlier, shown, *_same_rank(after.splitlines(), rank)]).replace("\\", "/")
        groups = tuple(named_groups(found).items())
        frame = last_frame(same) or last_frame(earlier)
        return Match(line, shown, rank, around, found.end() - found.start(), groups, frame)


def _line_start(text: bytes, at: int) -> int:
    floor = max(at - LONGEST // 2, 0)
    return max(text.rfind(b"\n", floor, at), text.rfind(b"\r", floor, at), floor - 1) + 1


def _line_end(text: bytes, at: int) -> int:
    ceiling = min(at + LONGEST // 2, len(text))
    ends = [end for end in (text.find(b"\n", at, ceiling), text.find(b"\r", at, ceiling)) if end >= 0]
    return min(ends, default=ceiling)


def _same_rank(lines: Iterable[str], rank: str | None) -> Iterator[str]:
    """Yield the lines of one rank without their prefix, except notices; those of all ranks where it is unknown."""
    for line in lines:
        found, shown = without_prefix(line)
        if (rank is None or found in (None, rank)) and not _NOTICE.search(shown):
            yield shown


def without_prefix(line: str) -> tuple[str | None, str]:
    """Return the rank or process that a line starts with, and the rest of the line."""
    found = _PREFIX.match(line)
    if found is None:
        return None, line
    return next((value for value in found.groups() if value is not None), None), line[found.end() :]
