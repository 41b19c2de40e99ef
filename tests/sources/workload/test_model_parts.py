"""Several attentions in one model: the language model, and the towers for images and audio next to it."""

import json

import pytest
from typer.testing import CliRunner

from doctor.cli.main import app
from doctor.errors import DoctorError
from doctor.sources.workload.huggingface import read_model_config

LANGUAGE = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
QWEN25_VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "window_size": 112, "patch_size": 14}
QWEN2_VISION = {"embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "patch_size": 14}
SIGLIP = {"hidden_size": 1152, "num_attention_heads": 16, "image_size": 384, "patch_size": 14, "attention_dropout": 0.0}
WHISPER = {"d_model": 1280, "encoder_attention_heads": 20, "max_source_positions": 1500}


@pytest.fixture
def model(tmp_path):
    def write(**parts):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**LANGUAGE, **parts}), "utf-8")
        return file

    return write


def values(path):
    return {key.removeprefix("workload."): fact.value for key, fact in read_model_config(path).items()}


@pytest.mark.parametrize(
    ("name", "part", "heads", "width", "tokens"),
    [
        ("vision_config", QWEN25_VISION, 16, 80, None),
        ("vision_config", QWEN2_VISION, 16, 80, None),
        ("vision_config", SIGLIP, 16, 72, 27 * 27),
        ("audio_config", WHISPER, 20, 64, 1500),
    ],
)
def test_a_part_is_a_workload_of_its_own(model, name, part, heads, width, tokens):
    found = values(f"{model(**{name: part})}[{name}]")
    assert (found["num_heads"], found["num_kv_heads"], found["head_dim_qk"]) == (heads, heads, width)
    assert (found["mask"], found["dtype"], found.get("seq_len_q")) == ("no_mask", "bfloat16", tokens)
    assert "model_type" not in found  # what is known of the type holds for the language model


def test_the_language_model_names_the_parts_next_to_it(model):
    file = model(vision_config=SIGLIP, audio_config=WHISPER, rope_config={"theta": 1})
    found = values(file)
    assert found["other_attention"] == ("vision_config", "audio_config")
    assert (found["head_dim_qk"], found["mask"]) == (128, "causal")
    assert "other_attention" not in values(model())


def test_parts_below_the_thinker_have_its_name(model):
    file = model(thinker_config={"text_config": LANGUAGE, "vision_config": QWEN25_VISION})
    assert values(file)["other_attention"] == ("thinker_config.vision_config",)
    assert values(f"{file}[thinker_config.vision_config]")["head_dim_qk"] == 80


def test_a_part_that_is_not_there_is_one_line_that_names_the_others(model):
    with pytest.raises(DoctorError, match=r"no part `audio_config` with attention heads \(found `vision_config`\)"):
        read_model_config(f"{model(vision_config=SIGLIP)}[audio_config]")
    with pytest.raises(DoctorError, match="found none"):
        read_model_config(f"{model()}[vision_config]")


def test_a_file_whose_name_has_brackets_is_read(tmp_path):
    file = tmp_path / "llama[8b]"
    file.write_text(json.dumps(LANGUAGE), "utf-8")
    assert values(file)["num_heads"] == 28


def test_check_names_what_it_left_out_and_takes_both(model, tmp_path):
    file = str(model(vision_config=QWEN25_VISION))
    pins = tmp_path / "requirements.txt"
    pins.write_text("torch==2.6.0\ntransformers==4.51.0\n", "utf-8")
    settings = ("--gpu", "rtx4090", "--set", "workload.attn_implementation=flex_attention", "--format", "json")
    alone, both = (
        json.loads(CliRunner().invoke(app, ["check", "--requirements", str(pins), *models, *settings]).stdout)
        for models in (["--model", file], ["--model", file, "--model", f"{file}[vision_config]"])
    )
    hint = f"the attention of `vision_config` was not checked: add `--model '{file}[vision_config]'`"
    assert hint in alone["notes"] and hint not in both["notes"]
    of_tower = {finding["id"] for finding in both["findings"] if 1 in finding["cases"]}
    assert "NO_BACKEND" in of_tower - {finding["id"] for finding in alone["findings"]}  # its head dim is 80
