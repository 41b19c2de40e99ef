"""The shared-memory model of flex_attention agrees with an H200 and with kernels compiled for other GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from doctor.facts.vocabulary import fact
from doctor.model import Facts
from doctor.rulebook.backends import Predictor, predict
from doctor.rulebook.resolver import FactResolver
from doctor.rulebook.rulebook import Rulebook, load_rulebook

CAPTURES = Path(__file__).parents[2] / "captures"


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CAPTURES / name).read_text().splitlines()]


@cache
def _book() -> Rulebook:
    return load_rulebook()


def _known(**given: object) -> FactResolver:
    words = {key.replace("__", "."): value for key, value in given.items()}
    facts = Facts(fact(key, value, "test") for key, value in words.items())
    return FactResolver(facts, _book().implications, Predictor(_book()))


def _case(case: Mapping[str, Any]) -> FactResolver:
    return _known(
        torch__version="2.11.0", gpu__sm="9.0", triton__version="3.6.0", workload__framework="flex_attention",
        workload__dtype=case["dtype"], workload__head_dim_qk=case["head_dim_qk"],
        workload__head_dim_v=case["head_dim_v"], workload__training=case["training"],
        workload__seq_len_q=case["seq_len_q"], workload__seq_len_kv=1024,
        workload__kernel_options=case["options"] or "absent", workload__torch_compile=True,
    )  # fmt: skip


def test_predicted_and_seen_on_an_h200_agree() -> None:
    """Every case that ran is predicted to run; every one that failed, to fail for the same kernel."""
    cases = _lines("h200-torch2.11-flex-attention.jsonl")
    assert len(cases) > 200 and sum(not case["ran"] for case in cases) > 40
    library = _book().libraries["flex_attention"]
    for case in cases:
        found = predict(_book(), library, _case(case))
        assert found.selected == ("flex.decoding" if case["seq_len_q"] < 128 else "flex.triton"), case
        if case["ran"]:
            assert found.fails_at_run is None, case
        elif "backward" in case["error"]:
            assert found.fails_at_run is not None and found.fails_at_run.rule == "FLEX102", case
        else:
            assert found.fails_at_run is not None and found.fails_at_run.rule == "FLEX101", case


def test_bytes_on_an_h200() -> None:
    """The estimate is the compiled kernel's size, but for a few shapes of blocks where it is above."""
    exact, known = 0, 0
    for case in _lines("h200-torch2.11-flex-attention.jsonl"):
        resolver = _case(case)
        for kernel, key in (
            ("flex_attention", "flex.forward_bytes"),
            ("flex_attention_backward", "flex.backward_bytes"),
        ):
            seen, estimate = case["shared"].get(kernel), resolver.value(key)
            if seen and estimate is not None and case["seq_len_q"] >= 128:
                known += 1
                exact += seen == estimate
                assert seen <= estimate <= seen * 1.25, (case, estimate)
    assert exact / known > 0.8


@pytest.mark.parametrize("kernel", ["forward", "backward"])
def test_compiled_kernels_fit_as_estimated(kernel: str) -> None:
    """On every GPU the estimate and the compiled kernel are on the same side of the limit."""
    judged = 0
    for case in _lines("flex-attention-compiled.jsonl"):
        if case["kernel"] != kernel:
            continue
        resolver = _known(**{
            "torch.version": case["torch"], "gpu.sm": case["sm"], "workload.framework": "flex_attention",
            "workload.dtype": case["dtype"], "workload.head_dim_qk": case["head_dims"][0],
            "workload.head_dim_v": case["head_dims"][1], f"flex.{kernel}_config": " ".join(map(str, case["sizes"])),
        })  # fmt: skip
        limit, estimate = resolver.value("gpu.shared_memory_bytes"), resolver.value(f"flex.{kernel}_bytes")
        if limit is not None and estimate is not None:
            judged += 1
            assert (estimate <= limit) == (case["shared"] <= limit), (case, estimate)
    assert judged > 100


@pytest.mark.parametrize(
    ("torch", "sm", "dtype", "head_dim", "forward", "backward"),
    [
        ("2.5.1", "8.6", "bfloat16", 128, True, False),
        ("2.6.0", "9.0", "float16", 128, True, True),
        ("2.7.1", "8.9", "bfloat16", 256, False, False),
        ("2.11.0", "12.0", "bfloat16", 128, True, True),
        ("2.11.0", "12.0", "bfloat16", 192, False, False),
        ("2.13.0", "8.0", "float32", 128, True, True),
        ("2.15.0", "10.0", "bfloat16", 256, True, True),
    ],
)
def test_default_kernels(torch: str, sm: str, dtype: str, head_dim: int, forward: bool, backward: bool) -> None:
    """Default configurations at the edges, in releases from 2.5 on."""
    dims = {"workload.head_dim_qk": head_dim, "workload.head_dim_v": head_dim}
    resolver = _known(**{"torch.version": torch, "gpu.sm": sm, "workload.dtype": dtype, **dims})
    assert (resolver.value("flex.forward_fits"), resolver.value("flex.backward_fits")) == (forward, backward)


def test_the_default_configurations_are_those_of_torch() -> None:
    """Every capability, dtype and head dim of every release on record, as torch's own functions answer."""
    judged = 0
    for release in _lines("flex-attention-configs.jsonl"):
        for dtype, sm, place in (
            (dtype, sm, place)
            for dtype, found in release["forward"].items()
            for sm in found
            for place in range(len(release["head_dims"]))
        ):
            head_dim = release["head_dims"][place]
            resolver = _known(**{
                "torch.version": release["torch"], "gpu.sm": sm, "workload.dtype": dtype,
                "workload.head_dim_qk": head_dim, "workload.head_dim_v": head_dim,
            })  # fmt: skip
            case = (release["torch"], sm, dtype, head_dim)
            for kernel in ("forward", "backward"):
                assert resolver.value(f"flex.{kernel}_config") == release[kernel][dtype][sm][place], (kernel, case)
            decode = release["decode"][dtype][sm][place].split()
            assert str(resolver.value("flex.decoding_keys")) == decode[0], case
            assert decode[1] == "1" or dtype != "float32" or head_dim <= 128, case
            judged += 1
    assert judged >= 2700
    assert {"8.9", "10.0", "10.3", "11.0", "12.0", "12.1"} <= set(release["forward"]["bfloat16"])
