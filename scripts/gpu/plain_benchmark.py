#!/usr/bin/env python3
"""Time and memory of torch's attention on this GPU, measured without any code of ours.

    python3 scripts/gpu/plain_benchmark.py --output records.jsonl [--limit SECONDS] [--seed N] [--workers N]

This is the independent reference of `backends`: torch alone, CUDA events, L2 flushed before every run, one warm-up.
A line holds one shape, one backend and one direction: `training` is forward and backward, else forward without
gradients. `ms` is the median, `ms_spread` the interquartile range, `bytes_peak` what the call allocates above its
inputs, `memory.saved` what is held between forward and backward. The ceilings of the GPU go to stderr.

FlexAttention is compiled in processes of their own; a lock keeps two measurements from running at once. The forward
of FlashAttention-3 is measured where the wheel `fa3-fwd` can be imported.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Shape = dict[str, Any]

LOCK = "/tmp/plain_benchmark.lock"
LARGEST_SCORES = 24e9  # bytes of score-sized tensors that one call may hold
COVER = 1_200_000  # clock cycles of an idle kernel, which cover the launches of one call
LIBRARIES = {"fa.flash3": "fa3-fwd"}
MASKS_AS_WORKLOAD = {"window": {"mask": "causal"}, "bias": {"mask": "causal", "bias": "alibi"}}
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
HEADS = ((32, 32), (32, 8), (16, 16), (64, 8), (8, 1), (12, 12), (24, 24), (40, 8), (28, 4), (48, 48))
WIDTHS = ((64, 64),) * 5 + ((128, 128),) * 9 + ((96, 96), (80, 80), (256, 256), (256, 256), (192, 128), (32, 32))
LENGTHS = (256, 512, 1000, 1024, 1536, 2048, 2048, 3000, 4096, 4096, 6144, 8192, 8192, 12288, 16384, 32768)
MASKS = ("causal",) * 9 + ("no_mask",) * 5 + ("padding", "padding_causal", "padding_causal", "window", "window", "bias")


def job(name: str, heads: tuple[int, int], width: Any, length: Any, mask: str = "causal", **more: Any) -> Shape:
    """Return a shape; `width` and `length` are one number or (qk, v) and (q, kv)."""
    d, dv = width if isinstance(width, tuple) else (width, width)
    q, kv = length if isinstance(length, tuple) else (length, length)
    shape = {
        "name": name, "dtype": "bfloat16", "batch_size": 1, "num_heads": heads[0], "num_kv_heads": heads[1],
        "head_dim_qk": d, "head_dim_v": dv, "seq_len_q": q, "seq_len_kv": kv, "mask": mask, "training": True,
    }  # fmt: skip
    return {**shape, **more}


def named() -> list[Shape]:
    """Return the shapes of well-known models."""
    decode = {"training": False}
    return [
        job("llama-3-8b 4k", (32, 8), 128, 4096, batch_size=4),
        job("llama-3-8b 8k", (32, 8), 128, 8192),
        job("llama-3-8b 32k", (32, 8), 128, 32768),
        job("llama-3-8b 128k", (32, 8), 128, 131072),
        job("llama-3-70b 8k", (64, 8), 128, 8192),
        job("gemma-2 4k", (16, 8), 256, 4096, softcap=50.0),
        job("gemma-2 window 8k", (16, 8), 256, 8192, "window", window=[4096, 0], softcap=50.0),
        job("gemma-3 global 8k", (16, 8), 256, 8192),
        job("gemma-3 window 8k", (16, 8), 256, 8192, "window", window=[1024, 0]),
        job("gemma-4 wide 4k", (16, 4), 512, 4096),
        job("mistral window 16k", (32, 8), 128, 16384, "window", window=[4096, 0]),
        job("gpt-oss window 8k", (64, 8), 64, 8192, "window", window=[128, 0]),
        job("deepseek mla 4k", (128, 128), (192, 128), 4096),
        job("deepseek mla 8k", (16, 16), (192, 128), 8192),
        job("padding 4k", (32, 8), 128, 4096, "padding_causal", batch_size=4),
        job("bert 512", (12, 12), 64, 512, "padding", batch_size=64),
        job("alibi 4k", (32, 32), 128, 4096, "bias"),
        job("float32 2k", (12, 12), 64, 2048, dtype="float32", batch_size=4),
        job("float32 8k", (16, 16), 128, 8192, dtype="float32"),
        job("dit 16k", (24, 24), 128, 16384, "no_mask"),
        job("sd cross", (10, 10), 64, (4096, 77), "no_mask", batch_size=8),
        job("vit 1k", (16, 16), 80, 1024, "no_mask", batch_size=16),
        *(
            job(f"decode {b}x{n}", h, 128, (1, n), "no_mask", batch_size=b, **decode)
            for h in ((32, 8), (32, 32))
            for b, n in ((1, 512), (1, 8192), (1, 131072), (16, 4096), (64, 1024))
        ),
        job("prefill 128k", (32, 8), 128, 131072, training=False),
        job("chunk 2k of 32k", (32, 8), 128, (2048, 32768), "no_mask", training=False),
    ]


def drawn(rng: random.Random) -> Shape:
    """Return a random shape of at most 64k tokens and about 1e15 operations."""
    while True:
        mask, dtype = rng.choice(MASKS), rng.choice(("bfloat16",) * 6 + ("float16",) * 2 + ("float32",))
        length, batch = rng.choice(LENGTHS), rng.choice((1, 1, 1, 2, 4, 8, 16))
        heads, width = rng.choice(HEADS), rng.choice(WIDTHS)
        more: Shape = {"dtype": dtype, "batch_size": batch}
        if mask == "window":
            more["window"] = [rng.choice((128, 512, 1024, 2048, 4096)), 0]
            if more["window"][0] >= length:
                continue
        if mask == "no_mask" and rng.random() < 0.2:
            heads, length = (heads[0], heads[0]), (length, rng.choice((77, 256, 512)))
        shape = job("drawn", heads, width, length, mask, **more)
        pairs = batch * heads[0] * shape["seq_len_q"] * shape["seq_len_kv"]
        dense = pairs * 2 if mask == "bias" else 0
        limit = 4e13 if dtype == "float32" else 2.5e14
        if batch * shape["seq_len_q"] <= 65536 and pairs * 2 * sum(width) <= limit and dense < 6e9:
            return shape


# ------------------------------------------------------------------------------------------------ one call


def keeps(shape: Shape) -> Callable[..., Any] | None:
    """Return the mask as a function of (batch, head, query, key), or None where every pair counts."""
    window = shape.get("window")
    if shape["mask"] == "causal":
        return lambda b, h, q, k: q >= k
    if shape["mask"] == "window":
        left = window[0]
        return lambda b, h, q, k: (q >= k) & (q - k < left)
    return None


def lengths_of(torch: Any, shape: Shape) -> Any:
    """Return the valid keys of each sequence under a padding mask: from half of the length to all of it."""
    total, batch = shape["seq_len_kv"], shape["batch_size"]
    return torch.tensor([total - (total // 2) * i // batch for i in range(batch)], device="cuda")


def dense_mask(torch: Any, shape: Shape) -> Any:
    """Return the mask that a model passes to torch: None, a boolean one, or an additive bias."""
    sq, skv = shape["seq_len_q"], shape["seq_len_kv"]
    q, k = (torch.arange(n, device="cuda") for n in (sq, skv))
    if shape["mask"] == "bias":
        slopes = 2.0 ** -torch.arange(1, shape["num_heads"] + 1, device="cuda").mul(8 / shape["num_heads"])
        bias = torch.empty(1, shape["num_heads"], sq, skv, device="cuda", dtype=getattr(torch, shape["dtype"]))
        for head in range(shape["num_heads"]):
            bias[0, head] = (
                (k[None, :] - q[:, None]).float().mul(slopes[head]).masked_fill(k[None, :] > q[:, None], float("-inf"))
            )
        return bias
    if shape["mask"] == "window":
        return ((q[:, None] >= k) & (q[:, None] - k < shape["window"][0]))[None, None]
    if shape["mask"].startswith("padding"):
        keep = (k[None, :] < lengths_of(torch, shape)[:, None])[:, None, None, :].expand(-1, 1, sq, -1)
        return (keep & (q[:, None] >= k) if shape["mask"] == "padding_causal" else keep).contiguous()
    return None


def inputs(torch: Any, shape: Shape, grad: bool) -> tuple[Any, Any, Any]:
    """Return q, k, v as a model has them: views (batch, heads, length, width) of (batch, length, heads, width)."""
    torch.manual_seed(0)

    def make(heads: int, length: int, width: int) -> Any:
        size = (shape["batch_size"], length, heads, width)
        tensor = torch.randn(size, device="cuda", dtype=getattr(torch, shape["dtype"])).transpose(1, 2)
        return tensor.requires_grad_(grad)

    kv = (shape["num_kv_heads"], shape["seq_len_kv"])
    return (
        make(shape["num_heads"], shape["seq_len_q"], shape["head_dim_qk"]),
        make(*kv, shape["head_dim_qk"]),
        make(*kv, shape["head_dim_v"]),
    )


def repeated(torch: Any, shape: Shape, tensor: Any) -> Any:
    """Return keys or values with as many heads as the queries have."""
    times = shape["num_heads"] // shape["num_kv_heads"]
    return tensor if times == 1 else tensor.repeat_interleave(times, dim=1)


def sdpa(torch: Any, shape: Shape, backend: str) -> Callable[..., Any]:
    """Return a call of one backend of scaled_dot_product_attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {
        "sdpa.flash": SDPBackend.FLASH_ATTENTION, "sdpa.efficient": SDPBackend.EFFICIENT_ATTENTION,
        "sdpa.cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa.math": SDPBackend.MATH,
    }[backend]  # fmt: skip
    mask, causal = dense_mask(torch, shape), shape["mask"] == "causal"
    grouped = shape["num_heads"] != shape["num_kv_heads"]
    repeats = grouped and backend == "sdpa.efficient"  # it has no grouped heads: models repeat keys and values

    def call(q: Any, k: Any, v: Any) -> Any:
        if repeats:
            k, v = repeated(torch, shape, k), repeated(torch, shape, v)
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped and not repeats
            )

    return call


def eager(torch: Any, shape: Shape, _: str) -> Callable[..., Any]:
    """Return what models write out: scores, an additive mask, softmax in float32, probabilities times values."""
    mask = dense_mask(
        torch, {**shape, "mask": "window", "window": [1 << 30, 0]} if shape["mask"] == "causal" else shape
    )
    if mask is not None and mask.dtype == torch.bool:
        low = torch.finfo(getattr(torch, shape["dtype"])).min
        mask = torch.zeros(mask.shape, device="cuda", dtype=getattr(torch, shape["dtype"])).masked_fill(~mask, low)
    scale = shape["head_dim_qk"] ** -0.5

    def call(q: Any, k: Any, v: Any) -> Any:
        scores = q @ repeated(torch, shape, k).transpose(2, 3) * scale
        if "softcap" in shape:
            scores = torch.tanh(scores / shape["softcap"]) * shape["softcap"]
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ repeated(torch, shape, v)

    return call


def flash3(torch: Any, shape: Shape, _: str) -> Callable[..., Any]:
    """Return a call of the forward of FlashAttention-3; this wheel has no window and no float16."""
    from fa3_fwd_interface import flash_attn_func

    causal = shape["mask"] == "causal"
    more = {"softcap": shape["softcap"]} if "softcap" in shape else {}

    def call(q: Any, k: Any, v: Any) -> Any:
        out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal, **more)
        return out[0] if isinstance(out, tuple) else out

    return call


def flex(torch: Any, shape: Shape, _: str) -> Callable[..., Any]:
    """Return a compiled call of FlexAttention, which skips the blocks that its mask leaves out."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    keep, score = keeps(shape), None
    if shape["mask"].startswith("padding"):
        lengths, causal = lengths_of(torch, shape), shape["mask"] == "padding_causal"

        def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
            valid = k < lengths[b]
            return valid & (q >= k) if causal else valid

    if shape["mask"] == "bias":
        slopes = 2.0 ** -torch.arange(1, shape["num_heads"] + 1, device="cuda").mul(8 / shape["num_heads"])
        keep = lambda b, h, q, k: q >= k  # noqa: E731

        def score(value: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return value + (k - q) * slopes[h]

    elif "softcap" in shape:
        cap = shape["softcap"]

        def score(value: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return torch.tanh(value / cap) * cap

    block = None
    if keep is not None:
        batch = shape["batch_size"] if shape["mask"].startswith("padding") else None
        large = (batch or 1) * shape["seq_len_q"] * shape["seq_len_kv"] > 3e8
        make = torch.compile(create_block_mask) if large else create_block_mask
        block = make(keep, batch, None, shape["seq_len_q"], shape["seq_len_kv"])
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = shape["num_heads"] != shape["num_kv_heads"]
    return lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=block, enable_gqa=grouped)


def backends_of(shape: Shape) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the backends that compute this shape in the main process."""
    pairs = shape["batch_size"] * shape["num_heads"] * shape["seq_len_q"] * shape["seq_len_kv"]
    wide = BYTES[shape["dtype"]]
    if "softcap" not in shape:
        if shape["dtype"] != "float32" and shape["mask"] in ("no_mask", "causal"):
            yield "sdpa.flash", sdpa
        if shape["dtype"] != "float32":
            yield "sdpa.cudnn", sdpa
        yield "sdpa.efficient", sdpa
        if pairs * 16 <= LARGEST_SCORES:
            yield "sdpa.math", sdpa
    if pairs * (3 * wide + 8) <= LARGEST_SCORES:
        yield "hf.eager", eager
    if shape["dtype"] == "bfloat16" and shape["mask"] in ("no_mask", "causal"):
        yield "fa.flash3", flash3


# ------------------------------------------------------------------------------------------------ measuring


class Clock:
    """Measures calls with CUDA events behind a flush of the L2 cache."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.flushed = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def run(self, call: Callable[[], Any], most: int = 11) -> tuple[float, float, int]:
        """Return (median milliseconds, interquartile range over the median, runs); the call was warmed up before."""
        first = self._times(call, 1)[0]
        runs = max(1, min(most, int(60 / max(first, 1e-3))))
        times = sorted(self._times(call, runs)) if first < 700 else [first]
        median = statistics.median(times)
        quarter = len(times) // 4
        return median, (times[-1 - quarter] - times[quarter]) / median, len(times)

    def _times(self, call: Callable[[], Any], runs: int) -> list[float]:
        torch = self.torch
        events = []
        for _ in range(runs):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flushed.zero_()
            torch.cuda._sleep(COVER)
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]


class Step:
    """One call with its inputs: forward alone, or forward and backward. `held` is what forward leaves allocated."""

    def __init__(self, torch: Any, shape: Shape, call: Callable[..., Any], training: bool) -> None:
        self.torch, self.call, self.training = torch, call, training
        self.inputs = inputs(torch, shape, training)
        self.held = 0
        size = (shape["batch_size"], shape["seq_len_q"], shape["num_heads"], shape["head_dim_v"])
        self.gradient = torch.randn(size, device="cuda", dtype=self.inputs[0].dtype).transpose(1, 2)

    def __call__(self) -> None:
        """Run it once."""
        torch = self.torch
        with contextlib.nullcontext() if self.training else torch.no_grad():
            out = self.call(*self.inputs)
        if self.training:
            self.held = torch.cuda.memory_allocated()
            torch.autograd.grad(out, self.inputs, self.gradient)


def measured(clock: Clock, step: Step) -> dict[str, Any]:
    """Return the time and the memory of one step."""
    torch = clock.torch
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    result: dict[str, Any] = {"outcome": "ran", "bytes_peak": torch.cuda.max_memory_allocated() - before}
    if step.training:
        output = step.gradient.numel() * step.gradient.element_size()
        result["memory"] = {"output": output, "saved": step.held - before - output}
    median, spread, runs = clock.run(step)
    return {**result, "ms": round(median, 5), "ms_spread": round(spread * median, 5), "repeats": runs}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock that keeps two measurements from running at once."""
    with Path(LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    time.sleep(0.005)  # the others get their turn: a lock of this kind is not fair


def record(
    file: Any, where: dict[str, Any], shape: Shape, backend: str, training: bool, result: dict[str, Any]
) -> None:
    """Write one line at once, in the schema of `doctor/facts/measurement.py`."""
    line = {"schema": 1, **where, "backend": backend, "library": LIBRARIES.get(backend)}
    line.update({name: value for name, value in shape.items() if name not in ("name", "mask", "window", "training")})
    line.update(MASKS_AS_WORKLOAD.get(shape["mask"], {"mask": shape["mask"]}))
    line["window"] = [shape["window"][0] - 1, 0] if "window" in shape else None
    if shape["mask"].startswith("padding"):
        total, batch = shape["seq_len_kv"], shape["batch_size"]
        kept = [total - (total // 2) * i // batch for i in range(batch)]
        line["words"] = {"valid": round(sum(kept) / batch / total, 4)}
    line.update(training=training, compiled=backend == "flex.triton", **result)
    file.write(json.dumps(line) + "\n")
    file.flush()


def place(torch: Any) -> dict[str, Any]:
    """Return the fields that say where a record was measured."""
    properties = torch.cuda.get_device_properties(0)
    return {"gpu": properties.name, "sm": f"{properties.major}.{properties.minor}", "torch": torch.__version__}


def measure(clock: Clock, file: Any, shape: Shape, backend: str, make: Callable[..., Any], locked: bool) -> None:
    """Measure one backend on one shape in the directions that the shape has."""
    torch = clock.torch
    where = place(torch)
    for training in (False, True) if shape["training"] else (False,):
        if backend == "fa.flash3" and training:
            continue
        try:
            step = Step(torch, shape, make(torch, shape, backend), training)
            if not locked:
                step()  # compiles, which takes seconds: before the lock is taken
            with contextlib.nullcontext() if locked else alone():
                result = measured(clock, step)
        except torch.cuda.OutOfMemoryError:
            result = {"outcome": "failed", "reason": "out of memory", "ms": None}
        except Exception as problem:
            first = next(iter(str(problem).splitlines()), "")
            result = {"outcome": "refused", "reason": f"{type(problem).__name__}: {first[:160]}", "ms": None}
        step = None
        record(file, where, shape, backend, training, result)


def rates(torch: Any, clock: Clock) -> dict[str, Any]:
    """Return the measured ceilings: bytes per second of a copy, operations per second of a matrix product."""
    n = 8192
    found: dict[str, Any] = {}
    for dtype in ("bfloat16", "float16", "float32"):
        a, b = (torch.randn(n, n, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
        for _ in range(3):
            a @ b
        found[f"{dtype}_tflops"] = round(2 * n**3 / clock.run(lambda: a @ b)[0] / 1e9, 1)  # noqa: B023
    x = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    y.copy_(x)
    found["copy_gb_per_s"] = round(2 * x.numel() / clock.run(lambda: y.copy_(x))[0] / 1e6, 1)
    return found


def worker(path: str, shapes: list[Shape], until: float) -> None:
    """Compile FlexAttention for each shape and measure it under the lock."""
    import torch
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = 4096
    clock = Clock(torch)
    with Path(path).open("a") as file:
        for shape in shapes:
            if time.time() > until:
                return
            measure(clock, file, shape, "flex.triton", flex, locked=False)
            dynamo.reset()
            torch.cuda.empty_cache()


def flexible(shape: Shape) -> bool:
    """Whether FlexAttention is measured on this shape: not for one query, and not beyond 64k tokens."""
    return shape["seq_len_q"] > 1 and shape["batch_size"] * shape["seq_len_q"] <= 65536


def main() -> int:
    """Measure until all shapes are done or the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--limit", type=float, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=260)
    parser.add_argument("--flex", type=int, default=80, help="shapes on which FlexAttention is measured")
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    until = time.time() + given.limit
    rng = random.Random(given.seed)
    shapes = named() + [drawn(rng) for _ in range(given.drawn)]
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    flexed = [shape for shape in shapes if flexible(shape)][: given.flex]
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=worker, args=(f"{given.output}.flex{i}", flexed[i :: given.workers], until))
        for i in range(given.workers)
    ]
    for process in jobs:
        process.start()
    import torch

    clock = Clock(torch)
    done = 0
    with Path(given.output).open("w") as file:
        with alone():
            print(json.dumps({**place(torch), **rates(torch, clock)}), file=sys.stderr)
        for shape in shapes:
            if time.time() > until:
                break
            for backend, make in backends_of(shape):
                with alone():
                    measure(clock, file, shape, backend, make, locked=True)
            if torch.cuda.memory_reserved() > 8e9:
                torch.cuda.empty_cache()
            done += 1
    print(f"{done} of {len(shapes)} shapes in {time.time() - until + given.limit:.0f} s", file=sys.stderr)
    for process in jobs:
        process.join(max(1.0, until + 20 - time.time()))
        if process.is_alive():
            process.terminate()
    with Path(given.output).open("a") as file:
        for i in range(given.workers):
            part = Path(f"{given.output}.flex{i}")
            file.write(part.read_text() if part.exists() else "")
            part.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
