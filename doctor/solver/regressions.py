"""Find the features that a fix takes away, from the backend predictions before and after it."""

from __future__ import annotations

from collections.abc import Mapping

from doctor.errors import NoDiagnosis
from doctor.facts.libraries.frameworks import caller_named, predicted_frameworks
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts, MatrixRow
from doctor.rulebook.matrix import matrices

from .repair import CandidateFix, FixSearch

_MOST = 3  # reasons named per fix


class FeatureRegressions:
    """Compare predictions after each fix with those of the unchanged environment, which are computed once."""

    def __init__(self, repair: FixSearch) -> None:
        self.repair = repair
        self._before: dict[str, Mapping[str, MatrixRow]] = {}

    def of(self, outcome: CandidateFix) -> tuple[str, ...]:
        """Return the features that some backend served before and none does afterwards."""
        if not outcome.chosen:
            return ()
        found: dict[str, list[str]] = {}
        for word in self._touched(outcome):
            if word not in self._before:
                self._before[word] = _rows(self.repair, self.repair.facts, word)
            before = self._before[word]
            kept = [key for key, row in before.items() if row.selected is not None and key != "as described"]
            if not kept:
                continue
            after = _rows(self.repair, outcome.facts, word)
            for key in kept:
                row = after.get(key)
                if row is not None and row.selected is None and row.could_tell:
                    found.setdefault(_reason(row, before[key].selected), []).append(row.feature)
        texts = [f"{_listed(features)}: {reason}" for reason, features in found.items()]
        more = (
            (f"{len(texts) - _MOST} more kinds of attention: see `attn-doctor matrix`",) if len(texts) > _MOST else ()
        )
        return (*texts[:_MOST], *more)

    def _touched(self, outcome: CandidateFix) -> list[str]:
        """The job's own framework, and those whose package changes."""
        job = self.repair.base.known.value("workload.framework")
        predicted = predicted_frameworks()
        own = [job] if caller_named(job).library in {item.library for item in predicted} else []
        moved = [
            item.word for item in predicted
            if item.predicted_with in outcome.chosen and outcome.known.value(f"{item.predicted_with}.version") != ABSENT
        ]  # fmt: skip
        return list(dict.fromkeys([*own, *moved]))


def _rows(repair: FixSearch, facts: Facts, framework: str) -> Mapping[str, MatrixRow]:
    """Feature → its row, for the library that serves the framework; empty where none does."""

    try:
        found = matrices(repair.rulebook, facts.with_(fact("workload.framework", framework, "the fix")))
    except NoDiagnosis:
        return {}
    return {f"{row.group} {row.feature}": row for row in (found[0].rows if found else ())}


def _reason(row: MatrixRow, served: str | None) -> str:
    """Why the backend that served it no longer does."""
    if row.import_error is not None:
        return row.import_error.message
    cell = next((cell for cell in row.cells if cell.backend == served), None)
    return cell.reasons[0].message if cell is not None and cell.reasons else "no backend is left"


def _listed(features: list[str]) -> str:
    return ", ".join(dict.fromkeys(features))
