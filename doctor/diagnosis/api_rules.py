"""What the installed sources say of each other, as rules of one environment next to those of the rulebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from doctor.model import ABSENT, ApiUse, DriftCoverage, Finding, Fix, Infeasible
from doctor.rulebook.rulebook import Rulebook

from .diagnosis_input import DiagnosisInput
from .request import Request

if TYPE_CHECKING:
    from .api_drift import InstalledSources

_VERSION = ".version"


class ApiRules(NamedTuple):
    """A rulebook with a rule for each pair of packages and kind of break; its id is `API004/caller/callee`.

    The report shows the code alone: several pairs may share it.
    """

    rulebook: Rulebook
    uses: Mapping[str, tuple[ApiUse, ...]] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    repeated: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Rules of the rulebook that a rule of the sources makes needless."""
    coverage: DriftCoverage | None = None

    def findings(self, found: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return findings as the report shows them: with the uses behind them, and the code as the rule."""
        found = tuple(found)
        needless = {rule for item in found for rule in self.repeated.get(item.rule, ())}
        return tuple(self._finding(item) for item in found if item.rule not in needless)

    def _finding(self, item: Finding) -> Finding:
        if item.rule not in self.uses:
            return item
        uses = self.uses[item.rule]
        message = item.message if "/" in item.rule else f"{item.message}, at {uses[0].file}:{uses[0].line}"
        return item._replace(rule=_code(item.rule), message=message, uses=uses)

    def fixes(self, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
        """Return fixes that name codes; a code is cleared when all of its pairs are."""
        return tuple(self._fix(fix) for fix in fixes) if self.uses else tuple(fixes)

    def _fix(self, fix: Fix) -> Fix:
        open_codes = {_code(rule) for rule in self.uses if rule not in fix.resolves}
        changes = tuple(change._replace(resolves=_codes(change.resolves)) for change in fix.changes)
        resolves = tuple(code for code in _codes(fix.resolves) if code not in open_codes)
        return fix._replace(changes=changes, resolves=resolves, leaves=_codes(fix.leaves))

    def infeasible(self, items: Iterable[Infeasible]) -> tuple[Infeasible, ...]:
        """Return what no fix clears, by code: the sentences about all pairs of packages together."""
        found: dict[str, Infeasible] = {}
        for item in items:
            code = _code(item.rule)
            before = found.get(code, item)
            because = tuple(dict.fromkeys((*before.because, *item.because)))
            found[code] = item._replace(rule=code, because=because, proved=before.proved and item.proved)
        return tuple(found.values())


def sources_of(rulebook: Rulebook, request: Request, examined: DiagnosisInput) -> InstalledSources | None:
    """Return the installed sources, as far as earlier analyses know them; None where there is no pair to analyze."""
    if not request.drift or not examined.site_dirs:
        return None
    installed = {
        key.removesuffix(_VERSION)
        for key, fact in examined.facts.items()
        if key.endswith(_VERSION) and fact.value not in (None, ABSENT)
    }
    if len(rulebook.stack & installed) + bool(request.code or request.model) < 2:
        return None
    from .api_drift import InstalledSources  # door: the analyzer of sources

    return InstalledSources(rulebook, request, examined)


def api_rules(rulebook: Rulebook, sources: InstalledSources | None, on_step: Callable[[str], None]) -> ApiRules:
    """Return the rulebook with what the installed sources say of each other; as it is where no pair is installed."""
    if sources is None:
        return ApiRules(rulebook)
    found = sources.rules(on_step)
    more = rulebook.with_more("api", found.rules) if found.rules else rulebook
    return ApiRules(more, found.uses, found.notes, found.repeated, found.coverage)


def _code(rule: str) -> str:
    return rule.partition("/")[0]


def _codes(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_code, rules)))
