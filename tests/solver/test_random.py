"""Fixes of made-up environments: real releases in random company, judged as a user would judge the result."""

from __future__ import annotations

import time
from functools import cache

import pytest

from doctor.model import ABSENT, Facts, Fix, Report
from doctor.packages.index import load_index
from doctor.report.requirements import render_pins
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.environment import stack_of
from doctor.solver.solve import solve
from tests.helpers.made_up import environment
from tests.helpers.rulebook import builtin_rulebook

SEEDS = range(60)
QUICK = 20  # of them without `make test-all`


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


@cache
def solved(seed: int) -> tuple[Facts, Assessment, tuple[Fix, ...], float]:
    """(facts, what was found, the fixes, seconds they took)."""
    facts = environment(seed)
    before = evaluate(rulebook(), facts)
    began = time.process_time()
    fixes = solve(rulebook(), facts, before)
    return facts, before, fixes, time.process_time() - began


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS]
)
def test_a_fix_breaks_nothing_and_is_quick(seed: int):
    facts, before, fixes, seconds = solved(seed)
    assert seconds < 5  # processor time; most take 0.1 s
    stack = stack_of(facts, before.known, load_index())
    told = render_pins(Report("t", {}, facts, before.findings, before.predictions, fixes, before.undetermined, {}))
    assert all(line.startswith(("#", "--")) or not line or "==" in line for line in told.splitlines())
    for fix in fixes:
        assert fix.resolves and fix.changes
        assert set(fix.leaves) <= before.errors
        assert not set(fix.leaves) & set(fix.resolves)
        chosen = {change.name: change.after or ABSENT for change in fix.changes if change.kind == "package"}
        assert not any(name.startswith("nvidia-") for name, version in chosen.items() if version != ABSENT)
        assert not [clash.sentence for clash in stack.clashes(chosen) if clash.needs in stack.index]
        for name, version in chosen.items():
            release = None if "+" in version or version == ABSENT else load_index().release(name, version)
            assert release is None or (release.installs_on(stack.platform) and not release.yanked)


@pytest.mark.slow
def test_the_environments_are_worth_the_trouble():
    """Enough of them are broken, and most of the broken ones can be fixed."""
    broken = [solved(seed) for seed in SEEDS if solved(seed)[1].errors]
    cured = [item for item in broken if any(not fix.leaves for fix in item[2])]
    assert len(broken) >= 25
    assert len(cured) >= len(broken) * 0.6
