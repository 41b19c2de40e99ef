"""What model configs say to servers: latent attention, sinks, image prefixes, heads of several widths."""

from __future__ import annotations

import pytest

from doctor.diagnosis.batch import predict_case
from doctor.model import ABSENT, Fact
from doctor.sources.snapshot import parse_facts
from doctor.sources.workload.huggingface import model_facts
from tests.helpers.rulebook import builtin_rulebook

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
SPARSE = {**DEEPSEEK, "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_topk": 2048}
KIMI = {**DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64}
GLM5 = {**SPARSE, "model_type": "glm_moe_dsa", "num_attention_heads": 64, "qk_nope_head_dim": 192, "v_head_dim": 256}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
PHI = {**LLAMA, "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_size": 2560}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880, "sliding_window": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 5376, "num_attention_heads": 32,
                    "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024},
}  # fmt: skip
GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma4_text", "hidden_size": 2560, "num_attention_heads": 8,
                    "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
}  # fmt: skip
BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "num_attention_heads": 12,
    "torch_dtype": "float16",
}  # fmt: skip
H100 = {
    "gpu.sm": "9.0", "flashinfer-python.version": "0.6.6", "flashinfer-cubin.version": "absent", "machine.nvcc": "true",
    "tokenspeed-mla.version": "absent", "machine.nvidia_artifactory_reachable": "true",
}  # fmt: skip


@pytest.fixture(scope="module")
def rulebook():
    return builtin_rulebook()


def serve(rulebook, config, release, **machine):
    facts = model_facts(config)
    given = {**H100, "vllm.version": release, "workload.framework": "vllm", **machine}
    more = (Fact(key, True if value == "true" else value, "test") for key, value in given.items())
    return predict_case(rulebook, facts.with_(*more)).selected


@pytest.mark.parametrize(
    ("config", "release", "machine", "selected"),
    [
        (LLAMA, "0.19.1", {}, "vllm.flash_attn"),
        (QWEN3, "0.8.5", {}, "vllm.flash_attn"),
        (PHI, "0.9.2", {}, "vllm.flex_attention"),
        (PHI, "0.19.1", {}, "vllm.flash_attn"),
        (GPT_OSS, "0.10.2", {"gpu.sm": "8.0"}, "vllm.triton_attn"),
        (GPT_OSS, "0.19.1", {}, "vllm.flash_attn"),
        (GEMMA3, "0.19.1", {}, "vllm.triton_attn"),
        (GEMMA4, "0.22.1", {}, "vllm.triton_attn"),
        (GEMMA4, "0.27.1", {}, "vllm.flash_attn"),
        (DEEPSEEK, "0.8.5", {}, "vllm.flashmla"),
        (DEEPSEEK, "0.19.1", {"gpu.sm": "10.0"}, "vllm.flashinfer_mla"),
        (KIMI, "0.19.1", {}, "vllm.flash_attn_mla"),
        (SPARSE, "0.19.1", {}, "vllm.flashmla_sparse"),
        (SPARSE, "0.27.1", {}, "vllm.flash_attn_mla_sparse"),
        (GLM5, "0.27.1", {"gpu.sm": "10.0"}, "vllm.flashmla_sparse"),
        (BERT, "0.19.1", {"gpu.sm": "7.5"}, "vllm.triton_attn"),
    ],
)
def test_a_model_config_is_enough_for_a_prediction(rulebook, config, release, machine, selected):
    assert serve(rulebook, config, release, **machine) == selected


def test_only_what_the_config_shows_is_stated():
    words = {"mla", "mla_sparse", "sinks", "attention_type", "multimodal_prefix_bidirectional", "head_dims_of_layers"}
    assert not {f"workload.{word}" for word in words} & set(model_facts(LLAMA))
    assert model_facts(GEMMA4).value("workload.head_dims_of_layers") == ("256", "512")
    assert model_facts(GEMMA3).value("workload.multimodal_prefix_bidirectional") is True
    assert model_facts({**GEMMA3, "vision_config": None}).value("workload.mask") == "causal"
    assert model_facts(BERT).value("workload.attention_type") == "encoder_only"
    assert model_facts(SPARSE).value("workload.index_topk") == 2048


def test_minicpm3_has_latent_keys_and_no_absorbed_attention():
    assert "workload.mla" not in model_facts({**DEEPSEEK, "model_type": "minicpm3", "kv_lora_rank": 256})


def test_a_sliding_window_in_tokens_is_a_window():
    facts = parse_facts("facts: {}\nworkload: {framework: vllm, sliding_window: 4096}\n", "job.yaml")
    assert facts.value("workload.sliding_window") == 4096
    assert facts.value("workload.window") in (None, ABSENT)
