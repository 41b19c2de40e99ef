"""Variables that switch a backend off, as the rules state it: without the faulty one the library takes another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from doctor.model import Remedy
from doctor.rulebook.conditions import PRESENT, Leaf
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook

from .plan import FixPlan, Pick
from .repair import UNNAMED, CandidateFix, FixSearch, unfused_selected


def switched_off(repair: FixSearch) -> Iterator[CandidateFix]:
    """Yield complete fixes that set one variable, with which another backend than the selected one serves the job."""
    faults = repair.firing_rules()
    if not faults:
        return
    chosen = sorted({(p.library, p.selected) for p in repair.base.predictions if p.selected is not None})
    for library, selected in chosen:
        for name, value in _switches(repair.rulebook, library, selected).items():
            if repair.base.known.value(f"env.{name}") == value:
                continue
            plan = FixPlan().joined(Pick(faults[0].id, UNNAMED, Remedy(set_env={name: value})))
            outcome = repair.evaluate(plan, {}) if plan is not None else None
            if outcome is None or outcome.firing:
                continue
            if unfused_selected(repair.rulebook, outcome.known) <= unfused_selected(repair.rulebook, repair.base.known):
                yield outcome


def _switches(rulebook: Rulebook, library: str, backend: str) -> Mapping[str, str]:
    """Return the variables, with their values, each of which alone makes a backend unavailable."""
    found: dict[str, str] = {}
    for rule in rulebook.support.get(library) or ():
        if backend in rule.disables:
            found |= dict(_alone(rule))
    return found


def _alone(rule: Rule) -> Iterator[tuple[str, str]]:
    leaves = list(rule.when.leaves())
    variables = [leaf for leaf in leaves if leaf.key.startswith("env.")]
    others = [leaf for leaf in leaves if leaf not in variables]
    if len(variables) == 1 and all(_is_release(leaf) for leaf in others) and variables[0].text in ("0", "1"):
        yield variables[0].key.removeprefix("env."), variables[0].text


def _is_release(leaf: Leaf) -> bool:
    return leaf.key.endswith(".version") and (leaf.text == PRESENT or leaf.text[:1] in "<>=~")
