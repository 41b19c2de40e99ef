"""Write the table of `refresh_imports.py`: one row for each pair of packages and each kind of failure."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent))
from table_files import span_text, write_pairs

from doctor.rulebook.table_ranges import following


@dataclass
class Pair:
    """What the releases of one package import from another one, where some release of that lacks it."""

    caller: str
    callee: str
    hard: bool
    broken: dict[Version, set[Version]] = field(default_factory=lambda: defaultdict(set))
    names: dict[str, tuple[set[Version], set[Version]]] = field(default_factory=dict)
    entries: set[str] = field(default_factory=set)
    files: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # name -> files that import it
    elsewhere: Mapping[Version, set[Version]] = field(default_factory=dict)  # what the other rule of the two is about

    def fails(self, caller: Version, callee: Version) -> bool:
        """Whether two releases fail together, by this rule or by the other one of the two packages."""
        return callee in self.broken.get(caller, ()) or callee in self.elsewhere.get(caller, ())


@dataclass(frozen=True)
class Window:
    """Releases of the caller that fail with releases of the callee: each as a range and as the text of a row."""

    callers: str
    callees: str
    span: tuple[int, int]  # positions of the first and last release of the callee
    text: str


def write(releases: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Any]], callers: Iterable[str]) -> None:
    """Write one row of the table per pair; a pair keeps the id it has. Rows of packages that were not read stay."""
    known = {package: [Version(text) for text in texts] for package, texts in releases.items()}
    found = {}
    for pair in pairs_of(rows):
        windows = windows_of(pair, known[pair.caller], known[pair.callee])
        if windows:
            found[pair.caller, "imports" if pair.hard else "uses", pair.callee] = row_of(pair, windows, known)
    write_pairs("imports", "IMP", found, set(callers))


def pairs_of(rows: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """Group the rows; a release that fails on import is left out of the pair for single entries."""
    found: dict[tuple[str, str, bool], Pair] = {}
    for row in rows:
        key = (row["caller"], row["callee"], not row["entry"])
        pair = found.setdefault(key, Pair(*key))
        missing = {Version(text) for text in row["missing"]}
        if row["entry"]:
            pair.entries.add(row["entry"])
        pair.broken[Version(row["version"])] |= missing
        name = f"{row['module']}.{row['name']}".rstrip(".")
        callers, callees = pair.names.setdefault(name, (set(), set()))
        callers.add(Version(row["version"]))
        callees |= missing
        pair.files[name].update(row.get("files", ()))
    for (caller, callee, hard), pair in found.items():
        other = found.get((caller, callee, not hard))
        if other:
            pair.elsewhere = {version: set(missing) for version, missing in other.broken.items()}
        if not hard and other:
            for version in pair.broken:
                pair.broken[version] -= other.broken.get(version, set())
    return [found[key] for key in sorted(found)]


def _spans(wanted: set[Version], all_of: Sequence[Version]) -> list[tuple[int, int]]:
    """Return the runs of wanted releases, as positions of first and last."""
    numbers = [number for number, version in enumerate(all_of) if version in wanted]
    return [
        (run[0], run[-1])
        for _, group in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])
        for run in [[number for _, number in group]]
    ]


def _range(first: int, last: int, all_of: Sequence[Version], *, open_end: bool, open_start: bool = True) -> str:
    parts = [f">={all_of[first]}"] if first or not open_start else []
    if last < len(all_of) - 1:
        parts.append(f"<{all_of[last + 1]}")
    elif not open_end:
        parts.append(f"<{following(all_of[last])}")  # releases to come are not judged
    return ",".join(parts) or ">=0"


def windows_of(pair: Pair, callers: Sequence[Version], callees: Sequence[Version]) -> list[Window]:
    """Return the ranges in which the pair fails; caller releases that fail alike are one range."""
    spans = {version: tuple(_spans(pair.broken.get(version, set()), callees)) for version in callers}
    found = []
    for span in sorted({one for several in spans.values() for one in several}):
        for first, last in _spans({version for version in callers if span in spans[version]}, callers):
            later = callers[last + 1] if last + 1 < len(callers) else None
            mine = span_text(callers[first], callers[last], later, to_later=True)
            found.append(Window(
                _range(first, last, callers, open_end=False, open_start=False),
                _range(*span, callees, open_end=span[0] > 0), span, f"{mine} with {_lacking(span, callees)}",
            ))  # fmt: skip
    return [one for one in found if one.callees != ">=0"]


def _lacking(span: tuple[int, int], callees: Sequence[Version]) -> str:
    """Return releases of the callee as the text of a row."""
    first, last = span
    after = f" after {callees[first - 1]}" if first else ""
    if last == len(callees) - 1:
        return f"{callees[first]} on{after}"
    start = f"{callees[first]} to {callees[last]}" if first < last else f"{callees[first]}"
    return f"{start if first else f'up to {callees[last]}'} before {callees[last + 1]}{after}"


def one_or_list(texts: list[str]) -> str | list[str]:
    """Return the one text, or all of several."""
    return texts[0] if len(texts) == 1 else texts


#: Packages that are imported under another name than their own.
_IMPORT_NAMES = {"flash-linear-attention": "fla", "ms-swift": "swift"}
#: Packages of kernels that only jobs with some models import: where they do not import, all other jobs work.
_FOR_SOME_MODELS = {"mamba-ssm"}


def row_of(pair: Pair, windows: Sequence[Window], known: Mapping[str, list[Version]]) -> dict[str, Any]:
    """Return the row of a pair: some of the names, and which releases fail together."""
    row: dict[str, Any] = {}
    if pair.hard and pair.caller in _FOR_SOME_MODELS:
        row["severity"] = "warning"
    own = {pair.caller, _IMPORT_NAMES.get(pair.caller, pair.caller.replace("-", "_"))}
    if not pair.hard and not own & pair.entries:
        row["for"] = sorted(pair.entries)
    shown = witnesses(pair, windows, known)
    for name in shown:
        callers, callees = pair.names[name]
        spans = [_lacking(span, known[pair.callee]) for span in _spans(callees, known[pair.callee])]
        later = next((one for one in known[pair.caller] if one > max(callers)), None)
        row[name] = {
            "in": span_text(min(callers), max(callers), later, to_later=True), "missing": one_or_list(spans),
            "file": one_or_list(sorted(f"**/{file}" for file in pair.files[name])),
        }  # fmt: skip
    if len(pair.names) > len(shown):
        row["more"] = str(len(pair.names) - len(shown))
    fixes = fixes_of(pair, windows, known[pair.caller], known[pair.callee])
    if not any(fixes):
        row["no_pin"] = "No release is on record that has all of these names."
    return row | {window.text: fix for window, fix in zip(windows, fixes, strict=True)}


def witnesses(pair: Pair, windows: Sequence[Window], known: Mapping[str, list[Version]]) -> list[str]:
    """Return names that show every failure, as few as a greedy choice finds; the newest first."""
    callees = known[pair.callee]
    open_cases = {
        (caller, callees[at])
        for window in windows for caller in _within(window.callers, known[pair.caller])
        for at in range(window.span[0], window.span[1] + 1)
    }  # fmt: skip
    shown: list[str] = []
    while open_cases:
        covers = {
            name: {(one, other) for one in callers for other in missing} & open_cases
            for name, (callers, missing) in pair.names.items() if name not in shown
        }  # fmt: skip
        best = max(sorted(covers), key=lambda name: len(covers[name]), default=None)
        if best is None or not covers[best]:
            break
        shown.append(best)
        open_cases -= covers[best]
    return sorted(shown, key=lambda name: (max(pair.names[name][0]), len(pair.names[name][1])), reverse=True)


def fixes_of(
    pair: Pair, windows: Sequence[Window], callers: Sequence[Version], callees: Sequence[Version]
) -> list[dict[str, str]]:
    """Return, for each window, releases of either package with which none of its releases fails: `use` and `or`."""
    found = []
    for one in windows:
        fix = {}
        affected = _within(one.callers, callers)
        sound = _sound(pair, affected, callees, lambda mine, theirs: (mine, theirs))
        if sound:
            fix["use"] = _range(*_spans(sound, callees)[-1], callees, open_end=True)
        newer = [version for version in callers if not affected or version > affected[-1]]
        sound = _sound(pair, _within(one.callees, callees), newer, lambda mine, theirs: (theirs, mine))
        if callers[-1] in sound:  # a range that later releases leave again is an old hole, and no fix
            fix["or"] = _range(*_spans(sound, callers)[-1], callers, open_end=True)
        found.append(fix)
    return found


def _within(span: str, versions: Sequence[Version]) -> list[Version]:
    wanted = SpecifierSet(span)
    return [version for version in versions if wanted.contains(version, prereleases=True)]


def _sound(
    pair: Pair, kept: Sequence[Version], others: Iterable[Version],
    order: Callable[[Version, Version], tuple[Version, Version]],
) -> set[Version]:  # fmt: skip
    """Return the releases of one package with which none that is kept of the other one fails.

    Where there is none, a failed import may become the failure of a part; the reverse is no fix.
    """
    both = {one for one in others if not any(pair.fails(*order(other, one)) for other in kept)}
    if both or not pair.hard:
        return both
    return {
        one for one in others
        if not any(callee in pair.broken.get(caller, ()) for caller, callee in (order(other, one) for other in kept))
    }  # fmt: skip
