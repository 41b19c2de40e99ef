"""Options of Megatron-LM's pretraining scripts. Source: megatron/training/arguments.py, read at core 0.8 to 0.19."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .options import Options, ReadConfig, Row, Statement, stated

_COMMUNICATION = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather",
                  "a2a+p2p": "a2a+p2p"}  # fmt: skip
_RECIPES = {"delayed": "delayed", "tensorwise": "current", "mxfp8": "mxfp8", "blockwise": "block"}
_FUSIONS = {"native": "native", "te": "te"}
_ROWS: Mapping[str, Row] = {
    "num_attention_heads": Row("num_heads", "integer"),
    "micro_batch_size": Row("batch_size", "integer"),
    "context_parallel_size": Row("cp_size", "integer"),
    "cp_comm_type": Row("cp_comm_type", _COMMUNICATION),
    "tensor_model_parallel_size": Row("tensor_parallel_size", "integer"),
    "pipeline_model_parallel_size": Row("pipeline_parallel_size", "integer"),
    "expert_model_parallel_size": Row("expert_parallel_size", "integer"),
    "attention_backend": Row("attention_backend", {name: name for name in ("auto", "flash", "fused", "unfused")}),
    "deterministic_mode": Row("deterministic", "flag"),
    "reset_attention_mask": Row("reset_attention_mask", "flag"),
    "softmax_type": Row("softmax_type", {name: name for name in ("vanilla", "off-by-one", "learnable")}),
    "fp8_dot_product_attention": Row("fp8_dpa", "flag"),
    "fp8_multi_head_attention": Row("fp8_mha", "flag"),
    "enable_cuda_graph": Row("cuda_graph", "flag"),
    "external_cuda_graph": Row("cuda_graph", "flag"),
}
#: Attention of these scripts is causal; others (BERT, T5, vision) have masks of their own.
_CAUSAL_SCRIPTS = ("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_hybrid.py")
_DEFAULT_DROPOUT = 0.1


def megatron_statements(given: Mapping[str, Any], script: str) -> list[Statement]:
    """Return what the options of a pretraining script say; nothing about attention for the local implementation."""
    return _statements(Options(given), script)


def swift_megatron_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what `megatron sft`, `pt` and `rlhf` of ms-swift say: rows are not padded unless that is requested.

    Source: swift/megatron/arguments/megatron_args.py of ms-swift 4.6.
    """
    found = _statements(options, "ms-swift")
    if "attention_backend" not in options:
        found.append(Statement("attention_backend", "flash", "attention_backend (default)"))
    if options.flag("padding_free") is not False:
        found.append(Statement("qkv_layout", "thd_thd_thd", "padding_free"))
    found.append(Statement("packing", options.flag("packing") is True, "packing"))
    if (named := options.text("torch_dtype")) in ("bfloat16", "float16", "float32"):
        found.append(Statement("dtype", named, "torch_dtype"))
    else:
        found.append(Statement("dtype", "bfloat16", "torch_dtype (of the model)", assumed=True))
    tuner = next((text for name in ("tuner_type", "train_type") if (text := options.text(name))), "full")
    found.append(Statement("finetuning", tuner, "tuner_type"))
    if method := options.text("rlhf_type"):
        found.append(Statement("training_method", method, "rlhf_type"))
    if length := options.integer("max_length"):
        found += [Statement(word, length, "max_length", assumed=True) for word in ("seq_len_q", "seq_len_kv")]
    return found


def _statements(options: Options, script: str) -> list[Statement]:
    if options.text("transformer_impl") not in (None, "transformer_engine"):
        return []
    found = [Statement("framework", "megatron", script), *stated(options, _ROWS), *_widths(options)]
    if script in _CAUSAL_SCRIPTS:
        found.append(Statement("mask", "causal", script))
        found += _dataloader_mask(options)
    for option, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if options.flag(option):
            found.append(Statement("dtype", dtype, option))
    groups = options.integer("num_query_groups")
    if options.flag("group_query_attention") and groups:
        found.append(Statement("num_kv_heads", groups, "num_query_groups"))
    elif (heads := options.integer("num_attention_heads")) and "group_query_attention" not in options:
        found.append(Statement("num_kv_heads", heads, "num_attention_heads"))
    if length := options.integer("seq_length"):
        found += [Statement(word, length, "seq_length") for word in ("seq_len_q", "seq_len_kv")]
    if options.text("fp8_format"):
        found.append(Statement("fp8", True, "fp8_format"))
        found += stated(options, {"fp8_recipe": Row("fp8_recipe", _RECIPES)})
    if options.text("fp4_format"):  # with --fp4-recipe, whose default is nvfp4
        found.append(Statement("fp8", True, "fp4_format"))
        if options.text("fp4_recipe") in (None, "nvfp4"):
            found.append(Statement("fp8_recipe", "nvfp4", "fp4_format"))
    if options.flag("cross_entropy_loss_fusion"):
        found += stated(options, {"cross_entropy_fusion_impl": Row("cross_entropy_fusion", _FUSIONS)})
    if options.flag("use_torch_fsdp2"):
        found.append(Statement("sharding", "fsdp2", "use_torch_fsdp2"))
    if options.text("recompute_granularity") == "full":
        found.append(Statement("gradient_checkpointing", True, "recompute_granularity"))
    if (options.text("cuda_graph_impl") or "none") != "none":
        found.append(Statement("cuda_graph", True, "cuda_graph_impl"))
    return [*found, *_dropout(options), *_window(options)]


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
