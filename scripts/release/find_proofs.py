"""Propose proofs for rules from the sources of releases: code of the rule's own words that changes at its bounds.

    python scripts/release/release_store.py --cache DIR transformers trl …
    python scripts/release/find_proofs.py --cache DIR --package transformers > proposals.jsonl
    python scripts/release/find_proofs.py --cache DIR --proposals proposals.jsonl --take CHOSEN

A rule names code: functions, options, models, messages. Where a line of these words appears or vanishes at a bound of
the rule, and nowhere inside its range, the line may be evidence for the bound. The rarer the words and the more of them
a line has, the nearer it is to the rule. A large release changes lines of any words, so a reader chooses: a proposal is
a proof where the line is the cause, its fix, or what the range is about. `--take` writes the chosen ones to the rules,
each after the check of `rules verify`; `--record` writes what the check found to the records.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from release_store import Store, StoredReleases

from doctor.rulebook.authoring.coverage import is_generated, proven_bounds
from doctor.rulebook.authoring.format import formatted
from doctor.rulebook.authoring.lint import bounds_by_distribution, raw_leaves
from doctor.rulebook.authoring.tests import rulebook_paths
from doctor.rulebook.authoring.verify import verify
from doctor.rulebook.proofs import (
    PROVEN,
    SOURCE,
    Proof,
    bounds_in,
    proofs_of,
    read_records,
    record_of,
    records_path,
    shipped_records,
    write_records,
)
from doctor.rulebook.rule import is_checked
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import Source, read_source
from doctor.util.linear_regex import compiled

#: where the code of a distribution is: other packages, and repositories
SOURCES: Mapping[str, tuple[str, ...]] = {
    "transformer-engine": ("NVIDIA/TransformerEngine", "transformer-engine", "transformer-engine-torch"),
    "flash-attn": ("flash-attn", "Dao-AILab/flash-attention"),
    "flashinfer": ("flashinfer-python",),
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_NUMBER = re.compile(r"\b\d+(?:\.\d+)*(?:\.post\d+)?\b")
#: words that say nothing about a cause
_COMMON = frozenset((
    "torch", "transformers", "vllm", "sglang", "flash_attn", "None", "True", "False", "self", "version", "workload",
    "python", "PyTorch", "CUDA", "GPU", "the", "and", "for", "with", "not", "attn_implementation",
))  # fmt: skip
_TEXTS = ("name", "why", "message", "summary", "signatures", "no_pin", "myth")
LONGEST = 170  # characters of a line that becomes an expression
MOST_RUNS = 3  # ranges of releases in one proof
LEAST = 5.0  # of a score that is printed
COMMONEST = 4.0  # weight below which a word leads to no line
ALIKE = 2  # proposals with the same releases that are printed of a rule


class Line(NamedTuple):
    """A line of code, and the releases that have it, as bits."""

    text: str
    releases: int


class Run(NamedTuple):
    """Releases in a row, as places: the first, and the one behind the last."""

    first: int
    end: int


class Lines:
    """The lines that begin or end with some release of a package, and an index of their words."""

    def __init__(self, store: Store, words: frozenset[str], bounds: Iterable[Version] = ()) -> None:
        """Read the releases of a store; lines are kept that have one of the words, and change at one of the bounds."""
        final = [one for one in store.read() if not Version(one).is_prerelease]
        self.releases = [Version(one) for one in (final if len(final) > 2 else store.read())]
        self.all_bits = (1 << len(self.releases)) - 1
        self.blobs: dict[str, int] = defaultdict(int)
        for place, version in enumerate(self.releases):
            for digest in store.paths(str(version)).values():
                self.blobs[digest] |= 1 << place
        found: dict[str, int] = defaultdict(int)
        for digest, bits in self.blobs.items() if words else ():
            for text in set(store.content(digest).decode("utf-8", "replace").split("\n")):
                found[text.strip()] |= bits
        at_bound = 0
        for bound in bounds:
            at_bound |= 1 << self._place(bound) | 2 << self._place(bound)  # behind `==` and `<=` the next one
        self.names: dict[str, int] = defaultdict(int)
        self.lines: list[Line] = []
        self.with_word: dict[str, list[int]] = defaultdict(list)
        for text, bits in found.items():
            names = _WORD.findall(text)
            for name in names:
                if name in words:
                    self.names[name] |= bits
            if self.changes(bits) & at_bound and self._counts(text):
                for word in words_in(text, names) & words:
                    self.with_word[word].append(len(self.lines))
                self.lines.append(Line(text, bits))

    def _place(self, bound: Version) -> int:
        """Return the place of the first release that is not before a bound."""
        return next((at for at, version in enumerate(self.releases) if version >= bound), len(self.releases))

    def matching(self, store: Store, regex: str) -> int:
        """Return the releases of which a file matches."""
        found, pattern = 0, compiled(regex)
        for digest, bits in sorted(self.blobs.items(), key=lambda item: -bin(item[1]).count("1")):
            if bits & ~found and next(pattern.finditer(store.content(digest)), None) is not None:
                found |= bits
        return found

    def changes(self, bits: int) -> int:
        """Return the places at which a row of releases begins or ends, as bits; the start of all releases is none."""
        return (bits ^ (bits << 1)) & self.all_bits & ~1

    @staticmethod
    def _counts(text: str) -> bool:
        return 12 <= len(text) <= LONGEST and not text.startswith(
            ("#", "//", "* ", "__version__", '"""', "|", "import ")
        )

    def weight(self, word: str) -> float:
        """Return how much a word says: one that is in few lines says more."""
        return math.log(len(self.lines) / (1 + len(self.with_word.get(word, ()))))

    def runs(self, bits: int) -> list[Run]:
        """Return the rows of releases that are set."""
        found, place = [], 0
        while place < len(self.releases):
            if bits >> place & 1:
                first = place
                while place < len(self.releases) and bits >> place & 1:
                    place += 1
                found.append(Run(first, place))
            place += 1
        return found


def words_in(text: str, names: Iterable[str]) -> set[str]:
    """Return the names of a line of code or prose, its numbers, and the words that the names consist of."""
    found = {*_NUMBER.findall(text), *names}
    for name in names:
        found |= parts_of(name)
    return found


@functools.cache
def parts_of(name: str) -> frozenset[str]:
    """Return the words that a name consists of, in small letters."""
    return frozenset(part.lower().removesuffix("s") for part in _PART.findall(name) if len(part) > 2)


@dataclass
class Wanted:
    """The ranges of one condition on the releases of a package."""

    texts: tuple[str, ...]
    bits: int  # the releases inside
    bounds: dict[int, str]  # place -> the release that the rule names there


@dataclass
class Subject:
    """A rule whose bounds are to be proven: its words, its conditions on one distribution."""

    source: Source
    distribution: str
    words: frozenset[str]
    wanted: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def rule(self) -> str:
        """Its id."""
        return str(self.source.content["id"])

    @cached_property
    def cited(self) -> frozenset[str]:
        """The names of the files that its references lead to."""
        texts = " ".join(map(str, self.source.content.get("references") or ()))
        return frozenset(re.findall(r"([\w.]+\.(?:py|cpp|cu|h|cuh|hpp))", texts))


class Proposal(NamedTuple):
    """Code that shows where a range begins or ends."""

    subject: Subject
    package: str
    text: str  # a line or a word
    bits: int
    score: float
    bounds: Mapping[int, str]
    names: tuple[str, ...]


def subjects(distribution: str, *, again: bool) -> Iterator[Subject]:
    """Yield the rules by hand with a bound on a distribution; those that have a proof of it only if `again`."""
    for path in rulebook_paths():
        if f"{distribution}.version".encode() not in path.read_bytes() or is_generated(path):
            continue
        source = read_source(path)
        if not is_checked(source.content):
            continue
        subject = _subject(source, distribution)
        if subject and (again or not any(is_proven(source, proof) for proof in proofs_of(source.content))):
            yield subject


def _subject(source: Source, distribution: str) -> Subject | None:
    texts = [
        tuple(map(str, wanted if isinstance(wanted, list) else [wanted]))
        for _, key, wanted in raw_leaves(source.content.get("when") or {}, ())
        if key == f"{distribution}.version"
    ]
    texts = [one for one in dict.fromkeys(texts) if bounds_in(one)]
    return Subject(source, distribution, words_of(source), texts) if texts else None


def is_proven(source: Source, proof: Proof) -> bool:
    """Whether the record of a proof has a bound with a release on each side."""
    record = record_of(source.content["id"], proof, shipped_records())
    return record is not None and record.outcome == PROVEN and bool(proven_bounds(proof, record))


def words_of(source: Source) -> frozenset[str]:
    """Return the words of a rule: of its texts, messages, conditions and fixes."""
    content = source.content
    texts = [str(content.get(key, "")) for key in ("name", "why", "message", "summary", "signatures", "no_pin", "myth")]
    texts += [
        str(way.get(key, "")) for way in content.get("fix") or () for key in ("note", "call", "config", "set_env")
    ]
    for _, key, wanted in raw_leaves(content.get("when") or {}, ()):
        name = key.rpartition(".")[2]
        texts.append(f"{name} " + " ".join(map(str, wanted if isinstance(wanted, list) else [wanted])))
    text = re.sub(r"\{[\w.-]+\}", " ", " ".join(texts)).replace("\\.", ".").replace("\\", " ")
    return frozenset(words_in(text, _WORD.findall(text)) - _COMMON)


def is_code(word: str) -> bool:
    """Whether a word is a name in code."""
    inner = re.search(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[a-z]\d|\d[a-z]|_", word)
    return len(word) > 3 and (bool(inner) or (word.isupper() and len(word) > 4))


def wanted_of(subject: Subject, lines: Lines) -> list[Wanted]:
    """Return the conditions of a rule as releases of a package."""
    found = []
    for texts in subject.wanted:
        try:
            ranges = [SpecifierSet(text, prereleases=True) for text in texts if not text[:1].isalpha()]
        except InvalidSpecifier:
            ranges = [SpecifierSet(f"=={text}", prereleases=True) for text in texts if text[:1].isdigit()]
        bits = sum(
            1 << place for place, version in enumerate(lines.releases) if any(one.contains(version) for one in ranges)
        )
        edges = {}
        for bound in bounds_in(texts):
            place = next((at for at, version in enumerate(lines.releases) if version >= bound), None)
            if place is not None and lines.changes(bits) >> place & 1:
                edges[place] = str(bound)
        for place in range(1, len(lines.releases)):  # behind `==` and `<=` the next release is the edge
            if lines.changes(bits) >> place & 1:
                edges.setdefault(place, str(lines.releases[place]))
        if edges:
            found.append(Wanted(texts, bits, edges))
    return found


def proposals(subject: Subject, package: str, lines: Lines) -> list[Proposal]:
    """Return code whose releases begin or end where the rule does, best first."""
    wanted = wanted_of(subject, lines)
    if not wanted:
        return []
    scored = list(_scored(subject, lines))
    found: dict[str, Proposal] = {}
    for one in wanted:
        for score, bits, text, names in scored:
            edges = {place: bound for place, bound in one.bounds.items() if lines.changes(bits) >> place & 1}
            if not edges or bits & one.bits not in (0, one.bits) or len(lines.runs(bits)) > MOST_RUNS:
                continue
            extra = 4.0 * (len(edges) > 1)
            item = Proposal(subject, package, text, bits, score + extra, edges, names)
            if text not in found or found[text].score < item.score:
                found[text] = item
    return sorted(found.values(), key=lambda item: -item.score)[:40]


def _scored(subject: Subject, lines: Lines) -> Iterator[tuple[float, int, str, tuple[str, ...]]]:
    """Yield the names and lines that have words of the rule: score, releases, text, words."""
    weights = {word: lines.weight(word) for word in subject.words if word in lines.with_word}
    for word, weight in weights.items():
        if is_code(word) and len(word) > 5 and lines.changes(lines.names.get(word, 0)):
            yield 1.5 * weight, lines.names[word], word, (word,)
    scores: dict[int, float] = defaultdict(float)
    names: dict[int, list[str]] = defaultdict(list)
    for word, weight in weights.items():
        if weight > COMMONEST:
            worth = weight if is_code(word) else weight / 2
            for number in lines.with_word[word]:
                scores[number] += worth
                names[number].append(word)
    for number, score in scores.items():
        if score > LEAST:
            line = lines.lines[number]
            yield score - 0.02 * len(line.text), line.releases, line.text, tuple(names[number])


def ranges_of(proposal: Proposal, lines: Lines) -> list[str] | None:
    """Return the releases that have the code, as ranges; None where that is every release."""
    ranges = []
    for run in lines.runs(proposal.bits):
        parts = [] if run.first == 0 else [f">={_named(run.first, proposal, lines)}"]
        if run.end < len(lines.releases):
            parts.append(f"<{_named(run.end, proposal, lines)}")
        ranges.append(_as_in_rule(",".join(parts), proposal))
    return ranges if all(ranges) else None


def proof_of(row: Mapping[str, Any], source: Source, releases: StoredReleases) -> Proof | None:
    """Return the proof of a proposal, with the narrowest files for which it holds; None where it holds for none."""
    shows = rf"\b{re.escape(row['text'])}\b" if row["word"] else expression(row["text"])
    if row.get("regex"):
        shows = row["text"]
    body: dict[str, Any] = {("repository" if "/" in row["package"] else "package"): row["package"]}
    body |= {"file": "", "shows": shows, "in": row["in"][0] if len(row["in"]) == 1 else row["in"]}
    if row["distribution"] != row["package"]:
        body["of"] = row["distribution"]
    own = bounds_by_distribution(source.content.get("when") or {}).get(row["distribution"], set())
    for pattern in _files(row, source, releases, shows):
        proof = Proof(SOURCE, {**body, "file": pattern})
        record = verify(proof, releases, Path(), datetime.date.today().isoformat())
        if record.outcome == PROVEN and own & proven_bounds(proof, record):
            return proof
    return None


def _as_in_rule(text: str, proposal: Proposal) -> str:
    """Return a range in the words of the rule, where it has the same one."""
    found = {Version(bound) for bound in re.findall(r"[\d][\w.]*", text)}
    for texts in proposal.subject.wanted:
        for own in texts:
            same = {Version(bound) for bound in re.findall(r"\d[\w.]*", own) if "*" not in own} == found
            if same and ("<" in own) == ("<" in text) and "=" not in own.replace(">=", ""):
                return own
    return text


def _named(place: int, proposal: Proposal, lines: Lines) -> str:
    return proposal.bounds.get(place) or str(lines.releases[place])


def expression(line: str) -> str:
    """Return an expression for a line of code, without escapes that a reader does not need."""
    escaped = re.sub(r"\\([^\\.*+?()\[\]{}^$|])", r"\1", re.escape(line))
    return re.sub(r"\s{2,}|\t", r"\\s+", escaped)


def _files(row: Mapping[str, Any], source: Source, releases: StoredReleases, shows: str) -> Iterator[str]:
    """Yield patterns of files, the narrowest first."""
    store, regex = releases.store(row["package"]), compiled(shows)
    needle = b"" if row.get("regex") else row["text"].split()[0].encode()
    spans = [SpecifierSet(text, prereleases=True) for text in row["in"]]
    inside = [[one for one in store.read() if span.contains(one)] for span in spans]
    shown = [
        {
            path for path, digest in store.paths(version).items()
            if needle in (content := store.content(digest)) and next(regex.finditer(content), None) is not None
        }
        for versions in inside for version in {versions[0], versions[-1]}
    ]  # fmt: skip
    if not shown or not all(shown):
        return
    cited = " ".join(map(str, source.content.get("references") or ()))
    always = set.intersection(*shown)
    yield from sorted(always, key=lambda path: (path.rpartition("/")[2] not in cited, len(path)))[:3]
    names = set.intersection(*({path.rpartition("/")[2] for path in paths} for paths in shown))
    yield from (f"**/{name}" for name in sorted(names) if not name.startswith("__init__"))
    for suffix in sorted({path.rpartition(".")[2] for paths in shown for path in paths}):
        for root in sorted({path.partition("/")[0] for paths in shown for path in paths if "/" in path}):
            yield f"{root}/**/*.{suffix}"
        yield f"**/*.{suffix}"


def write_proof(source: Source, proof: Proof) -> None:
    """Add a proof to the file of a rule."""
    path = Path(source.path)
    text = path.read_text(encoding="utf-8")
    entries = f"  - {json.dumps({proof.kind: dict(proof.body)}, ensure_ascii=False)}\n"
    if "\nproof:\n" in text:
        text = text.replace("\nproof:\n", f"\nproof:\n{entries}", 1)
    else:
        text = re.sub(r"^when:", lambda found: f"proof:\n{entries}{found[0]}", text, count=1, flags=re.MULTILINE)
    path.write_text(formatted(text, path.name), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print proposals, one JSON object a line; or write the chosen ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--package", action="append", default=[], help="a distribution that conditions are on")
    parser.add_argument("--again", action="store_true", help="look at rules that have a proof, too")
    parser.add_argument("--show", type=int, default=6, help="proposals of a rule that are printed")
    parser.add_argument("--take", type=Path, help="a file of lines `RULE NUMBER …`: write these proposals to the rules")
    parser.add_argument("--record", action="store_true", help="check the proofs that have no record, in the store")
    parser.add_argument("--proposals", type=Path, nargs="*", default=[], help="what an earlier run printed, for --take")
    chosen = parser.parse_args(arguments)
    load_rulebook()  # its libraries declare words that rules use
    releases = StoredReleases(chosen.cache)
    if chosen.take:
        take(chosen.take, chosen.proposals, releases)
    if chosen.record:
        record(releases)
    for distribution in chosen.package:
        look_at(distribution, releases, chosen)


def look_at(distribution: str, releases: StoredReleases, chosen: argparse.Namespace) -> None:
    """Print proposals for the rules with a bound on one distribution."""
    due = list(subjects(distribution, again=chosen.again))
    words = frozenset(word for subject in due for word in subject.words)
    found: dict[str, list[tuple[Proposal, Lines]]] = defaultdict(list)
    for package in SOURCES.get(distribution, (distribution,)):
        if not releases.store(package).read():
            print(f"the store does not have {package}", file=sys.stderr)
            continue
        bounds = {bound for subject in due for texts in subject.wanted for bound in bounds_in(texts)}
        lines = Lines(releases.store(package), words, bounds)
        for subject in due:
            found[subject.rule] += [(item, lines) for item in proposals(subject, package, lines)]
    for subject in due:
        best = sorted(found[subject.rule], key=lambda pair: -pair[0].score)
        shown, alike = 0, defaultdict[tuple[str, ...], int](int)
        for item, lines in best:
            ranges = ranges_of(item, lines)
            if ranges is None or shown == chosen.show or alike[tuple(ranges)] == ALIKE:
                continue
            alike[tuple(ranges)] += 1
            shown += 1
            print(json.dumps({
                "rule": subject.rule, "number": shown, "package": item.package, "distribution": distribution,
                "text": item.text, "in": ranges, "bounds": sorted(item.bounds.values()),
                "score": round(item.score, 1), "word": item.text in item.names,
            }, ensure_ascii=False), flush=True)  # fmt: skip
    print(f"{distribution}: {sum(map(bool, found.values()))} of {len(due)} rules", file=sys.stderr)


def take(picks: Path, listed: Sequence[Path], releases: StoredReleases) -> None:
    """Write chosen proposals to the rules, each after a check against the releases of the store.

    A line is `RULE DISTRIBUTION NUMBER …`, or `RULE DISTRIBUTION =EXPRESSION` for one of a reader.
    """
    rows = [json.loads(text) for path in listed for text in path.read_text(encoding="utf-8").splitlines()]
    known = {(row["rule"], row["number"], row["distribution"]): row for row in rows}
    paths = {path.stem: path for path in rulebook_paths()}
    for text in picks.read_text(encoding="utf-8").splitlines():
        rule, distribution, chosen = text.split(" ", 2)
        if chosen.startswith("="):
            wanted = _searched(rule, distribution, chosen[1:], releases)
        else:
            wanted = [known[rule, int(number), distribution] for number in chosen.split()]
        source = read_source(paths[rule])
        earlier = {one.statement for one in proofs_of(source.content)}
        for row in wanted:
            made = proof_of(row, source, releases)
            if made is None:
                print(f"{rule}: `{row['text']}` in {row['in']} does not hold for any file", file=sys.stderr)
            elif made.statement not in earlier:
                earlier.add(made.statement)
                write_proof(source, made)


def record(releases: StoredReleases) -> None:
    """Check the proofs of the rules that have no current record, and write what was found; a reader sees the rest."""
    records, kept = read_records(records_path()), {}
    for path in rulebook_paths():
        if b"\nproof:" not in path.read_bytes():
            continue
        content = read_source(path).content
        rule, found = content["id"], []
        for proof in proofs_of(content):
            one = record_of(rule, proof, records)
            if one is None:
                one = verify(proof, releases, Path(), datetime.date.today().isoformat())
                if one.outcome != PROVEN:
                    print(f"{rule}: {one.outcome}: {one.reason}", file=sys.stderr)
            found.append(one)
        kept[rule] = tuple(found)
    write_records(records_path(), kept)


def _searched(rule: str, distribution: str, regex: str, releases: StoredReleases) -> list[dict[str, Any]]:
    """Return the releases that an expression matches, in each package that has the code of a distribution."""
    found, path = [], next(path for path in rulebook_paths() if path.stem == rule)
    for package in SOURCES.get(distribution, (distribution,)):
        subject = _subject(read_source(path), distribution)
        lines = _every_release(releases.store(package))
        if subject is None or not lines.releases:
            continue
        bits = _releases_that_match(releases.store(package), regex)
        edges = {
            place: bound for one in wanted_of(subject, lines) for place, bound in one.bounds.items()
            if lines.changes(bits) >> place & 1
        }  # fmt: skip
        ranges = ranges_of(Proposal(subject, package, regex, bits, 0, edges, ()), lines) if bits else None
        if edges and ranges is not None:
            found.append({"package": package, "distribution": distribution, "text": regex, "regex": True, "word": False,
                          "in": ranges})  # fmt: skip
    if not found:
        print(f"{rule}: `{regex}` begins and ends at no bound", file=sys.stderr)
    return found[:1]


@functools.cache
def _releases_that_match(store: Store, regex: str) -> int:
    return _every_release(store).matching(store, regex)


@functools.cache
def _every_release(store: Store) -> Lines:
    return Lines(store, frozenset())


if __name__ == "__main__":
    main()
