"""Which backend a library will choose for a workload: support rules × order of preference."""

from __future__ import annotations

from .known import Known
from .model import Candidate, Prediction, Reason
from .rulebook import Backend, Library, Rule, Rulebook
from .wording import interpolate, missing_keys


def predict(rulebook: Rulebook, library: Library, known: Known) -> Prediction:
    """Judge every backend of `library` and follow its order of preference."""
    reasons: dict[str, list[tuple[int, Reason]]] = {backend.id: [] for backend in library.backends}
    for rule in rulebook.support.get(library.name, ()):
        holds = rule.when.holds(known)
        if holds is False:
            continue
        rank = library.stages.get(rule.body.get("stage", ""), len(library.stages))
        for backend in rule.disables:
            if backend in reasons:
                reasons[backend].append((rank, _reason(rule, known, holds)))
    candidates = tuple(_candidate(backend, reasons[backend.id]) for backend in library.backends)
    import_error = _import_error(rulebook, library, known)
    if import_error is not None and import_error.holds:
        return Prediction(library.name, None, True, candidates, None, import_error)
    selected, could_tell = _select(library, candidates, known)
    fails = None
    if selected is not None:
        for rule in rulebook.runtime.get(library.name, ()):
            if selected in rule.fails_at_run and rule.when.holds(known):
                fails = _reason(rule, known, True)
                break
    return Prediction(library.name, selected, could_tell, candidates, fails, import_error)


def _candidate(backend: Backend, reasons: list[tuple[int, Reason]]) -> Candidate:
    ordered = tuple(reason for _, reason in sorted(reasons, key=lambda item: item[0]))
    certain = tuple(reason for reason in ordered if reason.holds)
    available = False if certain else None if ordered else True
    return Candidate(backend.id, backend.title, available, certain or ordered)


def _select(library: Library, candidates: tuple[Candidate, ...], known: Known) -> tuple[str | None, bool]:
    """(backend or None, whether it could be told). An unknown candidate ahead of a usable one decides nothing."""
    usable = {candidate.backend: candidate.available for candidate in candidates}
    verdicts: set[tuple[str | None, bool]] = set()
    for when, order in library.preferences:
        holds = True if when is None else when.holds(known)
        if holds is False:
            continue
        verdicts.add(_first(order, usable))
        if holds:
            break
    return verdicts.pop() if len(verdicts) == 1 else (None, False)


def _first(order: tuple[str, ...], usable: dict[str, bool | None]) -> tuple[str | None, bool]:
    for backend in order:
        available = usable.get(backend, False)
        if available:
            return backend, True
        if available is None:
            return None, False
    return None, True


def _import_error(rulebook: Rulebook, library: Library, known: Known) -> Reason | None:
    for rule in rulebook.runtime.get(library.name, ()):
        if rule.import_error and rule.when.holds(known):
            return _reason(rule, known, True)
    return None


def _reason(rule: Rule, known: Known, holds: bool | None) -> Reason:
    missing = missing_keys(rule, known) if holds is None else ()
    return Reason(rule.id, interpolate(rule.message, known), holds, (*rule.references, "")[0], missing)
