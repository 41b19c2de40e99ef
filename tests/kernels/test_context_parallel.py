"""Context parallelism on two real ranks of a CPU: right results are right, planted faults and ends are found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.confirm import job_of
from doctor.diagnosis.job_runs import job_requests
from doctor.model import Fact, Facts
from doctor.rulebook.resolver import FactResolver
from doctor.runner.run import run_one

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "helpers" / "ring_faults.py"
EXACT = ROOT / "tests" / "helpers" / "exact_flash_attn"
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
    "own packed, by the mask's name in TransformerEngine": own("ring", packed=True, mask="padding_causal"),
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
    assert {declined[name]["outcome"] for name in ("packed", "mask", "lengths")} == {"unavailable"}


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


RING = [
    {**SMALL, "engine": f"ring_flash_attn.{kind}", "packed": packed, **more}
    for kind, packed in (("ring", False), ("ring", True), ("zigzag", False), ("zigzag", True), ("stripe", False),
                         ("llama3", True))
    for more in ({}, {"window": [10, 0]})
]  # fmt: skip


@pytest.mark.slow
def test_ring_flash_attn_on_exact_arithmetic(torch_python, monkeypatch):
    """The real package on a flash-attn of float64: all right, and wrong with a window but for llama3 (RFA003)."""
    path = os.pathsep.join(filter(None, [str(EXACT), os.environ.get("ATTN_DOCTOR_RING_FLASH_ATTN")]))
    monkeypatch.setenv("PYTHONPATH", path)
    found = subprocess.run([torch_python, "-c", "import ring_flash_attn"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("ATTN_DOCTOR_RING_FLASH_ATTN names no folder with ring_flash_attn")
    request = {"device": "cpu", "ranks": 2, "timeout": 60, "cases": RING}
    answer = run_one(torch_python, "context_parallel", request, timeout=400)
    assert answer.outcome == "ran", answer.reason
    for case, result in zip(RING, answer.observed["cases"], strict=True):
        wrong = bool(case.get("window")) and not case["engine"].endswith("llama3")
        assert result["outcome"] == "ran" and result["observed"]["wrong"] is wrong, (case, result)


ASK_GROUPS = """
import json, os, sys, torch, torch.distributed as distributed
sys.path.insert(0, os.environ["ROOT"])
from kernels.parallel.engines import _hierarchy
distributed.init_process_group("gloo")
a2a, p2p = (distributed.get_process_group_ranks(one) for one in _hierarchy(torch, {}, distributed.group.WORLD))
with open(sys.argv[1] + str(distributed.get_rank()), "w") as file:
    json.dump([a2a, p2p], file)
"""


@pytest.mark.slow
def test_four_ranks_are_divided_into_pairs_and_rings(torch_python, tmp_path):
    (tmp_path / "ask.py").write_text(ASK_GROUPS)
    command = [torch_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
               str(tmp_path / "ask.py"), str(tmp_path / "rank")]  # fmt: skip
    environment = {**os.environ, "ROOT": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=240)
    groups = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(4)]
    assert groups == [[[0, 1], [0, 2]], [[0, 1], [1, 3]], [[2, 3], [0, 2]], [[2, 3], [1, 3]]]


#: (pattern, starts of a packed batch, tokens of rank 0, tokens of rank 1)
HELD = (
    ("stripe", None, [0, 2, 4, 6], [1, 3, 5, 7]),
    ("stripe", [0, 2, 8], [0, 2, 4, 6], [1, 3, 5, 7]),
    ("batch", [0, 2, 8], [0, 1, 2, 3], [4, 5, 6, 7]),
    ("contiguous", [0, 2, 8], [0, 2, 3, 4], [1, 5, 6, 7]),
    ("head_tail", [0, 4, 8], [0, 3, 4, 7], [1, 2, 5, 6]),
)
ASK_SHARDS = """
import json, sys, torch
from kernels.parallel.shards import positions
held = json.loads(sys.argv[1])
print(json.dumps([[positions(torch, 8, rank, 2, pattern, starts).tolist() for rank in range(2)]
                  for pattern, starts, *_ in held]))
"""


def test_a_rank_holds_its_tokens(torch_python):
    command = [torch_python, "-c", ASK_SHARDS, json.dumps(HELD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(tokens) for _, _, *tokens in HELD]


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
        ({"workload.framework": "transformers", "ring-flash-attn.version": "0.1.8"}, "ring_flash_attn.llama3"),
        (
            {
                "workload.framework": "transformer_engine", "transformer-engine.version": "2.3.0",
                "workload.cp_comm_type": "a2a+p2p",
            },
            "te.a2a+p2p",
        ),
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
        packed = "workload.qkv_layout" in facts or engine == "ring_flash_attn.llama3"
        assert requests["context_parallel"]["packed"] == packed
        json.dumps(requests)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8])
def test_more_ranks_than_key_heads_or_cores(ranks: int, torch_python: str) -> None:
    """Grouped heads on more ranks than there are groups, a length that does not divide, packed rows, and faults."""
    eight = {"num_heads": 8, "num_kv_heads": 2, "seq_len_q": 256}
    right = [
        {**SMALL, **eight, "engine": "torch.allgather"},
        {**SMALL, **eight, "engine": "torch.alltoall", "num_kv_heads": 1},
        {**SMALL, **eight, "engine": "torch.allgather", "seq_len_q": 250},
        own("ring", **eight, packed=True, sharding="head_tail"),
        own("ring", **eight, window=[16, 0], sharding="head_tail"),
    ]
    wrong = [own(name, **eight) for name in ("rank_order", "lost_gradient", "stale_buffer")]
    request = {"device": "cpu", "ranks": ranks, "timeout": 90, "cases": [*right, *wrong]}
    answer = run_one(torch_python, "context_parallel", request, timeout=300)
    assert answer.outcome == "ran" and answer.observed["ranks"] == ranks, answer.reason
    seen = [case["observed"] for case in answer.observed["cases"]]
    assert [case["ranks"] for case in seen] == [ranks] * len(seen)
    assert [case["wrong"] for case in seen] == [False] * len(right) + [True] * len(wrong)
