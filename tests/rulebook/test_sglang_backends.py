"""SGLang's choice of backend: the answers of its own releases, the options, and what is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.diagnosis.batch import answer, read_case
from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import servers
from doctor.facts.libraries.servers import read_options
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.decisions import DecisionList
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.resolver import FactResolver
from tests.helpers.rulebook import builtin_rulebook

CAPTURES = Path(__file__).parents[1] / "captures" / "sglang-attention.jsonl"
LINES = CAPTURES.read_text(encoding="utf-8").splitlines()
FACTS = {"sglang.version": "0.5.9", "gpu.sm": "9.0", "torch.cuda": "12.8", "flashinfer-python.version": "0.6.3"}
LLAMA = {"framework": "sglang", "architecture": "LlamaForCausalLM", "head_dim_qk": 128, "head_dim_v": 128}
DEEPSEEK = {"framework": "sglang", "architecture": "DeepseekV3ForCausalLM", "mla": True, "head_dim_qk": 192}


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def predict(rulebook, workload, *options, **facts):
    given = {**FACTS, **{key.replace("__", "."): value for key, value in facts.items()}}
    case = {"id": 1, "facts": given, "options": list(options), "workload": workload}
    said, good = answer(rulebook, json.dumps(case))
    assert good, said
    return said


def named(backend):
    return None if backend is None else f"sglang.{backend}"


@pytest.mark.parametrize("line", LINES, ids=[json.loads(line)["id"] for line in LINES])
def test_answers_of_the_releases_themselves(rulebook, line):
    expected = json.loads(line)["expected"]
    said, good = answer(rulebook, line)
    assert good, said
    assert said["could_tell"]
    assert (said["selected"], said.get("prefill")) == (named(expected["decode"]), named(expected["prefill"]))
    assert bool(said["import_error"]) == bool(expected["error"]), expected["error"]
    assert bool(said["fails_at_run"]) == bool(expected["creator_refuses"])


def test_captures_are_of_many_releases():
    assert len({json.loads(line)["facts"]["sglang.version"] for line in LINES}) >= 8


# Order of choice


@pytest.mark.parametrize(
    ("release", "sm", "cuda", "chosen"),
    [
        ("0.4.4", "9.0", "12.4", "sglang.flashinfer"),
        ("0.4.6", "9.0", "12.4", "sglang.fa3"),
        ("0.5.9", "9.0", "12.1", "sglang.flashinfer"),
        ("0.5.6.post2", "12.0", "12.8", None),
        ("0.5.9", "10.0", "12.8", "sglang.trtllm_mha"),
        ("0.5.9", "10.0", "12.6", "sglang.flashinfer"),
        ("0.5.9", "12.0", "12.8", "sglang.flashinfer"),
    ],
)
def test_default_follows_release_gpu_and_cuda(rulebook, release, sm, cuda, chosen):
    said = predict(rulebook, LLAMA, sglang__version=release, gpu__sm=sm, torch__cuda=cuda)
    assert said["selected"] == chosen


def test_phases_are_chosen_apart(rulebook):
    said = predict(rulebook, LLAMA, "--prefill-attention-backend", "triton")
    assert (said["selected"], said["prefill"]) == ("sglang.fa3", "sglang.triton")


def test_equal_options_of_both_phases_replace_the_base(rulebook):
    options = (
        "--prefill-attention-backend",
        "fa3",
        "--decode-attention-backend",
        "fa3",
        "--kv-cache-dtype",
        "fp8_e5m2",
    )
    assert predict(rulebook, LLAMA, *options)["import_error"] is None
    assert predict(rulebook, LLAMA, "--attention-backend", "fa3", *options[4:])["selected"] == "sglang.triton"


def test_backend_of_prefill_alone_may_fail(rulebook):
    said = predict(rulebook, LLAMA, "--prefill-attention-backend", "fa3", gpu__sm="12.0")
    assert said["selected"] == "sglang.flashinfer"
    assert said["fails_at_run"]["rule"] == "SGL070"


def test_failing_prefill_is_a_finding(rulebook):
    case = {"facts": {**FACTS, "gpu.sm": "12.0"}, "options": ["--prefill-attention-backend", "fa3"], "workload": LLAMA}
    assert "SGL070" in {finding.rule for finding in evaluate(rulebook, read_case(case)).findings}


def test_unavailable_backends_have_reasons(rulebook):
    said = predict(rulebook, LLAMA, **{"flashinfer-python.version": "absent"})
    out = {item["backend"]: item["reasons"] for item in said["candidates"] if item["available"] is False}
    assert {"sglang.trtllm_mla", "sglang.trtllm_mha", "sglang.aiter"} <= out.keys()
    assert all(reasons for reasons in out.values())


# Unknown facts


def test_unknown_gpu_leaves_the_choice_unknown(rulebook):
    said = predict(rulebook, LLAMA, gpu__sm=None)
    assert (said["selected"], said["could_tell"]) == (None, False)


def test_unknown_cuda_does_not_matter_where_an_option_chooses(rulebook):
    said = predict(rulebook, LLAMA, "--attention-backend", "triton", torch__cuda=None)
    assert (said["selected"], said["could_tell"]) == ("sglang.triton", True)


def test_environment_without_sglang_has_no_prediction(rulebook):
    facts = read_case({"facts": {"gpu.sm": "9.0", "sglang.version": "absent"}, "workload": LLAMA})
    assert not [item for item in evaluate(rulebook, facts).predictions if item.library == "sglang"]


# Options


def test_options_are_typed_and_unknown_ones_ignored():
    words = read_options(
        ["--tp", "8", "--foo", "1", "--page-size=64", "--disable-mla", "--kv-cache-dtype", "fp8_e4m3"],
        servers()["sglang"],
    )
    assert words == {"page_size": 64, "disable_mla": True, "kv_cache_dtype": "fp8_e4m3", "tensor_parallel_size": 8}


@pytest.mark.parametrize("arguments", [["--page-size"], ["--page-size", "--tp"], ["--page-size", "many"]])
def test_option_without_a_good_value_is_an_error(arguments):
    with pytest.raises(DoctorError, match="--page-size"):
        read_options(arguments, servers()["sglang"])


def test_options_win_over_the_workload(rulebook):
    said = predict(rulebook, {**LLAMA, "attention_backend_option": "flashinfer"}, "--attention-backend", "triton")
    assert said["selected"] == "sglang.triton"


def test_options_need_a_list(rulebook):
    said, good = answer(rulebook, json.dumps({"id": 7, "facts": FACTS, "options": "--tp 8", "workload": LLAMA}))
    assert not good
    assert said["id"] == 7


# Decision lists


def decide(cases, **given):
    facts = Facts(Fact(key.replace("__", "."), value, "the test") for key, value in given.items())
    return DecisionList("sglang.base", "sglang.version", cases).decide(FactResolver(facts))


def test_first_case_that_holds_counts():
    cases = [{"when": {"gpu.sm": ">=9.0"}, "value": "fa3"}, {"value": "triton"}]
    assert decide(cases, gpu__sm="9.0").value == "fa3"
    assert decide(cases, gpu__sm="8.0").value == "triton"


def test_unknown_case_is_unknown_unless_the_rest_agrees():
    cases = [{"when": {"gpu.sm": ">=9.0"}, "value": "fa3"}, {"value": "triton"}]
    fact = decide(cases, gpu__sm=None)
    assert (fact.value, fact.problem, fact.lacks) == (None, "needs gpu.sm", ("gpu.sm",))
    assert decide([{**cases[0], "value": "triton"}, cases[1]], gpu__sm=None).value == "triton"


def test_list_without_a_case_that_holds_gives_absent():
    assert decide([{"when": {"gpu.sm": ">=9.0"}, "value": "fa3"}], gpu__sm="8.0").value == ABSENT


def test_value_of_another_fact():
    cases = [{"value": "{workload.attention_backend_option}"}]
    assert decide(cases, workload__attention_backend_option="fa4").value == "fa4"
    assert decide(cases, workload__attention_backend_option=None).value is None


def test_cases_of_other_releases_do_not_count():
    cases = [{"when": {"sglang.version": "<0.5"}, "value": "fa3"}, {"value": "triton"}]
    assert decide(cases, sglang__version="0.4.9").value == "fa3"
    assert decide(cases, sglang__version="0.5.9").value == "triton"
    assert decide(cases, sglang__version=None).value is None
