"""The attention of a Hugging Face model by its `config.json`; each fact names the key it was read from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact, Facts
from doctor.util.printable import one_line

from .assumed import assumed_fact
from .layers import LayerKind, other_layers
from .model_config import DTYPE_KEYS, HEADS, Config, Setting, load_config
from .serving import serving_facts

DTYPES = ("bfloat16", "float16", "float32")
_DECODER_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "DoubleHeadsModel", "CausalLM")
_DECODERS = (  # for configs that name no architecture
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
    "deepseek_v2", "deepseek_v3", "phi", "phi3", "gpt_oss", "falcon", "bloom", "mpt", "gpt2", "gpt_neo", "gpt_neox",
    "gptj", "gpt_bigcode", "starcoder2", "cohere", "cohere2", "olmo", "olmo2", "olmo3", "olmoe", "internlm2", "glm",
    "glm4", "glm4_moe", "glm_moe_dsa", "chatglm", "llama4_text", "gemma3n_text", "gemma4_text", "qwen3_next",
    "deepseek_v32", "kimi_k2", "kimi_linear", "phimoe", "minimax", "minimax_m1", "minimax_m2", "minimax_text_01",
    "exaone", "exaone4", "exaone_moe", "ministral", "granite", "granitemoe", "smollm3", "seed_oss", "RefinedWeb",
    "RefinedWebModel",
)  # fmt: skip
_USUAL_BASE = 10000.0  # what most classes of transformers 4 take where the config says nothing
_RELATIVE_BIAS = "relative_attention_num_buckets"  # T5 and similar models add a learned bias to the scores


def read_model_config(path: Path) -> Facts:
    """Return the workload of a model; where its layers differ, of the most demanding kind (the windowed one)."""
    return workloads_of(path)[-1]


def read_layers(path: Path) -> list[LayerKind]:
    """Return the kinds of layers of a model whose heads differ from those that `read_model_config` returns."""
    return _layers_in(load_config(_config_file(path)))


def model_facts(content: Mapping[str, Any]) -> Facts:
    """Return the workload of a config given as a mapping: `model.config.to_dict()`."""
    return _workloads_in(_given(content))[-1]


def model_layers(content: Mapping[str, Any]) -> list[LayerKind]:
    """Return the other kinds of layers of a config given as a mapping."""
    return _layers_in(_given(content))


def _given(content: Mapping[str, Any]) -> Config:
    return Config(content, Path("model config"), "")


def _layers_in(config: Config) -> list[LayerKind]:
    return other_layers(config, _workloads_in(config)[-1]) if config.part_name is None else []


def workloads_of(path: Path) -> list[Facts]:
    """Return one workload per kind of attention layer of the model, the most demanding last."""
    return _workloads_in(load_config(_config_file(path)))


def _config_file(path: Path) -> Path:
    """Return the path; DoctorError says how to get the config where it is a name of the Hub."""
    name = re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", str(path))  # the longest that the Hub takes
    if name and path.suffix != ".json" and not path.exists():
        raise DoctorError(
            f"`--model {path}` is no local file",
            f"`hf download {path} config.json --local-dir .` gets the config of a model of the Hub",
        )
    return path


def _workloads_in(config: Config) -> list[Facts]:
    common = [*_shape(config), *_lengths(config), *_mask(config), *_numerics(config), *_rotary(config)]
    if config.part_name is None:
        common += serving_facts(config)
        if others := config.other_parts():
            common.append(Fact("workload.other_attention", tuple(others), f"{config.name}: {', '.join(others)}"))
    kinds, window, source = _layers(config)
    if not any(fact.key in ("workload.num_heads", "workload.head_dim_qk") for fact in common):
        why = one_line(f"model config `{config.path}` has no size of an attention head")
        raise DoctorError(why, "it needs `num_attention_heads`")
    if len(kinds) > 1:
        common.append(Fact("workload.layer_types", kinds, source))
    windowed = any("sliding" in kind for kind in kinds)
    if windowed and window is None:
        problem = "layers with a sliding window, but no `sliding_window` is given"
        return [Facts([*common, Fact("workload.window", None, source, None, problem)])]
    workloads = []
    if window is None or any("sliding" not in kind for kind in kinds):
        workloads.append(Facts([*common, Fact("workload.window", ABSENT, source)]))
    if window is not None:
        # The token itself counts: a window of w tokens extends w - 1 to the left.
        workloads.append(Facts([*common, Fact("workload.window", (window - 1, 0), source)]))
    return workloads


def _shape(config: Config) -> list[Fact]:
    heads = config.integer(*HEADS)
    facts = []
    if heads.value is not None:
        facts.append(Fact("workload.num_heads", heads.value, heads.source))
    facts += _head_dims(config, heads.value)
    kv_heads = _kv_heads(config, heads)
    if kv_heads.value is not None:
        if heads.value is not None and kv_heads.value > heads.value:
            why = f"more key/value heads ({kv_heads.value}) than query heads ({heads.value})"
            raise config.fault(kv_heads.key, why)
        facts.append(Fact("workload.num_kv_heads", kv_heads.value, kv_heads.source))
    return facts


def _head_dims(config: Config, heads: int | None) -> list[Fact]:
    nope, rope = config.integer("qk_nope_head_dim", least=0), config.integer("qk_rope_head_dim", least=0)
    if nope.value is not None and rope.value is not None:  # multi-head latent attention: `head_dim` is the rotary part
        if nope.value + rope.value == 0:
            raise config.fault(nope.key, "the width of the query/key head is 0")
        facts = [Fact("workload.head_dim_qk", nope.value + rope.value, f"{nope.source} + qk_rope_head_dim")]
        width = config.integer("v_head_dim")
        problem = None if width.value is not None else "latent attention without `v_head_dim` in the config"
        return [*facts, Fact("workload.head_dim_v", width.value, width.source or nope.source, None, problem)]
    width = config.integer("head_dim", "attention_head_dim", "kv_channels", "d_kv", "attention_head_size")
    value, source = width.value, width.source
    if value is None:
        own_width = ("embed_dim",) if config.part_name else ()  # `hidden_size` may be that of the language model
        hidden = config.integer(*own_width, "hidden_size", "n_embd", "d_model", "n_embed")
        if hidden.value is None or heads is None:
            return []
        if hidden.value % heads:
            if not config.has(hidden.key):  # defaults that no checkpoint has together
                return []
            raise config.fault(hidden.key, f"{hidden.value} is not divisible by {heads} attention heads")
        value, source = hidden.value // heads, f"{hidden.source} / attention heads"
    return [Fact("workload.head_dim_qk", value, source), Fact("workload.head_dim_v", value, source)]


def _kv_heads(config: Config, heads: Setting[int]) -> Setting[int]:
    if config.get("qk_nope_head_dim") is not None:
        return heads  # latent attention trains with keys and values expanded to every head
    if config.model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return _falcon_kv_heads(config, heads)
    grouped = config.integer(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads", "num_query_groups"
    )
    if grouped.value is not None:
        return grouped
    if config.flag("multi_query_attention") and config.get("multi_query_group_num") is not None:  # ChatGLM
        return config.integer("multi_query_group_num")
    if config.flag("multi_query"):  # GPT-BigCode
        return Setting(1, "multi_query", config.source("multi_query"))
    return replace(heads, source=f"{heads.source} (no key/value heads given)")


def _falcon_kv_heads(config: Config, heads: Setting[int]) -> Setting[int]:
    """Return Falcon's: groups in the new decoder architecture, a single head or one for each in the old one."""
    if config.flag("new_decoder_architecture") or config.get("n_head_kv") is not None:
        grouped = config.integer("num_kv_heads", "n_head_kv")
        return heads if grouped.value is None else grouped
    multi_query = config.flag("multi_query")
    if multi_query is None:
        return Setting(1, "multi_query", "config.json: multi_query (not given: true)")
    return Setting(1 if multi_query else heads.value, "multi_query", config.source("multi_query"))


def _lengths(config: Config) -> list[Fact]:
    longest = config.integer(
        "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"
    )
    if longest.value is None:
        return _patches(config)
    # seq_len_kv follows from it, also where the user gives another length.
    return [assumed_fact("workload.seq_len_q", longest.value, f"the longest of the model ({longest.source})")]


def _patches(config: Config) -> list[Fact]:
    """Return the length of an encoder: the patches of one image, or the frames of one recording."""
    frames = config.integer("max_source_positions")
    if frames.value is not None:
        return [assumed_fact("workload.seq_len_q", frames.value, f"one recording ({frames.source})")]
    image, patch = config.integer("image_size"), config.integer("patch_size")
    if config.part_name is None or image.value is None or patch.value is None:
        return []
    number = max(image.value // patch.value, 1) ** 2
    return [assumed_fact("workload.seq_len_q", number, f"the patches of one image ({image.source}, patch_size)")]


def _mask(config: Config) -> list[Fact]:
    facts = []
    if config.model_type:
        facts.append(Fact("workload.model_type", config.model_type, config.source("model_type")))
    if isinstance(config.get("auto_map"), dict):
        facts.append(Fact("hf.ships_code", True, config.source("auto_map")))
    elif config.model_type:
        facts.append(Fact("workload.remote_code", False, f"{config.name}: no auto_map"))
    architectures = config.texts("architectures")
    decoder = next((name for name in architectures if name.endswith(_DECODER_HEADS)), None)
    if decoder is not None and not config.flag("is_encoder_decoder"):
        facts.append(assumed_fact("workload.mask", "causal", f"a decoder-only model ({decoder})"))
    elif config.model_type in _DECODERS and not config.flag("is_encoder_decoder"):
        facts.append(assumed_fact("workload.mask", "causal", f"a decoder-only model ({config.source('model_type')})"))
    elif config.flag("is_decoder"):
        facts.append(assumed_fact("workload.mask", "causal", f"a decoder ({config.source('is_decoder')})"))
    elif config.part_name is not None:
        facts.append(assumed_fact("workload.mask", "no_mask", f"an encoder ({config.part_name})"))
    if config.flag("alibi") or config.flag("attn_config.alibi") or config.model_type == "bloom":
        key = "alibi" if config.flag("alibi") else "attn_config.alibi"
        source = config.source("model_type" if config.model_type == "bloom" else key)
        facts.append(Fact("workload.bias", "alibi", source))
    elif config.get(_RELATIVE_BIAS) is not None:
        source = config.source(_RELATIVE_BIAS)
        facts.append(Fact("workload.bias", "post_scale_bias", source))
        facts.append(Fact("workload.bias_shape", "1hss", source))
        facts.append(Fact("workload.bias_requires_grad", True, source))
    if config.model_type == "gpt_oss":  # attention sinks: a learned logit per head joins the softmax
        facts.append(Fact("workload.softmax_type", "learnable", f"{config.source('model_type')} (attention sinks)"))
    return facts


def _numerics(config: Config) -> list[Fact]:
    facts = []
    dtype = config.text(*DTYPE_KEYS)
    if dtype.value is not None and dtype.value != "auto":
        plain = dtype.value.removeprefix("torch.")
        problem = None if plain in DTYPES else f"`{plain}` is not a dtype of attention"
        assumption = assumed_fact("workload.dtype", plain, f"the dtype of the checkpoint ({dtype.source})")
        facts.append(assumption._replace(value=plain if problem is None else None, problem=problem))
    dropout = config.number(
        "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_config.attn_pdrop", "dropout_rate",
        most=1.0,
    )  # fmt: skip
    for key, setting in (
        ("workload.dropout", dropout),
        ("workload.softcap", config.number("attn_logit_softcapping")),
        ("workload.attn_implementation", config.text("_attn_implementation", "attn_implementation")),
    ):
        if setting.value is not None:
            facts.append(Fact(key, setting.value, setting.source))
    return facts


def _rotary(config: Config) -> list[Fact]:
    """Return whether only transformers 5 finds the rotary base: it is elsewhere than before, and not the usual one."""
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, Mapping) or config.has("rope_theta") or config.has("rope_scaling"):
        return []
    kinds = [kind for kind in parameters.values() if isinstance(kind, Mapping)] or [parameters]  # one per kind of layer
    usual = all(kind.get("rope_theta") == _USUAL_BASE and kind.get("rope_type") == "default" for kind in kinds)
    return [] if usual else [Fact("workload.rope_parameters", True, config.source("rope_parameters"))]


def _layers(config: Config) -> tuple[tuple[str, ...], int | None, str]:
    """Return the kinds of attention layers, the window in tokens or None, and the source."""
    given = config.texts("layer_types")
    # Elsewhere than in GPT-Neo `window_size` belongs to an audio or vision encoder.
    window_key = "window_size" if config.model_type == "gpt_neo" else "sliding_window"
    sliding = config.integer(window_key, least=0)
    window, source = sliding.value, sliding.source
    if given:
        kinds = tuple(dict.fromkeys(given))
        slides = any("sliding" in kind for kind in kinds)
        return kinds, (window or None) if slides else None, config.source("layer_types")
    both = ("sliding_attention", "full_attention")
    if not window:
        return ("full_attention",), None, source or f"{config.name}: no sliding window"
    if config.model_type == "gpt_neo":
        return both, window, source
    # Qwen2 and Qwen3 have a window that is off unless `use_sliding_window` is true.
    if config.flag("use_sliding_window") is False or (
        config.model_type.startswith(("qwen2", "qwen3")) and not config.flag("use_sliding_window")
    ):
        return ("full_attention",), None, config.source("use_sliding_window")
    layers, full = config.integer("num_hidden_layers", least=0), config.integer("max_window_layers", least=0)
    if full.value is not None and config.has("use_sliding_window"):
        if layers.value is not None and full.value >= layers.value:
            return ("full_attention",), None, full.source
        return (both if full.value else both[:1]), window, source
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE: L = local, G = global
        return (both if "G" in pattern.upper() else both[:1]), window, source
    if pattern == 1:
        return ("full_attention",), None, config.source("sliding_window_pattern")
    alternating = config.model_type in ("gemma2", "gemma3_text", "gpt_oss", "cohere2")
    return (both if pattern or alternating else both[:1]), window, source
