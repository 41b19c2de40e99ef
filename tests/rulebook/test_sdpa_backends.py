"""Which backend torch's attention takes: against torch's own answers on a GPU, and release by release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts, Prediction
from doctor.rulebook.backends import predict
from doctor.rulebook.evaluate import evaluate, know
from doctor.rulebook.rulebook import Rulebook
from doctor.util.units import human_bytes
from tests.helpers.rulebook import builtin_rulebook

ANSWERS = Path(__file__).parents[1] / "data" / "sdpa_torch_2.11_h200.json"
LLAMA = {
    "workload.framework": "torch_sdpa",
    "workload.dtype": "bfloat16",
    "workload.mask": "causal",
    "workload.head_dim_qk": 128,
    "workload.num_heads": 32,
    "workload.num_kv_heads": 32,
    "workload.seq_len_q": 4096,
    "workload.batch_size": 2,
}

#: What neither flash (unequal head dims) nor memory-efficient attention (grouped heads) takes.
LOWER_RIGHT = {
    "workload.mask": "causal_bottom_right", "workload.seq_len_kv": 8192, "workload.head_dim_qk": 192,
    "workload.head_dim_v": 128, "workload.num_kv_heads": 8, "workload.enable_gqa": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def rulebook() -> Rulebook:
    return builtin_rulebook()


def facts_of(**values: Any) -> Facts:
    return Facts(fact(key.replace("__", "."), value, "the test") for key, value in values.items())


def predicted(rulebook: Rulebook, **values: Any) -> Prediction:
    known, _ = know(rulebook, facts_of(**values))
    return predict(rulebook, rulebook.libraries["torch"], known)


def available(prediction: Prediction) -> dict[str, bool | None]:
    return {candidate.backend: candidate.available for candidate in prediction.candidates}


def captured() -> list[dict[str, Any]]:
    answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return [dict(zip(answers["columns"], row, strict=True)) for row in answers["rows"]]


def test_agrees_with_torch_itself_on_an_h200(rulebook: Rulebook) -> None:
    given = json.loads(ANSWERS.read_text(encoding="utf-8"))["facts"]
    wrong = []
    for row in captured():
        selected = row.pop("selected")
        said = {backend: row.pop(backend) for backend in ("sdpa.flash", "sdpa.efficient", "sdpa.cudnn")}
        workload = {f"workload.{key}": value for key, value in row.items()}
        prediction = predicted(rulebook, **given, **{"workload.framework": "torch_sdpa"}, **workload)
        found = available(prediction)
        if prediction.selected != selected or any(found[backend] is not said[backend] for backend in said):
            wrong.append((row, selected, prediction.selected, said, found))
    assert not wrong[:3]


def test_the_capture_covers_all_four_backends() -> None:
    assert {row["selected"] for row in captured()} == {"sdpa.flash", "sdpa.efficient", "sdpa.cudnn", "sdpa.math"}


@pytest.mark.parametrize(
    ("torch", "sm", "changes", "selected"),
    [
        ("2.0.1", "8.0", {}, "sdpa.flash"),
        ("2.0.1", "8.6", {}, "sdpa.math"),  # head_dim 128: both fused kernels stop at 64 there
        ("2.1.2", "8.6", {}, "sdpa.efficient"),
        ("2.1.2", "9.0", {}, "sdpa.flash"),
        ("2.2.2", "8.6", {}, "sdpa.flash"),
        ("2.4.1", "9.0", {}, "sdpa.flash"),
        ("2.5.0", "9.0", {}, "sdpa.cudnn"),
        ("2.5.0", "8.0", {}, "sdpa.flash"),
        ("2.5.0", "8.0", {"workload.mask": "arbitrary"}, "sdpa.cudnn"),  # second on every other GPU
        ("2.5.1", "9.0", {}, "sdpa.flash"),
        ("2.6.0", "10.0", {}, "sdpa.math"),  # no fused kernel knows Blackwell yet
        ("2.8.0", "9.0", {}, "sdpa.flash"),
        ("2.8.0", "10.0", {}, "sdpa.flash"),
        ("2.9.1", "9.0", {}, "sdpa.cudnn"),
        ("2.9.1", "10.3", {}, "sdpa.flash"),
        ("2.9.1", "9.0", {"env.TORCH_CUDNN_SDPA_PREFERRED": "0"}, "sdpa.flash"),
        ("2.10.0", "9.0", {}, "sdpa.flash"),  # cuDNN 9.10.2 is too old to be preferred
        ("2.10.0+cu130", "9.0", {}, "sdpa.cudnn"),
        ("2.11.0", "10.3", {}, "sdpa.cudnn"),
        ("2.11.0+cu126", "9.0", {}, "sdpa.flash"),
        ("2.11.0", "9.0", {"env.TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, "sdpa.flash"),
        ("2.11.0", "8.9", {}, "sdpa.flash"),
        ("2.15.0", "9.0", {}, "sdpa.cudnn"),
        ("2.15.0", "12.0", {}, "sdpa.flash"),
        ("2.8.0", "7.5", {}, "sdpa.math"),  # bfloat16 on Turing
        ("2.8.0", "7.5", {"workload.dtype": "float16"}, "sdpa.efficient"),
        ("2.8.0", "9.0", {"workload.dtype": "float32"}, "sdpa.efficient"),
        ("2.8.0", "8.0", {"workload.head_dim_qk": 192, "workload.head_dim_v": 128}, "sdpa.efficient"),
        ("2.12.1", "9.0", {"workload.head_dim_qk": 256}, "sdpa.cudnn"),
        ("2.13.0", "9.0", {"workload.head_dim_qk": 256}, "sdpa.cudnn"),
        ("2.13.0", "10.0", {"workload.head_dim_qk": 256}, "sdpa.flash"),
        ("2.14.1", "10.0", {"workload.head_dim_qk": 256}, "sdpa.cudnn"),
        ("2.14.1", "10.0", {"workload.head_dim_qk": 192}, "sdpa.flash"),  # no backward in cuDNN
        ("2.8.0", "8.9", {"workload.head_dim_qk": 224}, "sdpa.efficient"),
        ("2.8.0", "9.0", {"workload.seq_len_kv": 8192}, "sdpa.efficient"),  # is_causal is top-left
        ("2.8.0", "9.0", {"workload.seq_len_kv": 8192, "workload.mask": "causal_bottom_right"}, "sdpa.flash"),
        ("2.8.0", "9.0", LOWER_RIGHT, "sdpa.math"),
        ("2.12.1", "9.0", LOWER_RIGHT, "sdpa.cudnn"),  # the mask is written out, and cuDNN goes first
        ("2.12.1", "9.0", {**LOWER_RIGHT, "env.TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, "sdpa.math"),
        ("2.12.1", "8.0", LOWER_RIGHT, "sdpa.math"),
        ("2.8.0", "9.0", {"workload.mask": "padding_causal"}, "sdpa.efficient"),
        ("2.8.0", "9.0", {"workload.window": [1024, 0]}, "sdpa.efficient"),
        ("2.8.0", "9.0", {"workload.num_kv_heads": 8, "workload.enable_gqa": True}, "sdpa.flash"),
        ("2.13.0+cu126", "9.0", {"workload.mask": "arbitrary", "workload.num_kv_heads": 8, "workload.enable_gqa": True},
         "sdpa.math"),
        ("2.14.1+cu126", "9.0", {"workload.mask": "arbitrary", "workload.num_kv_heads": 8, "workload.enable_gqa": True},
         "sdpa.efficient"),
    ],
)  # fmt: skip
def test_release_by_release(rulebook: Rulebook, torch: str, sm: str, changes: dict[str, Any], selected: str) -> None:
    prediction = predicted(rulebook, **{"torch.version": torch, "gpu.sm": sm, **LLAMA, **changes})
    assert (prediction.selected, prediction.could_tell) == (selected, True)


@pytest.mark.parametrize(
    ("torch", "changes"),
    [
        ("2.16.0", {}),  # newer than what was read
        ("2.4.1", {"env.TORCH_CUDNN_SDPA_ENABLED": "1"}),  # the prototype has limits of its own
        ("2.9.0a0+git1234567", {}),  # somewhere before 2.9.0, where the order of preference changed
    ],
)
def test_unknown(rulebook: Rulebook, torch: str, changes: dict[str, Any]) -> None:
    cudnn = {"cudnn.version": "9.20.0", "torch.cuda": "13.0"}
    prediction = predicted(rulebook, **{"torch.version": torch, "gpu.sm": "9.0", **cudnn, **LLAMA, **changes})
    assert (prediction.selected, prediction.could_tell) == (None, False)


def test_a_fall_to_math_is_a_warning_with_its_memory(rulebook: Rulebook) -> None:
    changes = {"workload.mask": "arbitrary", "workload.num_kv_heads": 8, "workload.enable_gqa": True}
    assessment = evaluate(rulebook, facts_of(**{"torch.version": "2.8.0", "gpu.sm": "9.0", **LLAMA, **changes}))
    finding = next(finding for finding in assessment.findings if finding.rule == "TORCH010")
    assert finding.severity == "warning"
    assert human_bytes(16 * 2 * 32 * 4096 * 4096) in finding.message


@pytest.mark.parametrize(
    ("torch", "sm", "others"),
    [
        ("2.8.0", "9.0", {"flash-attn.version": "2.8.3", "nvidia-cudnn-cu12.version": "9.10.2.21"}),
        ("2.11.0", "9.0", {"nvidia-cudnn-cu13.version": "9.19.0.56", "triton.version": "3.6.0"}),
        ("2.6.0", "8.0", {"transformers.version": "4.48.3", "nvidia-cudnn-cu12.version": "9.1.0.70"}),
    ],
)  # fmt: skip
def test_a_healthy_environment_has_no_finding_above_a_note(
    rulebook: Rulebook, torch: str, sm: str, others: dict[str, str]
) -> None:
    facts = {
        "torch.version": torch, "gpu.sm": sm, "python.version": "3.10.12", "driver.version": "580.95.05",
        "distributions.complete": True, **others, **LLAMA, "workload.num_kv_heads": 8,
    }  # fmt: skip
    found = [(finding.rule, finding.severity) for finding in evaluate(rulebook, facts_of(**facts)).findings]
    assert not [finding for finding in found if finding[1] != "note"]
