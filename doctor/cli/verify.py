"""`attn-doctor rules verify`: check the proofs of rules against released packages."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from doctor.errors import DoctorError
from doctor.facts.vocabulary import nearest
from doctor.rulebook.authoring.coverage import coverage
from doctor.rulebook.authoring.release_files import Releases
from doctor.rulebook.authoring.tests import rulebook_paths
from doctor.rulebook.authoring.verify import verify
from doctor.rulebook.proofs import (
    PROVEN,
    REFUTED,
    UNPROVEN,
    Proof,
    Record,
    proofs_of,
    read_records,
    record_of,
    records_path,
    write_records,
)
from doctor.rulebook.rule import is_built_in, is_checked
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.schema import Source, read_sources
from doctor.rulebook.tables import TABLES, row_ids
from doctor.util.resources import rules_dir

from .output import Screen, write


def verify_rules(
    words: Sequence[str], *, changed: bool, offline: bool, only_coverage: bool, clones: Path | None
) -> int:
    """Check the proofs of the named rules; record those of the built-in rules in a checkout. Return the exit code."""
    load_rulebook()  # its libraries declare words that rules use
    sources = list(_chosen(words, with_proof=not only_coverage))
    records = read_records(records_path())
    if only_coverage:
        found = coverage((source for source in sources if is_checked(source.content)), records)
        write("\n".join(found.lines()) + "\n", None)
        return 0
    due = [
        (source, proof) for source in sources for proof in proofs_of(source.content)
        if not changed or record_of(source.content["id"], proof, records) is None
    ]  # fmt: skip
    with Screen().working("verifying proofs") as progress:
        releases = Releases((proof for _, proof in due), offline=offline, clones=clones, on_step=progress.step)
        results = [(source, proof, _judged(source, proof, releases, records)) for source, proof in due]
    _keep(sources, results, records, everything=not words)
    lines = [line for source, proof, record in results for line in _lines(source, proof, record)]
    counts = {name: sum(record.outcome == name for _, _, record in results) for name in (PROVEN, REFUTED, UNPROVEN)}
    lines.append(f"{len(results)} proofs: " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    write("\n".join(lines) + "\n", None)
    return 1 if counts[REFUTED] else 0


def _judged(source: Source, proof: Proof, releases: Releases, records: Mapping[str, Sequence[Record]]) -> Record:
    """Check a proof; what could not be read now does not undo an earlier check of the same statement."""
    captures = rules_dir().parent / "tests" / "captures"
    record = verify(proof, releases, captures, datetime.date.today().isoformat())
    earlier = record_of(source.content["id"], proof, records) if is_built_in(source.path) else None
    return earlier if earlier is not None and record.outcome == UNPROVEN else record


def _keep(
    sources: Sequence[Source],
    results: Sequence[tuple[Source, Proof, Record]],
    records: dict[str, tuple[Record, ...]],
    *,
    everything: bool,
) -> None:
    """Write the records of built-in rules, in a checkout; records of proofs that are gone go too."""
    if rules_dir().name != "rules":
        return
    fresh = {(source.content["id"], proof.statement): record for source, proof, record in results}
    known = {} if everything else dict(records)
    for source in sources:
        if is_built_in(source.path):
            rule = source.content["id"]
            current = [
                fresh.get((rule, proof.statement)) or record_of(rule, proof, records)
                for proof in proofs_of(source.content)
            ]
            known.pop(rule, None)
            if kept := tuple(record for record in current if record is not None):
                known[rule] = kept
    if known != records:
        write_records(records_path(), known)


def _lines(source: Source, proof: Proof, record: Record) -> Iterator[str]:
    about = proof.origin or proof.body.get("capture") or proof.body.get("url")
    ending = f": {record.reason}" if record.reason else ""
    yield f"{source.content['id']}: {record.outcome} by {proof.kind} of {about}{ending}"


def _chosen(words: Sequence[str], *, with_proof: bool) -> Iterator[Source]:
    """Yield the rules that words name: an id, a library, a file or a folder; without words, all built-in ones.

    Those without a proof are left out `with_proof`, unread.
    """
    built_in = rulebook_paths()
    rows = {row: path for path in built_in if path.parent.name == TABLES for row in row_ids(path)}
    paths: list[Path] = [] if words else list(built_in)
    wanted: set[str] = set()
    for word in words:
        named = [path for path in built_in if word.upper() == path.stem or word.replace("-", "_") in _libraries(path)]
        if word.upper() in rows:
            wanted.add(word.upper())
        elif not named and Path(word).exists():
            named = rulebook_paths([Path(word)])
        elif not named:
            known = {text for path in built_in for text in (path.stem, *_libraries(path))} | rows.keys()
            raise DoctorError(f"`{word}` is no rule, library, file or folder", nearest(word, known))
        paths += named
    for path in dict.fromkeys((*paths, *(rows[row] for row in wanted))):
        if with_proof and path.parent.name != TABLES and b"\nproof:" not in path.read_bytes():
            continue
        for source in read_sources(path):
            if source.kind == "rule" and (path in paths or source.content["id"] in wanted):
                yield source


def _libraries(path: Path) -> tuple[str, ...]:
    """Return the library that a file is of; of a table, its own name too."""
    return (path.parent.name, path.stem) if path.parent.name == TABLES else (path.parent.name,)
