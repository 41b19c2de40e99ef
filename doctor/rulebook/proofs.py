"""What a rule offers as evidence for its claim, and the record of what a machine found when it checked that."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from doctor.facts.versions import split_clauses
from doctor.util.resources import rules_dir

from .rule import as_tuple

RECORDS = "proofs.json"
SOURCE, BINARY, METADATA, CONSTANT = "source", "binary", "metadata", "constant"
IMPORT, LACKS, WHEEL = "import", "lacks", "wheel"
MEASURED, STATED = "measured", "stated"
NOT_REQUIRED = "absent"  # `range` of a package that the metadata does not name
ANY_RANGE = "any"  # `range` of a package that it names without one
NOT_SHOWN, NO_FILE = "no", "no file"  # what a record says of a release that does not show the claim
PROVEN, REFUTED, UNPROVEN = "proven", "refuted", "unproven"


class Proof(NamedTuple):
    """One piece of evidence: its kind, and what it states."""

    kind: str
    body: Mapping[str, Any]

    @property
    def statement(self) -> str:
        """Return a digest of what is stated; a record is current while it is the same."""
        text = json.dumps([self.kind, dict(self.body)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def distribution(self) -> str:
        """The distribution whose release the condition of the rule is on; empty where the proof is about none."""
        return str(self.body.get("of") or self.body.get("package") or "")

    @property
    def origin(self) -> str:
        """The package whose releases are read, or the repository (`owner/name`) whose tags are; else empty."""
        return str(self.body.get("package") or self.body.get("repository") or "")

    @property
    def ranges(self) -> tuple[SpecifierSet, ...]:
        """The releases that the statement is about; one of the ranges admits each."""
        return tuple(SpecifierSet(text, prereleases=True) for text in as_tuple(self.body.get("in")))

    @property
    def bounds(self) -> frozenset[Version]:
        """Every release at which one of the ranges begins or ends."""
        return frozenset(bounds_in(as_tuple(self.body.get("in"))))

    @property
    def files(self) -> tuple[str, ...]:
        """Patterns of the paths that it reads."""
        return as_tuple(self.body.get("file"))


class Record(NamedTuple):
    """What the check of one proof found."""

    statement: str
    outcome: str
    date: str
    checked: Mapping[str, str]  # release -> digest of the lines that show the claim, or that there are none
    reason: str = ""

    @property
    def shown_in(self) -> tuple[str, ...]:
        """The releases that were read and show the claim, oldest first."""
        return tuple(version for version, found in self.checked.items() if found not in (NOT_SHOWN, NO_FILE))


def proofs_of(body: Mapping[str, Any]) -> tuple[Proof, ...]:
    """Return the evidence of a rule, in the order of its file."""
    return tuple(Proof(kind, content) for item in body.get("proof") or () for kind, content in item.items())


def bounds_in(texts: Iterable[str]) -> set[Version]:
    """Return the releases that ranges name; what is no range of releases has none."""
    found = set()
    for text in texts:
        for _, bound in split_clauses(text) or [("==", text)]:
            try:
                found.add(Version(bound.removesuffix(".*")))
            except InvalidVersion:
                continue
    return found


def read_records(path: Path) -> dict[str, tuple[Record, ...]]:
    """Return the record of every rule, one for each of its proofs."""
    if not path.is_file():
        return {}
    stored: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    return {rule: tuple(Record(**item) for item in items) for rule, items in stored.items()}


def write_records(path: Path, records: Mapping[str, Sequence[Record]]) -> None:
    """Write the records, one line for each rule."""
    lines = [
        f"{json.dumps(rule)}: " + json.dumps([item._asdict() for item in records[rule]], ensure_ascii=False)
        for rule in sorted(records)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def records_path() -> Path:
    """Return where the records of the rules that come with this program are."""
    return rules_dir() / "index" / RECORDS


@functools.cache
def shipped_records() -> Mapping[str, tuple[Record, ...]]:
    """Return the records of the rules that come with this program."""
    return read_records(records_path())


def record_of(rule_id: str, proof: Proof, records: Mapping[str, Sequence[Record]]) -> Record | None:
    """Return the current record of a proof; None where its statement has changed since, or was never checked."""
    return next((item for item in records.get(rule_id, ()) if item.statement == proof.statement), None)
