"""The search without a rule's hint finds what brute force finds, at the same cost, and nothing else."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.packages.index import ReleaseIndex
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rule import Rule
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.budget import BudgetExhausted, Effort, Event, SearchBudget
from doctor.solver.cost import cost
from doctor.solver.environment import stack_of
from doctor.solver.repair import FixSearch
from doctor.solver.resolve import unresolved_clashes
from doctor.solver.search import Search, better
from doctor.solver.solve import solve

NAMES = ("transformers", "flash-attn", "vllm", "deepspeed", "xtuner")


def world(seed: int) -> tuple[Rulebook, Facts, ReleaseIndex]:
    """Small packages under real names, with random requirements, and random rules over their versions."""
    chance = random.Random(seed)
    names = chance.sample(NAMES, 4)
    lines = [json.dumps({"refreshed": ""})]
    for name in names:
        releases = {}
        for number in range(1, 6):
            needs = []
            if chance.random() < 0.35:
                other = chance.choice([item for item in names if item != name])
                needs.append(f"{other}{chance.choice(['>=', '<', '==', '!='])}{chance.randint(1, 5)}.0")
            releases[f"{number}.0"] = {"rd": needs, "t": ["py3"], "m": ["any"], "d": f"2026-01-{number:02}",
                                       "y": chance.random() < 0.1}  # fmt: skip
        lines.append(json.dumps({"name": name, "releases": releases}, separators=(",", ":")))
    index = ReleaseIndex.from_text("\n".join(lines))
    installed = {name: f"{chance.randint(1, 5)}.0" for name in names}
    rules = {}
    for number in range(1, chance.randint(4, 9)):
        parts = chance.sample(names, chance.choice([1, 2, 2, 3]))
        when = {f"{name}.version": _range(chance) for name in parts}
        if chance.random() < 0.3:
            one, *others = when.items()
            when = {one[0]: one[1], "any": [dict([item]) for item in others]} if others else when
        rules[f"OWN{number:03}"] = when
    book = {}
    for name, when in rules.items():
        body = {"id": name, "name": name.lower(), "severity": "error", "summary": f"{name} strikes", "when": when,
                "references": ["https://example.org"], "message": name}  # fmt: skip
        book[name] = Rule(name, "own", body, "")
    facts = {"python.version": "3.11.7", "distributions.complete": True,
             **{f"{name}.version": version for name, version in installed.items()}}  # fmt: skip
    return Rulebook(book, {}), Facts(fact(key, value, "test") for key, value in facts.items()), index


def _range(chance: random.Random) -> str:
    low, high = sorted(chance.sample(range(1, 7), 2))
    return chance.choice([f">={low}.0", f"<{high}.0", f">={low}.0,<{high}.0", f"=={low}.0"])


def brute_force(rules: Rulebook, facts: Facts, repair: FixSearch, most: int) -> tuple[int, ...] | None:
    """The least cost of all combinations of releases that change at most so many packages."""
    stack, best = repair.stack, None
    names = sorted(stack.installed)
    for versions in itertools.product(*(stack.index.releases(name) for name in names)):
        chosen = {n: v for n, v in zip(names, versions, strict=True) if v != stack.installed[n]}
        if not 0 < len(chosen) <= most or any(stack.index.releases(n)[v].yanked for n, v in chosen.items()):
            continue
        if unresolved_clashes(stack, chosen):
            continue
        changed = facts.with_(*(fact(f"{n}.version", v, "test") for n, v in chosen.items()))
        if not evaluate(rules, changed).errors:
            price = cost(stack, chosen)
            best = price if best is None else min(best, price)
    return best


@pytest.mark.parametrize("block", range(6))
def test_the_search_finds_the_optimum_of_brute_force(block: int):
    solved = unsolvable = 0
    for seed in range(block * 100, block * 100 + 100):
        rules, facts, index = world(seed)
        before = evaluate(rules, facts)
        if not before.errors:
            continue
        repair = FixSearch(rules, facts, before, stack_of(facts, before.known, index), ("error",))
        search = Search(repair, Effort(3, 10_000, 4000))
        found = search.best()
        assert not search.exhausted
        expected = brute_force(rules, facts, repair, 3)
        assert (None if found is None else cost(repair.stack, found.chosen)) == expected, seed
        solved += expected is not None
        unsolvable += expected is None
    assert solved >= 25 and unsolvable >= 25


def test_a_way_that_no_rule_names_is_offered_and_reported_as_such():
    for seed in range(100):
        rules, facts, index = world(seed)
        fixes = solve(rules, facts, evaluate(rules, facts), index=index)
        if fixes:
            break
    assert "Found by search over all releases" in (fixes[0].note or "") and not fixes[0].leaves
    assert all(change.why for change in fixes[0].changes)


def test_an_exhausted_search_says_so():
    for seed in range(100):
        rules, facts, index = world(seed)
        before = evaluate(rules, facts)
        if before.errors:
            repair = FixSearch(rules, facts, before, stack_of(facts, before.known, index), ("error",))
            whole, short = Search(repair, Effort(3, 10_000, 4000)), Search(repair, Effort(3, 1, 4000))
            if whole.best() is not None and short.best() is None:
                assert short.exhausted and not whole.exhausted
                return
    pytest.fail("no world was hard enough")


def test_absent_packages_are_not_installed():
    for seed in range(40):
        rules, facts, index = world(seed)
        facts = facts.with_(fact("xtuner.version", ABSENT, "test"))
        for fix in solve(rules, facts, evaluate(rules, facts), index=index):
            assert not any(change.name == "xtuner" for change in fix.changes)


def test_an_exhausted_budget_is_traced_and_leaves_open_whether_a_smaller_fix_exists():
    asked = 0
    for seed in range(400):
        rules, facts, index = world(seed)
        before = evaluate(rules, facts)
        if not before.errors:
            continue
        repair = FixSearch(rules, facts, before, stack_of(facts, before.known, index), ("error",))
        best = Search(repair, Effort(4, 10_000, 40_000)).best()
        if best is None or len(best.chosen) < 2:
            continue
        events: list[Event] = []
        repair.budget = SearchBudget(smaller=Effort(6, 1, 1), trace=events.append)
        assert better(repair, [best]) == (None, False)
        assert [event for event in events if isinstance(event, BudgetExhausted) and event.search == "smaller fix"]
        events.clear()
        repair.budget = SearchBudget(smaller=Effort(6, 10_000, 40_000), trace=events.append)
        assert better(repair, [best]) == (None, True)
        assert not any(isinstance(event, BudgetExhausted) for event in events)
        asked += 1
        if asked == 5:
            break
    assert asked == 5
