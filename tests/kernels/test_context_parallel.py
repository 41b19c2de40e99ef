"""Context parallelism on two real ranks of a CPU: right results are right, planted faults and ends are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.confirm import job_of
from doctor.diagnosis.job_runs import job_requests
from doctor.model import Fact, Facts
from doctor.rulebook.resolver import FactResolver
from doctor.runner.run import run_one

FAULTS = Path(__file__).resolve().parents[1] / "helpers" / "ring_faults.py"
SMALL = {"num_heads": 4, "num_kv_heads": 2, "seq_len_q": 64, "head_dim_qk": 32, "dtype": "bfloat16", "mask": "causal"}


def own(name: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "engine": f"file:{FAULTS}:{name}", **more}


RIGHT = {
    "torch all-gather": {**SMALL, "engine": "torch.allgather"},
    "torch all-to-all": {**SMALL, "engine": "torch.alltoall"},
    "torch without balance": {**SMALL, "engine": "torch.alltoall", "load_balance": False},
    "torch full": {**SMALL, "engine": "torch.allgather", "mask": "no_mask"},
    "own": own("ring"),
    "own head and tail": own("ring", sharding="head_tail"),
    "own packed": own("ring", packed=True, sharding="head_tail"),
    "own packed window": own("ring", packed=True, window=[16, 0]),
    "own window": own("ring", window=[8, 0], sharding="head_tail"),
    "own MLA dims": own("ring", head_dim_qk=48, head_dim_v=32, num_kv_heads=1),
    "own float32": own("ring", dtype="float32"),
}
PLANTED = [
    own(name, sharding=sharding, packed=packed)
    for name in ("rank_order", "dropped_chunk", "lost_gradient", "stale_buffer")
    for sharding in ("contiguous", "head_tail")
    for packed in (False, True)
]
DECLINED = {
    "te": {**SMALL, "engine": "te.p2p"},
    "ring": {**SMALL, "engine": "ring_flash_attn.zigzag"},
    "packed": {**SMALL, "engine": "torch.allgather", "packed": True},
    "mask": {**SMALL, "engine": "torch.allgather", "mask": "padding"},
    "lengths": {**SMALL, "engine": "torch.allgather", "seq_len_kv": 32},
}


@pytest.fixture(scope="module")
def results(torch_python: str) -> list[dict[str, Any]]:
    """All cases on the same two processes: what ends them comes last."""
    cases = [*RIGHT.values(), *PLANTED, *DECLINED.values(), own("raises"), own("ring")]
    request = {"device": "cpu", "ranks": 2, "timeout": 30, "cases": cases}
    answer = run_one(torch_python, "context_parallel", request, timeout=200)
    assert answer.outcome == "ran", answer.reason
    collected: list[dict[str, Any]] = answer.observed["cases"]
    assert len(collected) == len(cases) and answer.observed["ranks"] == 2
    return collected


@pytest.mark.slow
def test_right_implementations_are_right(results):
    for name, result in zip(RIGHT, results, strict=False):
        assert result["outcome"] == "ran" and result["observed"]["wrong"] is False, (name, result)
        assert set(result["observed"]["errors"]) == {"out", "dq", "dk", "dv"}, name


@pytest.mark.slow
def test_every_planted_fault_is_found(results):
    for request, result in zip(PLANTED, results[len(RIGHT) :], strict=False):
        assert result["outcome"] == "ran" and result["observed"]["wrong"], (request, result)
        if request["engine"].endswith("lost_gradient"):
            assert set(result["observed"]["offenders"]) == {"dk", "dv"}, "the output is right, the gradients are not"


@pytest.mark.slow
def test_what_is_not_there_or_not_served_is_no_fault(results):
    declined = dict(zip(DECLINED, results[len(RIGHT) + len(PLANTED) :], strict=False))
    assert declined["te"]["outcome"] == declined["ring"]["outcome"] == "unavailable"
    assert {declined[name]["outcome"] for name in ("packed", "mask", "lengths")} == {"refused"}


@pytest.mark.slow
def test_a_rank_that_raises_costs_its_case_only(results):
    raised, after = results[-2:]
    assert raised["outcome"] == "failed" and "KeyError" in raised["reason"], raised
    assert after["outcome"] == "ran" and not after["observed"]["wrong"]


@pytest.mark.slow
def test_a_crash_and_a_hang_are_results(torch_python: str) -> None:
    request = {"device": "cpu", "ranks": 2, "timeout": 12, "cases": [own("crash"), own("hang"), own("ring")]}
    answer = run_one(torch_python, "context_parallel", request, timeout=300)
    crash, hang, right = answer.observed["cases"]
    assert crash["outcome"] == "failed" and "SIGSEGV" in crash["reason"], crash
    assert hang["outcome"] == "failed" and ("Timed out" in hang["reason"] or "no rank made progress" in hang["reason"])
    assert "rank 1" in str(hang["observed"]["ranks_at"]) or hang["observed"]["ranks_at"]["1"] == "hang: forward"
    assert right["outcome"] == "ran" and not right["observed"]["wrong"]


def test_without_two_gpus_it_is_unavailable(torch_python: str) -> None:
    answer = run_one(torch_python, "context_parallel", {**SMALL, "cp_size": 2}, timeout=100)
    assert answer.outcome == "unavailable" and "two GPUs" in answer.reason


@pytest.mark.parametrize(
    ("facts", "engine"),
    [
        ({"workload.framework": "torch_sdpa"}, "torch.allgather"),
        ({"workload.framework": "torch_sdpa", "workload.cp_comm_type": "a2a"}, "torch.alltoall"),
        ({"workload.framework": "transformer_engine", "transformer-engine.version": "2.3.0"}, "te.p2p"),
        (
            {
                "workload.framework": "megatron", "transformer-engine.version": "2.3.0",
                "workload.cp_comm_type": "all_gather", "workload.qkv_layout": "thd_thd_thd",
            },
            "te.all_gather",
        ),
        ({"workload.framework": "transformers", "ring-flash-attn.version": "0.1.8"}, "ring_flash_attn.zigzag"),
        ({"workload.framework": "vllm"}, None),
        ({"workload.framework": "torch_sdpa", "gpu.count": 1}, None),
        ({"workload.framework": "torch_sdpa", "workload.cp_size": 1}, None),
    ],
)  # fmt: skip
def test_a_job_with_context_parallelism_runs_it(facts, engine):
    given = {"workload.head_dim_qk": 128, "workload.cp_size": 4, "gpu.count": 2, **facts}
    known = FactResolver(Facts(Fact(key, value, "test") for key, value in given.items()))
    requests = dict(job_requests(known, job_of(known, [key for key in given if key.startswith("workload.")])))
    assert (requests.get("context_parallel") or {}).get("engine") == engine
    if engine is not None:
        assert requests["context_parallel"]["ranks"] == 2
        assert requests["context_parallel"]["packed"] == ("workload.qkv_layout" in facts)
        json.dumps(requests)
