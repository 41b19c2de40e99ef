"""Options that write out the attention of a model: Megatron-LM's pretraining scripts and what builds on them.

Source: megatron/training/arguments.py, read at core 0.8 to 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from doctor.facts.libraries.record import Reading, Row

from .options import Options, Statement, stated

_RECIPES = {"delayed": "delayed", "tensorwise": "current", "mxfp8": "mxfp8", "blockwise": "block"}
_FUSIONS = {"native": "native", "te": "te"}
_DEFAULT_DROPOUT = 0.1


def attention(reading: Reading, options: Options, *_: object) -> Iterator[Statement]:
    """Yield what the options say about attention; `words`: script -> its mask, where it has one for all its jobs."""
    yield from _widths(options)
    if isinstance(reading.words, Mapping) and (mask := reading.words.get(options.script)):
        yield Statement("mask", mask, options.script)
        yield from _dataloader_mask(options)
    for option, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if options.flag(option):
            yield Statement("dtype", dtype, option)
    groups = options.integer("num_query_groups")
    if options.flag("group_query_attention") and groups:
        yield Statement("num_kv_heads", groups, "num_query_groups")
    elif (heads := options.integer("num_attention_heads")) and "group_query_attention" not in options:
        yield Statement("num_kv_heads", heads, "num_attention_heads")
    if length := options.integer("seq_length"):
        yield from (Statement(word, length, "seq_length") for word in ("seq_len_q", "seq_len_kv"))
    yield from _low_precision(options)
    if options.flag("cross_entropy_loss_fusion"):
        yield from stated(options, {"cross_entropy_fusion_impl": Row("cross_entropy_fusion", _FUSIONS)})
    if options.flag("use_torch_fsdp2"):
        yield Statement("sharding", "fsdp2", "use_torch_fsdp2")
    if options.text("recompute_granularity") == "full":
        yield Statement("gradient_checkpointing", True, "recompute_granularity")
    if (options.text("cuda_graph_impl") or "none") != "none":
        yield Statement("cuda_graph", True, "cuda_graph_impl")
    yield from _dropout(options)
    yield from _window(options)


def _low_precision(options: Options) -> Iterator[Statement]:
    if options.text("fp8_format"):
        yield Statement("fp8", True, "fp8_format")
        yield from stated(options, {"fp8_recipe": Row("fp8_recipe", _RECIPES)})
    if options.text("fp4_format"):  # with --fp4-recipe, whose default is nvfp4
        yield Statement("fp8", True, "fp4_format")
        if options.text("fp4_recipe") in (None, "nvfp4"):
            yield Statement("fp8_recipe", "nvfp4", "fp4_format")


def _dataloader_mask(options: Options) -> Iterator[Statement]:
    """Yield whether the dataset makes a mask, as it does by default; not the dataset of `--sft`."""
    option = "no_create_attention_mask_in_dataloader"
    off = options.flag(option)
    if "sft" not in options and (off is not None or option not in options):
        yield Statement("dataloader_mask", not off, option)


def _widths(options: Options) -> Iterator[Statement]:
    """Yield the head dims; latent attention has its own options with defaults of the release."""
    hidden, heads = options.integer("hidden_size"), options.integer("num_attention_heads")
    if options.flag("multi_latent_attention"):
        content, rotary = options.integer("qk_head_dim") or 128, options.integer("qk_pos_emb_head_dim") or 64
        yield Statement("head_dim_qk", content + rotary, "multi_latent_attention")
        yield Statement("head_dim_v", options.integer("v_head_dim") or 128, "multi_latent_attention")
        return
    width, option = options.integer("kv_channels"), "kv_channels"
    if width is None and hidden and heads and hidden % heads == 0:
        width, option = hidden // heads, "hidden_size"
    if width is not None:
        yield Statement("head_dim_qk", width, option)
        yield Statement("head_dim_v", width, option)


def _dropout(options: Options) -> Iterator[Statement]:
    if "attention_dropout" not in options:
        yield Statement("dropout", _DEFAULT_DROPOUT, "attention_dropout (default)")
    elif (found := options.number("attention_dropout")) is not None and 0 <= found <= 1:
        yield Statement("dropout", found, "attention_dropout")


def _window(options: Options) -> Iterator[Statement]:
    text = str(options.value("window_size") or "").strip("()[] ")
    sides = [side.strip() for side in text.split(",")]
    if len(sides) == 2 and all(side.lstrip("-").isdecimal() and len(side) < 12 for side in sides):
        yield Statement("window", [int(side) for side in sides], "window_size")
