"""Fixes: what the incidents and landmines need, nothing that breaks something else, and never more than necessary."""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts, Fix, FixKind, FixSafety, Remedy
from doctor.packages.index import ReleaseIndex
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits
from doctor.report.fix_text import fix_lines
from doctor.rulebook.evaluate import Assessment, evaluate
from doctor.rulebook.rulebook import Rulebook
from doctor.solver.cost import cost
from doctor.solver.environment import PackageSet, stack_of
from doctor.solver.limits import Limits
from doctor.solver.plan import FixPlan, Pick
from doctor.solver.repair import is_change
from doctor.solver.resolve import choices
from doctor.solver.solve import no_fix, solve
from doctor.sources.snapshot import read_facts
from doctor.sources.workload.defaults import complete_workload
from doctor.sources.workload.recipes import read_job
from tests.helpers.rulebook import builtin_rulebook

EXAMPLES = Path(__file__).parents[2] / "examples" / "incidents"
BASE = {"python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64"}


@cache
def rulebook() -> Rulebook:
    return builtin_rulebook()


@cache
def incident(name: str) -> Facts:
    place = EXAMPLES / name
    return complete_workload(read_facts(place / "facts.yaml").with_(*read_job(place / "workload.yaml").values()))


def facts_of(values: dict[str, Any]) -> Facts:
    return Facts(fact(key, value, "test") for key, value in {**BASE, **values}.items())


def fixes(facts: Facts, rules: Rulebook | None = None, **options: Any) -> tuple[Fix, ...]:
    rules = rules or rulebook()
    return solve(rules, facts, evaluate(rules, facts), **options)


def packages(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes if change.kind == "package"}


def settings(fix: Fix) -> dict[str, str | None]:
    return {change.name: change.after for change in fix.changes if change.kind in ("env", "config")}


# --- the incidents ------------------------------------------------------------------------------------------------


def test_a_takes_another_backend_by_its_variable_before_anything_is_compiled():
    first, upgrade = fixes(incident("a"))
    assert settings(first) == {"NVTE_FLASH_ATTN": "0"} and first.kind == FixKind.SETTING
    assert "`te.fused` instead of `te.flash2`" in (first.note or "")
    assert packages(upgrade) == {"transformer-engine": "2.1.0"} and upgrade.kind == FixKind.BUILD


def test_b_takes_a_variable_then_a_newer_cudnn_over_the_pin_then_another_torch():
    setting, override, torch = fixes(incident("b"))
    assert settings(setting) == {"NVTE_FUSED_ATTN": "0"} and not packages(setting)
    assert packages(override) == {"nvidia-cudnn-cu12": "9.5.1.17"}  # the pin of another torch, so tested together
    assert override.kind == FixKind.OVERRIDE and override.safety == FixSafety.RISKY
    assert "torch 2.6.0 requires nvidia-cudnn-cu12==9.1.0.70" in (override.risk or "")
    assert fix_lines(override) == ["pip install --no-deps nvidia-cudnn-cu12==9.5.1.17"]
    assert packages(torch) == {"torch": "2.6.0+cu126"} and torch.kind == FixKind.BUILD
    assert "transformer-engine-torch" in (torch.note or "") and "must be rebuilt" in (torch.note or "")


def test_b_moves_torchvision_along_and_says_why():
    facts = incident("b").with_(fact("torchvision.version", "0.21.0", "test"))
    found = next(fix for fix in fixes(facts, limits=Limits(ranges={"torch": ">=2.7"})) if "torch" in packages(fix))
    assert packages(found) == {"torch": "2.8.0", "torchvision": "0.23.0"}
    why = next(change.why for change in found.changes if change.name == "torchvision")
    assert "`torchvision` 0.21.0 needs `torch==2.6.0`" in why


def test_b_with_torch_held_changes_neither_it_nor_what_it_pins():
    found, other = fixes(incident("b"), limits=Limits(hold=frozenset({"torch", "nvidia-cudnn-cu12"})))
    assert settings(found) == {"NVTE_FUSED_ATTN": "0"} and settings(other) == {"cp_comm_type": "p2p"}
    assert "`torch==2.7.1` is excluded: `torch` is held" in (found.note or "")


def test_c_replaces_one_wheel_before_a_setting_that_changes_the_batches():
    found = fixes(incident("c"))
    assert packages(found[0]) == {"transformers": "4.42.4"}  # torch stays
    setting = next(fix for fix in found if not packages(fix))
    assert settings(setting) == {"use_varlen_attn": "true", "pack_to_max_length": "true"}
    assert setting.safety == FixSafety.CHANGES_NUMBERS and "other batches" in (setting.risk or "")
    upgrade = next(fix for fix in found if "xtuner" in packages(fix))
    assert packages(upgrade) == {
        "xtuner": "0.2.0", "transformers": "4.48.0", "mmengine": "0.10.6", "bitsandbytes": "0.45.0",
        "deepspeed": "0.16.2",
    }  # fmt: skip
    assert ("peft", "0.14.0") in upgrade.plan.along  # no pin: an installer moves it by itself


def test_d_in_thd_pads_v_in_the_model_or_takes_the_stack_that_does():
    found = fixes(incident("d"))
    assert not packages(found[0]) and any(change.kind == "call" and "pad" in change.name for change in found[0].changes)
    upgrade = next(fix for fix in found if packages(fix))
    stack = packages(upgrade)
    assert {"transformer-engine": "2.13.0", "flash-attn": "2.8.3", "torch": "2.8.0"}.items() <= stack.items()
    assert str(stack["megatron-core"]).startswith("0.18.") and stack["megatron-core"] != "0.18.1"  # yanked
    assert settings(upgrade) == {"NVTE_FLASH_ATTN": None}
    assert not any(name.startswith("nvidia-cudnn") for fix in found for name in packages(fix))
    assert "No cuDNN" in (evaluate(rulebook(), incident("d")).findings[0].no_pin or "")


def test_d_on_a_python_without_that_megatron_pads_in_the_model():
    found = fixes(incident("d").with_(fact("python.version", "3.11.7", "test")))
    assert found and not any("megatron-core" in packages(fix) for fix in found)
    assert "Rejected: `megatron-core>=0.18` needs Python >=3.12, the target has 3.11.7." in (found[0].note or "")


def test_d_on_an_unknown_python_says_which_one_is_needed():
    found = fixes(incident("d").with_(fact("python.version", None, "test")))
    upgrade = next(fix for fix in found if "megatron-core" in packages(fix))
    assert "Python >=3.12" in (upgrade.note or "")


@pytest.mark.parametrize("layout", ["sbhd_sbhd_sbhd", "bshd_bshd_bshd"])
def test_d_in_a_dense_layout_switches_the_unfused_backend_on_again(layout: str):
    dense = incident("d").with_(fact("workload.qkv_layout", layout, "test"), fact("workload.mask", "causal", "test"))
    found = fixes(dense)
    assert settings(found[0]) == {"NVTE_UNFUSED_ATTN": None} and packages(found[0]) == {}


def test_e_takes_a_transformer_engine_with_a_right_layout_or_contiguous_tensors():
    setting, code, image = fixes(incident("e"))
    assert settings(setting) == {"NVTE_FUSED_ATTN": "0"}
    assert "contiguous" in code.changes[0].name and code.kind == FixKind.CODE
    assert "use the image nvcr.io/nvidia/pytorch:24.11-py3" in image.changes[0].name  # with TransformerEngine 1.12
    wheels = incident("e").with_(fact("torch.version", "2.4.1", "test"), fact("cudnn.path", None, "test"))
    release = next(fix for fix in fixes(wheels) if packages(fix))
    assert packages(release)["transformer-engine"] in ("1.12.0", "1.13.0")


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f"])
def test_every_fix_of_an_incident_silences_its_errors_and_brings_no_new_one(name: str):
    facts = incident(name)
    before = evaluate(rulebook(), facts)
    for fix in fixes(facts):
        assert before.findings[0].rule in fix.resolves
        if any(change.kind == "call" for change in fix.changes) or fix.plan.index_url:
            continue  # seen by eye: code, or a build whose parts are not on record
        if fix.plan.overridden:
            continue  # tests/solver/test_choices.py
        after = evaluate(rulebook(), _by_hand(facts, before, fix))
        assert after.errors <= set(fix.leaves), fix.title


def _by_hand(facts: Facts, before: Assessment, fix: Fix) -> Facts:
    """The changed facts as a user would write them down again: nothing measured, only versions and settings."""
    torch = any(change.name == "torch" for change in fix.changes)
    measured = [key for key in facts if torch and (key.startswith(("torch.", "cudnn.", "nvidia-", "triton")))]
    changed = facts.without(*measured, "distributions.complete") if torch else facts
    if torch:
        changed = changed.with_(fact("torch.version", before.known.value("torch.version"), "test"))
    for change in fix.changes:
        key = {"package": f"{change.name}.version", "env": f"env.{change.name}", "config": f"workload.{change.name}"}
        changed = changed.with_(fact(key[change.kind], change.after or ABSENT, "test"))
    if any(change.name == "megatron-core" for change in fix.changes):  # pads V before TransformerEngine sees it
        changed = changed.with_(fact("workload.head_dim_v", facts.value("workload.head_dim_qk"), "test"))
    parts = {k for k in changed if k.startswith("transformer-engine-")}
    te = next((c.after for c in fix.changes if c.name == "transformer-engine"), None)
    return changed.with_(*(fact(key, te, "test") for key in parts if te))


# --- the landmines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "stray", "own"),
    [("2.11.0", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"), ("2.8.0", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")],
)
def test_the_stray_cudnn_is_removed_and_not_the_one_torch_needs(torch: str, stray: str, own: str):
    versions = {"nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cudnn-cu13": "9.19.0.56"}
    found = fixes(facts_of({"torch.version": torch, **{f"{k}.version": v for k, v in versions.items()}}))
    assert [packages(fix) for fix in found] == [{stray: None}]
    assert not found[0].leaves and own not in packages(found[0])


def test_a_stray_cudnn_that_won_is_forgotten_with_its_wheel():
    facts = facts_of({"torch.version": "2.15.0", "nvidia-cudnn-cu12.version": "9.28.0.42",
                      "nvidia-cudnn-cu13.version": "9.26.0.51", "cudnn.version": "9.28.0",
                      "distributions.complete": True})  # fmt: skip
    found = fixes(facts)
    assert packages(found[0]) == {"nvidia-cudnn-cu12": None} and not found[0].leaves


def test_blackwell_moves_the_whole_stack_or_takes_the_other_build():
    facts = facts_of({"torch.version": "2.7.1", "xformers.version": "0.0.31", "vllm.version": "0.10.0",
                      "torchvision.version": "0.22.1", "torchaudio.version": "2.7.1", "transformers.version": "4.55.0",
                      "gpu.sm": "10.0", "gpu.name": "B200"})  # fmt: skip
    build, stack = fixes(facts)
    assert packages(build) == {"torch": "2.7.1+cu128"} and not any("uninstall" in line for line in fix_lines(build))
    assert packages(stack)["torch"] == "2.8.0"
    assert packages(stack)["vllm"] == "0.10.2"  # not 0.2.5, which requires torch>=2.1 and so seems to fit
    assert packages(stack)["xformers"] == "0.0.32.post1" and packages(stack)["torchvision"] == "0.23.0"


def test_a_cuda_major_change_names_the_orphans_no_installer_removes(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "<2.11"}, "fix": [{"require": {"torch": "==2.11.0"}}]})
    (fix,) = fixes(facts_of({"torch.version": "2.10.0", "nvidia-cudnn-cu12.version": "9.10.2.21"}), rules)
    assert fix_lines(fix)[0].startswith("pip uninstall --yes nvidia-cudnn-cu12")
    assert "`nvidia-cudnn-cu12`" in (fix.note or "") and "no installer removes" in (fix.note or "")


# --- what is never offered ----------------------------------------------------------------------------------------


def test_nothing_is_offered_where_every_way_is_held():
    facts = facts_of({"torch.version": "2.7.1", "gpu.sm": "10.0", "gpu.name": "B200"})
    assert fixes(facts, limits=Limits(hold=frozenset({"torch"}))) == ()
    told = no_fix(rulebook(), facts, evaluate(rulebook(), facts), (), limits=Limits(hold=frozenset({"torch"})))
    assert told[0].rule == "TORCH001" and told[0].because


def test_a_fix_that_makes_another_error_fire_is_none(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": "==2.7.1"}},
                                                           {"require": {"torch": "==2.8.0"}}]},
        OWN002={"when": {"torch.version": "==2.7.1"}},
    )  # fmt: skip
    assert [packages(fix) for fix in fixes(facts_of({"torch.version": "2.6.0"}), rules)] == [{"torch": "2.8.0"}]


def test_a_further_finding_that_the_fix_brings_is_fixed_too(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"when": {"torch.version": ">=2.7", "env.NVTE_FUSED_ATTN": ABSENT},
                "fix": [{"set_env": {"NVTE_FUSED_ATTN": "0"}}]},
    )  # fmt: skip
    (fix,) = fixes(facts_of({"torch.version": "2.6.0"}), rules)
    assert packages(fix) == {"torch": "2.7.1"} and settings(fix) == {"NVTE_FUSED_ATTN": "0"}
    assert fix.title == "Upgrade `torch` to 2.7.1 and set `NVTE_FUSED_ATTN` to `0`"


def test_two_findings_are_joined_into_one_release(own_rules):
    rules = own_rules(
        OWN001={"when": {"transformers.version": "<4.44"}, "fix": [{"require": {"transformers": ">=4.44"}}]},
        OWN002={"when": {"transformers.version": ">=4.42,<4.46"}, "fix": [{"require": {"transformers": ">=4.46"}}]},
    )
    (fix,) = fixes(facts_of({"transformers.version": "4.42.4"}), rules)
    assert packages(fix) == {"transformers": "4.46.3"}  # the nearest release line, its newest patch; 4.46.0 is yanked
    assert fix.resolves == ("OWN001", "OWN002")


def test_a_package_that_turns_out_not_to_be_needed_stays(own_rules):
    old = {"transformers.version": "<4.44"}
    rules = own_rules(
        OWN001={"when": {**old, "flash-attn.version": "<2.6"}, "fix": [{"require": {"flash-attn": "==2.6.3"}}]},
        OWN002={"when": old, "fix": [{"require": {"transformers": ">=4.44"}}]},
    )
    (fix,) = fixes(facts_of({"transformers.version": "4.42.4", "flash-attn.version": "2.5.8"}), rules)
    assert packages(fix) == {"transformers": "4.44.2"} and fix.resolves == ("OWN001", "OWN002")


def test_a_smaller_way_that_is_worse_in_nothing_is_recommended_and_reported_as_no_one_s(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7", "transformers.version": "<4.44"},
                "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"when": {"torch.version": "==2.7.1", "flash-attn.version": "<2.7"},
                "fix": [{"require": {"flash-attn": "==2.7.3"}}]},
    )  # fmt: skip
    given = {"torch.version": "2.6.0", "transformers.version": "4.42.4", "flash-attn.version": "2.5.8"}
    first, second = fixes(facts_of(given), rules)
    assert packages(first) == {"transformers": "4.44.2"} and "Found by search over all releases" in (first.note or "")
    assert packages(second) == {"torch": "2.7.1", "flash-attn": "2.7.3"}
    newer = {**given, "transformers.version": "4.43.0"}  # and a downgrade is never the better way
    rules.rules["OWN001"].stated["when"]["transformers.version"] = ">=4.43"
    for parsed in ("when", "gate"):
        vars(rules.rules["OWN001"]).pop(parsed, None)
    assert packages(fixes(facts_of(newer), rules)[0]) == {"torch": "2.7.1", "flash-attn": "2.7.3"}


def test_contradicting_ways_are_not_joined(own_rules):
    rules = own_rules(
        OWN001={"when": {"transformers.version": ">=4.44"}, "fix": [{"require": {"transformers": "<4.44"}}]},
        OWN002={"when": {"transformers.version": ">=4.42"}, "fix": [{"require": {"transformers": ">=4.60"}}]},
    )
    (only,) = fixes(facts_of({"transformers.version": "4.44.2"}), rules)
    assert packages(only) == {"transformers": "4.41.2"}  # no rule names it, none speaks against it


def test_an_error_that_would_only_be_hidden_is_not_fixed(own_rules):
    ways = [{"require": {"torch": "==2.7.1"}}, {"require": {"torch": "==2.8.0"}}]
    rules = own_rules(OWN001={"when": {"torch.version": "<2.8", "torch.git_version": "bad"}, "fix": ways})
    found = fixes(facts_of({"torch.version": "2.6.0", "torch.git_version": "bad"}), rules)
    assert [packages(fix) for fix in found] == [{"torch": "2.8.0"}]


def test_what_can_no_longer_be_judged_is_reported(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"when": {"torch.git_version": "bad"}},
    )
    (fix,) = fixes(facts_of({"torch.version": "2.6.0", "torch.git_version": "good"}), rules)
    assert "OWN002" in (fix.note or "") and "torch.git_version" in (fix.note or "")


def test_a_way_that_is_taken_already_is_no_fix(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "2.6.0"}, "fix": [{"unset_env": ["NVTE_DEBUG"]}],
                              "no_pin": "No release does it better."})  # fmt: skip
    assert fixes(facts_of({"torch.version": "2.6.0"}), rules) == ()


def test_an_unsafe_way_comes_last(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "2.6.0"}, "fix": [
        {"require": {"torch": "==2.5.1"}, "safety": "risky", "risk": "it is old"},
        {"require": {"torch": "==2.7.1"}}]})  # fmt: skip
    found = fixes(facts_of({"torch.version": "2.6.0"}), rules)
    assert [packages(fix)["torch"] for fix in found] == ["2.7.1", "2.5.1"] and not found[1].safe


def test_warnings_are_fixed_where_there_is_no_error(own_rules):
    rules = own_rules(OWN001={"severity": "warning", "when": {"torch.version": "2.6.0"},
                              "fix": [{"require": {"torch": "==2.7.1"}}]})  # fmt: skip
    assert packages(fixes(facts_of({"torch.version": "2.6.0"}), rules)[0]) == {"torch": "2.7.1"}


def test_code_is_believed_and_said_to_be_unchecked(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "2.6.0"}, "fix": [{"call": "x = x.contiguous()"}]})
    (fix,) = fixes(facts_of({"torch.version": "2.6.0"}), rules)
    assert fix.title == "Write `x = x.contiguous()`" and fix.resolves == ("OWN001",)
    assert "re-run `attn-doctor check`" in (fix.note or "")


def test_no_index_is_read_where_rules_name_no_fixes(own_rules, monkeypatch):
    rules = own_rules(OWN001={"when": {"torch.version": "2.6.0"}, "no_pin": "No release does it better."})
    monkeypatch.setattr("doctor.solver.solve.load_index", lambda: pytest.fail("the index was read"))
    assert fixes(facts_of({"torch.version": "2.6.0"}), rules) == ()


# --- facts after the change ---------------------------------------------------------------------------------------


def test_a_system_cudnn_stays_when_torch_changes(own_rules):
    rules = own_rules(
        OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": "==2.7.1"}}]},
        OWN002={"when": {"cudnn.version": "<9.3"}},
    )
    mounted = {"torch.version": "2.6.0", "cudnn.version": "9.2.1", "cudnn.path": "/usr/lib/libcudnn.so.9"}
    assert fixes(facts_of(mounted), rules) == ()  # an error would remain
    wheel = {**mounted, "cudnn.version": "9.1.0", "cudnn.path": "~/venv/site-packages/nvidia/cudnn/lib/libcudnn.so.9"}
    (fix,) = fixes(facts_of(wheel), rules)
    assert fix.leaves == () and set(fix.resolves) == {"OWN001", "OWN002"}


def test_a_part_that_strayed_goes_back_to_its_leaders_pin(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "2.6.0", "nvidia-cudnn-cu12.version": ">=9.2"},
                              "fix": [{"require": {"nvidia-cudnn-cu12": "<9.2"}}]})  # fmt: skip
    (fix,) = fixes(facts_of({"torch.version": "2.6.0", "nvidia-cudnn-cu12.version": "9.3.0.75"}), rules)
    assert packages(fix) == {"nvidia-cudnn-cu12": "9.1.0.70"}


def test_a_part_that_is_wanted_newer_moves_its_leader(own_rules):
    rules = own_rules(OWN001={"when": {"cudnn.version": "<9.3"}, "fix": [{"require": {"nvidia-cudnn-cu12": ">=9.3"}}]})
    override, owner = fixes(facts_of({"torch.version": "2.6.0"}), rules)
    assert packages(override) == {"nvidia-cudnn-cu12": "9.5.1.17"}  # which torch pins otherwise
    assert packages(owner) == {"torch": "2.7.1"} and owner.resolves == ("OWN001",)


def test_a_package_off_the_record_takes_the_release_its_rule_names(own_rules):
    rules = own_rules(OWN001={"when": {"ring-flash-attn.version": "<0.1.3"},
                              "fix": [{"require": {"ring-flash-attn": ">=0.1.3"}}]})  # fmt: skip
    (fix,) = fixes(facts_of({"ring-flash-attn.version": "0.1.1"}), rules)
    assert packages(fix) == {"ring-flash-attn": "0.1.3"}


def test_two_cores_of_transformer_engine_are_fixed_by_a_release_that_brings_one():
    parts = {f"transformer-engine{part}.version": "2.14.1" for part in ("", "-torch", "-cu12", "-cu13")}
    facts = facts_of({"python.version": "3.12.3", "torch.version": "2.8.0", "gpu.sm": "9.0", **parts})
    first = fixes(facts)[0]
    assert packages(first)["transformer-engine"] == "2.13.0" and not first.leaves
    assert fix_lines(first)[0] == "pip uninstall --yes transformer-engine-cu13"


def test_an_arm_machine_is_not_given_a_cpu_build(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": ">=2.11"}, "fix": [{"require": {"torch": "<2.11"}}]})
    facts = facts_of({"torch.version": "2.11.0"})
    assert packages(fixes(facts, rules)[0]) == {"torch": "2.10.0"}
    assert fixes(facts.with_(fact("platform.machine", "aarch64", "test")), rules) == ()


def test_a_transformer_engine_that_brings_two_cores_is_not_taken(own_rules):
    rules = own_rules(
        OWN001={"when": {"transformer-engine.version": "<2.14"}, "fix": [{"require": {"transformer-engine": ">=2"}}]},
        OWN002={"when": {"transformer-engine-cu12.version": "present", "transformer-engine-cu13.version": "present"}},
    )
    parts = {f"transformer-engine{part}.version": "2.12.0" for part in ("", "-torch", "-cu12")}
    facts = facts_of({"python.version": "3.12.3", "torch.version": "2.8.0", **parts})
    for fix in fixes(facts, rules):  # with a torch for CUDA 13 it brings one core
        assert packages(fix) == {"torch": "2.11.0", "transformer-engine": "2.14.1"}
        assert "pip uninstall --yes" in fix_lines(fix)[0] and "transformer-engine-cu12" in fix_lines(fix)[0]
    assert solve(rules, facts, evaluate(rules, facts), limits=Limits(hold=frozenset({"torch"}))) == ()


def test_what_is_installed_binds_as_installed(own_rules):
    rules = own_rules(OWN001={"when": {"torch.version": "<2.7"}, "fix": [{"require": {"torch": ">=2.7"}}]})
    facts = facts_of({"torch.version": "2.6.0", "in-house.version": "1.0"})
    assert packages(fixes(facts, rules)[0])["torch"] == "2.7.1"
    assert packages(fixes(facts, rules, installed=lambda: {"in_house": ["torch!=2.7.*"]})[0])["torch"] == "2.8.0"
    assert fixes(facts, rules, installed=lambda: {"In-House": ["torch<2.7"]}) == ()


# --- minimality ---------------------------------------------------------------------------------------------------


def small_world(seed: int) -> tuple[ReleaseIndex, dict[str, str], dict[str, str]]:
    """(index, installed, wanted): four packages with a few releases that require each other at random."""
    chance = random.Random(seed)
    names = ["alpha", "beta", "gamma", "delta"]
    lines = ['{"format":1,"refreshed":"2026-01-01"}']
    for name in names:
        releases = {}
        for number in range(1, chance.randint(3, 5)):
            others = [other for other in names if other != name and chance.random() < 0.5]
            requires = []
            for other in others:
                low = chance.randint(1, 4)
                operator = chance.choice(["==", ">=", "<=", "<"])
                requires.append(f"{other}{operator}{low}.0")
            releases[f"{number}.0"] = {"rd": requires, "t": ["py3"], "m": ["any"], "d": f"2026-01-{number:02}"}
        lines.append(json.dumps({"name": name, "releases": releases}, separators=(",", ":")))
    index = ReleaseIndex.from_text("\n".join(lines))
    installed = {name: chance.choice(list(index.releases(name))) for name in names}
    target = chance.choice(names)
    return index, installed, {target: chance.choice([">=", "<", "=="]) + f"{chance.randint(1, 4)}.0"}


def brute_force(stack: PackageSet, wanted: dict[str, str]) -> tuple[int, ...] | None:
    """The least cost among all combinations of all releases."""
    best = None
    names = list(stack.installed)
    for versions in itertools.product(*(stack.index.releases(name) for name in names)):
        assigned = dict(zip(names, versions, strict=True))
        if not all(admits(spec, assigned[name]) for name, spec in wanted.items()):
            continue
        broken = False
        for name, version in assigned.items():
            for line in stack.index.releases(name)[version].requires:
                other = next(item for item in names if line.startswith(item))
                was_met = admits(line[len(other) :], stack.installed[other])
                counts = version != stack.installed[name] or was_met  # of what stays, what was broken before does not
                broken |= counts and not admits(line[len(other) :], assigned[other])
        if not broken:
            chosen = {name: v for name, v in assigned.items() if v != stack.installed[name]}
            best = min(best or cost(stack, chosen), cost(stack, chosen))
    return best


@pytest.mark.parametrize("block", range(8))
def test_no_cheaper_choice_exists_than_the_first(block: int):
    solvable = 0
    for seed in range(block * 50, block * 50 + 50):
        index, installed, wanted = small_world(seed)
        stack = PackageSet(index, Platform("3.11.7"), installed)
        first = next(choices(stack, wanted), None)
        expected = brute_force(stack, wanted)
        assert (None if first is None else cost(stack, first)) == expected, seed
        solvable += expected is not None
    assert solvable > 10  # the worlds are not all hopeless


def test_held_packages_are_never_chosen():
    for seed in range(60):
        index, installed, wanted = small_world(seed)
        held = next(name for name in installed if name not in wanted)
        stack = PackageSet(index, Platform("3.11.7"), installed, limits=Limits(hold=frozenset({held})))
        assert all(held not in chosen for chosen in choices(stack, wanted))


def test_plans_refuse_what_cannot_be_read():
    def joined(**parts: Any) -> FixPlan | None:
        return FixPlan().joined(Pick("OWN001", 0, Remedy(**parts)))

    assert joined(require={"torch": "not a range"}) is None
    assert joined(require={"torch\nevil": "==1"}) is None
    assert joined(config={"workload.no_such_key": 1}) is None
    assert joined(note="only words") is None
    plan = joined(require={"Torch": ">=2"}, set_env={"A": "1"})
    assert plan is not None and plan.require == {"torch": ">=2"}
    assert plan.joined(Pick("OWN002", 0, Remedy(unset_env=("A",)))) is None
    assert plan.joined(Pick("OWN002", 0, Remedy(require={"torch": ABSENT}))) is None


def test_the_stack_knows_what_follows_from_what_is_given():
    facts = facts_of({"torch.version": "2.6.0"})
    from doctor.packages.index import load_index

    stack = stack_of(facts, evaluate(rulebook(), facts).known, load_index())
    assert stack.installed["nvidia-cudnn-cu12"] == "9.1.0.70"
    assert stack.completed({"torch": "2.11.0"})["nvidia-cudnn-cu12"] == ABSENT
    assert stack.completed({"torch": "2.11.0"})["nvidia-cudnn-cu13"] == "9.19.0.56"


def test_a_word_that_becomes_false_is_a_change():
    """A word without a default that becomes false is a change; unset and absent are the same."""
    assert is_change(ABSENT, False) and is_change(None, "0")
    assert not is_change(None, ABSENT) and not is_change("", ABSENT)


def test_what_an_installer_moves_by_itself_moves_along(own_rules):
    """Nothing has a record of tokenizers: held at its release, no transformers would be free of the second error."""
    rules = own_rules(
        OWN001={"when": {"transformers.version": "<4.56"}, "fix": [{"require": {"transformers": ">=4.56.2,<4.57"}}]},
        OWN002={"when": {"transformers.version": ">=4.55", "tokenizers.version": "<0.21"}},
    )
    facts = facts_of({"transformers.version": "4.46.3", "tokenizers.version": "0.20.3"})
    (fix,) = fixes(facts, rules, installed=lambda: {"transformers": ["tokenizers<0.21,>=0.20"]})
    assert packages(fix) == {"transformers": "4.56.2"} and fix.plan.along == (("tokenizers", "0.22.0"),)
    held = Limits(hold=frozenset({"tokenizers"}))
    assert fixes(facts, rules, limits=held, installed=lambda: {"transformers": ["tokenizers<0.21,>=0.20"]}) == ()
