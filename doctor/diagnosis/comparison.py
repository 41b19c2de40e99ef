"""Compare two environments: what differs, which findings and backends change, and which differences cause that.

A cause is found by trial: facts of one environment are put into the other until the outcome changes, and every
difference that the change does not need is taken out again. What is left is a smallest set of causes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from doctor.errors import DoctorError
from doctor.model import ABSENT, Change, ChangeKind, Fact, Facts, Finding, Prediction, Report
from doctor.packages.relations import owner_of
from doctor.report.comparison_model import (
    BackendChange,
    Comparison,
    DiffArea,
    Difference,
    DiffRow,
    DiffSide,
    FindingChange,
)
from doctor.rulebook.evaluate import evaluate, with_backend_findings
from doctor.rulebook.rulebook import Rulebook

from .judge import Clock
from .path_kind import target_of
from .pipeline import diagnose
from .request import Request
from .watch import rulebook_of

MOST_TRIALS = 160  # evaluations of the rulebook for one change
MOST_EXPLAINED = 12  # changes whose causes are searched

_CUDNN = re.compile(r"cudnn\..+|nvidia-cudnn-cu\d+\.version")
_TE = re.compile(r"transformer-engine(-torch|-cu\d+)?\.(version|wheel)")
#: First part of a key -> the difference it belongs to.
_FAMILIES = {"driver": "driver", "gpu": "GPU", "python": "Python", "platform": "platform", "toolkit": "CUDA toolkit"}
_ENGINE = "TransformerEngine"
_AREAS = {
    "driver": DiffArea.DRIVER, "GPU": DiffArea.GPU, "cuDNN": DiffArea.LIBRARY, "torch": DiffArea.LIBRARY,
    _ENGINE: DiffArea.LIBRARY, "Python": DiffArea.OTHER, "platform": DiffArea.OTHER,
    "CUDA toolkit": DiffArea.FILE,
}  # fmt: skip
#: The key that names a difference of several facts.
_LEADS = (
    "torch.version", "transformer-engine.version", "cudnn.version", "driver.version", "gpu.name", "gpu.sm",
    "python.version", "toolkit.nvcc",
)  # fmt: skip
#: About the examination, and not about what was examined.
_NOT_COMPARED = ("target.path", "target.manifest", "distributions.complete", "gpu.count", "gpu.all")


def compare_environments(
    request: Request, names: tuple[str, str], inform: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Compare two environments; `request` holds what is the same for both: workload, GPU, settings and rules."""
    clock = Clock()
    rulebook = rulebook_of(request)
    reports = []
    for name in names:
        inform(f"reading {name} …")
        reports.append(diagnose(side_request(request, name)._replace(fixes=False, run=False)))
        clock.lap(f"side {len(reports)}")
    inform("searching causes …")
    comparison = compare_reports(rulebook, names, reports[0], reports[1])
    clock.lap("causes")
    return replace(comparison, timing=clock.laps())


def side_request(request: Request, name: str) -> Request:
    """Return the request for one side: an interpreter, an environment, an unpacked tree, facts, or declared files."""
    kind, colon, rest = name.partition(":")
    if colon and kind in ("python", "site-packages", "facts", "requirements"):
        if not rest:
            raise DoctorError(f"`{name}` names nothing", f"write `{kind}:PATH`")
        return _as_kind(request, kind, rest)
    path = Path(name).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if not exists:
        if re.fullmatch(r"pyproject\.toml\[.*\]|.+\[[^\[\]]*\]", name):
            return _as_kind(request, "requirements", name)
        raise DoctorError(f"`{name}` does not exist", "name a snapshot, an environment, an interpreter or a lock file")
    return _as_kind(request, target_of(path), str(path))


def _as_kind(request: Request, kind: str, path: str) -> Request:
    if kind == "python":
        return request._replace(python=path)
    if kind == "site-packages":
        return request._replace(site_packages=path)
    return request._replace(facts=(path,)) if kind == "facts" else request._replace(declared=(path,))


def compare_reports(rulebook: Rulebook, names: tuple[str, str], a: Report, b: Report) -> Comparison:
    """Compare two diagnoses, which were made with this rulebook."""
    sides = (_explicit(a.facts, b.facts), _explicit(b.facts, a.facts))
    differences = differences_of(rulebook, *sides)
    search = CauseSearch(rulebook, sides, differences)
    findings = tuple(_finding_changes(a, b, search))
    backends = tuple(_backend_changes(a, b, search))
    explains: dict[str, list[str]] = {}
    for subject, causes in (
        *((change.finding.rule, change.causes) for change in findings),
        *((change.library, change.causes) for change in backends),
    ):
        for cause in causes:
            explains.setdefault(cause, []).append(subject)
    marked = [replace(item, explains=tuple(dict.fromkeys(explains.get(item.name, ())))) for item in differences]
    marked.sort(key=lambda item: (not item.explains, not item.known, item.area.rank))
    return Comparison(names, a, b, tuple(marked), findings, backends, tuple(_pins(marked)), {})


def _explicit(facts: Facts, other: Facts) -> Facts:
    """Return the facts with what follows for keys that only the other side has: not installed, not set."""
    complete = facts.value("distributions.complete") is True
    more = []
    for key in other:
        if key in facts:
            continue
        if key.startswith("env."):
            more.append(Fact(key, ABSENT, "not set"))
        elif complete and key.endswith(".version") and key not in ("cudnn.version", "driver.version", "python.version"):
            more.append(Fact(key, ABSENT, "installed distributions"))
    return facts.with_(*more)


def differences_of(rulebook: Rulebook, a: Facts, b: Facts) -> tuple[Difference, ...]:
    """Return what differs, by relevance to attention; facts that change together are one difference."""
    watched = [f"{name}.version" for name in rulebook.watched_distributions]
    order = {key: number for number, key in enumerate((*_LEADS, *watched))}
    grouped: dict[str, list[DiffRow]] = {}
    for key in sorted({*a, *b}, key=lambda key: (order.get(key, len(order)), not key.endswith("version"), key)):
        row = DiffRow(key, a.value(key), b.value(key))
        absent = {row.a, row.b} <= {None, ABSENT} if _hashable(row) else False
        if row.a != row.b and not absent and key not in _NOT_COMPARED:
            grouped.setdefault(_name_of(key), []).append(row)
    found = [Difference(name, _area_of(name, rows, order), tuple(rows)) for name, rows in grouped.items()]
    ranks = {item.name: order.get(item.rows[0].key, len(order)) for item in found}
    return tuple(sorted(found, key=lambda item: (not item.known, item.area.rank, ranks[item.name], item.name)))


def _hashable(row: DiffRow) -> bool:
    return all(value is None or isinstance(value, (str, int, float)) for value in (row.a, row.b))


def _name_of(key: str) -> str:
    """Return the difference that a fact belongs to."""
    if _CUDNN.fullmatch(key):
        return "cuDNN"
    if _TE.fullmatch(key):
        return _ENGINE
    if key.startswith(("env.", "workload.")):
        return key.partition(".")[2] if key.startswith("env.") else key
    first = key.partition(".")[0]
    return _FAMILIES.get(first, first)


def _area_of(name: str, rows: Sequence[DiffRow], watched: Mapping[str, int]) -> DiffArea:
    key = rows[0].key
    if key.startswith("env."):
        return DiffArea.VARIABLE
    if key.startswith("workload."):
        return DiffArea.WORKLOAD
    if name in _AREAS:
        return _AREAS[name]
    return DiffArea.LIBRARY if key in watched and owner_of(name) is None else DiffArea.OTHER


@dataclass(frozen=True)
class _Trial:
    """The facts of one side with some differences of the other put in."""

    base: Facts
    donor: Facts

    def with_(self, differences: Iterable[Difference]) -> Facts:
        """Return the base with these differences as the donor has them."""
        keys = [row.key for item in differences for row in item.rows]
        given = [self.donor[key] for key in keys if key in self.donor]
        return self.base.without(*(key for key in keys if key not in self.donor)).with_(*given)


class CauseSearch:
    """Finds which differences it takes to bring an outcome of one side to the other."""

    def __init__(self, rulebook: Rulebook, sides: tuple[Facts, Facts], differences: Sequence[Difference]) -> None:
        self._rulebook, self._sides = rulebook, sides
        # A package that no rule reads cannot be a cause, but an unknown fact that becomes known can.
        self._candidates = [item for item in differences if item.area != DiffArea.OTHER or self._may_matter(item)]
        self._left = MOST_EXPLAINED

    def _may_matter(self, item: Difference) -> bool:
        return item.name in ("Python", "platform", "distributions") or any(row.key in self._read for row in item.rows)

    @property
    def _read(self) -> frozenset[str]:
        if not hasattr(self, "_keys"):
            leaves = (leaf.key for rule in self._rulebook.rules.values() for leaf in rule.when.leaves())
            self._keys = frozenset(leaves)
        return self._keys

    def of_finding(self, rule: str, side: DiffSide) -> tuple[str, ...]:
        """Return the differences that bring the finding to the side that does not have it; empty if none do."""
        book = self._rulebook
        if rule in book.rules:
            book = book.only([rule, *book.rules[rule].yields_to])

        def fires(facts: Facts) -> bool:
            found = with_backend_findings(self._rulebook, evaluate(book, facts))
            return any(item.rule == rule for item in found)

        return self._search(side, fires)

    def of_backend(self, library: str, wanted: Prediction | None, side: DiffSide) -> tuple[str, ...]:
        """Return the differences that make the other side select what `side` selects."""
        book = self._rulebook.only([])

        def same(facts: Facts) -> bool:
            found = next((item for item in evaluate(book, facts).predictions if item.library == library), None)
            return _outcome(found) == _outcome(wanted)

        return self._search(side, same)

    def _search(self, side: DiffSide, holds: Callable[[Facts], bool]) -> tuple[str, ...]:
        if self._left <= 0:
            return ()
        self._left -= 1
        a, b = self._sides
        trial = _Trial(b, a) if side == DiffSide.A else _Trial(a, b)
        trials = [0]

        def holds_with(chosen: Sequence[Difference]) -> bool:
            trials[0] += 1
            return trials[0] <= MOST_TRIALS and holds(trial.with_(chosen))

        if not holds_with(self._candidates) or holds_with(()):
            return ()
        return tuple(item.name for item in _smallest(self._candidates, holds_with))


def _smallest(
    candidates: Sequence[Difference], holds: Callable[[Sequence[Difference]], bool]
) -> tuple[Difference, ...]:
    """Return a part of the candidates with which it holds, and without any of which it does not.

    The least relevant are left out first, in blocks that halve, so that the most relevant cause is the one that stays.
    """
    for item in candidates:  # one difference mostly explains it
        if item.known and holds((item,)):
            return (item,)
    kept = list(candidates)
    size = max(1, len(kept) // 2)
    while size:
        end = len(kept)
        while end > 0:
            start = max(0, end - size)
            rest = kept[:start] + kept[end:]
            if holds(rest):
                kept = rest
            end = start
        size //= 2
    return tuple(kept)


def _outcome(prediction: Prediction | None) -> tuple[object, ...]:
    """Return what a library does, without the reasons."""
    if prediction is None:
        return (None,)
    reasons = (prediction.import_error, prediction.fails_at_run)
    failing = tuple(reason is not None and reason.holds for reason in reasons)
    return (prediction.could_tell, prediction.selected, prediction.prefill, *failing)


def _finding_changes(a: Report, b: Report, search: CauseSearch) -> Iterable[FindingChange]:
    changes: list[tuple[Finding, DiffSide, bool]] = []
    for own, other, side in ((b, a, DiffSide.B), (a, b, DiffSide.A)):
        has = {finding.rule for finding in other.findings}
        unclear = {rule for item in other.undetermined for rule in item.rules}
        changes += [
            (finding, side, finding.rule in unclear)
            for finding in {item.rule: item for item in reversed(own.findings)}.values()
            if finding.rule not in has
        ]
    changes.sort(key=lambda item: item[0].severity.rank)
    for finding, side, unclear_there in changes:
        yield FindingChange(finding, side, unclear_there, search.of_finding(finding.rule, side))


def _backend_changes(a: Report, b: Report, search: CauseSearch) -> Iterable[BackendChange]:
    of_a, of_b = ({item.library: item for item in report.predictions} for report in (a, b))
    for library in dict.fromkeys((*of_a, *of_b)):
        one, two = of_a.get(library), of_b.get(library)
        if _outcome(one) != _outcome(two):
            causes = search.of_backend(library, two, DiffSide.B) or search.of_backend(library, one, DiffSide.A)
            yield BackendChange(library, one, two, causes, tuple(_reasons(one, two)))


def _reasons(one: Prediction | None, two: Prediction | None) -> Iterable[str]:
    """Yield why the backend of each side is not selected on the other."""
    for own, other, where in ((one, two, "B"), (two, one, "A")):
        if own is None or own.selected is None or other is None or own.selected == other.selected:
            continue
        candidate = next((item for item in other.candidates if item.backend == own.selected), None)
        if candidate is not None and candidate.available is not True and candidate.reasons:
            reason = candidate.reasons[0]
            yield f"{candidate.title} in {where}: {reason.message} [{reason.rule}]"
    for prediction, where in ((one, "A"), (two, "B")):
        for failure in (prediction.import_error, prediction.fails_at_run) if prediction is not None else ():
            if failure is not None and failure.holds:
                yield f"{where}: {failure.message} [{failure.rule}]"


def _pins(differences: Sequence[Difference]) -> Iterable[Change]:
    """Yield the packages and variables that make B like A; parts that a package brings along are left out."""
    moved = {row.key.removesuffix(".version") for item in differences for row in item.rows if row.known}
    for item in differences:
        why = f"explains {', '.join(item.explains)}" if item.explains else "differs"
        for row in item.rows:
            if not row.known or (item.area == DiffArea.OTHER and not item.explains):
                continue
            before, after = _plain(row.b), _plain(row.a)
            if row.key.startswith("env."):
                yield Change(ChangeKind.ENV, row.key.removeprefix("env."), before, after, why, item.explains)
            elif row.key.startswith("workload."):
                yield Change(ChangeKind.CONFIG, row.key.removeprefix("workload."), before, after, why, item.explains)
            elif row.key.endswith(".version") and row.key not in ("cudnn.version", "driver.version", "python.version"):
                name = row.key.removesuffix(".version")
                owner = owner_of(name)
                if owner is None or owner not in moved or item.explains:
                    yield Change(ChangeKind.PACKAGE, name, before, after, why, item.explains)


def _plain(value: object) -> str | None:
    if value is None or value == ABSENT:
        return None
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
