"""What attention costs, and the finding where another backend is far better: on facts, without a GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from doctor import diagnose
from doctor.model import Finding, Report
from doctor.report.formats import renderer
from doctor.report.style import Style

FACTS = {
    "platform.system": "Linux", "platform.machine": "x86_64", "python.version": "3.12.3",
    "torch.version": "2.11.0+cu130", "torch.cuda": "13.0", "cudnn.version": "9.19.0.56",
    "transformers.version": "5.17.0", "flash-attn.version": "2.8.3", "driver.version": "580.95",
}  # fmt: skip
JOB = {
    "framework": "transformers", "attn_implementation": "sdpa", "model_type": "llama", "dtype": "bfloat16",
    "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 32, "num_kv_heads": 8, "batch_size": 1,
    "seq_len_q": 16384, "seq_len_kv": 16384, "mask": "causal", "training": True,
}  # fmt: skip
SDPA = {"framework": "torch_sdpa", "attn_implementation": None, "model_type": None, "num_kv_heads": 32}
FLASH = {"attn_implementation": "flash_attention_2"}


def shown(report: Report, form: str = "text") -> str:
    """Return what `backends` prints, with its lines joined."""
    return " ".join(renderer(form, "backends")(report, Style(False, 100)).split())


def checked(gpu: str, facts: dict[str, Any] | None = None, **job: Any) -> Report:
    """Return the report on the job with these changes."""
    workload = {key: value for key, value in {**JOB, **job}.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.json"
        path.write_text(json.dumps({"facts": {**FACTS, **(facts or {})}, "workload": workload}))
        return diagnose(facts=path, gpu=gpu, fixes=False)


def warned(report: Report) -> list[Finding]:
    """Return the findings that compare backends."""
    words = ("times as long", " in one layer, ", "times the operations")
    return [item for item in report.findings if any(word in item.message for word in words)]


SLOW = {
    "FlashAttention 2 on Hopper": ("h100", {}, FLASH, "1.7 times as long as sdpa.cudnn", 'attn_implementation="sdpa"'),
    "the same on an H200": ("h200", {}, FLASH, "sdpa.cudnn", 'attn_implementation="sdpa"'),
    "memory-efficient attention was pinned": (
        "h100", {}, {**SDPA, "sdpa_backend": "efficient"}, "sdpa.efficient takes 3.8", "CUDNN_ATTENTION",
    ),
    "cuDNN was put behind": (
        "h100", {"env.TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, SDPA, "sdpa.flash takes 1.7", "CUDNN_ATTENTION",
    ),
    "a window is written out as a mask": (
        "h100", {}, {"window": [1023, 0], "model_type": "mistral"}, "flex.triton",
        'attn_implementation="flex_attention"',
    ),
    "eager": ("h100", {}, {"attn_implementation": "eager", "seq_len_q": 8192, "seq_len_kv": 8192}, "hf.eager takes 1",
              'attn_implementation="sdpa"'),
    "eager on a GPU without records": (
        "a100", {}, {"attn_implementation": "eager", "seq_len_q": 8192, "seq_len_kv": 8192}, "GiB in one layer",
        'attn_implementation="sdpa"',
    ),
    "plain math was pinned": ("h100", {}, {**SDPA, "sdpa_backend": "math", "seq_len_q": 8192, "seq_len_kv": 8192},
                              "sdpa.math takes", "CUDNN_ATTENTION"),
    "FlashAttention 2 on Blackwell": ("b200", {}, FLASH, "1.6 times as long as sdpa.cudnn", "DiffSynth-Studio"),
    "FlashAttention 2 called by hand on Blackwell": (
        "b200", {}, {**SDPA, "framework": "flash_attn"}, "sdpa.cudnn", "scaled_dot_product_attention",
    ),
    "FlashAttention 2 on Blackwell, whose sizes are unknown": (
        "b200", {}, {**SDPA, "framework": "flash_attn", "head_dim_qk": None, "head_dim_v": None, "seq_len_q": None,
                     "seq_len_kv": None, "num_heads": None, "num_kv_heads": None},
        "sdpa.cudnn", "scaled_dot_product_attention",
    ),
    "a window as a mask on a GPU without records": (
        "a100", {}, {**SDPA, "window": [1023, 0]}, "times the operations of flex.triton", "flex_attention",
    ),
}  # fmt: skip

RIGHT = {
    "torch's own choice": ("h100", {}, {}),
    "torch's own choice on Blackwell": ("b200", {}, {}),
    "FlashAttention 2 where attention is little": ("h100", {}, {**FLASH, "seq_len_q": 1024, "seq_len_kv": 1024}),
    "the same on Blackwell, where only figures of another job are known": (
        "b200", {}, {**FLASH, "seq_len_q": 1024, "seq_len_kv": 1024},
    ),
    "packed rows, which are no single call": ("h100", {}, {**FLASH, "packing": True}),
    "context parallelism": ("h100", {}, {**FLASH, "cp_size": 4}),
    "FlashAttention 2 on a GPU without records": ("a100", {}, FLASH),
    "another Hopper": ("h20", {}, FLASH),
    "an older cuDNN, for which nothing was measured": ("h100", {"torch.version": "2.8.0+cu128", "torch.cuda": "12.8",
                                                               "cudnn.version": "9.10.2"}, FLASH),
    "the same on Blackwell, where the figures are published": (
        "b200", {"torch.version": "2.8.0+cu129", "torch.cuda": "12.9", "cudnn.version": "9.10.2"}, FLASH,
    ),
    "a window that is hardly shorter than the row": ("a100", {}, {**SDPA, "window": [16000, 0]}),
    "a window that FlashAttention 2 gets by its bounds": (
        "a100", {}, {**FLASH, "window": [1023, 0], "model_type": "mistral"},
    ),
    "short eager attention": ("h100", {}, {"attn_implementation": "eager", "seq_len_q": 256, "seq_len_kv": 256}),
    "decoding": ("h100", {}, {"seq_len_q": 1, "training": False, "inference_kv_cache": True}),
    "a head dim without a record": ("h100", {}, {**FLASH, "head_dim_qk": 112, "head_dim_v": 112}),
    "a job whose lengths are unknown": ("h100", {}, {**FLASH, "seq_len_q": None, "seq_len_kv": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOW)
def test_a_far_better_backend_is_a_warning(case: str) -> None:
    gpu, facts, job, names, selects = SLOW[case]
    found = warned(checked(gpu, facts, **job))
    assert len(found) == 1, [item.message for item in found]
    assert str(found[0].severity) == "warning" and found[0].alternatives
    assert names in found[0].message and selects in found[0].message


@pytest.mark.parametrize("case", RIGHT)
def test_no_warning_where_nothing_better_is_known(case: str) -> None:
    gpu, facts, job = RIGHT[case]
    assert [item.message for item in warned(checked(gpu, facts, **job))] == []


def test_a_backend_with_a_flaw_is_not_recommended() -> None:
    """Warnings against the other backend count: TORCH 2.11's cuDNN is refused where a rule warns of it."""
    report = checked("h100", {"env.TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}, **SDPA, deterministic=True)
    assert warned(report) == []


def test_the_table_names_every_usable_backend_and_the_way_to_it() -> None:
    report = checked("h100")
    (cost,) = report.costs
    times = [item.milliseconds for item in cost.backends]
    assert times == sorted(times) and all(times)
    names = [item.backend for item in cost.backends]
    assert names[0] == "sdpa.cudnn" and {"sdpa.flash", "fa.flash2", "sdpa.math", "hf.eager"} <= {*names}
    assert [item.backend for item in cost.backends if item.selected] == ["sdpa.cudnn"]
    assert all(item.select for item in cost.backends if not item.selected)
    text = shown(report)
    assert "predicted from measurements on an NVIDIA H100 80GB HBM3" in text
    assert 'select with `attn_implementation="flash_attention_2"`' in text
    assert "sdpa.cudnn holds: q, k, v 320 MiB, output 128 MiB" in text


def test_times_are_unknown_on_a_gpu_without_records_and_memory_is_not() -> None:
    (cost,) = checked("a100").costs
    assert {item.milliseconds for item in cost.backends} == {None}
    assert all(item.peak for item in cost.backends)
    text = shown(checked("a100"))
    assert "not measured on this GPU" in text and "time unknown" in text


def test_decoding_counts_the_cache_as_input() -> None:
    (cost,) = checked("h100", seq_len_q=1, training=False, inference_kv_cache=True).costs
    chosen = next(item for item in cost.backends if item.selected)
    assert chosen.memory["inputs"] == 2 * 16384 * 8 * 128 * 2 + 32 * 128 * 2
    assert chosen.memory["gradients"] == chosen.memory["saved"] == 0


def test_the_kind_of_layer_that_takes_most_memory_is_named() -> None:
    job = {"window": [1023, 0], "layer_types": ["sliding_attention", "full_attention"], "attn_implementation": "eager"}
    report = checked("h100", **job, model_type="gemma3_text", seq_len_q=32768, seq_len_kv=32768)
    assert [item.layer for item in report.costs] == ["sliding_attention layers", "full_attention layers"]
    text = shown(report)
    assert "Most memory: one layer of every kind holds 465" in text and "does not fit into the GPU" in text
    small = checked("h100", **{**job, "attn_implementation": "flash_attention_2"}, model_type="gemma3_text")
    assert "Cost of one layer (full_attention)" in shown(small)
    chosen = [next(cost for cost in item.backends if cost.selected) for item in small.costs]
    assert chosen[0].milliseconds < 0.3 * chosen[1].milliseconds  # the window is skipped


def test_wider_heads_of_other_layers_hold_more() -> None:
    config = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 5376, "head_dim": 256,
        "num_attention_heads": 32, "num_key_value_heads": 16, "global_head_dim": 512, "num_hidden_layers": 6,
        "num_global_key_value_heads": 4, "sliding_window": 1024, "torch_dtype": "bfloat16",
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    }  # fmt: skip
    job = {"framework": "transformers", "attn_implementation": "sdpa", "seq_len_q": 16384, "seq_len_kv": 16384}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.json"
        path.write_text(json.dumps({"facts": FACTS}))
        report = diagnose(config, workload={**job, "training": True}, facts=path, gpu="h100", fixes=False)
    assert "Most memory: one layer (full_attention) holds 3.9 GiB at its peak with sdpa.efficient" in shown(report)


def test_json_has_the_costs_with_their_parts() -> None:
    found = json.loads(shown(checked("h100"), "json"))["costs"][0]
    assert found["basis"].startswith("predicted from") and found["layer"] is None
    assert set(found["backends"][0]["memory"]) >= {"inputs", "output", "saved", "gradients", "backward_workspace"}
