"""Exercise every kernel program on a machine with a GPU and write down what happened.

    python scripts/gpu/gpu_kernels.py [--output DIR] [--only facts,sdpa,...]

Runs from a checkout, installed or not, with its own interpreter as the target. Prints tables; writes
`DIR/kernels.json` with every answer in full.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from doctor.runner.result import KernelResult
from doctor.runner.run import run_program, run_snippet

HEADS = {"mha": (4, 4), "gqa": (8, 2)}
DIMS = [(64, 64), (128, 128), (192, 128), (256, 256), (72, 72)]
MASKS = ["no_mask", "causal", "causal_bottom_right", "padding", "padding_causal", "arbitrary"]
LLAMA3 = {"num_heads": 32, "num_kv_heads": 8, "head_dim_qk": 128, "seq_len_q": 8192, "batch_size": 4}
DEEPSEEK = {"num_heads": 128, "head_dim_qk": 192, "head_dim_v": 128, "seq_len_q": 4096}

LOSE_DEVICE = """
def run(request):
    import torch
    x = torch.zeros(4, device="cuda")
    if request.get("lose"):
        x[torch.tensor([99], device="cuda")] += 1
    torch.cuda.synchronize()
    return {"sum": float(x.sum())}
"""


def sdpa_cases() -> Iterator[dict[str, Any]]:
    """Backends, masks, dtypes, head dims and groups, with lengths off the tiles' seams."""
    for backend, mask, dtype in itertools.product(
        ("flash", "efficient", "cudnn", "math", "default"), MASKS, ("bfloat16", "float16", "float32")
    ):
        for (qk, v), heads in itertools.product(DIMS, HEADS):
            if dtype != "bfloat16" and (qk, heads) not in ((128, "mha"), (64, "gqa"), (192, "mha")):
                continue
            h, g = HEADS[heads]
            yield {
                "backend": backend, "mask": mask, "dtype": dtype, "head_dim_qk": qk, "head_dim_v": v,
                "num_heads": h, "num_kv_heads": g, "seq_len_q": 320, "repeat": 1,
                "seq_len_kv": 448 if "bottom_right" in mask else 320,
            }  # fmt: skip
    for backend in ("flash", "efficient", "cudnn", "math", "default"):
        for model in (LLAMA3, DEEPSEEK):
            yield {"backend": backend, "mask": "causal", **model}
        for q, kv in ((1, 1), (1, 300), (65, 129), (300, 100), (1000, 1000)):
            yield {"backend": backend, "mask": "causal_bottom_right", "seq_len_q": q, "seq_len_kv": kv}
            yield {"backend": backend, "mask": "causal", "seq_len_q": q, "seq_len_kv": kv}


def cudnn_cases() -> Iterator[dict[str, Any]]:
    """The frontend and torch's own way, both corners of the causal mask."""
    for via, mask, dtype in itertools.product(
        ("frontend", "torch"), ("no_mask", "causal", "causal_bottom_right"), ("bfloat16", "float16")
    ):
        for (q, kv), layout in itertools.product(((512, 512), (256, 512), (300, 700)), ("bshd", "sbhd")):
            yield {"via": via, "mask": mask, "dtype": dtype, "seq_len_q": q, "seq_len_kv": kv, "layout": layout}
    for model in (LLAMA3, DEEPSEEK):
        yield {"via": "frontend", "mask": "causal", **model}


def strided_cases() -> Iterator[dict[str, Any]]:
    """Incident E's own shape, and kin."""
    incident = {"num_heads": 16, "num_kv_heads": 1, "head_dim_qk": 64, "seq_len_q": 2048, "batch_size": 1}
    yield {**incident, "dtype": "float16", "mask": "causal", "control": True}
    for (h, g), mask, dtype in itertools.product(((4, 4), (8, 2)), ("no_mask", "causal"), ("bfloat16", "float16")):
        yield {"num_heads": h, "num_kv_heads": g, "mask": mask, "dtype": dtype, "seq_len_q": 320, "control": True}


def run_all(name: str, cases: list[dict[str, Any]], device: str = "cuda") -> list[tuple[dict[str, Any], KernelResult]]:
    """The answers next to their requests; prints the wall time."""
    cases = [{"device": device, **case} for case in cases]
    began = time.monotonic()
    answers = run_program(sys.executable, name, cases, timeout=120)
    spent = time.monotonic() - began
    inside = sum(answer.seconds for answer in answers)
    first = answers[0].seconds
    print(f"\n== {name}: {len(cases)} cases, {spent:.1f} s in all, {inside:.1f} s inside, first {first:.1f} s")
    return list(zip(cases, answers, strict=True))


def short(request: dict[str, Any]) -> str:
    """One line for a request."""
    return " ".join(f"{key}={value}" for key, value in request.items())


def table(pairs: list[tuple[dict[str, Any], KernelResult]], group: str) -> None:
    """Outcomes, worst error over bound, which kernel ran; then everything that is not plain."""
    counts: dict[Any, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    worst: dict[Any, float] = collections.defaultdict(float)
    rows: dict[Any, float] = collections.defaultdict(float)
    for request, answer in pairs:
        key = (request.get(group), request.get("dtype", "bfloat16"))
        ran = "+".join(answer.observed.get("ran") or []) or "-"
        counts[key][answer.outcome + (f":{ran}" if answer.outcome == "ran" else "")] += 1
        bound = answer.observed.get("bound", {})
        for name, error in answer.observed.get("errors", {}).items():
            if isinstance(error["rel"], float) and isinstance(error["row"], float):
                worst[(*key, name)] = max(worst[(*key, name)], error["rel"] / bound[name])
                rows[(*key, name)] = max(rows[(*key, name)], error["row"] / bound[name] / bound["row_factor"])
    for key, counter in counts.items():
        names = ("out", "dq", "dk", "dv")
        ratios = " ".join(f"{n} {worst[(*key, n)]:.2f}/{rows[(*key, n)]:.2f}" for n in names)
        print(f"{key[0]} {key[1]}: {dict(counter)}  error/bound (norm/row): {ratios}")
    odd = [(r, a) for r, a in pairs if a.outcome not in ("ran", "refused") or a.observed.get("wrong")]
    for request, answer in odd[:40]:
        seen = answer.observed
        errors = {n: (e["rel"], e.get("row"), e.get("nonfinite")) for n, e in seen.get("errors", {}).items()}
        print(f"  !! {short(request)}: {answer.outcome} {answer.reason[:300]} ran={seen.get('ran')} {errors}")
    if len(odd) > 40:
        print(f"  !! and {len(odd) - 40} more")
    reasons = collections.Counter(answer.reason[:220] for _, answer in pairs if answer.outcome == "refused")
    for reason, count in reasons.most_common(12):
        print(f"  refused {count}x: {reason}")


def main() -> None:
    """Run what was requested and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("gpu-results"))
    parser.add_argument("--only", default="facts,lost,sdpa,cudnn,strided,te")
    parser.add_argument("--device", default="cuda", help="cpu: what a machine without a GPU can do of it")
    options = parser.parse_args()
    only = options.only.split(",")
    options.output.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {}

    def keep(name: str, pairs: list[tuple[dict[str, Any], KernelResult]]) -> None:
        kept[name] = [{"request": request, **dataclasses.asdict(answer)} for request, answer in pairs]

    if "facts" in only:
        pairs = run_all("facts", [{}, {"transformer_engine": True}], options.device)
        keep("facts", pairs)
        print(json.dumps(pairs[0][1].observed, indent=1))
    if "lost" in only:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "lose.py"
            program.write_text(LOSE_DEVICE)
            answers = run_program(sys.executable, str(program), [{}, {"lose": True}, {}], timeout=120)
        print("\n== a lost device in the middle:", [(a.outcome, a.reason[:80]) for a in answers])
        print(run_snippet(sys.executable, LOSE_DEVICE, timeout=120).outcome)
    if "sdpa" in only:
        pairs = run_all("sdpa", list(sdpa_cases()), options.device)
        keep("sdpa", pairs)
        table(pairs, "backend")
    if "cudnn" in only:
        pairs = run_all("cudnn_sdpa", list(cudnn_cases()), options.device)
        keep("cudnn_sdpa", pairs)
        print({a.observed.get("frontend"): a.observed.get("cudnn") for _, a in pairs})
        table(pairs, "via")
    if "strided" in only:
        pairs = run_all("strided_qkv", list(strided_cases()), options.device)
        keep("strided_qkv", pairs)
        for request, answer in pairs:
            print(short(request), answer.outcome, answer.reason[:300], "wrong:", answer.observed.get("wrong_backends"))
            for backend, found in answer.observed.get("backends", {}).items():
                said = {}
                for layout, result in found.items():
                    if isinstance(result, str):
                        said[layout] = result[:100]
                    elif result["outcome"] == "ran":
                        worst = max(error["rel"] for error in result["errors"].values())
                        said[layout] = f"{worst:.1e}{' WRONG' if result['wrong'] else ''}"
                    else:
                        said[layout] = result["outcome"] + " " + result["reason"][:100]
                print("   ", backend, said)
            control = answer.observed.get("control", {})
            print("    control:", {n: f"{e['rel']:.2g}" for n, e in control.get("errors", {}).items()} or control)
    if "te" in only:
        pairs = run_all("te_attention", [{"mask": "causal"}, {"mask": "causal", **DEEPSEEK}], options.device)
        keep("te_attention", pairs)
        for request, answer in pairs:
            print(short(request), answer.outcome, answer.reason[:500], answer.observed)
    (options.output / "kernels.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
