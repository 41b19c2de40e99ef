"""Options of trainers that build on transformers: TrainingArguments, TRL, LLaMA-Factory, axolotl, ms-swift, accelerate.

Sources, read at the releases named: transformers 5.23 `training_args.py`, TRL 1.16 `trainer/*_config.py`, LLaMA-Factory
0.9.5 `hparams/`, axolotl 0.19 `utils/schemas/`, ms-swift 4.6 `arguments/`, accelerate 1.14 `commands/config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .options import DTYPES, Options, ReadConfig, Row, Statement, stated

_ATTENTION = {
    "eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3", "flash_attention_4": "flash_attention_4",
    "flex_attention": "flex_attention",
}  # fmt: skip
#: TrainingArguments and what every trainer of this file shares with it.
_SHARED: Mapping[str, Row] = {
    "per_device_train_batch_size": Row("batch_size", "integer"),
    "gradient_accumulation_steps": Row("gradient_accumulation_steps", "integer"),
    "torch_compile": Row("torch_compile", "flag"),
    "torch_compile_mode": Row("torch_compile_mode", "text"),
    "cache_implementation": Row("cache_implementation", "text"),
}
_TRL: Mapping[str, Row] = {
    **_SHARED,
    "attn_implementation": Row("attn_implementation", "text"),
    "gradient_checkpointing": Row("gradient_checkpointing", "flag"),
    "padding_free": Row("padding_free", "flag"),
    "packing": Row("packing", "flag"),
    "packing_strategy": Row("packing_strategy", "text"),
}
_LLAMAFACTORY: Mapping[str, Row] = {
    **_SHARED,
    "flash_attn": Row("attn_implementation", {
        "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3",
    }),
    "neat_packing": Row("packing", "flag"),
    "finetuning_type": Row("finetuning", {"full": "full", "freeze": "freeze"}),
    "stage": Row("training_method", {
        "pt": "pretraining", "sft": "sft", "rm": "reward", "ppo": "ppo", "dpo": "dpo", "kto": "kto",
    }),
}  # fmt: skip
_AXOLOTL: Mapping[str, Row] = {
    **_SHARED,
    "micro_batch_size": Row("batch_size", "integer"),
    "sample_packing": Row("packing", "flag"),
    "rl": Row("training_method", "text"),
    "attn_implementation": Row("attn_implementation", {
        **_ATTENTION, "flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa", "xformers": "xformers",
    }),
}  # fmt: skip
#: The configs of LLaMA-Factory's second generation (`src/llamafactory/v1`), which has a trainer of its own.
_LLAMAFACTORY_V1: Mapping[str, Row] = {
    "flash_attn": Row("attn_implementation", "text"),
    "micro_batch_size": Row("batch_size", "integer"),
    "enable_activation_checkpointing": Row("gradient_checkpointing", "flag"),
}
_ENGINES = {"vllm": "vllm", "sglang": "sglang"}  # of LLaMA-Factory's chat: `infer_backend` -> who computes attention
#: The switches of axolotl that `attn_implementation` replaces.
_AXOLOTL_SWITCHES = {
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "flex_attention": "flex_attention",
    "eager_attention": "eager", "xformers_attention": "xformers",
}  # fmt: skip
_SWIFT: Mapping[str, Row] = {
    **_SHARED,
    "attn_impl": Row("attn_implementation", {
        **_ATTENTION, "flash_attn": "flash_attention_2", "flash_attention": "flash_attention_2",
    }),
    "gradient_checkpointing": Row("gradient_checkpointing", "flag"),
    "packing": Row("packing", "flag"),
    "padding_free": Row("padding_free", "flag"),
    "rlhf_type": Row("training_method", "text"),
}  # fmt: skip
#: Stage of ZeRO -> how ranks share parameters and optimizer.
_ZERO = {"0": "zero0", "1": "zero1", "2": "zero2", "3": "zero3"}
_OPENRLHF: Mapping[str, Row] = {
    "micro_train_batch_size": Row("batch_size", "integer"),
    "train.micro_batch_size": Row("batch_size", "integer"),
    "attn_implementation": Row("attn_implementation", "text"),
    "ds.attn_implementation": Row("attn_implementation", "text"),
    "flash_attn": Row("attn_implementation", {"true": "flash_attention_2"}),
    "param_dtype": Row("dtype", DTYPES),
    "ds.param_dtype": Row("dtype", DTYPES),
    "packing_samples": Row("packing", "flag"),
    "ds.packing_samples": Row("packing", "flag"),
    "zero_stage": Row("sharding", _ZERO),
    "ds.zero_stage": Row("sharding", _ZERO),
    "gradient_checkpointing": Row("gradient_checkpointing", "flag"),
    "model.gradient_checkpointing_enable": Row("gradient_checkpointing", "flag"),
    "actor.gradient_checkpointing_enable": Row("gradient_checkpointing", "flag"),
}
_VERL_MODEL, _VERL_ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
_VERL: Mapping[str, Row] = {
    f"{_VERL_MODEL}.override_config.attn_implementation": Row("attn_implementation", "text"),
    f"{_VERL_MODEL}.use_remove_padding": Row("padding_free", "flag"),
    f"{_VERL_MODEL}.enable_gradient_checkpointing": Row("gradient_checkpointing", "flag"),
    f"{_VERL_ACTOR}.strategy": Row("sharding", {"fsdp": "fsdp", "fsdp2": "fsdp2"}),
}
_ADAPTERS = ("use_peft", "use_lora", "lora_r", "lora_rank", "lora_alpha", "peft_type")
_RECOMPUTED = ("offload", "offload_disk", "unsloth")


def trl_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what options of TrainingArguments and of TRL's scripts say."""
    found = [*stated(options, _TRL), *_dtype(options), *_sharding(options, read)]
    if not any(name in options for name in _ADAPTERS):
        found.append(Statement("finetuning", "full", "use_peft (default)", assumed=True))
    if "use_liger_kernel" in options:
        found += _liger(options, "use_liger_kernel")
    return [
        *found,
        *_adapter(options, options.flag("use_peft")),
        *_length(options, found, "max_length", "max_seq_length"),
    ]


def llamafactory_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of LLaMA-Factory says; it computes activations again unless that is switched off."""
    found = [*stated(options, _LLAMAFACTORY), *_dtype(options), *_sharding(options, read)]
    found += _adapter(options, options.text("finetuning_type") == "lora")
    if not any(statement.word == "sharding" for statement in found) and "deepspeed" not in options:
        found.append(Statement("sharding", "ddp", "deepspeed (default)", assumed=True))
    again = not options.flag("disable_gradient_checkpointing")
    found.append(Statement("gradient_checkpointing", again, "disable_gradient_checkpointing"))
    found += _liger(options, "enable_liger_kernel")
    return [*found, *_length(options, found, "cutoff_len", default=2048)]


def llamafactory_inference_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of LLaMA-Factory for chat or export says: it trains nothing."""
    name = options.named("infer_backend", "export_dir") or "template"
    engine = _ENGINES.get(options.text("infer_backend") or "")
    framework = [Statement("framework", engine, "infer_backend")] if engine else []
    return [*framework, Statement("training", False, name), *stated(options, _LLAMAFACTORY), *_dtype(options)]


def llamafactory_v1_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of LLaMA-Factory's second generation says; bfloat16 is its default."""
    found = list(stated(options, _LLAMAFACTORY_V1))
    if "flash_attn" not in options:
        found.append(Statement("attn_implementation", "sdpa", "flash_attn (default)"))
    if options.flag("bf16") is not False:
        found.append(Statement("dtype", "bfloat16", "bf16"))
    if "enable_activation_checkpointing" not in options:
        found.append(Statement("gradient_checkpointing", True, "enable_activation_checkpointing (default)"))
    plugins = {name: Options(options.mapping(f"{name}_config") or {}) for name in ("peft", "quant", "kernel", "dist")}
    tuned = plugins["peft"].text("name") or "full"
    four = plugins["quant"].integer("quantization_bit") == 4
    found.append(Statement("finetuning", "qlora" if tuned == "lora" and four else tuned, "peft_config"))
    found.append(Statement("liger_kernel", plugins["kernel"].text("name") == "liger_kernel", "kernel_config"))
    sharding = plugins["dist"].text("name")
    if sharding == "fsdp2":
        found.append(Statement("sharding", "fsdp2", "dist_config"))
    elif sharding == "deepspeed" and (named := plugins["dist"].text("config_file")) is not None:
        found += _zero(read(named), "dist_config")
    ranks = plugins["dist"].integer("cp_size") or 1
    if ranks > 1:
        found += [
            Statement("cp_size", ranks, "dist_config"),
            Statement("sequence_parallel", "llamafactory", "dist_config"),
        ]
    strategy = options.text("batching_strategy")
    found.append(Statement("padding_free", strategy == "padding_free", "batching_strategy"))
    return [*found, *_length(options, found, "cutoff_len", default=2048)]


def axolotl_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of axolotl says."""
    found = [*stated(options, _AXOLOTL), *_dtype(options), *_sharding(options, read)]
    if "attn_implementation" not in options:
        switch = next((name for name in _AXOLOTL_SWITCHES if options.flag(name)), None)
        if switch is not None:
            found.append(Statement("attn_implementation", _AXOLOTL_SWITCHES[switch], switch))
    if any(item.word == "attn_implementation" and item.value == "xformers" for item in found):
        found = [item for item in found if item.word != "attn_implementation"]
        found.append(Statement("framework", "xformers", "xformers_attention"))
    plugins = options.value("plugins")
    liger = isinstance(plugins, list) and any("liger" in str(plugin).lower() for plugin in plugins)
    found.append(Statement("liger_kernel", liger, "plugins"))
    adapter = options.text("adapter")
    found.append(Statement("finetuning", adapter or "full", "adapter"))
    if options.flag("gradient_checkpointing") or options.value("gradient_checkpointing") in _RECOMPUTED:
        found.append(Statement("gradient_checkpointing", True, "gradient_checkpointing"))
    for name in ("context_parallel_size", "sequence_parallel_degree"):
        found += _split(options, name, "ring")
    return [*found, *_length(options, found, "sequence_len", default=512)]


def swift_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what the options of `swift sft`, `pt` and `rlhf` say; adapters unless the tuner is named."""
    found = [*stated(options, _SWIFT), *_dtype(options)]
    tuner = next((text for name in ("tuner_type", "train_type", "sft_type") if (text := options.text(name))), "lora")
    quantized = options.integer("quant_bits") == 4 or options.integer("quantization_bit") == 4
    found.append(Statement("finetuning", "qlora" if tuner == "lora" and quantized else tuner, "tuner_type"))
    brought = re.fullmatch(r"zero([0-3])(?:_.*)?", options.text("deepspeed") or "")  # configs that ms-swift brings
    if brought:
        found.append(Statement("sharding", _ZERO[brought[1]], "deepspeed"))
    else:
        found += _sharding(options, read)
    found += _split(options, "sequence_parallel_size", "ms-swift")
    found += _liger(options, "use_liger_kernel")
    return [*found, *_length(options, found, "packing_length", "max_length")]


def openrlhf_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what the options of OpenRLHF say, with and without the groups of its newer releases."""
    found = list(stated(options, _OPENRLHF))
    if any(name in options for name in ("ds.zero_stage", "ds.param_dtype")):  # the releases with groups of options
        found.append(Statement("attn_implementation", "flash_attention_2", "ds.attn_implementation (default)"))
    if options.flag("bf16"):
        found.append(Statement("dtype", "bfloat16", "bf16"))
    for name in ("ring_attn_size", "ds.ring_attn_size"):
        found += _split(options, name, "ring")
    rank = next((name for name in ("lora_rank", "ds.lora_rank", "ds.lora.rank") if options.integer(name)), None)
    four = options.flag("load_in_4bit") or options.flag("ds.load_in_4bit")
    tuned = ("qlora" if four else "lora") if rank else "full"
    found.append(Statement("finetuning", tuned, rank or "lora_rank (default)"))
    return [*found, *_liger(options, "use_liger_kernel", "ds.use_liger_kernel")]


def verl_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what the settings of verl say about the attention of the trained model, not of the rollouts."""
    if options.text(f"{_VERL_ACTOR}.strategy") == "megatron":
        return [Statement("framework", "megatron", f"{_VERL_ACTOR}.strategy")]
    found = list(stated(options, _VERL))
    for name in (f"{_VERL_ACTOR}.ulysses_sequence_parallel_size",
                 f"{_VERL_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"):  # fmt: skip
        found += _split(options, name, "verl")
    tuned = "lora" if options.integer(f"{_VERL_MODEL}.lora_rank") else "full"
    found.append(Statement("finetuning", tuned, f"{_VERL_MODEL}.lora_rank"))
    return [*found, *_liger(options, f"{_VERL_MODEL}.use_liger")]


def accelerate_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of `accelerate launch` says: precision, sharding, compile mode."""
    found = []
    if dtype := {"bf16": "bfloat16", "fp16": "float16"}.get(options.text("mixed_precision") or ""):
        found.append(Statement("dtype", dtype, "mixed_precision"))
    kind = (options.text("distributed_type") or "").upper()
    if kind == "FSDP":
        inner = Options(options.mapping("fsdp_config") or {})
        version = inner.integer("fsdp_version") or 1
        found.append(Statement("sharding", "fsdp" if version == 1 else "fsdp2", "fsdp_config"))
        found += _computed_again(inner)
    elif kind == "DEEPSPEED":
        table = Options(options.mapping("deepspeed_config") or {})
        name = table.text("deepspeed_config_file")
        own = {"zero_optimization": {"stage": table.value("zero_stage")}}
        found += _zero(read(name) if name else own, "deepspeed_config")
    elif kind == "MULTI_GPU":
        found.append(Statement("sharding", "ddp", "distributed_type"))
    dynamo = Options(options.mapping("dynamo_config") or {})
    if (dynamo.text("dynamo_backend") or "NO").upper() != "NO":
        found.append(Statement("torch_compile", True, "dynamo_config"))
        if mode := dynamo.text("dynamo_mode"):
            found.append(Statement("torch_compile_mode", mode, "dynamo_config"))
    return found


def deepspeed_statements(options: Options, read: ReadConfig) -> list[Statement]:
    """Return what a config of DeepSpeed says; `auto` leaves a value to the trainer."""
    found = _zero({"zero_optimization": options.value("zero_optimization")}, "zero_optimization")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if Options(options.mapping(name) or {}).flag("enabled"):
            found.append(Statement("dtype", dtype, name))
    rows = {
        "train_micro_batch_size_per_gpu": Row("batch_size", "integer"),
        "gradient_accumulation_steps": Row("gradient_accumulation_steps", "integer"),
    }
    return [*found, *stated(options, rows)]


def _dtype(options: Options) -> Iterator[Statement]:
    """Yield the dtype of autocast, else that of the weights; `bf16: auto` depends on the GPU."""
    for names, dtype in ((("bf16", "bfloat16", "pure_bf16"), "bfloat16"), (("fp16", "float16"), "float16")):
        for name in names:
            if options.flag(name) or options.value(name) == "full":
                yield Statement("dtype", dtype, name)
                return
    for name in ("dtype", "torch_dtype"):
        if dtype := DTYPES.get((options.text(name) or "").lower(), ""):
            yield Statement("dtype", dtype, name)
            return


def _adapter(options: Options, lora: bool | None) -> Iterator[Statement]:
    if lora:
        four = options.flag("load_in_4bit") or options.integer("quantization_bit") == 4
        option = options.named("use_peft", "finetuning_type") or "lora"
        yield Statement("finetuning", "qlora" if four else "lora", option)


def _liger(options: Options, *names: str) -> list[Statement]:
    """Return whether the trainer applies Liger kernels, which none of these does by itself."""
    name = options.named(*names)
    return [Statement("liger_kernel", bool(name and options.flag(name)), name or f"{names[0]} (default)")]


def _length(options: Options, found: list[Statement], *names: str, default: int | None = None) -> list[Statement]:
    """Return the length of packed rows; other rows have at most that length, and are assumed to reach it."""
    packed = any(statement.word == "packing" and statement.value for statement in found)
    name = next((name for name in names if options.integer(name)), None)
    length = options.integer(name) if name else default
    option = name or f"{names[0]} (default)"
    if length is None:
        return []
    return [Statement(word, length, option, not packed) for word in ("seq_len_q", "seq_len_kv")]


def _split(options: Options, name: str, by: str) -> list[Statement]:
    """Return over how many ranks a sequence is split, and who does it."""
    ranks = options.integer(name)
    if ranks is None or ranks == 1:
        return []
    return [Statement("cp_size", ranks, name), Statement("sequence_parallel", by, name)]


def _sharding(options: Options, read: ReadConfig) -> list[Statement]:
    if (named := options.text("deepspeed")) is not None:
        return _zero(read(named), "deepspeed")
    if (table := options.mapping("deepspeed")) is not None:
        return _zero(table, "deepspeed")
    given = options.value("fsdp") if options.flag("fsdp") is not False else None
    config = options.mapping("fsdp_config")
    text = options.text("fsdp_config")
    if config is None and text is not None and given:
        config = read(text)
    if not given and config is None:
        return []
    inner = Options(config or {})
    version = options.integer("fsdp_version") or inner.integer("fsdp_version") or inner.integer("version") or 1
    if version == 1 and (text is not None and config is None):
        return []
    sharding = Statement("sharding", "fsdp" if version == 1 else "fsdp2", "fsdp" if given else "fsdp_config")
    return [sharding, *_computed_again(inner)]


def _computed_again(config: Options) -> list[Statement]:
    """Return whether FSDP, and not the model, has the backward pass compute the layers again."""
    name = config.named("fsdp_activation_checkpointing", "activation_checkpointing")
    again = config.flag(name) if name else None
    return [] if again is None else [Statement("fsdp_activation_checkpointing", again, f"fsdp_config.{name}")]


def _zero(config: Mapping[str, Any] | None, option: str) -> list[Statement]:
    """Return the stage that a config of DeepSpeed sets; unknown where the config is not there."""
    if config is None:
        return [Statement("sharding", None, option)]
    if "zero_optimization" not in config:
        return [Statement("sharding", _ZERO["0"], option)]  # DeepSpeed's default is stage 0
    table = config.get("zero_optimization")
    stage = table.get("stage") if isinstance(table, dict) else None
    found = _ZERO.get(str(stage))
    return [Statement("sharding", found, option)] if found else []
