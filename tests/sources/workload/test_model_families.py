"""The words of a workload that `--model` reads from a config, one minimal config of our own per family."""

import json

import pytest

from doctor.model import ABSENT
from doctor.sources.workload.huggingface import workloads_of

LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def config(model_type, heads, kv_heads, hidden, **more):
    base = {"model_type": model_type, "num_attention_heads": heads, "hidden_size": hidden, "torch_dtype": "bfloat16"}
    return {**base, **({} if kv_heads is None else {"num_key_value_heads": kv_heads}), **more}


#: family → (config, head dims of queries and values, heads, key/value heads, further words)
FAMILIES = {
    "Llama": (config("llama", 32, 8, 4096), (128, 128), 32, 8, {}),
    "Llama 4": (
        config("llama4", 0, None, 0, text_config=config("llama4_text", 40, 8, 5120, head_dim=128)),
        (128, 128), 40, 8, {},
    ),
    "Qwen 2": (
        config("qwen2", 28, 4, 3584, use_sliding_window=False, sliding_window=131072),
        (128, 128), 28, 4, {"window": ABSENT},
    ),
    "Qwen 3": (config("qwen3", 16, 8, 1024, head_dim=128), (128, 128), 16, 8, {}),
    "Qwen 3 MoE": (config("qwen3_moe", 32, 4, 2048, head_dim=128), (128, 128), 32, 4, {}),
    "Mistral": (config("mistral", 32, 8, 4096, sliding_window=4096), (128, 128), 32, 8, {"window": (4095, 0)}),
    "Mistral without a window": (
        config("mistral", 32, 8, 5120, head_dim=128, sliding_window=None), (128, 128), 32, 8, {"window": ABSENT},
    ),
    "Gemma 2": (
        config("gemma2", 8, 4, 2304, head_dim=256, sliding_window=4096, attn_logit_softcapping=50.0),
        (256, 256), 8, 4, {"softcap": 50.0},
    ),
    "Gemma 3": (
        config("gemma3_text", 8, 4, 2560, head_dim=256, sliding_window=1024), (256, 256), 8, 4, {},
    ),
    "Gemma 4": (
        config("gemma4_text", 8, 2, 2560, head_dim=256, global_head_dim=512, sliding_window=512),
        (256, 256), 8, 2, {"head_dims_of_layers": ("256", "512")},
    ),
    "DeepSeek V2": (
        config("deepseek_v2", 16, 16, 2048, **LATENT), (192, 128), 16, 16, {"mla": True, "kv_lora_rank": 512},
    ),
    "DeepSeek V3": (config("deepseek_v3", 128, 128, 7168, **LATENT), (192, 128), 128, 128, {"mla": True}),
    "DeepSeek V3.2": (
        config("deepseek_v32", 128, 128, 7168, index_topk=2048, **LATENT),
        (192, 128), 128, 128, {"mla": True, "mla_sparse": True, "index_topk": 2048},
    ),
    "Kimi K2": (config("kimi_k2", 64, 64, 7168, **LATENT), (192, 128), 64, 64, {"mla": True}),
    "Kimi K2.5": (
        config("kimi_k25", 0, None, 0, text_config=config("kimi_k2", 64, 64, 7168, **LATENT)),
        (192, 128), 64, 64, {"mla": True},
    ),
    "gpt-oss": (
        config("gpt_oss", 64, 8, 2880, head_dim=64, sliding_window=128),
        (64, 64), 64, 8, {"sinks": True, "softmax_type": "learnable"},
    ),
    "GLM 4": (config("glm4", 32, 2, 4096, head_dim=128), (128, 128), 32, 2, {}),
    "GLM 4 MoE": (config("glm4_moe", 96, 8, 5120, head_dim=128), (128, 128), 96, 8, {}),
    "GLM 5": (
        config("glm_moe_dsa", 64, 64, 6144, index_topk=2048, **{**LATENT, "qk_nope_head_dim": 192, "v_head_dim": 256}),
        (256, 256), 64, 64, {"mla": True, "mla_sparse": True},
    ),
    "ChatGLM": (
        {"model_type": "chatglm", "num_attention_heads": 32, "hidden_size": 4096, "multi_query_attention": True,
         "multi_query_group_num": 2, "kv_channels": 128, "torch_dtype": "float16"},
        (128, 128), 32, 2, {"dtype": "float16"},
    ),
    "Phi": (config("phi", 32, None, 2560), (80, 80), 32, 32, {}),
    "Phi 3": (config("phi3", 32, 32, 3072, sliding_window=2047), (96, 96), 32, 32, {"window": (2046, 0)}),
    "Phi 4": (config("phi3", 40, 10, 5120, sliding_window=None), (128, 128), 40, 10, {"window": ABSENT}),
    "OLMo 2": (config("olmo2", 32, 32, 4096), (128, 128), 32, 32, {}),
    "OLMo 3": (
        config("olmo3", 32, 32, 4096, sliding_window=4096, layer_types=["sliding_attention", "full_attention"]),
        (128, 128), 32, 32, {},
    ),
    "MiniMax M1": (config("minimax_m1", 64, 8, 6144, head_dim=128), (128, 128), 64, 8, {}),
    "MiniMax M2": (config("minimax_m2", 48, 8, 3072, head_dim=128), (128, 128), 48, 8, {}),
    "EXAONE": (config("exaone", 32, 8, 4096), (128, 128), 32, 8, {}),
    "EXAONE 4": (
        config("exaone4", 40, 8, 5120, sliding_window=4096, sliding_window_pattern="LLLG",
               layer_types=["sliding_attention"] * 3 + ["full_attention"]),
        (128, 128), 40, 8, {},
    ),
    "Falcon 7B": (config("falcon", 71, None, 4544, multi_query=True), (64, 64), 71, 1, {}),
    "Falcon 40B": (
        config("falcon", 128, None, 8192, new_decoder_architecture=True, num_kv_heads=8), (64, 64), 128, 8, {},
    ),
}  # fmt: skip


def without_zeros(content):
    return {key: value for key, value in content.items() if value != 0}


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_the_family(family, tmp_path):
    content, (width, of_values), heads, kv_heads, words = FAMILIES[family]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(without_zeros(content)))
    workloads = workloads_of(path)
    shape = ("head_dim_qk", "head_dim_v", "num_heads", "num_kv_heads")
    found = {tuple(facts.value(f"workload.{word}") for word in shape) for facts in workloads}
    assert found == {(width, of_values, heads, kv_heads)}
    for word, value in {"dtype": "bfloat16", "mask": "causal", **words}.items():
        assert value in {facts.value(f"workload.{word}") for facts in workloads}, word


@pytest.mark.parametrize("family", ["Gemma 2", "Gemma 3", "gpt-oss", "OLMo 3", "EXAONE 4"])
def test_layers_with_and_without_a_window_are_two_workloads(family, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FAMILIES[family][0]))
    windows = {facts.value("workload.window") for facts in workloads_of(path)}
    assert len(windows) == 2
    assert ABSENT in windows


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0}


@pytest.mark.parametrize(
    ("rotary", "unread"),
    [
        ({"rope_parameters": LLAMA3}, True),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}, True),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, None),  # the base of the class
        ({"rope_parameters": LLAMA3, "rope_theta": 500000.0}, None),  # transformers 4 reads this one
        ({"rope_parameters": LLAMA3, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None),
        ({"rope_theta": 500000.0}, None),
    ],
)
def test_a_rotary_base_that_only_transformers_5_reads(rotary, unread, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, **rotary}))
    assert [facts.value("workload.rope_parameters") for facts in workloads_of(path)] == [unread]
