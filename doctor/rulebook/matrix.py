"""Backends × features for one environment: one prediction per feature, each a change to one workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from doctor.errors import NoDiagnosis
from doctor.facts.libraries.frameworks import Framework, caller_named, predicted_frameworks
from doctor.facts.vocabulary import fact
from doctor.model import ABSENT, Facts, Matrix, MatrixRow, Prediction, Reason, Report

from .evaluate import know
from .resolver import FactResolver
from .rule import Library
from .rulebook import Rulebook

#: What is assumed where the job does not say: a plain causal language model in training.
BASE: Mapping[str, Any] = {
    "workload.dtype": "bfloat16",
    "workload.head_dim_qk": 128,
    "workload.head_dim_v": 128,
    "workload.num_heads": 32,
    "workload.num_kv_heads": 8,
    "workload.batch_size": 2,
    "workload.seq_len_q": 4096,
    "workload.seq_len_kv": 4096,
    "workload.mask": "causal",
    "workload.qkv_layout": "bshd_bshd_bshd",
    "workload.training": True,
}
#: Kind of the row for calls that take key/value heads as they are, where most code expands them first.
_EXPANDED = "enable_gqa"
_GPUS_SHOWN = 4  # heat maps on one page; each is some forty rows


@dataclass(frozen=True)
class Feature:
    """One row: what it changes in the workload, and for whose calls it means anything."""

    group: str
    label: str
    changes: Mapping[str, Any]
    kind: str = ""  # for frameworks that have this kind in `matrix`; empty: for all


def matrices(rulebook: Rulebook, facts: Facts) -> tuple[Matrix, ...]:
    """One matrix per library that serves the job's framework; without one, per framework that is installed."""
    named = facts.value("workload.framework")
    known, _ = know(rulebook, facts)
    installed = (item.word for item in predicted_frameworks() if _present(known, f"{item.predicted_with}.version"))
    wanted = [named] if named else list(installed)
    found: dict[str, Matrix] = {}
    for word in wanted:
        base = _base(facts, caller_named(word))
        known, _ = know(rulebook, base)
        for library in rulebook.libraries.values():
            if library.prefix and library.name not in found and library.applies and library.applies.holds(known):
                found[library.name] = _matrix(rulebook, library, base, caller_named(word))
    if not found:
        scope = f"of `{named}`" if named else "of the frameworks it knows"
        raise NoDiagnosis(
            f"no backends {scope} can be judged here",
            "name the environment with `--python PATH` or `--facts FILE`, and a `workload.framework`",
        )
    return tuple(found.values())


def with_matrices(rulebook: Rulebook, report: Report) -> Report:
    """The report with its heat maps: of the one case, or of the first case on each of the first GPUs."""
    on = {case.gpu: case.facts for case in reversed(report.cases)}  # the first of a GPU stays
    grounds = [(gpu, on[gpu]) for gpu in dict.fromkeys(case.gpu for case in report.cases)] or [(None, report.facts)]
    found: list[Matrix] = []
    for gpu, facts in grounds[:_GPUS_SHOWN]:
        try:
            made = matrices(rulebook, facts)
        except NoDiagnosis:
            continue
        found += [item._replace(title=f"{item.title} on {gpu}") if gpu and len(grounds) > 1 else item for item in made]
    return report._replace(matrices=tuple(found))


def _present(known: FactResolver, key: str) -> bool:
    return known.value(key) not in (None, ABSENT)


def _base(facts: Facts, caller: Framework) -> Facts:
    """The workload every row starts from: what the job says, the rest as `BASE` has it."""
    given = {"workload.framework": caller.word, **BASE}
    if _EXPANDED in caller.matrix:
        given["workload.enable_gqa"] = False  # key/value heads are expanded before the call, as most code does
    return Facts(fact(key, value, "default of the matrix") for key, value in given.items()).with_(*facts.values())


def _matrix(rulebook: Rulebook, library: Library, base: Facts, caller: Framework) -> Matrix:
    columns = tuple((item.id, item.title) for item in library.backends if item.part_of is None)
    rows = []
    for feature in features(base):
        if feature.kind and feature.kind not in caller.matrix:
            continue
        changed = base.with_(*(fact(key, value, "the matrix") for key, value in feature.changes.items()))
        rows.append(_row(feature, _prediction(rulebook, library, changed)))
    start = {key: base.value(key) for key in base if key.startswith("workload.")}
    title = library.title
    return Matrix(library.name, title, columns, start, tuple(rows))


def _prediction(rulebook: Rulebook, library: Library, facts: Facts) -> Prediction:
    known, predictions = know(rulebook, facts)
    known.look_up(f"{library.prefix}.selected")
    return predictions[library.prefix or library.name]


def _row(feature: Feature, prediction: Prediction) -> MatrixRow:
    return MatrixRow(
        feature.group, feature.label, feature.changes, prediction.candidates, prediction.selected,
        prediction.could_tell, _certain(prediction.fails_at_run), _certain(prediction.import_error),
    )  # fmt: skip


def _certain(reason: Reason | None) -> Reason | None:
    return reason if reason is not None and reason.holds else None


def features(base: Facts) -> Iterator[Feature]:
    """Every row, for a workload that starts from `base`."""
    yield Feature("job", "as described", {})
    for group, rows in (
        ("head dim", _head_dims()),
        ("dtype", _dtypes()),
        ("mask", _masks()),
        ("layout", _layouts(base)),
        ("heads", _heads(base)),
        ("extras", _extras(base)),
        ("parallel", _context_parallel()),
        ("KV cache", _kv_cache()),
        ("serving", _serving()),
    ):
        yield from (Feature(group, *row) for row in rows)


Rows = Iterator[tuple[Any, ...]]


def _head_dims() -> Rows:
    for width in (64, 96, 128, 192, 256):
        yield str(width), _set(head_dim_qk=width, head_dim_v=width)
    yield "192/128", _set(head_dim_qk=192, head_dim_v=128)


def _dtypes() -> Rows:
    for dtype in ("bfloat16", "float16", "float32"):
        yield dtype, _set(dtype=dtype)
    yield "FP8 attention", _set(fp8=True, fp8_dpa=True, fp8_recipe="delayed"), "fp8"


def _masks() -> Rows:
    kinds = {
        "none": "no_mask", "causal": "causal", "padding": "padding", "padding, causal": "padding_causal",
        "lower right": "causal_bottom_right", "padding, l. right": "padding_causal_bottom_right",
        "arbitrary": "arbitrary",
    }  # fmt: skip
    for label, mask in kinds.items():
        yield label, _set(mask=mask)


def _layouts(base: Facts) -> Rows:
    heads, padded = base.value("workload.num_heads"), _padded(base.value("workload.mask"))
    yield "bshd", _set(qkv_layout="bshd_bshd_bshd"), "bshd"
    yield "sbhd", _set(qkv_layout="sbhd_sbhd_sbhd"), "sbhd"
    yield "bs3hd", _set(qkv_layout="bs3hd", num_kv_heads=heads), "bs3hd"
    yield "thd", _set(qkv_layout="thd_thd_thd", mask=padded), "thd"


def _padded(mask: Any) -> str:
    """The mask a packed batch goes with."""
    text = str(mask)
    return text if text.startswith("padding") else "padding" if text == "no_mask" else "padding_causal"


def _heads(base: Facts) -> Rows:
    heads = base.value("workload.num_heads")
    yield "MHA", _set(num_kv_heads=heads)
    if isinstance(heads, int) and heads % 4 == 0:
        groups = _set(num_kv_heads=heads // 4)
        yield f"GQA {heads}/{heads // 4}", groups
        yield "GQA, enable_gqa", {**groups, **_set(enable_gqa=True)}, _EXPANDED
    yield "MQA", _set(num_kv_heads=1)


def _extras(base: Facts) -> Rows:
    yield "window 1024", _set(window=(1023, 0))
    yield "dropout 0.1", _set(dropout=0.1)
    yield "deterministic", _set(deterministic=True)
    yield "ALiBi", _set(bias="alibi")
    yield "bias", _set(bias="post_scale_bias", bias_shape="1hss"), "bias"
    yield "soft cap", _set(softcap=50.0)
    length = base.value("workload.seq_len_kv")
    if isinstance(length, int):
        yield "twice the keys", _set(seq_len_kv=2 * length)
    yield "inference", _set(training=False)


def _context_parallel() -> Rows:
    for comm in ("p2p", "all_gather", "a2a"):
        yield f"cp {comm}", _set(cp_size=2, cp_comm_type=comm), "context_parallel"
    yield "cp a2a+p2p", _set(cp_size=4, cp_comm_type="a2a+p2p", cp_size_a2a=2), "context_parallel"


def _kv_cache() -> Rows:
    for dtype in ("fp8_e4m3", "fp8_e5m2"):
        yield dtype, _set(kv_cache_dtype=dtype), "kv_cache"
    for tokens in (16, 64, 128):
        yield f"blocks of {tokens}", _set(block_size=tokens), "kv_cache"


def _serving() -> Rows:
    yield "sinks", _set(sinks=True, softmax_type="learnable"), "kv_cache"
    yield "encoder", _set(attention_type="encoder_only"), "kv_cache"
    yield "image prefix", _set(multimodal_prefix_bidirectional=True), "kv_cache"
    latent = _set(mla=True, head_dim_qk=192, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64)
    yield "latent (MLA)", latent, "kv_cache"
    yield "sparse MLA", {**latent, **_set(mla_sparse=True, index_topk=2048)}, "kv_cache"


def _set(**changes: Any) -> dict[str, Any]:
    return {f"workload.{name}": value for name, value in changes.items()}
