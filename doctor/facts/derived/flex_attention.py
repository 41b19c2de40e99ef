"""Derived facts of torch's flex_attention: the shared memory of its Triton kernels, compared with that of the GPU.

Which block sizes a release takes is in `rules/flex_attention/library.yaml`. Here is what a kernel of those sizes keeps
in shared memory: `scripts/oracles/ask_flex.py` compiles the kernels of a release, and the formulas follow its answers.
What a formula leaves out (a few KiB in old releases of Triton) changed no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from doctor.facts.derived.registry import derived
from doctor.facts.kinds import BOOLEAN, INTEGER, TEXT
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT

for _key, _kind, _meaning in (
    ("flex.forward_config", TEXT, "block sizes, stages and warps of the default forward kernel"),
    ("flex.backward_config", TEXT, "block sizes, stages and warps of the default backward kernel"),
    ("flex.decoding_keys", INTEGER, "keys that a block of the kernel for short queries loads by default"),
    ("flex.config_of_newer_release", TEXT, "blocks of a torch release that is not on record; known where stated"),
    ("flex.consumer_blackwell", BOOLEAN, "the release takes this GPU for one with little shared memory (SM 12.x)"),
    ("flex.backward_staging", TEXT, "how many tiles a stage of the backward loop holds: wide or narrow"),
    ("flex.matrix_unit", TEXT, "how Triton multiplies 16-bit tiles on this GPU: mma, wgmma, tcgen05"),
    ("flex.option_style", TEXT, "kernel options of the release: blocks, or prefixed where stages can be set too"),
    ("gpu.shared_memory_bytes", INTEGER, "shared memory that a kernel may use in one block, in bytes"),
):
    declare(Term(_key, _kind, _meaning, derived=True))

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_FORWARD = ("BLOCK_M", "BLOCK_N", "num_stages", "num_warps")
_BACKWARD = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "num_stages", "num_warps")


def _option(options: tuple[str, ...] | str | None, name: str) -> str:
    """Return the value of `NAME=VALUE` among the options, `absent` without one."""
    given = dict(item.partition("=")[::2] for item in options) if isinstance(options, tuple) else {}
    return given.get(name, ABSENT)


@derived("flex.backend_option", TEXT, "BACKEND among the kernel options; absent = the release chooses",
         needs=("workload.kernel_options",))  # fmt: skip
def _backend_option(options: tuple[str, ...] | str) -> str:
    return _option(options, "BACKEND").strip("'\"")


@derived("flex.forces_long_kernel", BOOLEAN, "FORCE_USE_FLEX_ATTENTION is set among the kernel options",
         needs=("workload.kernel_options",))  # fmt: skip
def _forced(options: tuple[str, ...] | str) -> bool:
    return _option(options, "FORCE_USE_FLEX_ATTENTION").lower() == "true"


@derived("flex.without_triton", BOOLEAN, "Triton is not installed; torch requires it, but not on Windows",
         uses=("triton.version", "platform.system"))  # fmt: skip
def _without_triton(version: str | None, system: str | None) -> bool | None:
    if version is None:
        return None if system == "Windows" else False
    return version == ABSENT


@derived("workload.head_dims_are_powers_of_two", BOOLEAN, "both head dims are powers of two",
         needs=("workload.head_dim_qk", "workload.head_dim_v"))  # fmt: skip
def _powers(qk: int, v: int) -> bool:
    return all(width > 0 and width & (width - 1) == 0 for width in (qk, v))


@derived("workload.value_wider_than_query", BOOLEAN, "head_dim_v is greater than head_dim_qk",
         needs=("workload.head_dim_qk", "workload.head_dim_v"))  # fmt: skip
def _value_wider(qk: int, v: int) -> bool:
    return v > qk


@derived("workload.smallest_head_dim", INTEGER, "the smaller of head_dim_qk and head_dim_v",
         needs=("workload.head_dim_qk", "workload.head_dim_v"))  # fmt: skip
def _smallest(qk: int, v: int) -> int:
    return min(qk, v)


def sizes(config: str, names: tuple[str, ...], prefix: str, style: str, options: tuple[str, ...]) -> Mapping[str, int]:
    """Return the sizes of a kernel: the defaults, and over them the options that the release reads."""
    chosen = dict(zip(names, map(int, config.split()), strict=True))
    for item in options:
        name, _, value = item.partition("=")
        if style == "prefixed":
            name = name.removeprefix(prefix)
        elif name.startswith("num_"):
            continue  # read from the configuration only
        if name in chosen and value.isdecimal():
            chosen[name] = int(value)
    return chosen


def forward_bytes(size: Mapping[str, int], qk: int, v: int, element: int, unit: str) -> int | None:
    """Return the shared memory of the forward kernel; qk and v are the head dims, rounded up to powers of two."""
    rows, keys, stages, warps = (size[name] for name in _FORWARD)
    query, pair, scores = rows * qk, keys * (qk + v), rows * keys
    if element == 4:  # multiplied without tensor cores: a padded copy of the scores passes through shared memory
        tiles = query + max((stages - 1) * pair, keys * max(qk, v)) + scores + (rows if stages > 1 else 0)
        return tiles * element
    if unit == "wgmma" and rows >= 64 and warps % 4 == 0:
        return (query + stages * pair) * element
    if unit in ("mma", "wgmma"):
        converted = scores if max(qk, v) >= 2 * rows else 0
        return (max(query + (stages - 1) * pair, pair) + converted) * element
    if unit == "tcgen05":
        return (query + stages * pair) * element + 1024
    return None


def backward_bytes(size: Mapping[str, int], qk: int, v: int, element: int, unit: str, staging: str) -> int | None:
    """Return the shared memory of the backward kernel; qk and v are the head dims, rounded up to powers of two."""
    rows, keys, stages, warps = (size[name] for name in ("BLOCK_M1", "BLOCK_N1", "num_stages", "num_warps"))
    if (size["BLOCK_M2"], size["BLOCK_N2"]) != (keys, rows):
        return None  # nothing is known of other shapes
    width = qk + v
    if element == 4:
        return ((rows + keys) * width + rows * keys) * element if stages == 1 else None
    if unit == "wgmma" and keys >= 64 and warps % 4 == 0:
        return (stages * rows + keys) * width * element + 1024 * (stages // 2)
    if unit == "tcgen05" and (rows >= 64 or stages > 1):
        extra = 128 * max(qk, v) * element + 2048 if stages > 1 else 1024
        return (stages * rows + keys) * width * element + extra
    if unit not in ("mma", "wgmma", "tcgen05"):
        return None
    statistics = 8 * rows * (stages - 1) + max(512 * warps, 16 * max(qk, v))
    if stages == 1:
        return ((rows + 2 * keys) * width // 2 + 4 * warps * width) * element
    if staging == "wide":
        converted = rows * keys * element if keys <= 64 else 0
        return ((stages - 1) * rows + keys) * width * element + converted
    return (stages * rows + 2 * keys) * width // 2 * element + statistics


_NEEDS = ("workload.dtype", "workload.head_dim_qk", "workload.head_dim_v", "flex.matrix_unit", "flex.option_style")


@derived("flex.forward_bytes", INTEGER, "shared memory of flex_attention's forward kernel, in bytes",
         needs=("flex.forward_config", *_NEEDS), uses=("workload.kernel_options",))  # fmt: skip
def _forward(config: str, dtype: str, qk: int, v: int, unit: str, style: str, options: object) -> int | None:
    if config == ABSENT or dtype not in _BYTES:
        return None
    given = options if isinstance(options, tuple) else ()
    return forward_bytes(sizes(config, _FORWARD, "fwd_", style, given), _up(qk), _up(v), _BYTES[dtype], unit)


@derived("flex.backward_bytes", INTEGER, "shared memory of flex_attention's backward kernel, in bytes",
         needs=("flex.backward_config", *_NEEDS, "flex.backward_staging"),
         uses=("workload.kernel_options",))  # fmt: skip
def _backward(
    config: str, dtype: str, qk: int, v: int, unit: str, style: str, staging: str, options: object
) -> int | None:
    if config == ABSENT or dtype not in _BYTES:
        return None
    given = options if isinstance(options, tuple) else ()
    size = sizes(config, _BACKWARD, "bwd_", style, given)
    return backward_bytes(size, _up(qk), _up(v), _BYTES[dtype], unit, staging)


@derived("flex.forward_fits", BOOLEAN, "the forward kernel's shared memory fits into the GPU's",
         needs=("flex.forward_bytes", "gpu.shared_memory_bytes"))  # fmt: skip
def _forward_fits(needed: int, there: int) -> bool:
    return needed <= there


@derived("flex.backward_fits", BOOLEAN, "the backward kernel's shared memory fits into the GPU's",
         needs=("flex.backward_bytes", "gpu.shared_memory_bytes"))  # fmt: skip
def _backward_fits(needed: int, there: int) -> bool:
    return needed <= there


@derived("flex.group_is_power_of_two", BOOLEAN, "the query heads per key/value head are a power of two",
         needs=("workload.num_heads", "workload.num_kv_heads"))  # fmt: skip
def _group_power(heads: int, kv_heads: int) -> bool | None:
    if kv_heads <= 0 or heads % kv_heads:
        return None
    return _up(heads // kv_heads) == heads // kv_heads


@derived("flex.value_dim_is_power_of_two", BOOLEAN, "head_dim_v is a power of two",
         needs=("workload.head_dim_v",))  # fmt: skip
def _value_power(width: int) -> bool:
    return _up(width) == width


@derived("workload.batch_times_heads", INTEGER, "sequences times query heads",
         needs=("workload.batch_size", "workload.num_heads"))  # fmt: skip
def _batch_times_heads(batch: int, heads: int) -> int:
    return batch * heads


@derived("flex.largest_tensor", INTEGER, "elements of the largest of q, k, v and the output",
         needs=("workload.batch_size", "workload.num_heads", "workload.num_kv_heads", "workload.seq_len_q",
                "workload.seq_len_kv", "workload.head_dim_qk", "workload.head_dim_v"))  # fmt: skip
def _largest_tensor(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, value_width: int
) -> int:
    return batch * max(width, value_width) * max(heads * queries, kv_heads * keys)


@derived("flex.decoding_rows", INTEGER, "rows of a block of the kernel for short queries",
         needs=("workload.seq_len_q", "workload.num_heads", "workload.num_kv_heads"),
         uses=("workload.kernel_options",))  # fmt: skip
def _decoding_rows(queries: int, heads: int, kv_heads: int, options: object) -> int | None:
    given = _option(options if isinstance(options, tuple) else (), "BLOCK_M")
    if given.isdecimal():
        return int(given)
    if kv_heads <= 0 or queries <= 0:
        return None
    return max(16, _up(queries * (heads // kv_heads)))


@derived("flex.decoding_bytes", INTEGER, "shared memory of the kernel for short queries in float32, in bytes",
         needs=("workload.dtype", "workload.head_dim_qk", "workload.head_dim_v", "flex.decoding_rows",
                "flex.decoding_keys"),
         uses=("workload.kernel_options",))  # fmt: skip
def _decoding(dtype: str, qk: int, v: int, rows: int, keys: int, options: object) -> int | None:
    # Every release takes one stage for float32 heads above 128; on sm_90 narrower ones take three stages.
    if dtype != "float32" or qk <= 128:
        return None
    given = _option(options if isinstance(options, tuple) else (), "BLOCK_N")
    size = {"BLOCK_M": rows, "BLOCK_N": int(given) if given.isdecimal() else keys, "num_stages": 1, "num_warps": 2}
    return forward_bytes(size, _up(qk), _up(v), 4, "mma")


@derived("flex.decoding_fits", BOOLEAN, "the shared memory of the kernel for short queries fits into the GPU's",
         needs=("flex.decoding_bytes", "gpu.shared_memory_bytes"))  # fmt: skip
def _decoding_fits(needed: int, there: int) -> bool:
    return needed <= there


def _up(width: int) -> int:
    return 1 << (width - 1).bit_length()
