"""What a model config says to a server: latent attention, sparse indexer, image prefix, heads of several widths.

Only what the config shows is stated: a Llama yields nothing here, and the defaults of the vocabulary hold.
Source: vllm, transformers_utils/model_arch_config_convertor.py, `is_deepseek_mla` and `is_mm_prefix_lm`.
"""

from __future__ import annotations

from doctor.model import Fact
from doctor.sources.workload.model_config import Config

#: Models whose latent attention servers run absorbed; MiniCPM3 has such keys too, and vLLM expands it.
_LATENT = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "deepseek_vl_v2", "kimi_k2", "kimi_linear",
    "glm_moe_dsa", "glm4_moe_lite", "longcat_flash", "pangu_ultra_moe",
)  # fmt: skip
#: Models whose image tokens see each other in both directions.
_IMAGE_PREFIX = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")
_LINEAR = ("linear_attention", "mamba", "recurrent", "gated_delta", "conv")  # kinds of layers without a softmax
_ENCODERS = (
    "bert", "roberta", "xlm-roberta", "modernbert", "distilbert", "deberta", "deberta-v2", "electra", "nomic_bert",
    "camembert", "mpnet",
)  # fmt: skip


def serving_facts(config: Config) -> list[Fact]:
    """Return the words that servers add to the shape of attention."""
    return [
        *_latent(config),
        *_hybrid(config),
        *_sinks(config),
        *_image_prefix(config),
        *_widths(config),
        *_attention_type(config),
    ]


def _latent(config: Config) -> list[Fact]:
    rank = config.integer("kv_lora_rank")
    if rank.value is None or config.model_type not in _LATENT:
        return []
    facts = [Fact("workload.mla", True, rank.source), Fact("workload.kv_lora_rank", rank.value, rank.source)]
    for key in ("qk_nope_head_dim", "qk_rope_head_dim"):
        width = config.integer(key, least=0)
        if width.value is not None:
            facts.append(Fact(f"workload.{key}", width.value, width.source))
    topk = config.integer("index_topk")
    if topk.value is not None:
        facts += [Fact("workload.mla_sparse", True, topk.source), Fact("workload.index_topk", topk.value, topk.source)]
    return facts


def _hybrid(config: Config) -> list[Fact]:
    """Return whether most layers have linear attention or a state space: by the list of kinds, or by the interval."""
    kinds = config.texts("layer_types")
    linear = sum(kind.startswith(_LINEAR) for kind in kinds)
    interval = config.integer("full_attention_interval")
    if kinds and 2 * linear > len(kinds):
        return [Fact("workload.hybrid_linear_attention", True, config.source("layer_types"))]
    if not kinds and interval.value is not None and interval.value > 2:
        return [Fact("workload.hybrid_linear_attention", True, interval.source)]
    return []


def _sinks(config: Config) -> list[Fact]:
    if config.model_type != "gpt_oss":
        return []
    return [Fact("workload.sinks", True, f"{config.source('model_type')} (attention sinks)")]


def _image_prefix(config: Config) -> list[Fact]:
    key = "workload.multimodal_prefix_bidirectional"
    if config.get("use_bidirectional_attention") == "vision":  # Gemma 4
        return [Fact(key, True, config.source("use_bidirectional_attention"))]
    if config.outermost("model_type") in _IMAGE_PREFIX and config.has("vision_config"):
        return [Fact(key, True, f"{config.name}: model_type, vision_config")]
    return []


def _widths(config: Config) -> list[Fact]:
    narrow, wide = config.integer("head_dim"), config.integer("global_head_dim")
    if narrow.value is None or wide.value is None or narrow.value == wide.value:
        return []
    return [Fact("workload.head_dims_of_layers", (str(narrow.value), str(wide.value)), f"{wide.source}, head_dim")]


def _attention_type(config: Config) -> list[Fact]:
    if config.model_type not in _ENCODERS or config.flag("is_decoder"):
        return []
    return [Fact("workload.attention_type", "encoder_only", config.source("model_type"))]
