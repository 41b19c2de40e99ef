"""Rules judged by usual values: where a fact is missing, and where it is assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Severity
from doctor.rulebook.evaluate import Assessment, evaluate, with_backend_findings
from doctor.rulebook.rulebook import Rulebook, load_rulebook
from doctor.rulebook.usual import JOBS, USUAL, weigh
from doctor.sources.workload.assumed import assumed_fact
from doctor.sources.workload.defaults import complete_workload

RULE = """id: {id}
name: own-rule
severity: {severity}
summary: A rule of this test
references: [docs/rule-format.md]
when: {when}
message: "found {{torch.version}}"
no_pin: it is a test
"""


@pytest.fixture
def rulebook(tmp_path: Path):
    def make(when: str, severity: str = "error") -> Rulebook:
        folder = tmp_path / "own"
        folder.mkdir()
        (folder / "library.yaml").write_text("name: own\ndistributions: [own]\nreferences: [docs/rule-format.md]\n")
        (folder / "OWN001.yaml").write_text(RULE.format(id="OWN001", severity=severity, when=when))
        return load_rulebook((str(tmp_path),))

    return make


def judged(rules: Rulebook, given: dict[str, Any], **assumed: Any) -> Assessment:
    facts = Facts(
        [
            fact("torch.version", "2.6.0", "test"),
            fact("workload.framework", "flash_attn", "test"),
            *(fact(key, value, "test") for key, value in given.items()),
            *(assumed_fact(f"workload.{key}", value, "the longest of the model") for key, value in assumed.items()),
        ]
    )
    return weigh(rules, facts, evaluate(rules, facts))


def own(assessment: Assessment) -> list[Any]:
    return [finding for finding in assessment.findings if finding.rule == "OWN001"]


def test_a_rule_that_fires_for_every_usual_value_is_a_warning_that_says_so(rulebook):
    (finding,) = own(judged(rulebook('{torch.version: "2.6.0", workload.head_dim_qk: "<=256"}'), {}))
    assert finding.severity == Severity.WARNING
    assert finding.message == "found 2.6.0 (for every usual head_dim_qk: 32 to 256)"
    assert [item.key for item in finding.evidence] == ["torch.version"]


def test_a_rule_that_fires_for_no_usual_value_is_silent_and_not_skipped(rulebook):
    assessment = judged(rulebook('{torch.version: "2.6.0", workload.head_dim_qk: ">256"}'), {})
    assert not own(assessment)
    assert not any("OWN001" in group.rules for group in assessment.undetermined)


def test_where_the_answers_differ_the_values_are_named(rulebook):
    assessment = judged(rulebook('{torch.version: "2.6.0", workload.head_dim_qk: ">192"}'), {})
    (group,) = (group for group in assessment.undetermined if "OWN001" in group.rules)
    assert "applies to head_dim_qk 224, 256" in group.problem and not own(assessment)


def test_a_rule_that_lacks_another_fact_too_stays_skipped(rulebook):
    assessment = judged(rulebook('{torchvision.version: "<1", workload.head_dim_qk: "<=256"}'), {})
    assert any("OWN001" in group.rules for group in assessment.undetermined) and not own(assessment)


def test_an_error_that_rests_on_an_assumed_length_is_a_warning_that_names_it(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.seq_len_q: ">65536"}')
    assessment = judged(rules, {}, seq_len_q=131072)
    (finding,) = own(assessment)
    assert finding.severity == Severity.WARNING
    assert finding.message == "found 2.6.0 (assumed seq_len_q 131072: the longest of the model)"
    assert not any(item.severity == Severity.ERROR for item in with_backend_findings(rules, assessment))


def test_an_error_that_every_usual_length_gives_stays_an_error(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.seq_len_q: ">1"}')
    assert own(judged(rules, {}, seq_len_q=131072))[0].severity == Severity.ERROR


def test_a_stated_length_is_not_doubted(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.seq_len_q: ">65536"}')
    assert own(judged(rules, {"workload.seq_len_q": 131072}))[0].severity == Severity.ERROR


def test_every_usual_value_is_one_of_the_vocabulary():
    assert all(fact(key, value, "test").value is not None for key, values in USUAL.items() for value in values)


def test_a_rule_that_fires_for_every_usual_job_is_a_warning_though_several_values_are_missing(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.head_dim_qk: "<=256", workload.num_heads: "<=64"}')
    (finding,) = own(judged(rules, {}))
    assert finding.severity == Severity.WARNING
    assert finding.message == "found 2.6.0 (whatever is usual for head_dim_qk, num_heads)"


def test_a_rule_that_most_usual_jobs_silence_stays_skipped(rulebook):
    assessment = judged(
        rulebook('{torch.version: "2.6.0", workload.head_dim_qk: ">=128", workload.num_heads: "<=16"}'), {}
    )
    assert any("OWN001" in group.rules for group in assessment.undetermined) and not own(assessment)


def test_a_rule_that_fires_for_most_usual_jobs_is_a_warning_that_says_so(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.head_dim_qk: ">=64", workload.num_heads: "<=64"}')
    (finding,) = own(judged(rules, {}))
    assert finding.severity == Severity.WARNING
    assert finding.message.endswith("(in most usual jobs; head_dim_qk, num_heads not given)")


def test_a_note_needs_every_usual_job(rulebook):
    when = '{torch.version: "2.6.0", workload.head_dim_qk: ">=64", workload.num_heads: "<=64"}'
    assert not own(judged(rulebook(when, severity="note"), {}))


def test_a_rule_that_fires_for_most_usual_values_and_the_most_usual_is_a_warning_that_names_them(rulebook):
    (finding,) = own(judged(rulebook('{torch.version: "2.6.0", workload.seq_len_q: ">=2048"}'), {}))
    assert finding.message == "found 2.6.0 (for most usual seq_len_q: 2048 to 131072)"


def test_key_value_heads_follow_stated_query_heads(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.num_kv_heads: 24, workload.seq_len_q: ">1"}')
    assert own(judged(rules, {"workload.num_heads": 24}))


def test_every_value_of_a_usual_job_is_one_of_the_vocabulary():
    assert all(fact(f"workload.{key}", value, "test").value is not None for job in JOBS for key, value in job.items())


def test_a_mask_tensor_alone_does_not_silence_a_rule_and_is_excepted(rulebook):
    masks = "[no_mask, causal, padding, padding_causal, causal_bottom_right]"
    rules = rulebook(f'{{torch.version: "2.6.0", workload.mask: {masks}}}')
    (finding,) = own(judged(rules, {}))
    assert finding.severity == Severity.WARNING and "arbitrary" not in finding.message


def test_a_rule_for_two_of_the_three_usual_masks_is_a_warning_that_names_them(rulebook):
    (finding,) = own(judged(rulebook('{torch.version: "2.6.0", workload.mask: [no_mask, causal]}'), {}))
    assert finding.message == "found 2.6.0 (for most usual mask: no_mask, causal)"


def test_a_rule_for_one_usual_mask_and_a_rare_one_stays_open(rulebook):
    assert not own(judged(rulebook('{torch.version: "2.6.0", workload.mask: [causal, arbitrary]}'), {}))


def test_a_derived_fact_that_hangs_on_the_mask_is_missing_for_want_of_the_mask(rulebook):
    given = {"workload.framework": "transformers", "workload.attn_implementation": "sdpa"}
    given |= {"workload.num_heads": 32, "workload.num_kv_heads": 8, "transformers.version": "5.0.0"}
    rules = rulebook('{torch.version: "2.6.0", workload.sdpa_unexpanded_gqa: true}')
    (finding,) = own(judged(rules, given))
    assert finding.message == "found 2.6.0 (for most usual mask: no_mask, causal)"


def test_whole_jobs_except_the_one_with_a_mask_tensor(rulebook):
    masks = "[no_mask, causal, padding, padding_causal]"
    rules = rulebook(f'{{torch.version: "2.6.0", workload.mask: {masks}, workload.seq_len_q: ">1"}}')
    (finding,) = own(judged(rules, {}))
    assert finding.message.endswith("(whatever is usual for mask, seq_len_q, except mask arbitrary)")


def test_a_rule_for_a_mask_tensor_only_stays_open(rulebook):
    rules = rulebook('{torch.version: "2.6.0", workload.mask: arbitrary, workload.seq_len_q: ">1"}')
    assert not own(judged(rules, {}))


def test_a_missing_package_that_a_rule_only_excludes_is_taken_as_not_installed(rulebook):
    rules = rulebook('{torch.version: "2.6.0", any: [{deepspeed.version: absent}, {trl.version: "<0.1"}]}')
    (finding,) = own(judged(rules, {"trl.version": "0.20.0"}))
    assert finding.severity == Severity.WARNING
    assert finding.message == "found 2.6.0 (if deepspeed is not installed)"


def test_a_stated_package_decides_as_stated(rulebook):
    rules = rulebook('{torch.version: "2.6.0", deepspeed.version: absent}')
    assert not own(judged(rules, {"deepspeed.version": "0.16.0"}))
    (finding,) = own(judged(rules, {"deepspeed.version": "absent"}))
    assert finding.severity == Severity.ERROR


@pytest.mark.parametrize("absent", ["flash-attn.version", "transformer-engine.version"])
def test_a_missing_package_whose_absence_is_the_flaw_stays_open(rulebook, absent):
    needs = "needs: {torch.version: flash_attn and TransformerEngine}"
    assessment = judged(rulebook(f"{{torch.version: 2.6.0, {absent}: absent}}\n{needs}"), {})
    assert not own(assessment)
    assert any("OWN001" in group.rules for group in assessment.undetermined)


def test_a_note_does_not_assume_that_a_package_is_not_installed(rulebook):
    assert not own(judged(rulebook('{torch.version: "2.6.0", deepspeed.version: absent}', "note"), {}))


def test_a_rule_for_values_that_were_not_given_is_a_warning_that_names_the_excepted_one(rulebook):
    rules = rulebook('{any: [{workload.batch_size: ">1"}, {workload.batch_size.given: false}]}')
    (finding,) = own(judged(rules, {}, batch_size=1))
    assert finding.severity == Severity.WARNING
    assert finding.message.endswith("(if batch_size, which is not given, is not 1)")
    (stated,) = own(judged(rules, {"workload.batch_size": 4}))
    assert stated.severity == Severity.ERROR
    assert not own(judged(rules, {"workload.batch_size": 1}))


@pytest.mark.parametrize("found", ["2.7.0rc1", "2.7.0rc7.dev41+g6c3c0f823", "2.7.0rc2+cu128"])
def test_a_release_candidate_of_the_bound_is_a_warning_where_the_release_itself_fires(rulebook, found):
    (finding,) = own(judged(rulebook('{torch.version: ">=2.7"}'), {"torch.version": found}))
    final = "2.7.0+cu128" if "cu128" in found else "2.7.0"
    assert finding.severity == Severity.WARNING
    assert finding.message == f"found {final} (torch {found} taken as {final})"


@pytest.mark.parametrize("found", ["2.7.0a0+ecf3bae", "2.7.0.dev20250301"])
def test_an_alpha_or_a_nightly_build_of_the_bound_stays_undecided(rulebook, found):
    assessment = judged(rulebook('{torch.version: ">=2.7"}'), {"torch.version": found})
    assert not own(assessment) and any("OWN001" in group.rules for group in assessment.undetermined)


def test_a_release_candidate_of_the_release_that_repairs_is_no_finding(rulebook):
    assert not own(judged(rulebook('{torch.version: "<2.7"}'), {"torch.version": "2.7.0rc1"}))


def test_a_seldom_package_on_which_a_choice_hangs_is_taken_as_not_installed():
    rules = load_rulebook()
    facts = {
        "gpu.sm": "9.0",
        "torch.version": "2.10.0+cu130",
        "transformer-engine.version": "2.13.0",
        "flash-attn.version": "2.8.3+cu130torch2.10",
        "cudnn.version": "9.17.0",
    }
    workload = {"dtype": "bfloat16", "training": True, "mask": "causal", "qkv_layout": "sbhd_sbhd_sbhd"}
    workload |= {"head_dim_qk": 128, "num_heads": 16, "num_kv_heads": 16, "seq_len_q": 4096, "seq_len_kv": 4096}
    workload |= {"attention_backend": "flash"}

    def backends(**more: str) -> list[Any]:
        given = [fact(key, value, "test") for key, value in (facts | more).items()]
        job = [fact(f"workload.{key}", value, "test") for key, value in (workload | {"framework": "megatron"}).items()]
        found = Facts([*given, *job])
        judged = weigh(rules, found, evaluate(rules, found))
        return [finding for finding in judged.findings if finding.rule == "TE119"]

    (finding,) = backends()
    assert finding.severity == Severity.WARNING
    assert "if flash-attn-3 is not installed" in finding.message
    assert not backends(**{"flash-attn-3.version": "3.0.0"})


def test_a_rule_that_every_usual_companion_triggers_fires_as_a_warning():
    rules = load_rulebook()
    given = {"transformer-engine.version": "2.6.0", "gpu.sm": "9.0", "workload.framework": "megatron"}
    given |= {"workload.qkv_layout": "thd_thd_thd", "workload.mask": "padding_causal", "workload.training": True}

    def found(**more: Any) -> list[Any]:
        facts = complete_workload(Facts(fact(key, value, "test") for key, value in {**given, **more}.items()))
        judged = weigh(rules, facts, evaluate(rules, facts))
        return [finding for finding in judged.findings if finding.rule == "TE821"]

    (finding,) = found(**{"workload.cp_size": 2})
    assert finding.severity == Severity.WARNING
    assert "with usual values of what is not given: cudnn, head_dim_qk, num_heads" in finding.message
    assert not found(**{"workload.cp_size": 2, "cudnn.version": "9.18.1"})
    assert not found(**{"workload.cp_size": 2, "transformer-engine.version": "2.16.0"})  # with it: also newer cuDNN
    assert not found(**{"workload.cp_size": 1})


SDPA = {"torch.version": "2.5.1", "torch.cuda": "12.4", "workload.framework": "torch_sdpa", "workload.num_heads": 65536}


def test_a_choice_that_every_usual_gpu_makes_needs_no_gpu():
    job = {"dtype": "float32", "head_dim_qk": 16, "batch_size": 1, "seq_len_q": 10, "mask": "no_mask"}
    found = _found({**SDPA, **{f"workload.{key}": value for key, value in job.items()}})
    assert found["SDPA416"].severity == Severity.WARNING
    assert found["SDPA416"].message.endswith("(on every usual GPU; none is given)")


def test_a_job_without_a_gpu_and_a_value_is_judged_on_every_usual_gpu_of_every_usual_job():
    found = _found({**SDPA, "workload.dtype": "float32", "workload.mask": "no_mask"})
    assert "whatever is usual for" in found["SDPA416"].message


def test_a_choice_on_which_gpus_differ_stays_open():
    job = {"framework": "torch_sdpa", "dtype": "bfloat16", "head_dim_qk": 64, "mask": "causal", "training": True}
    given = {"torch.version": "2.5.0", "torch.cuda": "12.4", **{f"workload.{key}": value for key, value in job.items()}}
    assert "TORCH012" not in _found(given)
    assert "TORCH012" in _found({**given, "gpu.sm": "9.0"})


def _found(given: dict[str, Any]) -> dict[str, Any]:
    rules = load_rulebook()
    facts = Facts([fact(key, value, "test") for key, value in given.items()])
    return {item.rule: item for item in weigh(rules, facts, evaluate(rules, facts)).findings}


@pytest.fixture
def misses_torch():
    """The rule for TensorRT-LLM MLA on SM 12.x, which a torch built for CUDA 12.8 must select: 0.5.10 requires it."""

    def found(**more: str) -> list[Any]:
        rules = load_rulebook()
        facts = {"sglang.version": "0.5.10", "gpu.sm": "12.0"} | more
        job = {
            "framework": "sglang",
            "attention_backend_option": "trtllm_mla",
            "model_type": "deepseek_v3",
            "mla": True,
        }
        given = [fact(key, value, "test") for key, value in facts.items()]
        given += [fact(f"workload.{key}", value, "test") for key, value in job.items()]
        judged = weigh(rules, Facts(given), evaluate(rules, Facts(given)))
        return [finding for finding in judged.findings if finding.rule == "SGL086"]

    return found


def test_a_missing_torch_is_the_release_that_the_server_requires(misses_torch):
    (finding,) = misses_torch()
    assert finding.severity == Severity.WARNING
    assert "with torch 2.9.1, which sglang requires" in finding.message


def test_a_stated_torch_counts_before_the_one_that_the_server_requires(misses_torch):
    assert not misses_torch(**{"torch.version": "2.9.1+cu126"})
    (finding,) = misses_torch(**{"torch.version": "2.9.1+cu128"})
    assert finding.severity == Severity.ERROR and "requires" not in finding.message


def test_a_server_that_the_job_does_not_call_selects_nothing():
    rules = load_rulebook()
    facts = {"vllm.version": "0.19.0", "flashinfer-python.version": "0.6.7", "gpu.sm": "10.3"}
    given = [fact(key, value, "test") for key, value in facts.items()]
    given += [fact("workload.framework", "vllm", "test"), fact("workload.model_type", "qwen3", "test")]
    judged = weigh(rules, Facts(given), evaluate(rules, Facts(given)))
    (finding,) = [finding for finding in judged.findings if finding.rule == "FI019"]
    assert "for every usual dtype" in finding.message


def test_no_cudnn_is_guessed_where_the_one_of_transformer_engine_is_known():
    rules = load_rulebook()
    given = {"transformer-engine.version": "2.0.0", "cudnn.te_version": "9.7.1", "workload.framework": "megatron"}
    facts = complete_workload(Facts(fact(key, value, "test") for key, value in given.items()))
    judged = weigh(rules, facts, evaluate(rules, facts))
    assert "TE130" not in {finding.rule for finding in judged.findings}
