"""Which attention kernel of the Hub transformers loads, in which version, and what it refuses."""

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts
from doctor.rulebook.evaluate import evaluate, know
from tests.helpers.rulebook import builtin_rulebook

MACHINE = {
    "transformers.version": "5.23.0", "kernels.version": "0.18.2", "torch.version": "2.12.0", "torch.cuda": "13.0",
    "gpu.sm": "9.0", "flash-attn.version": ABSENT, "flash-attn-3.version": ABSENT, "flash-attn-4.version": ABSENT,
    "platform.system": "Linux", "platform.machine": "x86_64", "workload.framework": "transformers",
    "workload.dtype": "bfloat16", "workload.head_dim_qk": 128, "workload.head_dim_v": 128, "workload.num_heads": 32,
    "workload.num_kv_heads": 8, "workload.training": False, "workload.model_type": "llama",
}  # fmt: skip


def facts_of(request, **other):
    values = {**MACHINE, "workload.attn_implementation": request, **other}
    return Facts(fact(key, value, "the test") for key, value in values.items())


def judged(request, **other):
    known, _ = know(builtin_rulebook(), facts_of(request, **other))
    return known


def errors(request, **other):
    report = evaluate(builtin_rulebook(), facts_of(request, **other))
    return {finding.rule for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    ("request_", "transformers", "kernels", "backend", "version"),
    [
        ("kernels-community/flash-attn2", "5.23.0", "0.18.2", "hub.flash_attn2", "4"),
        ("kernels-community/flash-attn2@v1", "5.23.0", "0.18.2", "hub.flash_attn2", "1"),
        ("kernels-community/flash-attn2", "5.18.0", "0.17.0", "hub.flash_attn2", "3"),
        ("kernels-community/flash-attn2", "5.14.1", "0.15.2", "hub.flash_attn2", "1"),
        ("kernels-community/flash-attn2", "4.57.1", "0.9.0", "hub.flash_attn2", ABSENT),
        ("paged|kernels-community/vllm-flash-attn3", "5.23.0", "0.18.2", "hub.vllm_flash_attn3", "1"),
        ("kernels-community/flash-attn3@main", "5.23.0", "0.18.2", "hub.flash_attn3", ABSENT),
        ("owner/kernel:function", "5.23.0", "0.18.2", "hub.other", "1"),
        ("flash_attention_2", "4.57.1", "0.9.0", "hub.flash_attn", ABSENT),
        ("flash_attention_2", "5.23.0", "0.18.2", "hub.flash_attn2", "4"),
        ("flash_attention_3", "5.23.0", "0.18.2", "hub.vllm_flash_attn3", "1"),
        ("flash_attention_4", "5.23.0", "0.18.2", "hub.flash_attn4", "0"),
        ("sdpa", "5.23.0", "0.18.2", "inapplicable", None),
    ],
)
def test_kernel_and_version(request_, transformers, kernels, backend, version):
    known = judged(request_, **{"transformers.version": transformers, "kernels.version": kernels})
    assert known.value("hub.selected") == backend
    if version is not None:
        assert known.value("hub.version") == version


def test_version_4_of_flash_attn2_is_for_torch_2_10():
    assert judged("kernels-community/flash-attn2", **{"torch.version": "2.9.1"}).value("hub.version") == "3"


def test_unknown_gpu_leaves_the_choice_open():
    assert judged("kernels-community/flash-attn3", **{"gpu.sm": None}).value("hub.selected") is None


@pytest.mark.parametrize(
    ("request_", "changed", "rule"),
    [
        ("kernels-community/flash-attn2", {"gpu.sm": "7.5"}, "HUB110"),
        ("kernels-community/vllm-flash-attn3", {"gpu.sm": "10.0"}, "HUB111"),
        ("kernels-community/sgl-flash-attn3", {"workload.training": True}, "HUB130"),
        ("kernels-community/sage-attention", {}, "HUB120"),
        ("kernels-community/sage-attention:sageattn", {}, "HUB121"),
        ("kernels-community/flash-attn2", {"transformers.version": "5.12.1"}, "TF156"),
        ("kernels-community/flash-attn2@v1", {"torch.version": "2.13.0"}, "HUB101"),
    ],
)
def test_error(request_, changed, rule):
    assert rule in errors(request_, **changed)


@pytest.mark.parametrize(
    "request_", ["kernels-community/flash-attn2", "kernels-community/vllm-flash-attn3", "flash_attention_2"]
)
def test_no_error_on_hopper(request_):
    assert not errors(request_)


def test_address_forms_of_the_releases():
    older = {"transformers.version": "4.53.3", "kernels.version": "0.6.2"}
    assert judged("kernels-community/flash-attn2", **older).value("hf.selected") == ABSENT
    assert judged("kernels-community/flash-attn2:flash_attn_func", **older).value("hf.selected") == "hf.hub_kernel"
    without = {"transformers.version": "4.55.4", "kernels.version": ABSENT}
    assert judged("kernels-community/flash-attn2", **without).value("hf.selected") == ABSENT
