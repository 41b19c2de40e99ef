#!/usr/bin/env python3
"""Run cuDNN's backward twice for one shape, with the incoming gradient in two memory layouts, without any code of ours.

    python3 scripts/gpu/cudnn_gradient_layouts.py --output FILE

A line holds one shape and two layouts, and the largest ||x - ref|| / ||ref|| of dq, dk and dv of each run against
float64. Each pair has a length of its own, as torch keeps cuDNN's plans by shape. Layouts are named by the order of
their axes in memory; `padded` has rows of twice the width, `ones` is one number, expanded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

LAYOUTS = ("bhsd", "bshd", "sbhd", "bhds", "padded", "ones")
BATCH, HEADS, WRONG = 2, 8, 0.01
Shape = dict[str, Any]


def laid_out(torch: Any, base: Any, name: str) -> Any:
    """Return the gradient in a layout; `ones` has other numbers."""
    if name == "padded":
        return torch.cat((base, torch.zeros_like(base)), -1)[..., : base.shape[-1]]
    if name == "ones":
        return torch.ones((), device=base.device, dtype=base.dtype).expand(base.shape)
    order = ["bhsd".index(axis) for axis in name]
    return base.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])


def attention(torch: Any, shape: Shape, inputs: Any, backend: Any) -> Any:
    """Return the output of one backend."""
    from torch.nn.attention import sdpa_kernel

    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=shape["causal"], enable_gqa=shape["kv_heads"] != HEADS
        )


def errors(torch: Any, shape: Shape, layouts: tuple[str, str]) -> list[float]:
    """Return the largest error of the gradients for each layout, in this order."""
    from torch.nn.attention import SDPBackend

    torch.manual_seed(0)

    def drawn(heads: int) -> Any:
        sizes = {"b": BATCH, "h": heads, "s": shape["length"], "d": shape["head_dim"]}
        order = shape["inputs"]
        made = torch.randn([sizes[axis] for axis in order], device="cuda", dtype=torch.bfloat16)
        return made.permute([order.index(axis) for axis in "bhsd"])

    inputs = [drawn(heads).requires_grad_() for heads in (HEADS, shape["kv_heads"], shape["kv_heads"])]
    base, found = torch.randn(inputs[0].shape, device="cuda", dtype=torch.bfloat16), []
    for name in layouts:
        dout = laid_out(torch, base, name)
        exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
        wanted = torch.autograd.grad(attention(torch, shape, exact, SDPBackend.MATH), exact, dout.double())
        got = torch.autograd.grad(attention(torch, shape, inputs, SDPBackend.CUDNN_ATTENTION), inputs, dout)
        parts = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
        found.append(next((part for part in parts if math.isnan(part)), max(parts)))
    return found


def cases() -> list[tuple[Shape, tuple[str, str]]]:
    """Return all pairs of layouts on one shape, and two of them on others."""
    plain = {"head_dim": 64, "kv_heads": HEADS, "causal": True, "inputs": "bshd"}
    made = [(plain, pair) for pair in itertools.permutations(LAYOUTS, 2)]
    for width, kv_heads, causal, order in itertools.product((64, 128), (HEADS, 2), (True, False), ("bshd", "bhsd")):
        shape = {"head_dim": width, "kv_heads": kv_heads, "causal": causal, "inputs": order}
        made += [(shape, pair) for pair in (("bhsd", "bshd"), ("bshd", "bhsd"))]
    return [({**shape, "length": 144 + 16 * number}, pair) for number, (shape, pair) in enumerate(made)]


def main() -> int:
    """Measure every case; print how many second layouts got wrong gradients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    given = parser.parse_args()
    import torch

    where = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    wrong = 0
    with given.output.open("w") as file:
        for shape, (first, second) in cases():
            before, after = errors(torch, shape, (first, second))
            bad = not after < WRONG
            wrong += bad
            line = {**where, "dtype": "bfloat16", **shape, "heads": HEADS, "first": first, "first_error": before}
            file.write(json.dumps({**line, "second": second, "second_error": after, "second_wrong": bad}) + "\n")
    print(f"{wrong} of {len(cases())} second layouts got wrong gradients")
    return 0


if __name__ == "__main__":
    sys.exit(main())
