"""One pass over a log: where which pattern matches, with the lines around it.

A scan for fixed texts (one automaton for all of them) finds candidate lines; only there a pattern is tried. Both steps
use RE2, whose time is linear in the text. Each pattern keeps its first matches only, and a text whose patterns have all
they need leaves the scan. A text that many lines contain for no match is replaced by its patterns themselves, or is
looked for in the end of the log only. Text that repeats what was tried before is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from doctor.util.linear_regex import compiled, compiled_once, named_groups
from doctor.util.traceback_frames import Frame, frames_of, last_frame

from .pattern import Pattern, PatternChoice

BEFORE = 12_288  # bytes kept before a match, to see its traceback
AFTER = 4_096
LONGEST = 8_192  # bytes of a line that are looked at around a match
LAST = 256 << 10  # bytes at the end of a log that are always searched for all texts
_REBUILD = 2_000  # matches of texts that are no longer needed, before the scan is built again without them
_COMMON = 10_000  # lines with a text in vain, before its patterns take its place
_MOST_DIRECT = 16  # patterns that do; more would make the automaton slow
GIVEN_UP = 50_000  # lines with a text in vain, after which it is looked for in the end of the log only
_MOST_SEEN = 256  # lines without a match that are remembered
_TRACEBACK = "Traceback (most recent call last)"
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
class Place:
    """The lines around a line of a log; they are read when they are needed."""

    rank: str | None
    shown: str
    before: bytes
    after: bytes

    @cached_property
    def around(self) -> str:
        """Return the lines before and after that are of the same rank, with `/` in paths of Windows too."""
        after = _same_rank(self.after.decode("utf-8", "replace").splitlines(), self.rank)
        return "\n".join([self._earlier, self.shown, *after]).replace("\\", "/")

    @cached_property
    def frame(self) -> str:
        """Return the file of the last frame of the traceback before the line."""
        return last_frame(self._earlier)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """Return the frames of the last traceback before the line."""
        start = self._earlier.rfind(_TRACEBACK)
        return frames_of(self._earlier[max(start, 0) :])

    @cached_property
    def _earlier(self) -> str:
        lines = self.before.decode("utf-8", "replace").splitlines()[-60:]
        return "\n".join(_same_rank(lines, self.rank))


@dataclass(frozen=True)
class Match:
    """One match: the line it is in, the lines around it, and the groups."""

    line: int  # from 1
    text: str  # of the line, without rank prefix
    rank: str | None
    place: Place
    length: int  # of the matched text
    groups: tuple[tuple[str, str], ...] = ()
    same: str = ""  # the text before it on its line: a traceback may be one line
    added: str = ""  # another text of the line

    @cached_property
    def around(self) -> str:
        """Return the lines before and after that are of the same rank."""
        return f"{self.place.around}\n{self.added}" if self.added else self.place.around

    @cached_property
    def frame(self) -> str:
        """Return the file of the last frame of the traceback before it."""
        return last_frame(self.same) or self.place.frame

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """Return the frames of the last traceback before it."""
        return frames_of(self.same) or self.place.frames


@lru_cache(maxsize=4)
def _first_automaton(patterns: tuple[Pattern, ...]) -> tuple[dict[bytes, list[int]], Any]:
    """Return for each text the patterns that have it, and the automaton of all."""
    by_anchor: dict[bytes, list[int]] = {}
    for index, pattern in enumerate(patterns):
        for anchor in pattern.anchors:
            by_anchor.setdefault(anchor.encode(), []).append(index)
    return by_anchor, _automaton(by_anchor, ())


def _automaton(by_anchor: Mapping[bytes, Sequence[int]], direct: Sequence[str]) -> Any:
    """Return the automaton of texts and patterns; a text comes before its own prefixes."""
    union = [re.escape(text).decode("utf-8") for text in sorted(by_anchor, reverse=True)]
    union += [f"(?:{pattern})" for pattern in direct]
    return compiled_once("|".join(union), _MEMORY) if union else None


@dataclass
class Scanner:
    """The scan of one log; feed it blocks of text, then `finish`."""

    patterns: Sequence[Pattern]
    matches: dict[int, list[Match]] = field(default_factory=dict)
    lines: int = 0
    common: tuple[str, ...] = ()  # texts that so many lines had in vain that the middle was not searched for them

    def __post_init__(self) -> None:
        self._text = b""
        self._base = 0  # bytes before `_text`
        self._done = 0  # position in `_text` up to which everything was looked at
        self._counted = 0  # position in `_text` up to which lines were counted
        self._passed = 0  # lines before that position
        self._wasted = 0
        self._vain: dict[bytes, int] = {}
        self._direct: list[int] = []  # patterns that are searched themselves
        self._dropped: dict[bytes, Sequence[int]] = {}  # texts that are looked for in the end of the log only
        self._at_end = False
        self._undropped = 0  # bytes of the log that were searched for all texts
        self._seen: dict[bytes, int] = {}  # lines that were tried -> where, in bytes of the log
        self._changed = 0  # where the last match was kept, in bytes of the log
        self._place: tuple[int, int, Place] | None = None
        self._by_anchor: Mapping[bytes, Sequence[int]]
        self._by_anchor, self._union = _first_automaton(tuple(self.patterns))
        self._choice = PatternChoice(self.patterns, self._by_anchor)

    def _build(self, by_anchor: Mapping[bytes, Sequence[int]]) -> None:
        """Make the automaton again, of those of these texts, and of the patterns, that are still needed."""
        needed = {anchor: open_ for anchor, indices in by_anchor.items() if (open_ := self._choice.open_of(indices))}
        self._by_anchor, self._wasted = needed, 0
        self._direct = list(self._choice.open_of(self._direct))
        self._union = _automaton(needed, [self.patterns[index].match for index in self._direct])
        self._choice.use(needed, self._direct)

    def feed(self, block: bytes) -> None:
        """Look through one more block."""
        self._text += block
        if len(self._text) - self._done > AFTER:
            self._scan(len(self._text) - AFTER)
            keep = max(self._done - (LAST if self._dropped else BEFORE), 0)
            self._line(keep)
            self._text, self._done, self._counted = self._text[keep:], self._done - keep, 0
            self._base += keep

    def finish(self) -> dict[int, list[Match]]:
        """Look through the rest; return the matches of each pattern by its index."""
        self._scan(len(self._text))
        if self._dropped:
            self._scan_end()
        self.lines = self._line(len(self._text)) - (self._text.endswith(b"\n") or not self._text)
        return self.matches

    def _scan_end(self) -> None:
        """Look for the texts that were dropped in the last part of the log, where the cause of its end is."""
        dropped, self._dropped, self._direct = self._dropped, {}, []
        self._at_end = True
        self._seen.clear()
        self._build(dropped)
        start = self._undropped - self._base
        self._done = max(start, len(self._text) - LAST, 0)
        if start < self._done:
            self.common = tuple(sorted(text.decode("utf-8", "replace") for text in dropped))
        self._scan(len(self._text))
        for found in self.matches.values():
            found.sort(key=lambda match: match.line)

    def _scan(self, limit: int) -> None:
        """Find the texts of each line up to a position; try their patterns on the line."""
        text, position = self._text, self._done
        found = self._union.search(text, position) if self._union is not None else None
        while found is not None and (at := found.start()) < limit:
            end = _line_end(text, at)
            anchors: set[bytes] = set()
            while found is not None and (here := found.start()) <= end:
                anchor = found.group(0)
                anchors.add(anchor)
                position = here + self._choice.step(anchor)
                found = self._union.search(text, position)
            union = self._union
            again = self._look(tuple(sorted(anchors)), at, end)
            position = max(position, again)
            if self._union is None:
                break
            if found is not None and (found.start() < position or union is not self._union):
                found = self._union.search(text, position)
        self._done = max(limit, position)

    def _look(self, anchors: tuple[bytes, ...], at: int, end: int) -> int:
        """Try the patterns of a line with some texts; return from where on the text is not known from before."""
        start = _line_start(self._text, at)
        stop = end
        for _ in range(2):
            stop = _line_end(self._text, stop + 1) if stop < len(self._text) else stop
        if not self._choice.has_any(anchors):
            self._wasted += 1
            if self._wasted > _REBUILD:
                self._build(self._by_anchor)
        elif not self._try(anchors, start, end, stop):
            if not self._at_end:
                self._count_vain(anchors, at)
            return self._end_of_repeats(start, stop)
        return 0

    def _count_vain(self, anchors: Sequence[bytes], at: int) -> None:
        """Note texts of a line without a match; one that is common gives way to its patterns, or is dropped."""
        for text in self._choice.texts_of(anchors):
            count = self._vain[text] = self._vain.get(text, 0) + 1
            if count == _COMMON:
                direct = dict.fromkeys((*self._direct, *self._choice.open_of(self._by_anchor[text])))
                if len(direct) > _MOST_DIRECT:
                    continue
                self._direct = list(direct)
            elif count == GIVEN_UP:
                self._undropped = self._undropped if self._dropped else self._base + at
                self._dropped[text] = self._by_anchor[text]
            else:
                continue
            self._build({other: indices for other, indices in self._by_anchor.items() if other != text})
            return

    def _end_of_repeats(self, start: int, stop: int) -> int:
        """Return up to where the text repeats lines that were tried before, and have no match."""
        part = self._text[start:stop]
        earlier = self._seen.get(part, -1) - self._base
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[part] = self._base + start
        if earlier < 0 or self._changed >= earlier + self._base:
            return 0
        end = start + _common_length(self._text, earlier, start)
        for _ in range(3):  # a match may reach into two more lines
            end = self._text.rfind(b"\n", start, max(end, start))
        return end + 1

    def _try(self, anchors: tuple[bytes, ...], start: int, end: int, stop: int) -> bool:
        """Try patterns on a line and what follows it; return whether any matched."""
        part = self._text[start:stop]
        matched = False
        for index in self._choice.to_try(anchors, part):
            found = compiled(self.patterns[index].match).search(part)
            if found is not None and start + found.start() <= end:
                matched = True
                self._keep(index, start, end, found)
        return matched

    def _keep(self, index: int, start: int, end: int, found: Any) -> None:
        known, line = self.matches.setdefault(index, []), self._line(start)
        if not any(match.line == line for match in (known if self._at_end else known[-3:])):
            known.append(self._match(line, start, end, found))
            self._changed = self._base + start
            if len(known) >= self.patterns[index].most:
                self._choice.fill(index)

    def _line(self, position: int) -> int:
        """Return the number of the line at a position, counted from the last one."""
        if position >= self._counted:
            self._passed += self._text.count(b"\n", self._counted, position)
        else:
            self._passed -= self._text.count(b"\n", position, self._counted)
        self._counted = position
        return self._passed + 1

    def _match(self, line: int, start: int, end: int, found: Any) -> Match:
        if end - start >= LONGEST // 2:  # a part of a long line: the one around the match
            at = start + found.start()
            first, end = _line_start(self._text, at), _line_end(self._text, at)
        else:
            first = start
        same = self._text[first : start + found.start()].decode("utf-8", "replace")
        place = self._place_of(first, end)
        length, groups = found.end() - found.start(), tuple(named_groups(found).items())
        return Match(line, place.shown, place.rank, place, length, groups, same)

    def _place_of(self, start: int, end: int) -> Place:
        """Return what is around a line; several patterns match on one."""
        key = self._base + start, self._base + end
        if self._place is None or self._place[:2] != key:
            rank, shown = without_prefix(self._text[start:end].decode("utf-8", "replace").rstrip())
            before, after = self._text[max(start - BEFORE, 0) : start], self._text[end : end + AFTER]
            self._place = *key, Place(rank, shown, before, after)
        return self._place[2]


def _line_start(text: bytes, at: int) -> int:
    floor = max(at - LONGEST // 2, 0)
    return max(text.rfind(b"\n", floor, at), text.rfind(b"\r", floor, at), floor - 1) + 1


def _line_end(text: bytes, at: int) -> int:
    ceiling = min(at + LONGEST // 2, len(text))
    ends = [end for end in (text.find(b"\n", at, ceiling), text.find(b"\r", at, ceiling)) if end >= 0]
    return min(ends, default=ceiling)


def _common_length(text: bytes, first: int, second: int) -> int:
    """Return how many bytes are the same behind two positions."""
    length, step = 0, 1 << 16
    while step:
        at, end = second + length, second + length + step
        if end <= len(text) and text[first + length : first + length + step] == text[at:end]:
            length += step
        else:
            step //= 2
    return length


def _same_rank(lines: Iterable[str], rank: str | None) -> Iterator[str]:
    """Yield the lines of one rank without their prefix, except notices; those of all ranks where it is unknown."""
    for line in lines:
        found, shown, notice = _read(line)
        if not notice and (rank is None or found in (None, rank)):
            yield shown


@lru_cache(maxsize=4096)
def _read(line: str) -> tuple[str | None, str, bool]:
    """Return the rank of a line, its text, and whether it is a notice; the lines around errors are often the same."""
    rank, shown = without_prefix(line)
    return rank, shown, _NOTICE.search(shown) is not None


def without_prefix(line: str) -> tuple[str | None, str]:
    """Return the rank or process that a line starts with, and the rest of the line."""
    found = _PREFIX.match(line)
    if found is None:
        return None, line
    return next((value for value in found.groups() if value is not None), None), line[found.end() :]
