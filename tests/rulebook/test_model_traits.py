"""What is known of a job that names its model type only, and of packages that the server requires."""

from __future__ import annotations

from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.evaluate import evaluate, know
from doctor.sources.workload.defaults import complete_workload
from tests.helpers.rulebook import builtin_rulebook


def given(**values: Any) -> Facts:
    return Facts(fact(key.replace("__", "."), value, "test") for key, value in values.items())


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("deepseek_v3", "workload.mla", True),
        ("deepseek_v3", "workload.head_size_given_to_selector", 576),
        ("deepseek_v32", "workload.mla_sparse", True),
        ("gpt_oss", "workload.sinks", True),
        ("gpt_oss", "workload.architecture", "GptOssForCausalLM"),
        ("llama", "workload.mla", False),
        ("llama", "workload.sinks", False),
    ],
)
def test_a_model_type_says_what_all_its_models_have(model_type: str, key: str, value: Any) -> None:
    known, _ = know(builtin_rulebook(), given(workload__framework="vllm", workload__model_type=model_type))
    assert known.value(key) == value


def test_what_the_job_says_itself_counts_more_than_its_model_type() -> None:
    facts = given(workload__framework="vllm", workload__model_type="deepseek_v3", workload__mla=False)
    assert know(builtin_rulebook(), facts)[0].value("workload.mla") is False


def test_a_refused_choice_names_the_reason_of_each_backend() -> None:
    facts = given(
        **{"vllm.version": "0.14.0", "gpu.sm": "12.0", "workload.framework": "vllm", "workload.dtype": "bfloat16"},
        **{"workload.model_type": "deepseek_v3", "workload.kv_cache_dtype": "fp8_e4m3"},
    )
    findings = evaluate(builtin_rulebook(), complete_workload(facts)).findings
    (finding,) = (item for item in findings if item.rule == "VLLM305")
    assert "; Triton MLA: KV-cache dtype fp8_e4m3 not supported" in finding.message
    assert "has no such backend" not in finding.message


@pytest.mark.parametrize(
    ("facts", "installed"),
    [
        ({"vllm.version": "0.6.3"}, True),
        ({"vllm.version": "0.6.3", "xformers.version": "absent"}, False),
        ({"vllm.version": "0.11.1"}, None),
        ({"vllm.version": "0.11.1", "xformers.version": "0.0.33"}, True),
    ],
)
def test_a_required_package_that_was_not_examined_counts_as_installed(facts: dict[str, str], installed: bool) -> None:
    known, _ = know(builtin_rulebook(), given(**facts))
    assert known.value("vllm.xformers_installed") is installed


def test_flashinfer_under_its_old_name_counts() -> None:
    known, _ = know(builtin_rulebook(), given(**{"sglang.version": "0.3.0", "flashinfer.version": "0.1.6"}))
    assert known.value("sglang.flashinfer_installed") is True
