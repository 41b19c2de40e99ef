#!/usr/bin/env python3
"""Run the operator dispatch of an unpacked xFormers release without a GPU and record its answers.

The Python code of the release decides, unchanged: `_dispatch_fw` and `_dispatch_bw` of `xformers/ops/fmha/dispatch.py`
and `not_supported_reasons` of every operator. Only its surroundings are replaced: the GPU's capability, torch's CUDA,
and the compiled modules, which count as present where the wheel's RECORD lists them. Queries, keys and values are
tensors without data.

    pip download --no-deps -d wheels xformers==0.0.35 && unzip -q wheels/xformers-0.0.35-*.whl -d xformers-0.0.35
    python scripts/oracles/ask_xformers.py xformers-0.0.35 --count 400 --seed 1 --output answers.jsonl

The interpreter needs torch (a CPU build will do), numpy and a Triton of the release's time: 3.4 for 0.0.31 and later,
3.0 before. 0.0.25, 0.0.26, 0.0.29.post2, 0.0.29.post3 and 0.0.30 check more of their binaries than is replaced here.
Each line holds facts and workload, in the form that `attn-doctor backends --batch` reads, and `expected`: the operators
of the forward and the backward pass (null: none) and the reasons against each operator of the forward order.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.machinery
import json
import os
import random
import re
import sys
import types
from pathlib import Path

CAPABILITIES = ("6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
#: names of the compiled modules, by the file in the wheel
COMPILED = {
    "_C_flashattention": "xformers/_C_flashattention.so",
    "_C_flashattention3": "xformers/_C_flashattention3.so",
    "flash_attn_3._C": "xformers/flash_attn_3/_C.so",
}


def release_of(sources: Path) -> str:
    """Return the version of the unpacked wheel."""
    return next(sources.glob("xformers-*.dist-info")).name.removesuffix(".dist-info").partition("-")[2]


def recorded(sources: Path) -> set[str]:
    """Return the files that the wheel's RECORD lists."""
    record = next(sources.glob("xformers-*.dist-info")) / "RECORD"
    return {line.partition(",")[0] for line in record.read_text().splitlines()}


def stub(name: str, **members: object) -> types.ModuleType:
    """Register an empty module of that name."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def define(namespace: str, names: set[str]) -> object:
    """Register compiled operators of these names, without code."""
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    for name in sorted(names):
        with contextlib.suppress(RuntimeError):  # torch has it already
            library.define(f"{name}() -> ()")
            library.impl(name, lambda: None, "CUDA")
    return library


def prepare(sources: Path, capability: str, cuda: str) -> types.ModuleType:
    """Put the machine and the compiled files in place, and import the release's dispatch."""
    import torch

    sys.path.insert(0, str(sources))
    pair = tuple(int(part) for part in capability.split("."))
    torch.version.cuda = cuda
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: pair
    torch.cuda.get_device_name = lambda *_: "NVIDIA"
    torch.backends.cuda.is_flash_attention_available = lambda: True
    if hasattr(torch.nn.attention, "_get_flash_version"):
        torch.nn.attention._get_flash_version = lambda: "2.7.4"
    files = recorded(sources)
    texts = [path.read_text() for path in (sources / "xformers").rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'get_xformers_operator\(\s*"(\w+)"', text)}
    kept = [define("xformers", {name for name in names if "_ck" not in name})]
    torch.ops.load_library = lambda *_: None
    have = {module for module, path in COMPILED.items() if path in files}
    if "flash_attn_3._C" in have:
        kept.append(define("flash_attn_3", {"fwd", "bwd"}))
    # What the compiled library reports about itself, and what fits the torch that the wheel was built for.
    import xformers._cpp_lib as library

    built = sources / "xformers" / "cpp_lib.json"
    library._build_metadata = library._BuildInfo(json.loads(built.read_text()))
    library._cpp_library_load_exception = None
    library._built_with_cuda = True
    package = importlib.import_module("xformers")
    for module in have:
        if module.startswith("_C"):
            setattr(package, module, stub(f"xformers.{module}"))
        else:
            stub("flash_attn_3", __path__=[])
            stub("flash_attn_3._C")
            stub("xformers.flash_attn_3", __path__=[])
            stub("xformers.flash_attn_3._C")
    _torch_fits(sources)
    package._is_triton_available = lambda: True
    dispatch = importlib.import_module("xformers.ops.fmha.dispatch")
    dispatch.compiled = kept  # operators live as long as their library
    torch.cuda.is_available = lambda: False  # no memory to pin for the lengths of sequences
    return dispatch


def _torch_fits(sources: Path) -> None:
    """Let the release's own checks of torch's operators pass: the torch under it is not the one it was built for."""
    path = sources / "xformers" / "ops" / "fmha" / "torch_attention_compat.py"
    if not path.is_file():
        return
    name = "xformers.ops.fmha.torch_attention_compat"
    checks = {check: (lambda *_, **__: True) for check in re.findall(r"^def (\w+)", path.read_text(), re.MULTILINE)}
    checks["is_pt_flash_old"] = lambda *_, **__: False
    stub(name, **checks)


def inputs(fmha: types.ModuleType, workload: dict) -> object:
    """Return the release's `Inputs` of a workload: grouped heads as five dimensions, with keys expanded.

    No release has a backward pass for five dimensions, so a training job repeats its keys and values.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    dtype = getattr(torch, DTYPES[workload["dtype"]])
    batch, heads = workload["batch_size"], workload["num_heads"]
    kv_heads = heads if workload["training"] else workload["num_kv_heads"]
    queries, keys = workload["seq_len_q"], workload["seq_len_kv"]
    varlen = workload["mask"].startswith("padding")
    rows = 1 if varlen else batch

    def tensor(tokens: int, width: int, grouped: bool) -> torch.Tensor:
        tokens = tokens * batch if varlen else tokens
        if kv_heads == heads:
            return torch.empty(rows, tokens, heads, width, dtype=dtype, device="cuda")
        shape = (rows, tokens, kv_heads, heads // kv_heads, width)
        if grouped:
            return torch.empty(shape, dtype=dtype, device="cuda")
        return torch.empty(rows, tokens, kv_heads, 1, width, dtype=dtype, device="cuda").expand(shape)

    with FakeTensorMode(allow_non_fake_inputs=True):
        query = tensor(queries, workload["head_dim_qk"], True)
        key = tensor(keys, workload["head_dim_qk"], False)
        value = tensor(keys, workload["head_dim_v"], False)
        bias = None
        if workload["mask"] == "arbitrary" or workload["bias"] != "no_bias":
            groups = (heads,) if kv_heads == heads else (kv_heads, heads // kv_heads)
            wide = (keys + 7) // 8 * 8  # aligned, as the documentation demands
            # its exact type counts, which a fake tensor does not have
            bias = (rows, *groups, queries, wide)
    if bias is not None:
        bias = torch.empty(bias, dtype=dtype, device="meta").narrow(-1, 0, keys)
    if bias is None:
        bias = mask_of(fmha.attn_bias, workload, [queries] * batch, [keys] * batch)
    given = {"query": query, "key": key, "value": value, "attn_bias": bias, "p": workload["dropout"]}
    return fmha.Inputs(**given)


def mask_of(kinds: types.ModuleType, workload: dict, queries: list[int], keys: list[int]) -> object:
    """Return the mask object that says what the workload's mask and window say."""
    mask, window = workload["mask"], workload["window"]
    if mask.startswith("padding"):
        base = kinds.BlockDiagonalMask.from_seqlens(queries, keys)
        if mask == "padding":
            return base
        if mask == "padding_causal_bottom_right":
            return base.make_causal_from_bottomright()
        return base.make_causal()
    if window is not None and mask == "causal_bottom_right":
        return kinds.LowerTriangularFromBottomRightLocalAttentionMask(window[0] + 1)
    if window is not None and mask == "no_mask":
        return kinds.LocalAttentionFromBottomRightMask(window_left=window[0], window_right=window[1])
    names = {"causal": "LowerTriangularMask", "causal_bottom_right": "LowerTriangularFromBottomRightMask"}
    return getattr(kinds, names[mask])() if mask in names else None


def ask(dispatch: types.ModuleType, workload: dict) -> dict:
    """Return the release's answer for one workload."""
    import inspect

    import torch

    fmha = importlib.import_module("xformers.ops.fmha")
    torch.use_deterministic_algorithms(workload["deterministic"])
    try:
        given = inputs(fmha, workload)
    except AttributeError as problem:  # a mask that this release does not have
        return {"error": str(problem)}
    validate = getattr(given, "validate_inputs", None)
    if validate is not None:
        try:
            validate()
        except (ValueError, NotImplementedError, AssertionError) as problem:
            if "same device" not in str(problem):  # the lengths of sequences have values and live on the CPU
                return {"error": f"{type(problem).__name__}: {problem}".splitlines()[0]}
    needs_gradient = workload["training"]
    wants = inspect.signature(dispatch._dispatch_fw).parameters
    answer: dict = {"forward": None, "backward": None, "reasons": {}}
    if hasattr(dispatch, "_dispatch_fw_priority_list"):
        order = list(dispatch._dispatch_fw_priority_list(given, needs_gradient))
        answer["reasons"] = {name_of(op): op.not_supported_reasons(given) for op in order}
    try:
        found = dispatch._dispatch_fw(given, needs_gradient) if len(wants) > 1 else dispatch._dispatch_fw(given)
    except NotImplementedError:
        return answer
    answer["forward"] = name_of(found)
    if needs_gradient:
        packed = getattr(found, "VARLEN_LSE_PACKED", None)
        more = (packed,) if len(inspect.signature(dispatch._dispatch_bw).parameters) > 1 else ()
        try:
            answer["backward"] = name_of(dispatch._dispatch_bw(given, *more))
        except NotImplementedError as problem:
            answer["backward_reasons"] = [line.strip() for line in str(problem).splitlines()[5:]]
    return answer


def name_of(operator: type) -> str:
    """Return the operator's module: flash3, flash, cutlass, triton_splitk, decoder, small_k."""
    return operator.__module__.rpartition(".")[2]


def random_workload(draw: random.Random) -> dict:
    """Return one workload; usual values are more frequent."""
    heads = draw.choice((8, 16, 32))
    width = draw.choice((32, 40, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256, 320, 512, 24, 16, 100, 36))
    length = draw.choice((1, 16, 128, 512, 1000, 2048, 4096))
    mask = draw.choice((
        "no_mask", "no_mask", "causal", "causal", "causal_bottom_right", "padding", "padding_causal",
        "padding_causal_bottom_right", "arbitrary",
    ))  # fmt: skip
    windowed = mask in ("causal_bottom_right", "no_mask") and draw.random() < 0.25
    return {
        "framework": "xformers", "dtype": draw.choice(("bfloat16", "bfloat16", "float16", "float16", "float32")),
        "head_dim_qk": width, "head_dim_v": width if draw.random() < 0.85 else draw.choice((64, 128, 192, 256, 512)),
        "num_heads": heads, "num_kv_heads": draw.choice((heads, heads, heads // 4, 1)),
        "batch_size": draw.choice((1, 2, 8)), "seq_len_q": length,
        "seq_len_kv": draw.choice((length, length, length, 2 * length, 4096)), "mask": mask,
        "window": ([255, 0] if mask == "causal_bottom_right" else [128, 128]) if windowed else None,
        "bias": "post_scale_bias" if mask == "no_mask" and not windowed and draw.random() < 0.1 else "no_bias",
        "dropout": draw.choice((0.0, 0.0, 0.0, 0.1)), "training": draw.random() < 0.6,
        "deterministic": draw.random() < 0.1,
    }  # fmt: skip


def random_cases(release: str, cuda: str, count: int, seed: int) -> list[dict]:
    """Return random cases of a release."""
    draw = random.Random(f"{release} {seed}")
    cases = []
    for index in range(count):
        absent = {f"flash-attn{number}.version": "absent" for number in ("", "-3", "-4")}
        facts = {"xformers.version": release, "gpu.sm": draw.choice(CAPABILITIES), "torch.cuda": cuda, **absent}
        cases.append({"id": f"xformers-{release}-{index:04d}", "facts": facts, "workload": random_workload(draw)})
    return cases


def answer_group(sources: Path, cases: list[dict], output: Path) -> bool:
    """Answer the cases of one GPU in a process of their own."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    code = 1
    try:
        facts = cases[0]["facts"]
        dispatch = prepare(sources, facts["gpu.sm"], facts["torch.cuda"])
        with output.open("a") as stream:
            for case in cases:
                answer = ask(dispatch, case["workload"])
                stream.write(json.dumps({**case, "expected": answer}) + "\n")
        code = 0
    finally:
        sys.stdout.flush()
        if code:
            import traceback

            traceback.print_exc()
        os._exit(code)


def main() -> int:
    """Answer every case, grouped by GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("--cases", type=Path, help="JSON Lines; those of this release are answered")
    parser.add_argument("--count", type=int, default=400, help="random cases, without --cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    sources = options.release.resolve()
    release = release_of(sources)
    number = json.loads((sources / "xformers" / "cpp_lib.json").read_text())["version"]["cuda"]
    cuda = f"{number // 100}.{number % 100}"
    if options.cases:
        cases = [json.loads(line) for line in options.cases.read_text().splitlines()]
        cases = [case for case in cases if case["facts"]["xformers.version"] == release]
    else:
        cases = random_cases(release, cuda, options.count, options.seed)

    groups: dict[tuple, list[dict]] = {}
    for case in cases:
        groups.setdefault((case["facts"]["gpu.sm"], case["facts"]["torch.cuda"]), []).append(case)
    failed = sum(not answer_group(sources, group, options.output) for group in groups.values())
    print(f"{release}: {len(cases)} cases, {len(groups)} GPUs, {failed} processes failed", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
