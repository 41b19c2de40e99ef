"""What a fix costs and loses: worked out of the releases and of the backend predictions before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..matrix import FRAMEWORKS, matrices
from ..model import ABSENT, Facts, MatrixRow
from ..vocabulary import fact, parse_version
from .cost import series
from .repair import Outcome, Repair

_MOST = 3  # losses told per fix


class Losses:
    """The predictions of one patient before any fix, asked once for all fixes."""

    def __init__(self, repair: Repair) -> None:
        self.repair = repair
        self._before: dict[str, Mapping[str, MatrixRow]] = {}

    def costs(self, outcome: Outcome) -> tuple[str, ...]:
        """What the user pays, dearest first: another torch or CUDA, downgrades, builds."""
        return tuple(_costs(self.repair, outcome))

    def of(self, outcome: Outcome) -> tuple[str, ...]:
        """The features that some backend served and none does afterwards."""
        if not outcome.chosen:
            return ()
        found: dict[str, list[str]] = {}
        for framework in self._touched(outcome):
            if framework not in self._before:
                self._before[framework] = _rows(self.repair, self.repair.facts, framework)
            before = self._before[framework]
            kept = [key for key, row in before.items() if row.selected is not None and key != "as described"]
            if not kept:
                continue
            after = _rows(self.repair, outcome.facts, framework)
            for key in kept:
                row = after.get(key)
                if row is not None and row.selected is None and row.could_tell:
                    found.setdefault(_reason(row, before[key].selected), []).append(row.feature)
        told = [f"{_listed(features)}: {reason}" for reason, features in found.items()]
        more = (f"{len(told) - _MOST} more kinds of attention: see `attn-doctor matrix`",) if len(told) > _MOST else ()
        return (*told[:_MOST], *more)

    def _touched(self, outcome: Outcome) -> list[str]:
        """The job's own framework, and those whose package changes."""
        job = self.repair.base.known.value("workload.framework")
        own = [job] if job in FRAMEWORKS or job == "megatron" else []
        moved = [
            name for name, key in FRAMEWORKS.items()
            if key.removesuffix(".version") in outcome.chosen and outcome.known.value(key) != ABSENT
        ]  # fmt: skip
        return list(dict.fromkeys([*own, *moved]))


def _rows(repair: Repair, facts: Facts, framework: str) -> Mapping[str, MatrixRow]:
    """Feature → its row, for the library that serves the framework; empty where none does."""
    from ..errors import NoDiagnosis

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


def _costs(repair: Repair, outcome: Outcome) -> Iterator[str]:
    stack = repair.stack
    torch, before = outcome.chosen.get("torch"), stack.installed.get("torch")
    if torch and before and torch != ABSENT and series(torch) != series(before):
        yield f"another torch release line: {'.'.join(map(str, series(before)))} → {'.'.join(map(str, series(torch)))}"
    was, becomes = stack.cuda_major(before), stack.cuda_major(torch)
    if was and becomes and was != becomes:
        yield f"another CUDA: {was} → {becomes}"
    for name, version in sorted(outcome.chosen.items()):
        present = stack.installed.get(name, ABSENT)
        if ABSENT not in (version, present) and parse_version(version) < parse_version(present):
            yield f"a downgrade of `{name}`: {present} → {version}"
    for name, version in sorted(outcome.chosen.items()):
        release = None if version == ABSENT or "+" in version else stack.index.release(name, version)
        if release is not None and not release.has_wheel(stack.platform):
            yield f"`{name}` {version} has no wheel in the registry: it is built, or taken from its project's own page"
