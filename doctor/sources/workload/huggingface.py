"""`config.json` of a Hugging Face model → the attention it asks for, each fact with the key it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doctor.errors import DoctorError
from doctor.model import ABSENT, Fact, Facts
from doctor.sources.workload.assumed import assumed_fact

from .files import one_line
from .model_config import Config, load_config
from .serving import serving_facts

DTYPES = ("bfloat16", "float16", "float32")
_DECODER_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "DoubleHeadsModel", "CausalLM")
_DECODERS = (  # for configs that name no architecture
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
    "deepseek_v2", "deepseek_v3", "phi", "phi3", "gpt_oss", "falcon", "bloom", "mpt", "gpt2", "gpt_neo", "gpt_neox",
    "gptj", "gpt_bigcode", "starcoder2", "cohere", "cohere2", "olmo", "olmo2", "internlm2", "glm4",
)  # fmt: skip
_RELATIVE_BIAS = "relative_attention_num_buckets"  # T5 and its kin add a learned bias to the scores


def read_model_config(path: Path) -> Facts:
    """The workload of a model; where its layers differ, of the most demanding kind (the windowed one)."""
    return workloads_of(path)[-1]


def model_facts(content: Mapping[str, Any]) -> Facts:
    """The same for a config that a program holds in its hands: `model.config.to_dict()`."""
    return _workloads_in(Config(content, Path("model config"), ""))[-1]


def workloads_of(path: Path) -> list[Facts]:
    """One workload per kind of attention layer in the model, the most demanding last."""
    return _workloads_in(load_config(path))


def _workloads_in(config: Config) -> list[Facts]:
    common = [
        *_shape(config),
        *_lengths(config),
        *_mask(config),
        *_numerics(config),
        *serving_facts(config),
    ]
    kinds, window, source = _layers(config)
    if not any(fact.key in ("workload.num_heads", "workload.head_dim_qk") for fact in common):
        why = one_line(f"model config `{config.path}` gives no size of an attention head")
        raise DoctorError(why, "it needs `num_attention_heads`")
    if len(kinds) > 1:
        common.append(Fact("workload.layer_types", kinds, source))
    windowed = any("sliding" in kind for kind in kinds)
    if windowed and window is None:
        problem = "layers slide, but no sliding_window is given"
        return [Facts([*common, Fact("workload.window", None, source, None, problem)])]
    workloads = []
    if window is None or any("sliding" not in kind for kind in kinds):
        workloads.append(Facts([*common, Fact("workload.window", ABSENT, source)]))
    if window is not None:
        # The token itself counts: a window of w tokens reaches w - 1 to the left.
        workloads.append(Facts([*common, Fact("workload.window", (window - 1, 0), source)]))
    return workloads


def _shape(config: Config) -> list[Fact]:
    heads, heads_source = config.integer("num_attention_heads", "n_head", "n_heads", "num_heads")
    facts = []
    if heads is not None:
        facts.append(Fact("workload.num_heads", heads, heads_source))
    facts += _head_dims(config, heads)
    kv_heads, kv_source = _kv_heads(config, heads, heads_source)
    if kv_heads is not None:
        if heads is not None and kv_heads > heads:
            raise config.fault(kv_source, f"more key/value heads ({kv_heads}) than query heads ({heads})")
        facts.append(Fact("workload.num_kv_heads", kv_heads, kv_source))
    return facts


def _head_dims(config: Config, heads: int | None) -> list[Fact]:
    nope, nope_source = config.integer("qk_nope_head_dim", least=0)
    rope, _ = config.integer("qk_rope_head_dim", least=0)
    if nope is not None and rope is not None:  # multi-head latent attention; `head_dim` there is only the rotary part
        if nope + rope == 0:
            raise config.fault(nope_source, "the query/key head is 0 wide")
        facts = [Fact("workload.head_dim_qk", nope + rope, f"{nope_source} + qk_rope_head_dim")]
        value, value_source = config.integer("v_head_dim")
        problem = None if value is not None else "the model has latent attention, but its config gives no `v_head_dim`"
        return [*facts, Fact("workload.head_dim_v", value, value_source or nope_source, None, problem)]
    width, source = config.integer("head_dim", "attention_head_dim", "kv_channels", "d_kv", "attention_head_size")
    if width is None:
        hidden, hidden_source = config.integer("hidden_size", "n_embd", "d_model", "n_embed")
        if hidden is None or heads is None:
            return []
        if hidden % heads:
            raise config.fault(hidden_source, f"{hidden} is not divisible by {heads} attention heads")
        width, source = hidden // heads, f"{hidden_source} / attention heads"
    return [Fact("workload.head_dim_qk", width, source), Fact("workload.head_dim_v", width, source)]


def _kv_heads(config: Config, heads: int | None, heads_source: str) -> tuple[int | None, str]:
    if config.get("qk_nope_head_dim") is not None:
        return heads, heads_source  # latent attention trains with keys and values expanded to every head
    if config.model_type in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return _falcon_kv_heads(config, heads, heads_source)
    grouped, grouped_source = config.integer(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads", "num_query_groups"
    )
    if grouped is not None:
        return grouped, grouped_source
    if config.flag("multi_query_attention") and config.get("multi_query_group_num") is not None:  # ChatGLM
        return config.integer("multi_query_group_num")
    if config.flag("multi_query"):  # GPT-BigCode
        return 1, config.source("multi_query")
    return heads, f"{heads_source} (no key/value heads given)" if heads is not None else ""


def _falcon_kv_heads(config: Config, heads: int | None, heads_source: str) -> tuple[int | None, str]:
    """Falcon: the new decoder architecture has groups, the old one a single key/value head or one for each."""
    if config.flag("new_decoder_architecture") or config.get("n_head_kv") is not None:
        grouped, source = config.integer("num_kv_heads", "n_head_kv")
        return (grouped, source) if grouped is not None else (heads, heads_source)
    multi_query = config.flag("multi_query")
    if multi_query is None:
        return 1, "config.json: multi_query (not given: true)"
    return (1 if multi_query else heads), config.source("multi_query")


def _lengths(config: Config) -> list[Fact]:
    longest, source = config.integer(
        "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"
    )
    if longest is None:
        return []
    # seq_len_kv follows from it, also where the user says another length.
    return [assumed_fact("workload.seq_len_q", longest, f"the longest the model takes ({source})")]


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
    dtype, source = config.text("dtype", "torch_dtype")
    if dtype is not None and dtype != "auto":
        plain = dtype.removeprefix("torch.")
        problem = None if plain in DTYPES else f"`{plain}` is no dtype of attention"
        source = f"assumed: the dtype of the checkpoint ({source})"
        facts.append(Fact("workload.dtype", plain if problem is None else None, source, None, problem, assumed=True))
    dropout, source = config.number(
        "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_config.attn_pdrop", "dropout_rate",
        most=1.0,
    )  # fmt: skip
    if dropout is not None:
        facts.append(Fact("workload.dropout", dropout, source))
    softcap, source = config.number("attn_logit_softcapping")
    if softcap is not None:
        facts.append(Fact("workload.softcap", softcap, source))
    implementation, source = config.text("_attn_implementation", "attn_implementation")
    if implementation is not None:
        facts.append(Fact("workload.attn_implementation", implementation, source))
    return facts


def _layers(config: Config) -> tuple[tuple[str, ...], int | None, str]:
    """(kinds of attention layers, window in tokens or None, where that is said)."""
    given = config.texts("layer_types")
    # Elsewhere than in GPT-Neo `window_size` belongs to an audio or vision encoder.
    window_key = "window_size" if config.model_type == "gpt_neo" else "sliding_window"
    window, source = config.integer(window_key, least=0)
    if given:
        kinds = tuple(dict.fromkeys(given))
        slides = any("sliding" in kind for kind in kinds)
        return kinds, (window or None) if slides else None, config.source("layer_types")
    both = ("sliding_attention", "full_attention")
    if not window:
        return ("full_attention",), None, source or f"{config.name}: no sliding window"
    if config.model_type == "gpt_neo":
        return both, window, source
    # Qwen2 and Qwen3 carry a window that is off unless switched on.
    if config.flag("use_sliding_window") is False or (
        config.model_type.startswith(("qwen2", "qwen3")) and not config.flag("use_sliding_window")
    ):
        return ("full_attention",), None, config.source("use_sliding_window")
    layers, _ = config.integer("num_hidden_layers", least=0)
    full_layers, full_source = config.integer("max_window_layers", least=0)
    if full_layers is not None and config.has("use_sliding_window"):
        if layers is not None and full_layers >= layers:
            return ("full_attention",), None, full_source
        return (both if full_layers else both[:1]), window, source
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE: L = local, G = global
        return (both if "G" in pattern.upper() else both[:1]), window, source
    if pattern == 1:
        return ("full_attention",), None, config.source("sliding_window_pattern")
    alternating = config.model_type in ("gemma2", "gemma3_text", "gpt_oss", "cohere2")
    return (both if pattern or alternating else both[:1]), window, source
