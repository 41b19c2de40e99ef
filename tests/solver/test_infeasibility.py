"""Cases: what refutes a fix at every choice of releases, and what does not; ways begun from their end."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.causes import Causes
from doctor.solver.environment import stack_of
from doctor.solver.infeasibility import Cases
from doctor.solver.plan import FixPlan
from doctor.solver.repair import FixSearch
from doctor.solver.solve import no_fix, solve
from tests.helpers.made_up import environment
from tests.helpers.rulebook import builtin_rulebook
from tests.solver.test_order import CUDA12, CUDA13, book, given, index

WORLD = index(
    torch={v: {"rd": [CUDA13 if v == "2.8.0" else CUDA12]} for v in ("2.6.0", "2.7.0", "2.8.0")},
    torchvision={v: {"rd": ["torch<2.8"]} for v in ("0.21.0", "0.22.0")},
)
OLD = {"when": {"torch.version": "<2.8"}, "fix": [{"note": "look"}]}


def repair_of(rules: Rulebook, facts: Facts) -> FixSearch:
    before = evaluate(rules, facts)
    return FixSearch(rules, facts, before, stack_of(facts, before.known, WORLD), ("error",))


def verdicts(other: dict[str, Any], **said: str) -> set[str | None]:
    """By what the cases of OWN001 are closed, with this rule next to it; None: one stays open."""
    rules = book(OWN001=OLD, OWN002=other)
    facts = given(torch="2.6.0").with_(*(fact(key.replace("__", "."), value, "test") for key, value in said.items()))
    return {case and case.rule for case in Cases(repair_of(rules, facts)).of(rules.rules["OWN001"])}


NEW = {"torch.version": ">=2.8", "workload.mask": "causal"}


@pytest.mark.parametrize(
    ("way", "closed"),
    [
        ({"require": {"torch": "<2.8"}}, True),  # releases are what the cases are about
        ({"note": "look"}, True),
        ({"config": {"mask": "padding_causal"}}, False),
        ({"set_env": {"NVTE_FLASH_ATTN": "1"}}, False),
        ({"unset_env": ["NVTE_FLASH_ATTN"]}, False),
        ({"call": "mask = None"}, False),
    ],
)
def test_an_error_that_the_user_can_clear_by_hand_refutes_nothing(way: dict[str, Any], closed: bool):
    found = verdicts({"when": NEW, "fix": [way]}, workload__mask="causal")
    assert found == ({"OWN001", "OWN002"} if closed else {"OWN001", None})


def test_an_error_that_can_no_longer_be_judged_refutes_nothing_unless_it_was_there():
    assert verdicts({"when": NEW}, workload__dtype="bfloat16") == {"OWN001", None}
    hidden = {"any": [{"torch.version": "<2.8"}, {"torch.git_version": "bad"}]}  # known of the old torch alone
    assert verdicts({"when": hidden}, torch__git_version="good") == {"OWN001", "OWN002"}


def test_releases_that_metadata_keeps_apart_refute():
    """The torchvision that would do goes with no torch that would."""
    rules = book(OWN001={"when": {"any": [{"torch.version": "<2.8"}, {"torchvision.version": "<0.22"}]}})
    repair = repair_of(rules, given(torch="2.6.0", torchvision="0.21.0"))
    cases = Cases(repair).of(rules.rules["OWN001"])
    assert None not in cases
    assert any("torchvision` 0.22.0 needs `torch<2.8`" in case.message for case in cases if case is not None)


def test_what_closed_a_case_is_not_taken_over_to_the_proof_of_another_error():
    rules = book(OWN001=OLD, OWN002={"when": {"torch.version": "<2.7"}, "fix": [{"config": {"mask": "no_mask"}}]})
    cases = Cases(repair_of(rules, given(torch="2.6.0")))
    assert {case and case.rule for case in cases.of(rules.rules["OWN002"])} == {"OWN002", "OWN001", None}
    assert {case and case.rule for case in cases.of(rules.rules["OWN001"])} == {"OWN001", None}


def test_the_parts_of_transformer_engine_move_with_torch_too():
    """Which core it brings, the CUDA of torch decides."""
    facts = given(torch="2.6.0", **{"transformer-engine.version": "2.3.0", "transformer-engine-cu12.version": "2.3.0"})
    rules = builtin_rulebook()
    before = evaluate(rules, facts)
    from doctor.packages.index import load_index

    causes = Causes(rules, stack_of(facts, before.known, load_index()), facts)
    assert causes.movers({"transformer-engine-cu12.version"}) == {"torch", "transformer-engine"}
    assert causes.movers({"transformer-engine.version"}) == {"transformer-engine"}


def test_a_general_rule_that_yields_is_no_new_error():
    """It says of the changed environment what the special one says of it, too."""
    rules = book(
        OWN001={"when": {"torch.version": "<2.8"}, "fix": [{"require": {"torch": ">=2.8"}}]},
        OWN002={"when": {"workload.mask": "causal"}},
        OWN003={"when": {"torch.version": ">=2.8"}, "yields_to": ["OWN002"]},
    )
    facts = given(torch="2.6.0").with_(fact("workload.mask", "causal", "test"))
    outcome = repair_of(rules, facts).evaluate(FixPlan(), {"torch": "2.8.0"})
    assert outcome is not None and outcome.firing == {"OWN002"}
    assert solve(rules, facts, evaluate(rules, facts), index=WORLD) == ()  # an error would remain


@pytest.mark.slow
def test_a_way_too_long_to_search_is_found_from_its_end():
    """Five packages and two settings: TransformerEngine and flash-attn lift the limit, the rest follows from them."""
    rules, facts = builtin_rulebook(), environment(1123)
    fixes = solve(rules, facts, evaluate(rules, facts))
    assert fixes and not fixes[0].leaves and sum(change.kind == "package" for change in fixes[0].changes) == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1005, 1010, 1055, 1129])
def test_what_the_search_cannot_show_the_cases_do(seed: int):
    rules, facts = builtin_rulebook(), environment(seed)
    before = evaluate(rules, facts)
    fixes = solve(rules, facts, before)
    assert fixes == ()
    assert all(item.proved for item in no_fix(rules, facts, before, fixes))
