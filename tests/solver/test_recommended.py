"""Which fix is recommended: nothing conditional, no drawback where a setting does, builds by CUDA and driver."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ChangeKind, Facts, Fix, FixKind, FixSafety
from doctor.report.fix_text import fix_lines
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.budget import BudgetExhausted, CandidateTried, Event, RemedyRejected, SearchBudget
from doctor.solver.solve import solve
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook

MACHINE = {
    "python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64", "platform.glibc": "2.35",
}  # fmt: skip


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


def facts_of(values: dict[str, Any]) -> Facts:
    return complete_workload(Facts(fact(key, value, "test") for key, value in {**MACHINE, **values}.items()))


def fixes(values: dict[str, Any], rules: Rulebook | None = None, **more: Any) -> tuple[Fix, ...]:
    rules, facts = rules or rulebook(), facts_of(values)
    return solve(rules, facts, evaluate(rules, facts), **more)


def packages(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes if change.kind == ChangeKind.PACKAGE}


def settings(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes if change.kind == ChangeKind.CONFIG}


# --- conditions ---------------------------------------------------------------------------------------------------

CONDITION = {
    "OWN001": {
        "when": {"torch.version": "2.6.0"},
        "fix": [
            {"require": {"torch": "==2.7.1"}, "when": {"workload.mask": "causal"}},
            {"require": {"torch": "==2.8.0"}},
        ],
    }
}


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({"workload.mask": "causal"}, ["2.7.1", "2.8.0"]),
        ({"workload.mask": "no_mask"}, ["2.8.0"]),
        ({}, ["2.8.0", "2.7.1"]),
    ],
)
def test_a_fix_with_an_unknown_condition_is_never_recommended(own_rules, job, wanted):
    found = fixes({"torch.version": "2.6.0", **job}, own_rules(**CONDITION))
    assert [packages(fix)["torch"] for fix in found] == wanted
    assert found[0].safety == FixSafety.SAFE
    unknown = [fix for fix in found if fix.safety == FixSafety.CONDITIONAL]
    assert bool(unknown) is (not job)
    assert all("Applies only where `workload.mask` causal (unknown here)." in (fix.note or "") for fix in unknown)


# --- drawbacks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [{"config": {"workload.mask": "no_mask"}}, {"call": "mask = None"}])
@pytest.mark.parametrize("release", ["2.5.1", "2.7.1"], ids=["a downgrade", "a warning of its own"])
def test_a_setting_or_call_precedes_a_release_with_a_drawback(own_rules, way, release):
    rules = own_rules(
        OWN001={"when": {"torch.version": "2.6.0", "workload.mask": "causal"},
                "fix": [{"require": {"torch": f"=={release}"}}, way]},
        OWN002={"severity": "warning", "when": {"torch.version": "2.7.1"}},
    )  # fmt: skip
    first, *others = fixes({"torch.version": "2.6.0", "workload.mask": "causal"}, rules)
    assert not packages(first)
    assert [packages(fix) for fix in others] == ([{"torch": release}] if release == "2.5.1" else [])


def test_a_release_with_a_warning_of_its_own_is_the_last_resort_for_an_error(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "2.6.0"}, "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"severity": "warning", "when": {"torch.version": "2.7.1"}},
    )
    assert packages(fixes({"torch.version": "2.6.0"}, rules)[0]) == {"torch": "2.7.1"}


def test_a_warning_is_no_reason_for_another_warning_or_an_older_torch(own_rules):
    rules = own_rules(
        OWN001={"severity": "warning", "when": {"torch.version": "==2.6.0"},
                "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"severity": "warning", "when": {"torch.version": ">=2.6.1"}},
    )  # fmt: skip
    assert fixes({"torch.version": "2.6.0"}, rules) == ()


def test_reasons_against_the_backends_bring_their_remedies():
    found = fixes(
        {"transformer-engine.version": "2.8.0", "flash-attn.version": "2.7.3", "torch.version": "2.8.0",
         "torch.cuda": "12.8", "nvidia-cudnn-cu12.version": "9.10.2.21", "cudnn.version": "9.10.2", "gpu.sm": "10.0",
         "flash-attn-3.version": "absent",
         "workload.framework": "transformer_engine", "workload.dtype": "bfloat16", "workload.head_dim_qk": 192,
         "workload.head_dim_v": 128, "workload.num_heads": 16, "workload.num_kv_heads": 16,
         "workload.seq_len_q": 4096, "workload.mask": "causal", "workload.qkv_layout": "sbhd_sbhd_sbhd",
         "workload.training": True, "workload.batch_size": 2},
    )  # fmt: skip
    padded, newer = found[:2]  # of FlashAttention 2, which takes no unequal head dims, and of FusedAttention
    assert padded.resolves == newer.resolves == ("TE140",)
    assert "functional.pad(v" in padded.changes[0].name
    assert "`te.flash2` instead of `te.unfused`" in (padded.note or "")
    assert packages(newer)["nvidia-cudnn-cu12"] and newer.plan.overridden
    assert "`te.fused` instead of `te.unfused`" in (newer.note or "")


def test_what_costs_less_comes_first_whatever_the_author_s_order(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "2.6.0", "workload.cp_comm_type": "a2a"},
                "fix": [{"require": {"torch": "==2.7.1"}}, {"call": "patch()"},
                        {"config": {"workload.cp_comm_type": "p2p"}}]},
    )  # fmt: skip
    found = fixes({"torch.version": "2.6.0", "workload.cp_comm_type": "a2a"}, rules)
    assert [fix.kind for fix in found] == [FixKind.SETTING, FixKind.CODE, FixKind.RELEASE_LINE]
    assert [fix.time for fix in found] == ["1 minute", "5 minutes", "10 minutes"]


def test_a_fix_that_contains_another_complete_fix_is_not_shown(own_rules):
    """Each release needs the setting as well, which fixes both errors alone."""
    setting = {"config": {"workload.cp_comm_type": "p2p"}}
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7", "workload.cp_comm_type": "all_gather"},
                "fix": [{"require": {"torch": "==2.7.1"}}, setting, {"call": "patch()"}]},
        OWN002={"when": {"torch.version": ">=2.7", "workload.cp_comm_type": "all_gather"}, "fix": [setting]},
    )  # fmt: skip
    (only, other) = fixes({"torch.version": "2.6.0", "workload.cp_comm_type": "all_gather"}, rules)
    assert not packages(only) and settings(only) == {"cp_comm_type": "p2p"}
    assert not packages(other) and not settings(other)  # the line of code alone
    assert only.changes[0].why.endswith("test states all_gather: change it there")


# --- backends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cudnn", "kept"), [("<9.5", True), (">=0", False)], ids=["a release serves it", "none does"])
def test_a_release_that_keeps_a_fused_backend_precedes_the_unfused_one(own_rules, cudnn, kept):
    """The rule names only the variable that disables FusedAttention; what limits it names a newer cuDNN."""
    support = {"severity": None, "message": None}
    rules = own_rules(
        OWN001={"when": {"te.selected": "te.fused", "cudnn.version": cudnn},
                "fix": [{"set_env": {"NVTE_FUSED_ATTN": "0"}}]},
        OWN002={"when": {"env.NVTE_FUSED_ATTN": "0"}, "disables": "te.fused", **support},
        OWN003={"when": {"gpu.sm": "9.0"}, "disables": "te.flash2", **support},
        OWN004={"when": {"gpu.sm": "9.0"}, "disables": "te.flash3", **support},
        OWN005={"when": {"gpu.sm": "9.0"}, "disables": "te.flash4", **support},
    )  # fmt: skip
    found = fixes(
        {"torch.version": "2.6.0", "transformer-engine.version": "2.3.0", "gpu.sm": "9.0",
         "flash-attn.version": "absent", "workload.framework": "transformer_engine", "workload.dtype": "bfloat16",
         "workload.head_dim_qk": 128,
         "workload.head_dim_v": 128, "workload.mask": "causal", "workload.training": True},
        rules,
    )  # fmt: skip
    variables = [{change.name for change in fix.changes if change.kind == ChangeKind.ENV} for fix in found]
    assert variables[-1] == {"NVTE_FUSED_ATTN"}
    assert bool(packages(found[0])) is kept and (not kept or "nvidia-cudnn-cu12" in packages(found[0]))


# --- builds of torch ----------------------------------------------------------------------------------------------

CPU = {"torch.version": "2.13.0+cpu", "torch.cuda": "absent", "gpu.sm": "9.0"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({**CPU, "driver.version": "580.65.06"}, "2.13.0+cu130"),  # the default build of that release
        ({**CPU, "driver.version": "535.183.01"}, "2.13.0+cu126"),
        ({"torch.version": "2.6.0", "torch.cuda": "12.4", "gpu.sm": "8.6", "gpu.name": "NVIDIA GeForce RTX 3090",
          "driver.version": "470.57.02"},
         "2.6.0+cu118"),
        ({"torch.version": "2.12.0", "torch.cuda": "13.0", "gpu.sm": "9.0", "driver.version": "570.86.10"},
         "2.12.0+cu126"),
    ],
)  # fmt: skip
def test_the_same_release_is_offered_in_a_build_that_the_driver_serves(given, wanted):
    first = fixes(given)[0]
    assert packages(first) == {"torch": wanted}
    assert {"TORCH030", "CUDA002", "CUDA006"} & set(first.resolves)
    label = wanted.partition("+")[2]
    index = f"https://download.pytorch.org/whl/{label}"
    assert f"pip install --extra-index-url {index} torch=={wanted}" in fix_lines(first)
    assert first.title.startswith("Replace `torch`") and wanted in first.title
    assert first.plan.changed and not first.leaves


@pytest.mark.parametrize(
    ("version", "cuda"), [("2.8.0+cu129", "12.9"), ("2.9.1+cu129", "12.9"), ("2.6.0+cpu", "absent")]
)
def test_the_label_of_a_build_names_its_cuda(version: str, cuda: str):
    assert evaluate(rulebook(), facts_of({"torch.version": version})).known.value("torch.cuda") == cuda


# --- source builds ------------------------------------------------------------------------------------------------


def test_a_source_build_is_a_cost_that_names_the_release_with_a_wheel():
    given = {"torch.version": "2.7.1", "torch.cuda": "12.6", "gpu.sm": "10.0", "gpu.name": "NVIDIA B200",
             "flash-attn.version": "2.7.4.post1", "driver.version": "580.65.06"}  # fmt: skip
    first = fixes(given)[0]
    assert packages(first)["torch"] == "2.7.1+cu128"
    (cost,) = (text for text in first.costs if "source build" in text)
    assert "source build of `flash-attn` 2.7.4.post1" in cost and "(2.8.3.post1 has a wheel)" in cost
    assert "pip install https://" in (first.note or "") and "flash_attn-2.8.3.post1+cu12torch2.7" in (first.note or "")
    with_wheel = fixes({**given, "flash-attn.version": "2.8.3.post1"})[0]
    assert with_wheel.plan.wheel_url and not any("source build" in text for text in with_wheel.costs)


# --- the job's own words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "wanted"),
    [("transformers", {"attn_implementation": "sdpa"}), ("flash_attn", {"framework": "torch_sdpa"})],
)
def test_settings_are_in_the_words_of_the_framework(own_rules, framework, wanted):
    rules = own_rules(
        OWN001={"when": {"workload.framework": ["transformers", "flash_attn"], "torch.version": "present",
                         "not": {"workload.attn_implementation": "sdpa"}},
                "fix": [{"config": {"workload.framework": "torch_sdpa"}}]}
    )  # fmt: skip
    given = {"torch.version": "2.6.0", "workload.framework": framework}
    if framework == "transformers":
        given["workload.attn_implementation"] = "flash_attention_2"
    assert settings(fixes(given, rules)[0]) == wanted


# --- warnings about a package that changes anyway -------------------------------------------------------------------


def test_a_release_that_clears_a_warning_too_is_preferred(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": ">=2.7"}}]},
        OWN002={"severity": "warning", "when": {"torch.version": "<2.8"}, "fix": [{"require": {"torch": ">=2.8"}}]},
        OWN003={"severity": "warning", "when": {"trl.version": "<1"}, "fix": [{"require": {"trl": ">=1"}}]},
    )
    fix = fixes({"torch.version": "2.6.0", "trl.version": "0.9.0"}, rules)[0]
    assert (packages(fix), set(fix.resolves)) == ({"torch": "2.8.0"}, {"OWN001", "OWN002"})


def test_a_warning_that_only_another_price_clears_stays(own_rules):
    rules = own_rules(
        OWN001={"when": {"transformers.version": "<4.50"}, "fix": [{"require": {"transformers": ">=4.50"}}]},
        OWN002={"severity": "warning", "when": {"transformers.version": ">=4.45"},
                "fix": [{"require": {"transformers": "<4.45"}}]},
        OWN003={"severity": "warning", "when": {"transformers.version": "present"},
                "fix": [{"require": {"transformers": "absent"}}]},
    )  # fmt: skip
    fix = fixes({"torch.version": "2.6.0", "transformers.version": "4.46.0"}, rules)[0]
    assert packages(fix)["transformers"] >= "4.50"


def test_of_a_package_without_release_list_the_bound_that_fits_every_range(own_rules):
    rules = own_rules(
        OWN001={"when": {"trl.version": "<1"}, "fix": [{"require": {"trl": ">=1.0.0"}}]},
        OWN002={"severity": "warning", "when": {"trl.version": "<1.4"}, "fix": [{"require": {"trl": ">=1.4.0"}}]},
    )
    assert packages(fixes({"torch.version": "2.6.0", "trl.version": "0.9.0"}, rules)[0]) == {"trl": "1.4.0"}


# --- the trace ----------------------------------------------------------------------------------------------------


def test_the_trace_reports_what_was_tried_rejected_and_exhausted(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": "==1.0.99"}},
                                                          {"require": {"torch": "==2.7.1"}}]},
    )  # fmt: skip
    events: list[Event] = []
    (fix,) = fixes({"torch.version": "2.6.0"}, rules, budget=SearchBudget(trace=events.append))
    assert packages(fix) == {"torch": "2.7.1"}
    tried = [event for event in events if isinstance(event, CandidateTried)]
    assert any(event.packages == {"torch": "2.7.1"} and event.firing == frozenset() for event in tried)
    events.clear()
    fixes({"torch.version": "2.6.0"}, rules, budget=SearchBudget(evaluations=1, trace=events.append))
    assert any(isinstance(event, BudgetExhausted) and event.bound == "evaluations" for event in events)
    assert all(str(event) for event in events if isinstance(event, (BudgetExhausted, CandidateTried, RemedyRejected)))


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_fix_that_makes_numbers_wrong_is_refused_and_one_that_may_is_not_the_first(own_rules):
    """The soft cap that sdpa ignores; of the second rule it is not known whether it applies."""
    numbers = {"severity": "warning", "category": "wrong-numerics"}
    fault = {"when": {"torch.version": "2.6.0", "transformers.version": "<4.50",
                      "workload.attn_implementation": "flash_attention_2"},
             "fix": [{"config": {"workload.attn_implementation": "sdpa"}}, {"require": {"transformers": "==4.50.3"}},
                     {"require": {"torch": "==2.7.1"}}]}  # fmt: skip
    job = {"torch.version": "2.6.0", "transformers.version": "4.49.0", "workload.framework": "transformers",
           "workload.softcap": 50.0, "workload.attn_implementation": "flash_attention_2"}  # fmt: skip
    capped = {"workload.attn_implementation": "sdpa", "workload.softcap": ">0"}
    unknown = {"workload.attn_implementation": "sdpa", "workload.batch_size.given": False}
    rules = own_rules(OWN001=fault, OWN002={"when": capped, **numbers}, OWN003={"when": unknown, **numbers})
    found = fixes(job, rules)
    assert found and not any(settings(fix) for fix in found)
    plain, setting = (fix for fix in fixes({**job, "workload.softcap": 0.0}, rules) if fix.kind != FixKind.RELEASE_LINE)
    assert packages(plain) == {"transformers": "4.50.3"} and settings(setting)
    assert "It brings the warning OWN003" in (setting.note or "")


def test_an_image_s_own_torch_is_not_replaced_from_the_registry(own_rules):
    rules = own_rules(OWN001={"when": {"cudnn.version": "<9.3"}, "fix": [{"require": {"torch": ">=2.7"}}]})
    image = {"torch.version": "2.4.0a0+3bcc3cddb5.nv24.07", "cudnn.version": "9.2.1",
             "cudnn.path": "/usr/lib/libcudnn.so.9"}  # fmt: skip
    found = fixes(image, rules)
    assert found and all(not packages(fix) for fix in found)
    assert "use the image nvcr.io/nvidia/pytorch:" in found[0].changes[0].name
    assert packages(fixes({"torch.version": "2.6.0", "cudnn.version": "9.1.0"}, rules)[-1]).get("torch")


@pytest.mark.parametrize(("length", "offered"), [(2048, True), (131072, False)])
def test_scores_larger_than_the_memory_are_no_fix(own_rules, length, offered):
    """Without FusedAttention TransformerEngine writes the scores of 128 heads out."""
    support = {"severity": None, "message": None, "when": {"gpu.sm": "9.0"}}
    rules = own_rules(
        OWN001={"when": {"te.selected": "te.fused"}, "fix": [{"set_env": {"NVTE_FUSED_ATTN": "0"}}]},
        OWN002={**support, "when": {"env.NVTE_FUSED_ATTN": "0"}, "disables": "te.fused"},
        OWN003={**support, "disables": "te.flash2"}, OWN004={**support, "disables": "te.flash3"},
        OWN005={**support, "disables": "te.flash4"},
    )  # fmt: skip
    found = fixes(
        {"torch.version": "2.6.0", "transformer-engine.version": "2.3.0", "gpu.sm": "9.0",
         "gpu.memory_bytes": 85899345920, "flash-attn.version": "absent", "workload.framework": "transformer_engine",
         "workload.dtype": "bfloat16", "workload.head_dim_qk": 128, "workload.head_dim_v": 128,
         "workload.num_heads": 128, "workload.num_kv_heads": 128, "workload.batch_size": 1,
         "workload.seq_len_q": length, "workload.mask": "causal", "workload.training": True},
        rules,
    )  # fmt: skip
    variables = {change.name for fix in found for change in fix.changes if change.kind == ChangeKind.ENV}
    assert ("NVTE_FUSED_ATTN" in variables) is offered
