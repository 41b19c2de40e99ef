"""What the installed sources say of each other, as rules of one environment next to those of the rulebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from doctor.drift.stack import may_have_pairs
from doctor.model import ABSENT, ApiUse, Finding, Fix, Infeasible
from doctor.rulebook.rulebook import Rulebook

from .diagnosis_input import DiagnosisInput
from .request import Request

_VERSION = ".version"


@dataclass(frozen=True)
class ApiRules:
    """A rulebook with a rule for each pair of packages and kind of break; its id is `API004/caller/callee`.

    The report shows the code alone: several pairs may share it.
    """

    rulebook: Rulebook
    uses: Mapping[str, tuple[ApiUse, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def findings(self, found: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return findings as the report shows them: with the uses behind them, and the code as the rule."""
        return tuple(
            item._replace(rule=_code(item.rule), uses=self.uses[item.rule]) if item.rule in self.uses else item
            for item in found
        )

    def fixes(self, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
        """Return fixes that name codes; a code is cleared when all of its pairs are."""
        return tuple(self._fix(fix) for fix in fixes) if self.uses else tuple(fixes)

    def _fix(self, fix: Fix) -> Fix:
        open_codes = {_code(rule) for rule in self.uses if rule not in fix.resolves}
        changes = tuple(change._replace(resolves=_codes(change.resolves)) for change in fix.changes)
        resolves = tuple(code for code in _codes(fix.resolves) if code not in open_codes)
        return fix._replace(changes=changes, resolves=resolves, leaves=_codes(fix.leaves))

    def infeasible(self, items: Iterable[Infeasible]) -> tuple[Infeasible, ...]:
        """Return what no fix clears, by code."""
        return tuple(item._replace(rule=_code(item.rule)) for item in items)


def api_rules(
    rulebook: Rulebook, request: Request, examined: DiagnosisInput, on_step: Callable[[str], None]
) -> ApiRules:
    """Return the rulebook with what the installed sources say of each other; as it is where no pair is installed."""
    if not request.drift or not examined.site_dirs:
        return ApiRules(rulebook)
    installed = (
        key.removesuffix(_VERSION)
        for key, fact in examined.facts.items()
        if key.endswith(_VERSION) and fact.value not in (None, ABSENT)
    )
    if not may_have_pairs(installed, bool(request.code or request.model)):
        return ApiRules(rulebook)
    from .api_drift import rules_from_sources  # door: the analyzer of sources

    rules, uses, notes = rules_from_sources(request, examined, on_step)
    return ApiRules(rulebook.with_more("api", rules) if rules else rulebook, uses, notes)


def _code(rule: str) -> str:
    return rule.partition("/")[0]


def _codes(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_code, rules)))
