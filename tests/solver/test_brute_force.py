"""Real broken environments against brute force: no smaller set of packages would do, and what is hopeless is so."""

from __future__ import annotations

from functools import cache

import pytest

from doctor.model import Facts, Fix
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.solver.solve import no_fix, solve
from tests.helpers.brute_force import World
from tests.helpers.made_up import environment


@cache
def rulebook() -> Rulebook:
    return load_rulebook()


@cache
def solved(seed: int) -> tuple[Facts, Assessment, tuple[Fix, ...]]:
    facts = environment(seed)
    before = evaluate(rulebook(), facts)
    return facts, before, solve(rulebook(), facts, before)


def packages(fix: Fix) -> int:
    return sum(change.kind == "package" for change in fix.changes)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_no_smaller_set_of_packages_would_do(seed: int):
    facts, before, fixes = solved(seed)
    clear = [packages(fix) for fix in fixes if not fix.leaves]
    if not before.errors or not clear or not min(clear):
        pytest.skip("nothing to make smaller")
    assert World(rulebook(), facts, before).solved(min(clear) - 1) is None


def test_brute_force_finds_what_was_found():
    """It is no judge that says no to everything: with as many packages as the fix it has an answer, too."""
    agreed = 0
    for seed in range(1000, 1030):
        facts, before, fixes = solved(seed)
        clear = [fix for fix in fixes if not fix.leaves and not any(change.kind == "call" for change in fix.changes)]
        sizes = [packages(fix) for fix in clear]
        if before.errors and sizes and min(sizes) == 1:
            assert World(rulebook(), facts, before).solved(1) is not None
            agreed += 1
    assert agreed >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1069, 1173, 1298])
def test_what_is_proved_hopeless_has_no_cure(seed: int):
    """Every TransformerEngine, flash-attn and torch, requirements apart, under every setting: no backend serves it."""
    facts, before, fixes = solved(seed)
    assert all(fix.leaves for fix in fixes)
    proof = next(item for item in no_fix(rulebook(), facts, before, fixes) if item.rule == "TE119")
    assert proof.proved
    assert next(World(rulebook(), facts, before).curable("TE119"), None) is None
