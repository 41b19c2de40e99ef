"""The shape of one attention call, and what it costs at least: operations, bytes, parallel blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from doctor.model import ABSENT

if TYPE_CHECKING:
    from doctor.facts.measurement import Measurement

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TILE = 128  # rows and columns of a block of scores
_SHORT = 64  # queries: up to here the keys and values in memory decide, as in decoding
_SIZES = ("batch_size", "num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "seq_len_q", "seq_len_kv")


class CallShape(NamedTuple):
    """One attention call; `window` counts the keys that a query sees, `None` all of them."""

    dtype: str
    batch_size: int
    num_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    seq_len_q: int
    seq_len_kv: int
    causal: bool = False
    window: int | None = None
    padding: bool = False
    bias: bool = False
    arbitrary: bool = False
    softcap: bool = False
    training: bool = True
    valid: float = 1.0  # share of the keys that padding leaves

    @property
    def written_mask(self) -> bool:
        """Whether a call that has no option for its mask gets it as a tensor."""
        return self.window is not None or self.padding or self.bias or self.arbitrary

    @property
    def precision(self) -> str:
        """`half` or `float32`: kernels differ no further."""
        return "float32" if self.dtype == "float32" else "half"

    @property
    def width(self) -> str:
        """The widths of the heads as the records name them."""
        return f"{self.head_dim_qk}x{self.head_dim_v}"

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _BYTES[self.dtype]

    @property
    def pairs(self) -> int:
        """Scores of all heads."""
        return self.batch_size * self.num_heads * self.seq_len_q * self.seq_len_kv

    @property
    def grouped(self) -> bool:
        """Whether several query heads share keys and values."""
        return self.num_heads != self.num_kv_heads


class Unshaped(NamedTuple):
    """The workload keys without which a job has no shape."""

    missing: tuple[str, ...]


def shape_of(value: Callable[[str], Any]) -> CallShape | Unshaped | None:
    """Return the call of a job; `value` answers workload keys. None where no record describes such a call."""
    found = {key: value(f"workload.{key}") for key in (*_SIZES, "dtype", "mask")}
    missing = tuple(f"workload.{key}" for key, item in found.items() if item is None)
    if missing:
        return Unshaped(missing)
    sizes = [found[key] for key in _SIZES]
    if found["dtype"] not in _BYTES or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    mask, bias = str(found["mask"]), value("workload.bias")
    cap = value("workload.softcap")
    batch, heads, kv_heads, qk, v, queries, keys = sizes
    return CallShape(
        str(found["dtype"]), batch, heads, kv_heads, qk, v, queries, keys,
        causal="causal" in mask,
        window=_keys_seen(value("workload.window"), found["seq_len_kv"]),
        padding="padding" in mask,
        bias=bias not in (None, ABSENT, "no_bias"),
        arbitrary=mask == "arbitrary",
        softcap=isinstance(cap, (int, float)) and cap > 0,
        training=value("workload.training") is not False,
    )  # fmt: skip


def measured_shape(item: Measurement) -> CallShape:
    """Return the call that a record describes."""
    return CallShape(
        item.dtype, item.batch_size, item.num_heads, item.num_kv_heads, item.head_dim_qk, item.head_dim_v,
        item.seq_len_q, item.seq_len_kv,
        causal="causal" in item.mask,
        window=_keys_seen(item.window, item.seq_len_kv),
        padding="padding" in item.mask,
        bias=item.bias != "no_bias",
        arbitrary=item.mask == "arbitrary",
        softcap=item.softcap > 0,
        training=item.training,
        valid=float(item.words.get("valid", 1.0)),
    )  # fmt: skip


def _keys_seen(window: Any, keys: int) -> int | None:
    """Return how many keys a query sees under (left, right), None for all."""
    if not isinstance(window, tuple) or window[0] < 0:
        return None
    seen = window[0] + 1 + max(0, window[1])
    return seen if seen < keys else None


class Needs(NamedTuple):
    """What one backend does for a call, in the units of the curves."""

    tflop: float  # 10^12 operations; whole blocks, without those that the backend skips
    waves: float  # blocks of queries over the multiprocessors
    moved: float  # GB of inputs, output and gradients
    repeated: float  # GB of keys and values that are copied for every query head
    scores: float  # GB of scores that are written out
    bias: float  # GB of a bias
    short: bool  # so few queries that only `moved` counts


def needs_of(shape: CallShape, traits: Mapping[str, Any], multiprocessors: int) -> Needs:
    """Return what a backend with these traits does: `skips` names masks whose blocks it leaves out."""
    passes = 3 if shape.training else 1
    width = shape.head_dim_qk + shape.head_dim_v
    rows = shape.batch_size * shape.num_heads
    unfused = traits.get("unfused", False)
    tile = 1 if unfused else _TILE
    computed = rows * _whole(shape.seq_len_q, tile) * _whole(shape.seq_len_kv, tile)
    operations = 2 * (width + (3 * shape.head_dim_qk + 2 * shape.head_dim_v if shape.training else 0))
    short = shape.seq_len_q <= _SHORT
    keys = shape.batch_size * shape.seq_len_kv * width * shape.size * passes / 1e9
    copies = traits.get("repeats", False) and shape.grouped
    return Needs(
        tflop=0.0 if short else operations * computed * _share(shape, traits.get("skips", ())) / 1e12,
        waves=rows * -(-shape.seq_len_q // _TILE) / multiprocessors,
        moved=rows * shape.seq_len_q * width * shape.size * passes / 1e9 + keys * shape.num_kv_heads,
        repeated=keys * shape.num_heads if copies else 0.0,
        scores=shape.pairs * shape.size / 1e9 if unfused else 0.0,
        bias=shape.pairs * shape.size / 1e9 if shape.bias else 0.0,
        short=short,
    )


def _share(shape: CallShape, skips: Any) -> float:
    """Return the share of the blocks that is computed; those on the diagonal are whole."""
    half = min(1.0, 0.5 + _TILE / 2 / shape.seq_len_q)
    share = 1.0
    if shape.causal and "causal" in skips and ("masks" in skips or not shape.written_mask):
        share = half
    if shape.window is not None and "window" in skips:
        seen = shape.window / shape.seq_len_kv
        corner = seen * seen / 2 if shape.causal else 0.0  # what the first queries do not see
        share = min(share, seen - corner + _TILE / shape.seq_len_kv)
    if shape.padding and "padding" in skips:
        share *= shape.valid
    return share


def _whole(length: int, tile: int) -> int:
    return -(-length // tile) * tile


def mask_kind(shape: CallShape, traits: Mapping[str, Any]) -> str:
    """Return what the speed of a kernel depends on besides its shape: none, causal, written, softcap."""
    if shape.softcap:
        return "softcap"
    if traits.get("unfused"):
        return "none"
    if shape.written_mask and "masks" not in traits.get("skips", ()):
        return "written"
    return "causal" if shape.causal or shape.written_mask else "none"
