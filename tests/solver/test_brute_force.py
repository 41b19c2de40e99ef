"""Real broken environments against brute force: no smaller set of packages would do, and what is hopeless is so."""

from __future__ import annotations

from functools import cache

import pytest

from doctor.model import Facts, Fix
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.solve import no_fix, solve
from tests.helpers.brute_force import World
from tests.helpers.made_up import environment
from tests.helpers.rulebook import builtin_rulebook


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


@cache
def solved(seed: int) -> tuple[Facts, Assessment, tuple[Fix, ...]]:
    facts = environment(seed)
    before = evaluate(rulebook(), facts)
    return facts, before, solve(rulebook(), facts, before)


def packages(fix: Fix) -> int:
    return sum(change.kind == "package" for change in fix.changes)


#: Environments whose smallest fix changes one, two or three packages, so that there is something to make smaller.
FIXED_BY_PACKAGES = (
    1001, 1007, 1009, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1000, 1012, 1020, 1024, 1025)),
)  # fmt: skip


@pytest.mark.parametrize("seed", FIXED_BY_PACKAGES)
def test_no_smaller_set_of_packages_would_do(seed: int):
    facts, before, fixes = solved(seed)
    clear = [packages(fix) for fix in fixes if not fix.plan.overridden]
    assert before.errors and clear and min(clear)
    assert World(rulebook(), facts, before).solved(min(clear) - 1) is None


def test_brute_force_finds_what_was_found():
    """With as many packages as the fix it has an answer, too."""
    agreed = 0
    for seed in (1012, 1013, 1016, 1018, 1045, 1065):
        facts, before, fixes = solved(seed)
        clear = [fix for fix in fixes if not (fix.plan.overridden or fix.plan.index_url)]
        clear = [fix for fix in clear if not any(change.kind in ("call", "config") for change in fix.changes)]
        sizes = [packages(fix) for fix in clear]
        if before.errors and sizes and min(sizes) == 1:
            assert World(rulebook(), facts, before).solved(1) is not None
            agreed += 1
    assert agreed >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1069, 1173, 1298])
def test_what_is_proved_hopeless_has_no_fix(seed: int):
    """Every TransformerEngine, flash-attn and torch, requirements apart, under every setting: no backend serves it."""
    facts, before, fixes = solved(seed)
    assert fixes == ()
    proof = next(item for item in no_fix(rulebook(), facts, before, fixes) if item.rule == "TE119")
    assert proof.proved
    assert next(World(rulebook(), facts, before).curable("TE119"), None) is None
