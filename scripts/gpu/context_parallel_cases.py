"""Run context-parallel cases on real ranks several times, and write down what became of each.

    python scripts/gpu/context_parallel_cases.py --engines te,ring,own [--runs 3] [--output FILE] [--device cpu]

Runs from a checkout with its own interpreter as the target. Each run has other numbers. Prints one line per engine
and result, and every case that was not right; `FILE` gets a JSON line per case and run.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from doctor.runner.run import run_one

ROOT = pathlib.Path(__file__).resolve().parents[2]

HEADS = ((8, 8), (8, 2))
DIMS = ((64, 64), (128, 128), (192, 128))
MASKS = ("causal", "no_mask")
WINDOW = [200, 0]
FAULTS = ROOT / "tests" / "helpers" / "ring_faults.py"
#: Engines of a family, and those that take a window or a packed batch by what their libraries document.
TE = ("te.p2p", "te.all_gather", "te.a2a")
Case = dict[str, Any]


def shapes(masks: Sequence[str] = MASKS, dims: Sequence[tuple[int, int]] = DIMS) -> Iterator[Case]:
    """Masks, heads and head dims of bfloat16 cases with 1,024 tokens."""
    for mask, (heads, kv_heads), (qk, v) in itertools.product(masks, HEADS, dims):
        yield {
            "mask": mask, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim_qk": qk, "head_dim_v": v,
            "seq_len_q": 1024, "batch_size": 2, "dtype": "bfloat16",
        }  # fmt: skip


def torch_cases() -> Iterator[Case]:
    """torch's rotations, backends and load balancing."""
    for engine, backend, shape in itertools.product(
        ("torch.allgather", "torch.alltoall"), ("flash", "efficient", "cudnn", "default"), list(shapes())
    ):
        for balance in (True, False) if shape["mask"] == "causal" else (False,):
            yield {**shape, "engine": engine, "backend": backend, "load_balance": balance}


def te_cases() -> Iterator[Case]:
    """TransformerEngine: each way to communicate, in three layouts; windows and float16 for some shapes."""
    for engine, shape in itertools.product(TE, list(shapes())):
        for layout in ("bshd_bshd_bshd", "sbhd_sbhd_sbhd"):
            yield {**shape, "engine": engine, "qkv_layout": layout}
        yield {**shape, "engine": engine, "packed": True}
    for engine, shape in itertools.product(TE, list(shapes(("causal",), DIMS[1:]))):
        yield {**shape, "engine": engine, "window": WINDOW}
    for engine, shape in itertools.product(TE, list(shapes(MASKS, DIMS[1:2]))):
        yield {**shape, "engine": engine, "dtype": "float16"}
    for shape, packed in itertools.product(list(shapes()), (False, True)):
        yield {**shape, "engine": "te.a2a+p2p", "packed": packed}


def ring_cases() -> Iterator[Case]:
    """ring-flash-attn: ring, zigzag, stripe and llama3, packed or not, with windows."""
    for kind, packed in itertools.product(("ring", "zigzag", "stripe", "llama3"), (False, True)):
        if (kind, packed) in (("stripe", True), ("llama3", False)):
            continue
        masks = MASKS if kind in ("ring", "llama3") else ("causal",)
        for shape in shapes(masks, DIMS[:2]):
            yield {**shape, "engine": f"ring_flash_attn.{kind}", "packed": packed}
        for shape in shapes(("causal",), DIMS[1:2]):
            yield {**shape, "engine": f"ring_flash_attn.{kind}", "packed": packed, "window": WINDOW}


def own_cases() -> Iterator[Case]:
    """A plain ring of our own, right and with planted faults."""
    names = ("ring", "rank_order", "dropped_chunk", "lost_gradient", "stale_buffer")
    for name, sharding, packed in itertools.product(names, ("contiguous", "head_tail"), (False, True)):
        for shape in shapes(("causal",), DIMS):
            yield {**shape, "engine": f"file:{FAULTS}:{name}", "sharding": sharding, "packed": packed, "planted": name}


FAMILIES = {"torch": torch_cases, "te": te_cases, "ring": ring_cases, "own": own_cases}


def sort_of(answer: Case, planted: str) -> str:
    """What became of a case, in one word or two."""
    observed = answer["observed"]
    if answer["outcome"] != "ran":
        return str(observed.get("ended") or answer["outcome"])
    if planted and planted != "ring":
        return "planted fault found" if observed["wrong"] else "PLANTED FAULT MISSED"
    return "wrong" if observed["wrong"] else "right"


def label(case: Case) -> str:
    """A case in one line."""
    words = [case["engine"].rpartition("/")[2], case["mask"], f"{case['num_heads']}/{case['num_kv_heads']} heads",
             f"{case['head_dim_qk']}/{case['head_dim_v']}", case["dtype"]]  # fmt: skip
    words += [str(case[key]) for key in ("backend", "qkv_layout", "sharding") if case.get(key)]
    words += [f"{key} {case[key]}" for key in ("packed", "window", "load_balance") if case.get(key)]
    return ", ".join(words)


def main() -> int:
    """Run all; exit code 1 if a planted fault was missed."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--engines", default=",".join(FAMILIES), help="families, with commas")
    made.add_argument("--runs", type=int, default=3)
    made.add_argument("--first", type=int, default=0, help="number of the first run; each has its own numbers")
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--device", default="cuda")
    made.add_argument("--small", action="store_true", help="64 tokens and head dims up to 64, for a CPU")
    made.add_argument("--only", default="", help="cases whose line contains this text")
    made.add_argument("--tag", default="", help="stored with every line")
    made.add_argument("--output", type=pathlib.Path)
    made.add_argument("--timeout", type=float, default=30.0, help="seconds without progress")
    made.add_argument("--limit", type=float, default=540.0, help="seconds of one run")
    options = made.parse_args()
    cases = [case for family in options.engines.split(",") for case in FAMILIES[family]()]
    cases = [case for case in cases if options.only in label(case)]
    if options.small:
        cases = [dict(case, seq_len_q=64, window=[20, 0] if case.get("window") else None) for case in cases
                 if case["head_dim_qk"] == 64 or case.get("window")]  # fmt: skip
    counts: collections.Counter[tuple[str, str, int]] = collections.Counter()
    began = time.monotonic()
    runs = range(options.first, options.first + options.runs)
    asked = [(seed, case) for seed in runs for case in cases]
    request = {"device": options.device, "ranks": options.ranks, "timeout": options.timeout}
    request["cases"] = [{**case, "seed": seed} for seed, case in asked]
    answer = run_one(sys.executable, "context_parallel", request, timeout=options.limit)
    if answer.outcome != "ran":
        print(f"{answer.outcome}: {answer.reason} {answer.stderr_tail[-2000:]}")
        return 2
    for (seed, case), result in zip(asked, answer.observed["cases"]):  # noqa: B905 - Python 3.9
        sort = sort_of(result, case.get("planted", ""))
        counts[case["engine"].rpartition("/")[2], sort, seed] += 1
        if sort not in ("right", "planted fault found"):
            errors = {name: error.get("rel") for name, error in result["observed"].get("errors", {}).items()}
            print(f"run {seed}: {sort}: {label(case)}: {errors or result['reason'][:300]}")
        if options.output:
            line = {"run": seed, "tag": options.tag, "case": case, "result": sort, **result}
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, default=repr) + "\n")
    print(f"{len(asked)} cases in {time.monotonic() - began:.1f} s", flush=True)
    for (engine, sort, seed), count in sorted(counts.items()):
        print(f"{engine:28} {sort:22} run {seed}: {count}")
    return int(any(sort == "PLANTED FAULT MISSED" for _, sort, _ in counts))


if __name__ == "__main__":
    sys.exit(main())
