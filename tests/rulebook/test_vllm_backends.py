"""vLLM's choice of backend: answers of its own releases, and each mechanism by itself."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from doctor.diagnosis.batch import answer, predict_case, read_case
from doctor.rulebook.evaluate import evaluate
from tests.helpers.rulebook import builtin_rulebook

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-answers.jsonl"

LLAMA = {
    "framework": "vllm", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 32, "num_kv_heads": 8,
    "inference_kv_cache": True, "training": False,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "head_dim_qk": 192, "num_heads": 128, "num_kv_heads": 1, "mla": True, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
}  # fmt: skip
PACKAGES = {
    "flashinfer-python.version": "0.6.6", "flashinfer-cubin.version": "absent", "tokenspeed-mla.version": "absent",
    "xformers.version": "0.0.30", "vllm-flash-attn.version": "2.6.1",
}  # fmt: skip


def backend_id(name):
    return "vllm." + name.lower().replace("-", "_").removesuffix("_vllm_v1")


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def captured():
    by_release = defaultdict(list)
    for line in CAPTURES.read_text(encoding="utf-8").splitlines():
        by_release[json.loads(line)["facts"]["vllm.version"]].append(line)
    return by_release


RELEASES = captured()


def line(release, sm, workload=None, facts=None, machine=None):
    case = {
        "facts": {"vllm.version": release, "gpu.sm": sm, **PACKAGES, **(facts or {})},
        "machine": {"nvcc": True, "nvidia_artifactory_reachable": True, **(machine or {})},
        "workload": {**LLAMA, **(workload or {})},
    }
    return json.dumps(case)


def ask(rulebook, *args, **kwargs):
    said, good = answer(rulebook, line(*args, **kwargs))
    assert good, said
    return said


@pytest.mark.parametrize("release", RELEASES)
def test_predictions_agree_with_the_release(rulebook, release):
    wrong = []
    for text in RELEASES[release]:
        case, (said, good) = json.loads(text), answer(rulebook, text)
        assert good, said
        expected = case["expected"]
        selected = backend_id(expected["selected"]) if expected["selected"] else None
        found = said["selected"], said["import_error"] is not None, said["fails_at_run"] is not None
        if found != (selected, expected["error"] is not None, expected["layer_accepts"] is False):
            wrong.append(f"{case['id']}: expected {selected} {expected['error']} {expected['layer_error']}, {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "release", [name for name in RELEASES if json.loads(RELEASES[name][0])["expected"].get("valid_in_order")]
)
def test_candidates_agree_with_the_release(rulebook, release):
    wrong = []
    for text in RELEASES[release]:
        expected = json.loads(text)["expected"]
        if expected["valid_in_order"] is None:
            continue
        valid = {backend_id(name) for name in expected["valid_in_order"]}
        judged = valid | {backend_id(name) for name in expected["invalid_reasons"]}
        said, _ = answer(rulebook, text)
        available = {item["backend"] for item in said["candidates"] if item["available"]} & judged
        if available != valid:
            wrong.append(f"{json.loads(text)['id']}: expected {sorted(valid)}, predicted {sorted(available)}")
    assert not wrong, "\n".join(wrong)


def test_the_captures_hold_several_hundred_cases_of_the_two_newest_releases():
    assert sum(map(len, RELEASES.values())) >= 400
    assert len(RELEASES["0.33.0"]) >= 200
    assert len(RELEASES["0.32.0"]) >= 200


def test_an_unknown_gpu_leaves_the_choice_undetermined(rulebook):
    said = ask(rulebook, "0.33.0", "9.0", facts={"gpu.sm": {"value": None, "problem": "no GPU"}})
    assert (said["selected"], said["could_tell"], said["import_error"]) == (None, False, None)


def test_a_requested_backend_is_never_replaced(rulebook):
    assert ask(rulebook, "0.27.1", "9.0", {"attention_backend_option": "flash_attn"})["selected"] == "vllm.flash_attn"
    said = ask(rulebook, "0.27.1", "8.0", {"attention_backend_option": "flash_attn", "kv_cache_dtype": "fp8"})
    assert (said["selected"], said["import_error"]["rule"]) == (None, "VLLM304")


def test_without_any_backend_vllm_stops_at_start(rulebook):
    said = ask(rulebook, "0.14.1", "8.0", {**DEEPSEEK, "kv_cache_dtype": "fp8"})
    assert (said["selected"], said["could_tell"], said["import_error"]["rule"]) == (None, True, "VLLM305")


def test_the_variable_is_ignored_from_0_15_on(rulebook):
    variable = {"env.VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}
    assert ask(rulebook, "0.14.1", "9.0", facts=variable)["selected"] == "vllm.triton_attn"
    assert ask(rulebook, "0.16.0", "9.0", facts=variable)["selected"] == "vllm.flash_attn"
    found = evaluate(rulebook, read_case(json.loads(line("0.16.0", "9.0", facts=variable))))
    assert "VLLM419" in {finding.rule for finding in found.findings}


def test_a_wrong_name_is_refused_ignored_or_pushes_to_v0(rulebook):
    nonsense = {"env.VLLM_ATTENTION_BACKEND": "NONSENSE"}
    assert ask(rulebook, "0.6.6", "9.0", facts=nonsense)["import_error"]["rule"] == "VLLM303"
    assert ask(rulebook, "0.7.3", "9.0", facts=nonsense)["selected"] == "vllm.flash_attn"
    assert ask(rulebook, "0.9.2", "9.0", facts=nonsense)["selected"] == "vllm.flash_attn"
    assert ask(rulebook, "0.13.0", "9.0", facts=nonsense)["import_error"]["rule"] == "VLLM303"


def test_a_head_width_that_the_layer_refuses_is_reported(rulebook):
    said = ask(rulebook, "0.8.5", "9.0", {"head_dim_qk": 80, "head_dim_v": 80})
    assert (said["selected"], said["fails_at_run"]["rule"]) == ("vllm.flash_attn", "VLLM401")
    found = evaluate(rulebook, read_case(json.loads(line("0.8.5", "9.0", {"head_dim_qk": 80, "head_dim_v": 80}))))
    assert [finding.severity for finding in found.findings if finding.rule == "VLLM401"] == ["error"]


def test_a_block_size_costs_blackwell_its_latent_attention_kernel(rulebook):
    assert ask(rulebook, "0.19.1", "10.0", DEEPSEEK)["selected"] == "vllm.flashinfer_mla"
    assert ask(rulebook, "0.19.1", "10.0", {**DEEPSEEK, "block_size": 16})["selected"] == "vllm.triton_mla"


def test_the_engine_requested_may_refuse(rulebook):
    said = ask(rulebook, "0.9.2", "7.5", facts={"env.VLLM_USE_V1": "1"})
    assert said["import_error"]["rule"] == "VLLM301"
    assert ask(rulebook, "0.9.2", "7.5")["selected"] == "vllm.xformers"


def test_missing_modules_and_kernels_count(rulebook):
    missing = {"compiled_modules_missing": ["vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"]}
    assert ask(rulebook, "0.33.0", "9.0", machine=missing)["selected"] == "vllm.flashinfer"
    assert ask(rulebook, "0.16.0", "9.0", machine=missing)["selected"] == "vllm.flash_attn"
    flashmla = {"compiled_modules_missing": ["vllm._flashmla_C"]}
    assert ask(rulebook, "0.8.5", "9.0", {**DEEPSEEK, "block_size": 64})["selected"] == "vllm.flashmla"
    assert ask(rulebook, "0.19.1", "9.0", DEEPSEEK, machine=flashmla)["selected"] == "vllm.flash_attn_mla"


def test_a_machine_section_becomes_machine_facts():
    facts = read_case({"machine": {"nvcc": False, "compiled_modules_missing": []}, "workload": {"block_size": None}})
    assert facts.value("machine.nvcc") is False
    assert facts.value("machine.compiled_modules_missing") == ()
    assert "workload.block_size" not in facts  # a plain null is as if not written


def test_an_unknown_machine_key_is_an_error(rulebook):
    said, good = answer(rulebook, json.dumps({"machine": {"nvc": True}, "workload": LLAMA}))
    assert not good
    assert "machine.nvc" in said["error"]


def test_prediction_is_made_once_for_a_refusal(rulebook):
    prediction = predict_case(
        rulebook, read_case(json.loads(line("0.14.1", "8.0", {**DEEPSEEK, "kv_cache_dtype": "fp8"})))
    )
    assert prediction.import_error is not None
    assert prediction.import_error.holds
