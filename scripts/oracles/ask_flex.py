#!/usr/bin/env python3
"""Compile the flex attention kernels of a torch release for a GPU that is not there, and print their shared memory.

The templates come from the release's own files; Triton compiles them for any compute capability without a GPU. The
functions that inductor lends to a template (`def_kernel`, `size`, `store_output` ...) are written here: they fill in
the shapes and the options, as for static shapes, no score modification and a causal mask.

    PYTHONPATH=TRITON ask_flex.py TORCH_FOLDER < cases.jsonl > answers.jsonl

A case: {"sm": "8.6", "dtype": "bfloat16", "head_dim_qk": 128, "head_dim_v": 128, "kernel": "forward" | "backward" |
"decode", "config": {"BLOCK_M": 128, ..., "num_stages": 3, "num_warps": 4}, "divisible": true}
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import math
import os
import sys
import tempfile
from pathlib import Path

BATCH, HEADS, KV_HEADS, TOKENS, SPARSE = 2, 8, 8, 1024, 128
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
NAMES = {"forward": "flex_attention", "backward": "flex_attention_backward", "decode": "flex_decoding"}


def template(torch: Path, name: str) -> str:
    """Return the source of the template of that name."""
    inductor = torch / "_inductor" / "kernel"
    folder = inductor / "flex" if (inductor / "flex").is_dir() else inductor
    texts: dict[str, str] = {}
    calls: list[ast.Call] = []
    for path in sorted(folder.glob("flex_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                texts[node.targets[0].id] = node.value.value
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                calls.append(node.value)

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            return text(node.left) + text(node.right)
        if isinstance(node, ast.Name):
            return texts[node.id]
        if isinstance(node, ast.Call):
            return (folder / "templates" / f"{node.args[0].value}.py.jinja").read_text()
        return node.value

    for call in calls:
        words = {word.arg: word.value for word in call.keywords}
        if "source" in words and getattr(words.get("name"), "value", "") == name:
            return text(words["source"])
    raise SystemExit(f"no template {name} in {folder}")


def up(width: int) -> int:
    """Return the next power of two."""
    return 1 << (width - 1).bit_length()


class Lent:
    """What inductor lends to a template, for one case."""

    def __init__(self, case: dict) -> None:
        qk, v, heads = case["head_dim_qk"], case["head_dim_v"], HEADS
        tokens = case.get("tokens", TOKENS)
        self.queries = case.get("queries", 16 if case["kernel"] == "decode" else tokens)
        blocks_q, blocks_kv = math.ceil(self.queries / SPARSE), math.ceil(tokens / SPARSE)
        kv_heads = case.get("kv_heads", KV_HEADS)
        group = heads // kv_heads
        query = (BATCH, heads, self.queries)
        self.shapes = {
            "Q": (*query, qk), "K": (BATCH, kv_heads, tokens, qk), "V": (BATCH, kv_heads, tokens, v),
            "LSE": query, "MAX": query, "DELTA": query, "DO": (*query, v), "DQ": (*query, qk),
            "DV": (BATCH, kv_heads, tokens, v),
            "KV_NUM_BLKS": (1, 1, blocks_q), "KV_IDX": (1, 1, blocks_q, blocks_kv),
            "Q_NUM_BLKS": (1, 1, blocks_kv), "Q_IDX": (1, 1, blocks_kv, blocks_q),
        }  # fmt: skip
        self.output = {"forward": (*query, v), "backward": (BATCH, kv_heads, tokens, qk)}.get(case["kernel"])
        if case["kernel"] == "decode":
            self.shapes["Q"] = (BATCH, kv_heads, group, self.queries, qk)
            self.shapes["M"] = self.shapes["L"] = (BATCH, 32, heads, self.queries)
            self.output = (BATCH, 32, heads, self.queries, v)
        for name in ("KV_NUM_BLKS", "KV_IDX", "Q_NUM_BLKS", "Q_IDX"):
            self.shapes[f"FULL_{name}"] = self.shapes[name]
            divisible = tokens % 128 == 0 and self.queries % 128 == 0
        self.meta = {
            "QK_HEAD_DIM": qk, "V_HEAD_DIM": v, "QK_HEAD_DIM_ROUNDED": up(qk), "V_HEAD_DIM_ROUNDED": up(v),
            "SAFE_HEAD_DIM": up(qk) == qk and up(v) == v, "IS_DIVISIBLE": divisible, "SM_SCALE": qk**-0.5,
            "GQA_SHARED_HEADS": group, "HAS_FULL_BLOCKS": case.get("full_blocks", True),
            "SPARSE_Q_BLOCK_SIZE": SPARSE, "SPARSE_KV_BLOCK_SIZE": SPARSE,
            "FLOAT32_PRECISION": "'ieee'" if case.get("ieee", True) else "'tf32'", "PRESCALE_QK": False,
            "ROWS_GUARANTEED_SAFE": False, "BLOCKS_ARE_CONTIGUOUS": False, "WRITE_DQ": True,
            "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False, "USE_TMA": False, "INDEX_DTYPE": "tl.int32",
            "ENABLE_PADDING": False, "SPLIT_KV": 32, "SAFE_M_BOUNDARY": False, "SAFE_N_BOUNDARY": True,
            **{key: value for key, value in case["config"].items() if not key.startswith("num_")},
        }  # fmt: skip
        if case["kernel"] == "decode":
            self.meta["BLOCK_M"] = max(up(self.queries * group), 16)
            self.meta["SAFE_M_BOUNDARY"] = self.queries * group % self.meta["BLOCK_M"] == 0
        self.arguments: list[str] = []

    def def_kernel(self, *names: str) -> str:
        """Return the head of the kernel, with its options."""
        self.arguments = [*(f"arg_{name}" for name in names), "out_ptr0"]
        lines = [*self.gen_defines().split("\n"), *(f"{name} = arg_{name}" for name in names)]
        return "\n    ".join([f"@triton.jit\ndef kernel({', '.join(self.arguments)}):", *lines])

    def gen_argdefs(self) -> str:
        """Return the kernel's arguments."""
        return ", ".join(self.arguments)

    def gen_defines(self) -> str:
        """Return the options as constants."""
        return "\n".join(f"{name} : tl.constexpr = {value}" for name, value in self.meta.items())

    def size(self, name: str | None, index: int) -> str:
        """Return one extent of an argument; None is the output."""
        return str((self.shapes[name] if name else self.output)[index])

    def stride(self, name: str | None, index: int | None = None) -> str:
        """Return the strides of a contiguous argument, or one of them."""
        shape = self.shapes[name] if name else self.output
        strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        return ", ".join(map(str, strides)) if index is None else str(strides[index])

    def modification(self, subgraph_number: int, output_name: str | None, **inputs: object) -> str:
        """Return the score or mask function: none, and a causal mask."""
        if output_name is None:
            return ""
        if output_name == "mask_mod_output":
            return f"mask_mod_output = ({inputs['m']}) >= ({inputs['n']})"
        return f"{output_name} = {inputs.get('grad_score_mod') or inputs['score']}"

    def store_output(self, indices: tuple, value: str, mask: str | None = None, *_: object, **__: object) -> str:
        """Return the store of the output."""
        strides = self.stride(None).split(", ")
        place = " + ".join(f"{stride}*({index})" for stride, index in zip(strides, indices, strict=True))
        return f"tl.store(out_ptr0 + tl.broadcast_to({place}, ({value}).shape), {value}, {mask})"


def source(torch: Path, case: dict) -> tuple[str, Lent]:
    """Return the kernel's text."""
    import jinja2

    lent = Lent(case)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["indent_except_first"] = lambda text, times: text.replace("\n", "\n" + "    " * times)
    words = {
        name: getattr(lent, name)
        for name in ("def_kernel", "gen_argdefs", "gen_defines", "size", "stride", "modification", "store_output")
    }
    body = environment.from_string(template(torch, NAMES[case["kernel"]])).render(**words, **lent.meta)
    return f"import triton\nimport triton.language as tl\n\n{body.lstrip()}", lent


def compile_for(torch: Path, case: dict, folder: str) -> int:
    """Return the bytes of shared memory that a block of the kernel needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    text, lent = source(torch, case)
    path = Path(folder) / f"kernel_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    element = TYPES[case["dtype"]]
    types = {}
    for name in lent.arguments:
        bare = name.removeprefix("arg_")
        whole = "NUM_BLKS" in bare or "IDX" in bare
        wide = bare in ("LSE", "MAX", "DELTA", "M", "L") or (case["kernel"] == "decode" and bare == "out_ptr0")
        types[name] = "*i32" if whole else "*fp32" if wide else f"*{element}"
    major, minor = case["sm"].split(".")
    options = {"num_warps": case["config"]["num_warps"], "num_stages": case["config"]["num_stages"]}
    wanted = inspect.signature(ASTSource.__init__).parameters
    if "constexprs" in wanted:
        attrs = {(place,): [["tt.divisibility", 16]] for place in range(len(types))}
        made = ASTSource(module.kernel, types, attrs=attrs)
    else:
        positions = tuple(range(len(types)))
        try:
            from triton.backends.compiler import AttrsDescriptor
        except ImportError:  # Triton 3.1 counts the arguments
            from triton.compiler.compiler import AttrsDescriptor

            made = ASTSource(module.kernel, dict(enumerate(types.values())), attrs=AttrsDescriptor(set(positions)))
        else:
            words = {"arg_properties": {"tt.divisibility": positions, "tt.equal_to": ()}, "cls": "AttrsDescriptor"}
            made = ASTSource(module.kernel, types, attrs=AttrsDescriptor.from_dict(words))
    target = GPUTarget("cuda", int(major) * 10 + int(minor), 32)
    return triton.compile(made, target=target, options=options).metadata.shared


def stop_before_assembly() -> None:
    """Leave PTX and machine code out: the shared memory is laid out before."""
    from triton.backends.nvidia.compiler import CUDABackend

    def make_ptx(self: object, src: object, metadata: dict, *_: object) -> str:
        metadata["name"] = "kernel"
        return ".version 8.0"

    CUDABackend.make_ptx = make_ptx
    CUDABackend.make_cubin = lambda self, src, metadata, *_: b""


def main() -> None:
    """Answer the cases of stdin."""
    torch = Path(sys.argv[1])
    torch = torch / "torch" if (torch / "torch").is_dir() else torch
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache"
        stop_before_assembly()
        for line in sys.stdin:
            case = json.loads(line)
            try:
                answer = {"shared": compile_for(torch, case, folder)}
            except Exception as problem:
                answer = {"error": f"{type(problem).__name__}: {problem}"[:600]}
            print(json.dumps({**case, **answer}), flush=True)


if __name__ == "__main__":
    main()
