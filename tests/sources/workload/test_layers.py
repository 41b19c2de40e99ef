"""Layers of one model that differ in their heads, and what a config leaves to the class of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.sources.workload.huggingface import read_layers, read_model_config
from doctor.util.resources import rules_dir

MIXED = {"model_type": "gemma4_text", "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 256, "sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"],
         "dtype": "bfloat16"}  # fmt: skip
PLAIN = {"hidden_size": 512, "num_attention_heads": 8, "head_dim": 64, "max_position_embeddings": 2048}


def config(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ({**MIXED, "global_head_dim": 512, "num_global_key_value_heads": 2}, "full_attention layers",
         {"head_dim_qk": 512, "head_dim_v": 512, "num_kv_heads": 2, "window": "absent"}),
        (MIXED, "full_attention layers", {"head_dim_qk": 512, "head_dim_v": 512, "window": "absent"}),
        ({**PLAIN, "swa_head_dim": 96}, "sliding_attention layers", {"head_dim_qk": 96, "head_dim_v": 96}),
        ({**PLAIN, "per_layer_config": {"5": {"head_dim": 128}}}, "full_attention layers",
         {"head_dim_qk": 128, "head_dim_v": 128, "window": "absent"}),
        ({**PLAIN, "global_head_dim": 64}, None, {}),
    ],
)  # fmt: skip
def test_layers_with_other_heads_are_read(
    content: dict[str, Any], name: str | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    found = read_layers(config(tmp_path, content))
    assert [layer.name for layer in found] == ([] if name is None else [name])
    for layer in found:
        assert {key.removeprefix("workload."): fact.value for key, fact in layer.facts.items()} == expected


def test_a_finding_of_other_layers_names_them_and_a_setting_overrides_them(tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    stack = {"torch.version": "2.8.0", "flash-attn.version": "2.8.3", "python.version": "3.12.3", "gpu.sm": "9.0"}
    facts.write_text(json.dumps(stack))
    request = Request(facts=(str(facts),), model=str(config(tmp_path, MIXED)), fixes=False, run=False)
    wide = diagnose(request._replace(settings=("workload.framework=flash_attn",)))
    assert any("in the full_attention layers: " in item.message for item in wide.findings)
    narrow = diagnose(request._replace(settings=("workload.framework=flash_attn", "head_dim=128")))
    assert not any("layers: " in item.message for item in narrow.findings)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model_type": "qwen3_next", "full_attention_interval": 4}, True),
        ({"model_type": "new", **PLAIN, "layer_types": ["linear_attention", "mamba", "full_attention"]}, True),
        ({"model_type": "new", **PLAIN, "layer_types": ["full_attention", "linear_attention"]}, None),
        ({"model_type": "llama"}, None),
    ],
)
def test_models_of_mostly_linear_attention(content: dict[str, Any], expected: bool | None, tmp_path: Path) -> None:
    facts = read_model_config(config(tmp_path, content))
    assert facts.value("workload.hybrid_linear_attention") is expected


def test_every_model_class_of_transformers_has_its_defaults() -> None:
    """A model that transformers knows is known here: its shape follows from its type alone."""
    table = json.loads((rules_dir() / "index" / "model_configs.json").read_text())
    assert len(table) > 500
    assert table["gemma4_text"]["global_head_dim"] == 512
    assert table["deepseek_v3"]["qk_rope_head_dim"] == 64


def test_no_default_of_a_class_makes_a_config_bad(tmp_path: Path) -> None:
    table = json.loads((rules_dir() / "index" / "model_configs.json").read_text())
    bad = []
    for model_type in table:
        try:
            read_model_config(config(tmp_path, {"model_type": model_type}))
        except DoctorError as problem:
            if "no size of an attention head" not in problem.message:
                bad.append(problem.message)
    assert bad == []


@pytest.mark.parametrize("model_type", ["llama", "olmo3", "ernie4_5", "seed_oss", "hunyuan_v1_dense"])
def test_a_type_alone_gives_heads_and_width(model_type: str, tmp_path: Path) -> None:
    facts = read_model_config(config(tmp_path, {"model_type": model_type}))
    assert facts.value("workload.num_heads") and facts.value("workload.head_dim_qk")
