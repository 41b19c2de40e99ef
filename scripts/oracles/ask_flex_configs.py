#!/usr/bin/env python3
"""Print the default block sizes of flex_attention that an installed torch chooses, for GPUs that are not there.

    PYTHONPATH=TORCH python scripts/oracles/ask_flex_configs.py >> tests/captures/flex-attention-configs.jsonl

torch's own functions answer; only the compute capability is replaced. One line for a release: for each kernel, dtype
and capability the configurations in the order of `head_dims`, as `block sizes, stages, warps`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import torch

CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
HEAD_DIMS = (16, 32, 48, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 512)
DTYPES = ("bfloat16", "float16", "float32")


class Query:
    """What the functions before torch 2.8 read of a query."""

    def __init__(self, head_dim: int, dtype: Any) -> None:
        self.head_dim, self.dtype = head_dim, dtype

    def get_dtype(self) -> Any:
        """Return the dtype."""
        return self.dtype

    def get_size(self) -> list[int]:
        """Return the shape."""
        return [1, 1, 1024, self.head_dim]


def text_of(kernel: str, config: Any) -> str:
    """Return a configuration as the rulebook writes it; a tuple of older releases has the warps before the stages."""
    if isinstance(config, tuple):
        *blocks, warps, stages = config
    else:
        body = dataclasses.asdict(config)
        warps, stages = body["num_warps"], body["num_stages"]
        blocks = [body[name] for name in ("block_m1", "block_n1", "block_m", "block_n") if name in body]
        if "block_m1" in body:
            blocks += [body["block_m2"], body["block_n2"]]
    if kernel == "backward" and len(blocks) == 2:  # the loop over queries takes the mirror image
        blocks += blocks[::-1]
    return " ".join(map(str, (*blocks, stages, warps)))


def choose(kernel: str, head_dim: int, dtype: Any) -> Any:
    """Return the default configuration of a kernel."""
    try:
        from torch._inductor.virtualized import V

        heuristics = V.choices.get_config_heuristics("cuda")
        method = {"forward": "get_flex_attn_fwd_configs", "backward": "get_flex_attn_bwd_configs",
                  "decode": "get_flex_decode_configs"}[kernel]  # fmt: skip
        function = getattr(heuristics, method)
        widths = len(inspect.signature(function).parameters) - 1  # from torch 2.15 on: of the queries and of the values
        return function(*[head_dim] * widths, dtype)[-1]
    except AttributeError:
        import torch._inductor.lowering  # noqa: F401 - breaks a cycle of imports
        from torch._inductor.kernel import flex_attention, flex_decoding

        module, name = {"forward": (flex_attention, "_get_default_config_fwd"),
                        "backward": (flex_attention, "_get_default_config_bwd"),
                        "decode": (flex_decoding, "_get_decoding_default_config")}[kernel]  # fmt: skip
        argument = Query(head_dim, dtype)
        return getattr(module, name)(argument)


def main() -> None:
    """Print the configurations of this release."""
    found: dict[str, Any] = {"torch": torch.__version__.partition("+")[0], "head_dims": HEAD_DIMS}
    for capability in CAPABILITIES:
        torch.cuda.get_device_capability = lambda device=None, found=capability: found
        for dtype in DTYPES:
            for kernel in ("forward", "backward", "decode"):
                configs = [text_of(kernel, choose(kernel, head, getattr(torch, dtype))) for head in HEAD_DIMS]
                sm = f"{capability[0]}.{capability[1]}"
                found.setdefault(kernel, {}).setdefault(dtype, {})[sm] = configs
    print(json.dumps(found, separators=(",", ":")))


if __name__ == "__main__":
    main()
