"""Assumptions for what a workload leaves out: each is flagged, and none hides an unknown value."""

from __future__ import annotations

from typing import Any

from doctor.errors import DoctorError
from doctor.facts.derived.shapes import framework_of
from doctor.facts.libraries.frameworks import KEY, caller_named
from doctor.facts.vocabulary import parse, parse_version
from doctor.facts.workload import check_value
from doctor.model import ABSENT, Fact, Facts
from doctor.sources.workload.assumed import assumed_fact
from doctor.util.printable import one_line

_FLEX = "flex_attention"  # a framework, and a value of attn_implementation
_NOT_CAUSAL = ("bert", "t5", "vit", "clip", "siglip", "dinov2", "flux", "wan", "dit")  # models of Megatron, by type
_PASSES_GQA = "4.54"  # transformers: use_gqa_in_sdpa in integrations/sdpa_attention.py, absent in 4.53.3
_TAKES_GQA = "2.5"  # torch: the argument enable_gqa of scaled_dot_product_attention
_OF_FP8 = ("workload.fp8_recipe", "workload.fp8_dpa", "workload.fp8_mha")  # settings that need FP8 autocast


def lay_over(facts: Facts, more: Facts) -> Facts:
    """Return the facts with `more` on top; an assumption in `more` replaces nothing."""
    return facts.with_(*(fact for key, fact in more.items() if key not in facts or not fact.assumed))


def complete_workload(facts: Facts) -> Facts:
    """Return the facts with the usual layout, batch size and mask added, each flagged as assumed.

    Raise DoctorError for a workload value that no attention can have, from any source.
    """
    if not facts.has_workload:
        return facts
    changed = facts
    for key, fact in facts.items():
        if not key.startswith("workload.") or fact.value is None:
            continue
        try:
            if key == KEY and (value := parse(key, fact.value)) != fact.value:  # written before rules were loaded
                changed = changed.with_(fact._replace(value=value))
            check_value(key, fact.value)
        except DoctorError as error:
            raise DoctorError(one_line(f"{fact.source}: {error.message}"), error.hint) from None
    changed = changed.with_(*_called_by_diffusers(changed))
    named = framework_of(changed)
    sequence_first = caller_named(named).sequence_first
    added: list[Fact] = []
    fp8 = next((key for key in _OF_FP8 if facts.value(key) not in (None, False, ABSENT)), None)

    def assume(key: str, value: Any, why: str) -> None:
        if key not in facts:
            added.append(assumed_fact(key, value, why))

    assume("workload.batch_size", 1, "one sequence in a batch")
    if (why := _decodes(facts)) is not None:
        assume("workload.training", False, why)
    if (ranks := _ranks(facts)) > 1:
        assume("gpu.count", ranks, "the job shares its work among so many ranks or more")
    if fp8 is not None:
        assume("workload.fp8", True, f"{fp8.removeprefix('workload.')} is set, which only FP8 autocast reads")
    length = facts.get("workload.seq_len_q")
    if length is not None and length.known and length.assumed:
        assume("workload.seq_len_assumed", True, "no length was given")
    if facts.value("workload.use_varlen_attn") is True:
        assume("workload.qkv_layout", "thd_thd_thd", "variable-length attention packs sequences")
    elif sequence_first and facts.value("workload.packing") is True:
        assume("workload.qkv_layout", "thd_thd_thd", f"{named} passes packed samples as thd")
    elif sequence_first:
        assume("workload.qkv_layout", "sbhd_sbhd_sbhd", f"the usual layout of {named}")
    elif named is not None:
        assume("workload.qkv_layout", "bshd_bshd_bshd", f"the usual layout of {named}")
    if sequence_first:
        if facts.value("workload.model_type") not in _NOT_CAUSAL:
            assume("workload.mask", "causal", f"the default of {named}")
        if (sm := _capability(facts)) is not None:
            assume("workload.dtype", "bfloat16" if sm >= 8 else "float16", "the usual dtype on this GPU")
        assume("workload.seq_len_q", 4096, "a usual length")
        if (facts.value("workload.cp_size") or 1) > 1:
            assume("workload.cp_comm_type", "p2p", "the default of context parallelism")
    if _FLEX in (named, facts.value("workload.attn_implementation")):
        assume("workload.torch_compile", True, "flex_attention is slow and takes quadratic memory without it")
    changed = changed.with_(*added)
    return changed.with_(*_padded_mask(changed), *_enable_gqa(changed, named))


def _called_by_diffusers(facts: Facts) -> list[Fact]:
    """Return the library that Diffusers' attention backend calls as the framework; kernels of the Hub are none."""
    stated = facts.get("workload.framework")
    callees = caller_named(None if stated is None else stated.value).calls
    if stated is None or not callees:
        return []
    backend = facts.get("workload.diffusers_backend")
    found = []
    if backend is None:
        torch = facts.value("torch.version")
        if torch not in (None, ABSENT) and parse_version(torch) < parse_version("2.0"):
            return []  # without scaled_dot_product_attention it multiplies the matrices itself
        backend = assumed_fact("workload.diffusers_backend", "native", "the default of diffusers")
        found.append(backend)
    name = str(backend.value)
    if (called := callees.get(name)) is None:
        return found
    found.append(stated._replace(value=called, source=f"{stated.source}: diffusers with the backend {name}"))
    if name.startswith("_native_") and "workload.sdpa_backend" not in facts:
        pinned = name.removeprefix("_native_")
        found.append(Fact("workload.sdpa_backend", pinned, f"the backend {name} of diffusers"))
    return found


def _decodes(facts: Facts) -> str | None:
    """Return what shows that the job generates, where it does not say whether it trains."""
    if "workload.training_method" in facts or facts.value("workload.gradient_checkpointing") is True:
        return None
    if facts.value("workload.inference_kv_cache") is True:
        return "it decodes from a KV cache"
    if facts.value("workload.cache_implementation") not in (None, ABSENT):
        return "cache_implementation is set, which only generation reads"
    return None


def _ranks(facts: Facts) -> int:
    """Return how many GPUs the job needs at least; ZeRO and serving run on one, too."""
    found = 2 if facts.value("workload.sharding") in ("ddp", "fsdp", "fsdp2") else 1
    for key in ("workload.cp_size", "workload.tensor_parallel_size", "workload.pipeline_parallel_size"):
        size = facts.value(key)
        found = max(found, size if isinstance(size, int) else 1)
    return found


def _capability(facts: Facts) -> float | None:
    """Return the compute capability, None where it is not known."""
    found = facts.value("gpu.sm")
    return None if found in (None, ABSENT) else float(found)


def _padded_mask(facts: Facts) -> list[Fact]:
    """Return the padded form of an assumed mask, which packed sequences (thd) need."""
    mask, layout = facts.get("workload.mask"), facts.value("workload.qkv_layout")
    if mask is None or mask.value != "causal" or not mask.assumed:
        return []
    if not isinstance(layout, str) or not layout.startswith(("t3hd", "th3d", "thd")):
        return []
    return [mask._replace(value="padding_causal", source=f"{mask.source}, with packed sequences ({layout})")]


def _enable_gqa(facts: Facts, framework: str | None) -> list[Fact]:
    """Return whether transformers passes grouped key/value heads to SDPA unchanged, instead of repeating them."""
    key = "workload.enable_gqa"
    caller = caller_named(framework)
    if key in facts or not caller.takes_attn_implementation or caller.own_implementation:
        return []
    versions = [facts.value("transformers.version"), facts.value("torch.version")]
    old = [
        None if found in (None, ABSENT) else parse_version(found) < parse_version(first)
        for found, first in zip(versions, (_PASSES_GQA, _TAKES_GQA), strict=True)
    ]
    if True in old:
        return [
            assumed_fact(key, False, f"transformers before {_PASSES_GQA} or torch before {_TAKES_GQA} repeats heads")
        ]
    mask = facts.value("workload.mask")
    windows = [facts[name] for name in ("workload.window", "workload.sliding_window") if name in facts]
    if mask is None or None in old or any(window.value is None for window in windows):
        return []
    if mask not in ("causal", "no_mask") or any(window.value != ABSENT for window in windows):
        return [assumed_fact(key, False, "transformers repeats heads where it passes a mask tensor")]
    return [assumed_fact(key, True, f"transformers >= {_PASSES_GQA} passes no mask tensor and leaves heads grouped")]
