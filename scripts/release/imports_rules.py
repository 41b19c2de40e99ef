"""Write the rows of `refresh_imports.py` as rules: one for each pair of packages and each kind of failure."""

from __future__ import annotations

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.rulebook.authoring.format import formatted  # noqa: E402

RULES = ROOT / "rules"
FOLDER = RULES / "imports"
MOST_NAMES = 3


@dataclass
class Pair:
    """What the releases of one package import from another one, where some release of that lacks it."""

    caller: str
    callee: str
    hard: bool
    broken: dict[Version, set[Version]] = field(default_factory=lambda: defaultdict(set))
    names: dict[str, tuple[set[Version], set[Version]]] = field(default_factory=dict)
    entries: set[str] = field(default_factory=set)
    elsewhere: Mapping[Version, set[Version]] = field(default_factory=dict)  # what the other rule of the two is about

    def fails(self, caller: Version, callee: Version) -> bool:
        """Whether two releases fail together, by this rule or by the other one of the two packages."""
        return callee in self.broken.get(caller, ()) or callee in self.elsewhere.get(caller, ())


@dataclass(frozen=True)
class Window:
    """Releases of the caller that fail with releases of the callee; both as a range, and one release of each."""

    callers: str
    callees: str
    caller: Version
    callee: Version
    good_callee: Version | None
    good_caller: Version | None


def write(releases: Mapping[str, Sequence[str]], rows: Sequence[Mapping[str, Any]], callers: Iterable[str]) -> None:
    """Write one file per pair; a pair keeps the id it has. Rules of packages that were not read stay as they are."""
    known = {package: [Version(text) for text in texts] for package, texts in releases.items()}
    FOLDER.mkdir(exist_ok=True)
    ids = {name_of(path): path.stem for path in FOLDER.glob("IMP*.yaml")}
    free = numbers_for("IMP", ids.values())
    written = set()
    for pair in pairs_of(rows):
        windows = windows_of(pair, known[pair.caller], known[pair.callee])
        if windows:
            name = f"{pair.caller}-{'imports' if pair.hard else 'uses'}-{pair.callee}"
            number = ids.get(name) or next(free)
            same_rule(FOLDER / f"{number}.yaml", rule_body(number, name, pair, windows, known), "refresh_imports.py")
            written.add(number)
    read = {f"{caller}-{verb}-{callee}" for caller in callers for verb in ("imports", "uses") for callee in releases}
    for path in FOLDER.glob("IMP*.yaml"):
        if path.stem not in written and name_of(path) in read:
            path.unlink()
    print(len(written), "rules")


def name_of(path: Path) -> str:
    """Return the name of the rule in a file."""
    found = re.search(r"^name: (.+)$", path.read_text(), re.MULTILINE)
    return found[1] if found else ""


def numbers_for(letters: str, taken: Iterable[str]) -> Iterator[str]:
    """Yield the ids behind the last one: those of deleted rules are not used again."""
    last = max((int(text.removeprefix(letters)) for text in taken), default=0)
    return (f"{letters}{number:03}" for number in range(last + 1, 1000))


def same_rule(path: Path, body: Mapping[str, Any], script: str) -> None:
    """Write a rule, in the style of `attn-doctor rules format`."""
    text = yaml.safe_dump(dict(body), sort_keys=False, width=110, allow_unicode=True)
    path.write_text(formatted(f"# Written by scripts/release/{script}\n{text}"))


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


def following(version: Version) -> str:
    """Return the next patch release; post-releases of this one are before it."""
    release = (*version.release, 0, 0)[: max(3, len(version.release))]
    return ".".join(map(str, (*release[:-1], release[-1] + 1)))


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
            caller = callers[last]
            good = [version for version in callees if version not in pair.broken[caller]]
            callee = callees[span[0]] if span[0] else callees[span[1]]
            newer = [version for version in callers[last + 1 :] if callee not in pair.broken.get(version, set())]
            good_callee = (good and min(good, key=lambda one: _distance(one, span, callees))) or None
            found.append(Window(
                _range(first, last, callers, open_end=False, open_start=False),
                _range(*span, callees, open_end=span[0] > 0),
                caller, callee, good_callee, newer[0] if newer else None,
            ))  # fmt: skip
    return [one for one in found if one.callees != ">=0"]


def _distance(version: Version, span: tuple[int, int], callees: Sequence[Version]) -> int:
    number = callees.index(version)
    return span[0] - number if number < span[0] else number - span[1]


#: Packages that are imported under another name than their own.
_IMPORT_NAMES = {"flash-linear-attention": "fla", "ms-swift": "swift"}
#: Packages of kernels that only jobs with some models import: where they do not import, all other jobs work.
_FOR_SOME_MODELS = {"mamba-ssm"}


def rule_body(
    number: str, name: str, pair: Pair, windows: Sequence[Window], known: Mapping[str, list[Version]]
) -> dict[str, Any]:
    """Return the content of a rule with its tests."""
    caller, callee = f"{pair.caller}.version", f"{pair.callee}.version"
    own = {pair.caller, _IMPORT_NAMES.get(pair.caller, pair.caller.replace("-", "_"))}
    where = "" if pair.hard or own & pair.entries else f" (for {', '.join(sorted(pair.entries))})"
    verb = "cannot be imported with" if pair.hard else "imports names that are not in"
    headline = "cannot be imported with" if pair.hard else "imports what is not in"
    body: dict[str, Any] = {
        "id": number,
        "name": name,
        "severity": "error" if pair.hard and pair.caller not in _FOR_SOME_MODELS else "warning",
        "category": "api-signature-drift",
        "reach": pair.caller,
    }
    if general := hand_written(pair.caller, pair.callee):
        body["yields_to"] = general
    body |= {
        "summary": f"{pair.caller} {headline} this {pair.callee}",
        "why": _why(pair, known),
        "references": [
            f"https://pypi.org/project/{pair.caller}/{windows[-1].caller}/#files",
            f"https://pypi.org/project/{pair.callee}/{windows[-1].callee}/#files",
        ],
        "when": {"any": [{caller: one.callers, callee: one.callees} for one in windows]},
        "message": f"{pair.caller} {{{caller}}} {verb} {pair.callee} {{{callee}}}{where}",
        "fix": fixes_of(pair, windows, known[pair.caller], known[pair.callee]),
    }
    if not body["fix"]:
        body["no_pin"] = "No release is on record that has all of these names."
        del body["fix"]
    tests: dict[str, Any] = {}
    for at, one in enumerate(windows, 1):
        tests[f"fires {at}"] = _test({caller: one.caller, callee: one.callee}, "fires")
        tests[f"silent {at} without {pair.callee}"] = _test({caller: one.caller, callee: "absent"}, "silent")
        tests[f"silent {at} without {pair.caller}"] = _test({caller: "absent", callee: one.callee}, "silent")
        if one.good_callee:
            given = {caller: one.caller, callee: one.good_callee}
            tests[f"silent {at} with {pair.callee} {one.good_callee}"] = _test(given, "silent")
        if one.good_caller:
            given = {caller: one.good_caller, callee: one.callee}
            tests[f"silent {at} of {pair.caller} {one.good_caller}"] = _test(given, "silent")
    body["tests"] = tests
    return body


def _test(given: Mapping[str, Any], expect: str) -> dict[str, Any]:
    return {"given": {key: str(value) for key, value in given.items()}, "expect": expect}


def hand_written(first: str, second: str) -> list[str]:
    """Return the rules written by hand that look at both packages."""
    both = [re.compile(rf"^\s.*(?<![\w-]){re.escape(name)}\.version: ", re.MULTILINE) for name in (first, second)]
    return sorted(name for name, text in _rules_by_hand().items() if all(one.search(text) for one in both))


@functools.cache
def _rules_by_hand() -> dict[str, str]:
    return {
        path.stem: text
        for path in RULES.glob("*/*.yaml")
        if path.parent.name not in ("imports", "declared")
        and path.stem != "library"
        and not path.stem.startswith("LOG")
        and "severity:" in (text := path.read_text())
    }  # fmt: skip


def _why(pair: Pair, known: Mapping[str, list[Version]]) -> str:
    newest = sorted(pair.names.items(), key=lambda item: (max(item[1][0]), len(item[1][1])), reverse=True)
    parts = []
    for name, (callers, callees) in newest[:MOST_NAMES]:
        spans = " or ".join(
            _words(first, last, known[pair.callee]) for first, last in _spans(callees, known[pair.callee])
        )
        parts.append(f"`{name}` ({pair.caller} {min(callers)} to {max(callers)}; not in {pair.callee} {spans})")
    more = len(newest) - MOST_NAMES
    start = "It imports these names at the top of a module, without a check: "
    return start + "; ".join(parts) + (f"; and {more} more" if more > 0 else "") + "."


def _words(first: int, last: int, all_of: Sequence[Version]) -> str:
    if not first:
        return f"before {all_of[last + 1]}" if last < len(all_of) - 1 else "any release"
    return f"{all_of[first]} to {all_of[last]}" if last < len(all_of) - 1 else f"from {all_of[first]} on"


def fixes_of(
    pair: Pair, windows: Sequence[Window], callers: Sequence[Version], callees: Sequence[Version]
) -> list[dict[str, Any]]:
    """Return the releases of either package with which no release of a window fails; each for its windows."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for one in windows:
        affected = _within(one.callers, callers)
        sound = _sound(pair, affected, callees, lambda mine, theirs: (mine, theirs))
        if sound:
            span = _range(*_spans(sound, callees)[-1], callees, open_end=True)
            found.setdefault((pair.callee, span), []).append({f"{pair.caller}.version": one.callers})
        newer = [version for version in callers if not affected or version > affected[-1]]
        sound = _sound(pair, _within(one.callees, callees), newer, lambda mine, theirs: (theirs, mine))
        if callers[-1] in sound:  # a range that later releases leave again is an old hole, and no fix
            span = _range(*_spans(sound, callers)[-1], callers, open_end=True)
            found.setdefault((pair.caller, span), []).append({f"{pair.callee}.version": one.callees})
    return [{"require": {package: span}, "when": _any_of(cases)} for (package, span), cases in found.items()]


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


def _any_of(cases: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the condition that one of these ranges holds."""
    unique = [case for number, case in enumerate(cases) if case not in cases[:number]]
    return dict(unique[0]) if len(unique) == 1 else {"any": unique}
