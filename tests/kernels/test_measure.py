"""The program `measure` on a CPU: each mask reaches each backend, and a refusal says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doctor.facts.measurement import MEMORY_PARTS, Measurement
from doctor.runner.result import KernelResult
from doctor.runner.run import run_program
from kernels.measure.library_engines import te_reason

SMALL = {
    "device": "cpu", "dtype": "float32", "num_heads": 4, "num_kv_heads": 2, "head_dim_qk": 32, "seq_len_q": 96,
    "batch_size": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"mask": "no_mask"},
    "causal": {"mask": "causal"},
    "causal, more keys": {"mask": "causal", "seq_len_kv": 128},
    "bottom right": {"mask": "causal_bottom_right", "seq_len_q": 32, "seq_len_kv": 96},
    "padding": {"mask": "padding"},
    "padding, causal": {"mask": "padding_causal"},
    "padding of keys": {"mask": "padding", "seq_len_q": 32, "seq_len_kv": 64},
    "arbitrary": {"mask": "arbitrary"},
    "window": {"mask": "causal", "window": [15, 0]},
    "window on both sides": {"mask": "no_mask", "window": [15, 7]},
    "packed": {"mask": "causal", "packing": True},
    "alibi": {"mask": "causal", "bias": "alibi"},
    "soft cap": {"mask": "causal", "softcap": 20.0},
    "decode": {"mask": "causal", "seq_len_q": 1, "seq_len_kv": 96, "training": False, "inference_kv_cache": True},
    "two head dims": {"mask": "causal", "head_dim_v": 16, "dtype": "bfloat16"},
}
#: Backends that compute every shape but those named.
BACKENDS = {"sdpa.math": {"soft cap"}, "hf.eager": set(), "flex.eager": set()}
#: What torch's FlashAttention cannot take: masks other than causal, a soft cap, two head dims.
NOT_FLASH = {
    "padding", "padding, causal", "padding of keys", "arbitrary", "window", "window on both sides", "packed", "alibi",
    "soft cap", "two head dims",
}  # fmt: skip
ODD: dict[str, dict[str, Any]] = {
    "dropout": {"mask": "causal", "dropout": 0.1, "measured": "hf.eager"},
    "needs a GPU": {"measured": "sdpa.cudnn"},
    "not installed": {"measured": "natten.na1d", "window": [15, 0], "mask": "causal"},
    "unknown": {"measured": "magic"},
    "too large for a CPU": {"measured": "sdpa.math", "batch_size": 8, "seq_len_q": 4096, "mask": "causal"},
    "time limit": {"measured": "sdpa.math", "budget": 1e-6},
}


@pytest.fixture(scope="module")
def answers(torch_python: str) -> dict[tuple[str, str], KernelResult]:
    """What each backend answers to each shape; all in one process, as starting torch costs most."""
    places, cases = [], []
    for shape, words in SHAPES.items():
        for backend in ("sdpa.flash", *BACKENDS):
            training = {} if backend != "flex.eager" else {"training": False}  # flex has no backward on a CPU
            places.append((shape, backend))
            cases.append({**SMALL, **words, **training, "measured": backend})
    places += [("odd", name) for name in ODD]
    cases += [{**SMALL, **words} for words in ODD.values()]
    return dict(zip(places, run_program(torch_python, "measure", cases, timeout=120), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_each_mask_is_computed_by_each_backend(answers: dict[tuple[str, str], KernelResult], shape: str) -> None:
    for backend, without in BACKENDS.items():
        answer = answers[shape, backend]
        if shape in without:
            assert answer.outcome == "refused"
            continue
        assert answer.outcome == "ran", (backend, answer.reason)
        assert answer.observed["right"] is True, (backend, answer.observed["errors"])
        assert answer.observed["ms"] > 0 and answer.observed["ms_forward"] > 0
        assert answer.observed["clock"] == "host", "a time of the CPU must not pass for one of a GPU"


def test_what_flash_does_not_take_is_refused(answers: dict[tuple[str, str], KernelResult]) -> None:
    for shape in SHAPES:
        answer = answers[shape, "sdpa.flash"]
        assert (answer.outcome == "refused") == (shape in NOT_FLASH), (shape, answer)
        assert answer.reason or answer.outcome == "ran"


def test_decoding_sees_the_whole_cache(answers: dict[tuple[str, str], KernelResult]) -> None:
    observed = answers["decode", "sdpa.math"].observed
    assert observed["mask"] == "no_mask" and "cache" in observed["assumed"]["mask"]
    assert observed["pairs"] == 2 * 96


def test_pairs_that_the_mask_hides_are_no_operations(answers: dict[tuple[str, str], KernelResult]) -> None:
    assert answers["causal", "hf.eager"].observed["pairs"] == 2 * 96 * 97 // 2
    assert answers["packed", "hf.eager"].observed["pairs"] == 2 * sum(n * (n + 1) // 2 for n in (48, 24, 12, 12))
    assert answers["window", "hf.eager"].observed["pairs"] == 2 * sum(min(row + 1, 16) for row in range(96))


def test_observed_fields_are_those_of_a_record(answers: dict[tuple[str, str], KernelResult]) -> None:
    own = {"gpu_state", "errors", "pairs", "matrix_tflops"}
    fields = set(Measurement.__dataclass_fields__)
    for answer in answers.values():
        if answer.outcome == "ran":
            assert set(answer.observed) - own <= fields
            assert set(answer.observed.get("memory", {})) <= set(MEMORY_PARTS)


def test_odd_requests_are_results(answers: dict[tuple[str, str], KernelResult]) -> None:
    odd = {name: answers["odd", name] for name in ODD}
    assert odd["dropout"].outcome == "ran" and odd["dropout"].observed["checked"].startswith("nothing")
    assert "max_error" not in odd["dropout"].observed
    assert odd["needs a GPU"].outcome == "unavailable"
    assert odd["not installed"].reason == "natten is not installed"
    assert odd["unknown"].outcome == "failed"
    assert odd["too large for a CPU"].observed["shrunk"]["seq_len_q"][0] == 4096
    assert "time limit" in odd["time limit"].reason and odd["time limit"].outcome == "unavailable"


def test_a_compiled_call_runs_the_kernels_of_its_own_backend(torch_python: str, tmp_path: Path) -> None:
    """torch keeps compiled calls by what was traced, and the backend that sdpa_kernel selects is not part of it."""
    shared = {**SMALL, "mask": "causal", "num_kv_heads": 4, "compiled": True}
    cases = [{**shared, "measured": f"sdpa.{backend}"} for backend in ("flash", "math")]
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    flash, math = run_program(torch_python, "measure", cases, timeout=300, env=variables)
    assert flash.outcome == math.outcome == "ran", (flash.reason, math.reason)
    assert flash.observed["kernels"] == ["flash"] and "flash" not in math.observed["kernels"]


def test_the_reason_of_transformer_engine_is_about_the_backend_that_was_tried() -> None:
    log = ["Disabling FusedAttention due to NVTE_FUSED_ATTN=0", "Disabling UnfusedDotProductAttention due to it"]
    assert te_reason(log, "fused") == log[0]
    assert te_reason(log, "flash") == "TransformerEngine has no FlashAttention here"
