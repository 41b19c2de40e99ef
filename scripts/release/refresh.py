"""Bring the records to today's releases: `make refresh`.

    python scripts/release/refresh.py [--cache DIR] [--only NAME …] [--since DATE] [--tables] [--dry-run]

1. New releases of every package on record are read into the release index: those of `--since` or later, without it
   those behind the newest one on record.
2. `--tables` renews the generated tables of the packages that have new releases (`refresh_tables.py`).
3. Every proof without an end is checked against the new releases. Where the code is gone, bisection finds the release
   that dropped it; where it is still there, `examined_to` of its rule moves to the newest release.
4. Rules whose end is not released yet, or whose fix no release satisfies, are listed.
5. Refusals that the newest release adds in code about attention, and that no rule knows, are listed.

A run that was ended goes on: what it read is kept, and `pending.json` in the cache names the releases to look at.

The summary goes to stdout and to `refresh.md` in the cache; rules that need a decision are left as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import refresh_index  # noqa: E402
import refresh_tables  # noqa: E402
from refusals import Refusal, added, unknown  # noqa: E402
from release_store import Store, StoredReleases, fill  # noqa: E402

from doctor.errors import DoctorError  # noqa: E402
from doctor.facts.versions import split_clauses  # noqa: E402
from doctor.rulebook.authoring.coverage import is_generated  # noqa: E402
from doctor.rulebook.authoring.tests import rulebook_paths  # noqa: E402
from doctor.rulebook.authoring.verify import shows  # noqa: E402
from doctor.rulebook.proofs import BINARY, SOURCE, Proof, proofs_of  # noqa: E402
from doctor.rulebook.rulebook import load_rulebook  # noqa: E402
from doctor.rulebook.schema import Source, read_source  # noqa: E402
from doctor.util.redact import shortened  # noqa: E402

PENDING = "pending.json"  # new releases that are on record, and that a run which was ended has not looked at
TOO_LARGE = frozenset({"tensorrt-llm", "nvidia-cutlass-dsl"})  # no texts, or more than a month's refresh can read


class Gone(NamedTuple):
    """A proof whose code is not in a new release any more."""

    rule: str
    package: str
    first_without: str


@dataclass
class Summary:
    """What a refresh found."""

    since: str
    new: dict[str, list[str]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    open: dict[str, list[str]] = field(default_factory=dict)  # package -> rules whose code is still there
    moved: list[str] = field(default_factory=list)  # rules whose `examined_to` moved
    gone: list[Gone] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the summary as Markdown."""
        yield f"# Refresh of {datetime.date.today().isoformat()}, since {self.since or 'the beginning'}"
        yield f"\n## {sum(map(len, self.new.values()))} new releases of {len(self.new)} packages\n"
        yield from (f"- {name}: {', '.join(found)}" for name, found in sorted(self.new.items()))
        yield "\n## Tables\n"
        yield from (f"- {text}" for text in self.tables or ["not renewed"])
        yield f"\n## Proofs without an end: {sum(map(len, self.open.values()))} still there, {len(self.gone)} gone\n"
        yield from (f"- {one.rule}: the code is not in {one.package} {one.first_without} any more" for one in self.gone)
        yield f"\n`examined_to` moved: {', '.join(self.moved) or 'none'}"
        yield "\n## Not decided\n"
        yield from (f"- {text}" for text in self.undecided)
        yield f"\n## {sum(map(len, self.refusals.values()))} new refusals that no rule knows\n"
        for name, found in sorted(self.refusals.items()):
            yield from refusal_lines(name, found)


def refusal_lines(name: str, found: Sequence[Refusal]) -> Iterator[str]:
    """Yield the refusals whose guard is about what a report knows, each with it, and the number of the others."""
    first = [one for one in found if one.decidable]
    yield f"### {name}: {len(found)}, of which {len(first)} depend on what a report knows\n"
    for path, group in groupby(sorted(first), key=lambda one: one.path):
        yield f"- `{path}`"
        yield from (f"  - {shortened(one.message, 160)}\n    `{shortened(one.guard, 160)}`" for one in group)
    rest = Counter("/".join(one.path.split("/")[:4]) for one in found if not one.decidable)
    if rest:
        yield "- others: " + ", ".join(f"`{folder}` {count}" for folder, count in rest.most_common(8))


def bisected(versions: Sequence[str], holds: Callable[[str], bool]) -> str:
    """Return the first release for which something does not hold; it holds for none behind that."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        if holds(versions[middle]):
            low = middle + 1
        else:
            high = middle
    return versions[low]


def endless(proof: Proof) -> SpecifierSet | None:
    """Return the range of a proof that has no end; None where every range ends."""
    return next((one for one in proof.ranges if not any(part.operator in ("<", "<=", "==") for part in one)), None)


def check_open_proofs(
    sources: Sequence[Source], new: Mapping[str, Sequence[str]], releases: StoredReleases, summary: Summary
) -> None:
    """Check the proofs without an end against new releases; note which code is gone and since when."""
    for source in sources:
        rule = source.content["id"]
        for proof in proofs_of(source.content):
            fresh = new.get(proof.origin)
            if proof.kind not in (SOURCE, BINARY) or not fresh or endless(proof) is None:
                continue

            def still_there(version: str, proof: Proof = proof) -> bool:
                return shows(proof, version, releases)

            try:
                if still_there(fresh[-1]):
                    summary.open.setdefault(proof.origin, []).append(rule)
                else:
                    summary.gone.append(Gone(rule, proof.origin, bisected(fresh, still_there)))
            except DoctorError as error:
                summary.undecided.append(f"{rule}: {error.message}")


def move_examined(source: Source, package: str, version: str) -> bool:
    """Set `examined_to` of a rule to a release, where it names an older one."""
    known = (source.content.get("examined_to") or {}).get(package)
    if known is None or Version(str(known)) >= Version(version):
        return False
    path = Path(source.path)
    text = path.read_text(encoding="utf-8")
    new = re.sub(rf"(?m)^(examined_to:.*?\b{re.escape(package)}: ){re.escape(str(known))}\b", rf"\g<1>{version}", text)
    path.write_text(new, encoding="utf-8")
    return new != text


def undecided_ranges(sources: Sequence[Source], index: Mapping[str, Mapping]) -> Iterator[str]:
    """Yield fixes that no release on record satisfies.

    Builds with a label and ranges of facts are left out, and ranges of a time before the oldest release on record.
    """
    for source in sources:
        for way in source.content.get("fix") or ():
            for name, text in (way.get("require") or {}).items():
                known = index.get(name, {}).get("releases")
                if not known or not split_clauses(text) or {"+", "{"} & set(text):
                    continue
                wanted = SpecifierSet(text, prereleases=True)
                newest = max(Version(bound.removesuffix(".*")) for _, bound in split_clauses(text))
                if newest <= min(map(Version, known)):
                    continue
                if not any(wanted.contains(one) for one in known):
                    yield f"{source.content['id']}: no release on record is in the fix `{name}{text}`"


def texts(store: Store, version: str) -> dict[str, str]:
    """Return the files of a release as text."""
    return {path: store.content(digest).decode("utf-8", "replace") for path, digest in store.paths(version).items()}


def new_refusals(store: Store, before: str, after: str, sources: Sequence[Source]) -> list[Refusal]:
    """Return the refusals between two releases that no rule knows."""
    signatures = [
        re.compile(pattern) for source in sources for item in source.content.get("signatures") or ()
        for pattern in ([item] if isinstance(item, str) else [item["match"]])
    ]  # fmt: skip
    known = [Path(source.path).read_text(encoding="utf-8") for source in sources]
    return unknown(added(texts(store, before), texts(store, after)), signatures, known)


def main(arguments: Sequence[str] | None = None) -> int:
    """Refresh, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "refresh", help="keeps what was read of releases"
    )
    parser.add_argument("--only", nargs="*", default=[], help="these packages alone; an unknown name is an error")
    parser.add_argument("--since", default="", metavar="DATE", help="the date of the records (default: that on record)")
    parser.add_argument("--tables", action="store_true", help="renew the generated tables, too")
    parser.add_argument("--dry-run", action="store_true", help="write no rule and no index")
    chosen = parser.parse_args(arguments)
    packages = refresh_index.read_index(refresh_index.INDEX)
    if wrong := sorted(set(chosen.only) - set(packages)):
        parser.error(f"not on record: {', '.join(wrong)}")
    chosen.cache.mkdir(parents=True, exist_ok=True)
    since = chosen.since or max(body.get("d", "") for line in packages.values() for body in line["releases"].values())
    summary = Summary(since)
    refresh_records(packages, chosen, summary)
    load_rulebook()  # its libraries declare words that rules use
    sources = [read_source(path) for path in rulebook_paths() if path.name != "library.yaml" and not is_generated(path)]
    look_at_sources(sources, packages, chosen, summary)
    if chosen.tables and not chosen.dry_run:
        summary.tables += refresh_tables.renew(chosen.cache, summary.new, lambda name: newest_of(packages[name]))
    summary.undecided += undecided_ranges(sources, packages)
    text = "\n".join(summary.lines()) + "\n"
    (chosen.cache / "refresh.md").write_text(text, encoding="utf-8")
    if not chosen.dry_run:
        write_pending(chosen.cache / PENDING, {}, done=summary.new)
    print(text)
    return 0


def newest_of(line: Mapping) -> str:
    """Return the newest final release of a package on record."""
    return max((one for one in line["releases"] if not Version(one).is_prerelease), key=Version)


def newest_date(line: Mapping) -> str:
    """Return the date of the newest release of a package on record."""
    return max((body.get("d", "") for body in line.get("releases", {}).values()), default="")


def refresh_records(packages: dict[str, dict], chosen: argparse.Namespace, summary: Summary) -> None:
    """Read the new releases of every package into the index."""
    index = refresh_index.configured_index()
    for name in chosen.only or sorted(packages):
        old = packages[name]
        try:
            packages[name] = refresh_index.refreshed(name, old, index, chosen.since or newest_date(old))
        except (OSError, ValueError) as error:
            summary.undecided.append(f"{name}: the package index does not answer: {error}")
            continue
        found = [one for one in packages[name]["releases"] if one not in old.get("releases", {})]
        final = [one for one in packages[name]["releases"] if not Version(one).is_prerelease]
        if found := [one for one in found if one in final or not final]:
            summary.new[name] = sorted(found, key=Version)
    take_pending(chosen.cache / PENDING, chosen.only, summary.new)
    if not chosen.dry_run:
        write_pending(chosen.cache / PENDING, summary.new, done=())
        refresh_index.write_index(refresh_index.INDEX, packages)


def take_pending(path: Path, only: Sequence[str], new: dict[str, list[str]]) -> None:
    """Add the releases that an earlier run put on record, and did not look at to its end."""
    for name, versions in (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}).items():
        if not only or name in only:
            new[name] = sorted({*versions, *new.get(name, ())}, key=Version)


def write_pending(path: Path, new: Mapping[str, Sequence[str]], done: Iterable[str]) -> None:
    """Note the releases that are still to be looked at; those of other packages stay."""
    noted = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    left = {name: list(versions) for name, versions in {**noted, **new}.items() if name not in set(done)}
    path.write_text(json.dumps(left, indent=1), encoding="utf-8")


def look_at_sources(
    sources: Sequence[Source], packages: Mapping[str, dict], chosen: argparse.Namespace, summary: Summary
) -> None:
    """Read the new releases of packages with proofs or rules, and compare."""
    ruled = {proof.origin for source in sources for proof in proofs_of(source.content)}
    releases = StoredReleases(chosen.cache / "releases")
    for name in sorted(set(summary.new) & ruled - TOO_LARGE):
        store, new = releases.store(name), summary.new[name]
        earlier = [one for one in packages[name]["releases"] if one not in new and not Version(one).is_prerelease]
        before = max(earlier, key=Version, default=None)
        fill(store, since=before or new[0])
        check_open_proofs(sources, {name: new}, releases, summary)
        if before is not None:
            summary.refusals[name] = new_refusals(store, before, new[-1], sources)
        if not chosen.dry_run:
            summary.moved += [
                source.content["id"] for source in sources
                if source.content["id"] in summary.open.get(name, ()) and move_examined(source, name, new[-1])
            ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
