"""Workloads: files, settings, Hugging Face configs, and what is assumed where they are silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doctor.errors import DoctorError
from doctor.facts.vocabulary import TERMS
from doctor.facts.workload import ALIASES, SYNONYMS, workload_facts
from doctor.model import ABSENT, Fact, Facts
from doctor.rulebook.resolver import FactResolver
from doctor.sources.workload.defaults import complete_workload, lay_over
from doctor.sources.workload.files import parse_settings
from doctor.sources.workload.huggingface import read_model_config, workloads_of
from doctor.sources.workload.recipes import read_job

EXAMPLES = Path(__file__).parents[3] / "examples"

MODELS = {  # name: heads, kv heads, head_dim_qk, head_dim_v, window, layer kinds, longest sequence
    "llama-2-7b": (32, 32, 128, 128, ABSENT, 1, 4096),
    "llama-3-8b": (32, 8, 128, 128, ABSENT, 1, 8192),
    "llama-3-70b": (64, 8, 128, 128, ABSENT, 1, 8192),
    "qwen2-7b": (28, 4, 128, 128, ABSENT, 1, 131072),
    "qwen3-8b": (32, 8, 128, 128, ABSENT, 1, 40960),
    "qwen3-30b-a3b": (32, 4, 128, 128, ABSENT, 1, 40960),
    "mistral-7b-v0.1": (32, 8, 128, 128, (4095, 0), 1, 32768),
    "mistral-7b-v0.3": (32, 8, 128, 128, ABSENT, 1, 32768),
    "gemma-2-9b": (16, 8, 256, 256, (4095, 0), 2, 8192),
    "gemma-3-4b": (8, 4, 256, 256, (1023, 0), 2, 131072),
    "gemma-3-27b": (32, 16, 128, 128, (1023, 0), 2, 131072),
    "deepseek-v2": (128, 128, 192, 128, ABSENT, 1, 163840),
    "deepseek-v2-lite": (16, 16, 192, 128, ABSENT, 1, 163840),
    "deepseek-v3": (128, 128, 192, 128, ABSENT, 1, 163840),
    "mixtral-8x7b": (32, 8, 128, 128, ABSENT, 1, 32768),
    "phi-3-mini-4k": (32, 32, 96, 96, (2046, 0), 1, 4096),
    "gpt-oss-20b": (64, 8, 64, 64, (127, 0), 2, 131072),
    "falcon-7b": (71, 1, 64, 64, ABSENT, 1, 2048),
    "falcon-40b": (128, 8, 64, 64, ABSENT, 1, 2048),
}


def config(tmp_path: Path, **content: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content, indent=2))
    return path


def file(tmp_path: Path, text: str, name: str = "workload.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("model", sorted(MODELS))
def test_model_configs_of_the_real_models(model: str) -> None:
    path = EXAMPLES / "models" / f"{model}.json"
    facts = read_model_config(path)
    shape = ("num_heads", "num_kv_heads", "head_dim_qk", "head_dim_v", "window")
    *expected, kinds, longest = MODELS[model]
    assert [facts.value(f"workload.{key}") for key in shape] == expected
    assert len(workloads_of(path)) == kinds
    assert (
        FactResolver(facts).value("workload.seq_len_q") == FactResolver(facts).value("workload.seq_len_kv") == longest
    )
    assert facts.value("workload.mask") == "causal"
    assert facts["workload.mask"].source.startswith("assumed: a decoder-only model")


def test_every_example_model_is_in_the_table() -> None:
    assert {path.stem for path in (EXAMPLES / "models").glob("*.json")} == set(MODELS)


def test_model_config_says_where_each_fact_comes_from() -> None:
    facts = read_model_config(EXAMPLES / "models" / "deepseek-v3.json")
    assert facts["workload.head_dim_qk"].source == "deepseek-v3.json: qk_nope_head_dim + qk_rope_head_dim"
    assert facts["workload.head_dim_v"].source == "deepseek-v3.json: v_head_dim"
    assert facts["workload.seq_len_q"].source.startswith("assumed: the longest of the model")
    assert facts["workload.dtype"].source == "assumed: the dtype of the checkpoint (deepseek-v3.json: torch_dtype)"
    gemma = read_model_config(EXAMPLES / "models" / "gemma-3-4b.json")
    assert gemma["workload.window"].source == "gemma-3-4b.json: text_config.sliding_window"
    assert gemma["workload.num_heads"].source == "default of gemma3_text in transformers: num_attention_heads"
    assert gemma.value("workload.dtype") == "bfloat16"  # said by the outer config only


def test_softcap_sinks_and_dtype_of_the_real_models() -> None:
    gemma = read_model_config(EXAMPLES / "models" / "gemma-2-9b.json")
    assert (gemma.value("workload.softcap"), gemma.value("workload.dtype")) == (50.0, "float32")
    assert gemma.value("workload.layer_types") == ("sliding_attention", "full_attention")
    oss = read_model_config(EXAMPLES / "models" / "gpt-oss-20b.json")
    assert oss.value("workload.softmax_type") == "learnable"
    assert "workload.dtype" not in oss  # its config gives none, and none is made up
    assert "workload.softmax_type" not in gemma


def test_layers_of_two_kinds_give_two_workloads_the_windowed_one_last() -> None:
    full, sliding = workloads_of(EXAMPLES / "models" / "gemma-2-9b.json")
    assert (full.value("workload.window"), sliding.value("workload.window")) == (ABSENT, (4095, 0))
    assert full.value("workload.head_dim_qk") == sliding.value("workload.head_dim_qk") == 256


LLAMA = {"hidden_size": 4096, "num_attention_heads": 32}
SWITCHED = {"sliding_window": 4096, "use_sliding_window": True, "num_hidden_layers": 28}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({**LLAMA, "head_dim": None}, {"head_dim_qk": 128, "num_kv_heads": 32}),
        ({**LLAMA, "head_dim": 64}, {"head_dim_qk": 64, "head_dim_v": 64}),
        ({"n_embd": 768, "n_head": 12, "n_positions": 1024, "attn_pdrop": 0.1},
         {"head_dim_qk": 64, "num_heads": 12, "seq_len_q": 1024, "dropout": 0.1}),
        ({"d_model": 512, "num_heads": 6, "d_kv": 64, "relative_attention_num_buckets": 32, "is_encoder_decoder": True,
          "architectures": ["T5ForConditionalGeneration"]},
         {"head_dim_qk": 64, "bias": "post_scale_bias", "bias_shape": "1hss", "mask": None}),
        ({"d_model": 4096, "n_heads": 32, "max_seq_len": 2048, "attn_config": {"alibi": True, "attn_pdrop": 0.0}},
         {"bias": "alibi", "head_dim_qk": 128, "seq_len_q": 2048, "dropout": 0.0}),
        ({"d_model": 6144, "n_heads": 48, "attn_config": {"kv_n_heads": 8}}, {"num_kv_heads": 8, "bias": None}),
        ({"model_type": "bloom", "hidden_size": 4096, "n_head": 32}, {"bias": "alibi", "mask": "causal"}),
        ({"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "multi_query": False, "alibi": True},
         {"num_kv_heads": 32, "bias": "alibi"}),
        ({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71}, {"num_kv_heads": 1}),
        ({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "multi_query": True}, {"num_kv_heads": 1}),
        ({**LLAMA, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2},
         {"num_kv_heads": 2, "head_dim_qk": 128}),
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64, "num_attention_heads": 16,
          "num_key_value_heads": 1}, {"head_dim_qk": 192, "head_dim_v": 128, "num_kv_heads": 16}),
        ({**LLAMA, "torch_dtype": "torch.float16"}, {"dtype": "float16"}),
        ({**LLAMA, "dtype": "bfloat16", "torch_dtype": "float32"}, {"dtype": "bfloat16"}),
        ({**LLAMA, "torch_dtype": "auto"}, {"dtype": None}),
        ({**LLAMA, "_attn_implementation": "flash_attention_2"}, {"attn_implementation": "flash_attention_2"}),
        ({**LLAMA, "attn_implementation": "sdpa"}, {"attn_implementation": "sdpa"}),
        ({**LLAMA, "attn_logit_softcapping": None, "model_type": "gemma2"}, {"softcap": None}),
        ({"model_type": "gemma2", **LLAMA}, {"softcap": 50.0}),
        ({"thinker_config": {"text_config": {**LLAMA, "num_key_value_heads": 4}}}, {"num_kv_heads": 4}),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, {"head_dim_qk": 128, "num_heads": 32}),
        ({"model_type": "gpt_oss"}, {"head_dim_qk": 64, "num_kv_heads": 8, "window": (127, 0)}),
        ({"model_type": "deepseek_v3"}, {"head_dim_qk": 192, "head_dim_v": 128, "num_kv_heads": 128}),
        ({**LLAMA, "model_type": "llama"}, {"mask": "causal"}),
        ({**LLAMA, "model_type": "bert", "architectures": ["BertForMaskedLM"]}, {"mask": None}),
        ({**LLAMA, "num_key_value_heads": [8, 8, 4]}, {"num_kv_heads": 32}),
    ],
)  # fmt: skip
def test_other_families_of_configs(tmp_path: Path, content: dict[str, object], expected: dict[str, object]) -> None:
    facts = read_model_config(config(tmp_path, **content))
    assert {key: facts.value(f"workload.{key}") for key in expected} == expected


@pytest.mark.parametrize(
    ("content", "window", "kinds"),
    [
        ({"sliding_window": 4096}, (4095, 0), 1),
        ({"sliding_window": 0}, ABSENT, 1),
        ({"model_type": "granite_speech", "window_size": 15}, ABSENT, 1),  # of its audio encoder
        ({"model_type": "qwen2", "sliding_window": 4096}, ABSENT, 1),  # off unless switched on
        ({"sliding_window": 4096, "use_sliding_window": False}, ABSENT, 1),
        ({**SWITCHED, "max_window_layers": 28}, ABSENT, 1),
        ({**SWITCHED, "max_window_layers": 8}, (4095, 0), 2),
        ({**SWITCHED, "max_window_layers": 0}, (4095, 0), 1),
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, (4095, 0), 2),
        ({"sliding_window": 4096, "sliding_window_pattern": 1}, ABSENT, 1),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLLG"}, (4095, 0), 2),
        ({"sliding_window": 128, "layer_types": ["full_attention"] * 2}, ABSENT, 1),
        ({"sliding_window": 128, "layer_types": ["sliding_attention"] * 2}, (127, 0), 1),
        ({"layer_types": ["full_attention", "linear_attention"]}, ABSENT, 1),
        ({"model_type": "gpt_neo", "window_size": 256, "attention_types": [[["global", "local"], 12]]}, (255, 0), 2),
    ],
)  # fmt: skip
def test_windows_and_layer_kinds(tmp_path: Path, content: dict[str, object], window: object, kinds: int) -> None:
    path = config(tmp_path, **LLAMA, **content)
    assert read_model_config(path).value("workload.window") == window
    assert len(workloads_of(path)) == kinds


def test_sliding_layers_without_a_window_leave_it_unknown(tmp_path: Path) -> None:
    window = read_model_config(config(tmp_path, **LLAMA, layer_types=["sliding_attention"]))["workload.window"]
    assert window.value is None
    assert "no `sliding_window`" in str(window.problem)
    assert complete_workload(Facts([window])).value("workload.window") is None  # not taken for "none given"


def test_latent_attention_without_value_width_leaves_it_unknown(tmp_path: Path) -> None:
    facts = read_model_config(config(tmp_path, num_attention_heads=8, qk_nope_head_dim=64, qk_rope_head_dim=32))
    assert facts.value("workload.head_dim_qk") == 96
    assert facts["workload.head_dim_v"].value is None
    assert "v_head_dim" in str(facts["workload.head_dim_v"].problem)


def test_a_model_folder_is_for_its_config(tmp_path: Path) -> None:
    config(tmp_path, **LLAMA)
    assert read_model_config(tmp_path).value("workload.head_dim_qk") == 128


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "is empty"),
        ("{}", "has no size of an attention head"),
        ('{"name": "package", "version": "1.0"}', "has no size of an attention head"),
        ("[1, 2]", "needs a JSON object"),
        ("{\n  nonsense", ":2: not JSON"),
        ('{\n"hidden_size": 4097,\n"num_attention_heads": 32}', ":2: `hidden_size`: 4097 is not divisible by 32"),
        ('{"hidden_size": "4096", "num_attention_heads": 32}', '`hidden_size`: needs an integer, found `"4096"`'),
        ('{"num_attention_heads": -32}', "`num_attention_heads`: needs an integer from 1 to 2^40, found `-32`"),
        ('{"num_attention_heads": 0}', "found `0`"),
        ('{"num_attention_heads": true}', "found `True`"),
        ('{"num_attention_heads": 1e3}', "needs an integer"),
        ('{"head_dim": 99999999999999999999}', "from 1 to 2^40"),
        ('{"head_dim": 1' + "0" * 5000 + "}", "not JSON"),
        ('{"attention_dropout": 1.5}', "needs a number from 0 to 1"),
        ('{"attention_dropout": NaN}', "needs a number from 0 to 1"),
        ('{"torch_dtype": 16}', "`torch_dtype`: needs a text"),
        ('{"layer_types": "full"}', "`layer_types`: needs a list of texts"),
        ('{"alibi": "yes"}', "`alibi`: needs true or false"),
        ('{"num_attention_heads": 4, "num_key_value_heads": 8}', "more key/value heads (8) than query heads (4)"),
        ('{"qk_nope_head_dim": 0, "qk_rope_head_dim": 0}', "query/key head is 0"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text_config": {"head_dim": "x\\ny"}}', "`text_config.head_dim`: needs an integer"),
    ],
)
def test_bad_model_configs_are_reported_in_one_line(tmp_path: Path, text: str, fragment: str) -> None:
    with pytest.raises(DoctorError) as error:
        read_model_config(file(tmp_path, text, "config.json"))
    assert fragment in error.value.message
    assert "\n" not in error.value.message
    assert "config.json" in error.value.message


def test_missing_and_binary_model_configs(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="cannot read model config"):
        read_model_config(tmp_path / "none.json")
    (tmp_path / "config.json").write_bytes(b"\x80\x04\x00binary")
    with pytest.raises(DoctorError, match="not UTF-8"):
        read_model_config(tmp_path / "config.json")


# -- workload files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "head_dim_qk: 192\nwindow: [4095, 0]\ntraining: true\ndropout: 0.1\n",
        "workload:\n  head_dim_qk: 192\n  window: [4095, 0]\n  training: yes\n  dropout: '0.1'\n",
        "workload: {workload.head_dim_qk: 192, workload.window: '4095, 0', training: true, dropout: 0.1}\nfacts: {}\n",
        '{\n\t"head_dim_qk": 192,\n\t"window": [4095, 0],\n\t"training": true,\n\t"dropout": 0.1\n}',
        "head_dim_qk: {value: 192, source: 'config.json: head_dim'}\nwindow: [4095, 0]\ntraining: 1\ndropout: 1e-1\n",
    ],
)
def test_workload_files_in_every_shape(tmp_path: Path, text: str) -> None:
    facts = read_job(file(tmp_path, text))
    values = {key.removeprefix("workload."): fact.value for key, fact in facts.items()}
    assert values == {"head_dim_qk": 192, "window": (4095, 0), "training": True, "dropout": 0.1}


def test_workload_facts_name_file_and_key(tmp_path: Path) -> None:
    assert read_job(file(tmp_path, "dtype: float16\n"))["workload.dtype"].source == "workload.yaml: dtype"


def test_null_means_none_given(tmp_path: Path) -> None:
    facts = read_job(file(tmp_path, "window: null\ndropout: ~\nhead_dim_qk: null\ncp_comm_type:\n"))
    assert {key: fact.value for key, fact in facts.items()} == {"workload.window": ABSENT, "workload.dropout": 0.0}


@pytest.mark.parametrize(
    ("text", "fragment", "hint"),
    [
        ("", "is empty", "head_dim_qk"),
        ("- 1\n", ":1: a workload needs a mapping of keys, found a list", None),
        ("dtype: float16\nhead_dim_k: 128\n", ":2: unknown workload key `head_dim_k`", "did you mean `head_dim_qk`?"),
        ("num_heads: 8\nheads: 8\n", ":2: `workload.num_heads` is given twice", None),
        ("seq_len: two\n", ":1: `workload.seq_len_q`: needs a value of kind integer", None),
        ("workload:\n  head_dim_kq: 128\n", ":2: unknown workload key `head_dim_kq`", "did you mean `head_dim_qk`?"),
        ("workload: {}\ndtype: float16\n", ":2: `dtype` is outside `workload:`", "under"),
        ("workload: 3\n", ":1: `workload:` needs a mapping", None),
        ("causal: true\n", ":1: unknown workload key `causal`", "did you mean `mask`?"),  # follows from the mask
        ("dtype: fp17\n", ":1: `workload.dtype`: needs one of", None),
        ("head_dim_qk: wide\n", ":1: `workload.head_dim_qk`: needs a value of kind integer", None),
        ("head_dim_qk: -1\n", "needs an integer from 1", None),
        ("head_dim_qk: absent\n", "found `absent`", None),
        ("seq_len_q: 99999999999999\n", "from 1 to 2^40", None),
        ("window: [1]\n", "needs two integers", None),
        ("window: [-2, 0]\n", "from -1 (unlimited) up", None),
        ("window: [[1], 2]\n", "found a list", None),
        ("dropout: 2\n", "from 0 to 1", None),
        ("dropout: .nan\n", "`workload.dropout`", None),
        ("softcap: -1\n", "from 0 (none) up", None),
        ("mask: {a: 1}\n", "or a mapping with `value`", None),
        ("dtype: float16\nworkload.dtype: float16\n", ":2: `workload.dtype` is given twice", None),
        ("mask: [\n", "workload.yaml:", None),
        ("mask: !!python/object:os.system x\n", "workload.yaml:1:", None),
        ("[" * 100_000, "nested deeper", None),
        ('"a\\nb": 1\n', "unknown workload key `a b`", None),
    ],
)
def test_bad_workload_files_are_reported_in_one_line(
    tmp_path: Path, text: str, fragment: str, hint: str | None
) -> None:
    with pytest.raises(DoctorError) as error:
        read_job(file(tmp_path, text))
    assert fragment in error.value.message
    assert "\n" not in error.value.message
    assert hint is None or hint in str(error.value.hint)


def test_a_name_of_the_hub_says_how_to_get_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DoctorError) as error:
        read_model_config(Path("meta-llama/Meta-Llama-3-8B"))
    assert "is no local file" in error.value.message
    assert "hf download meta-llama/Meta-Llama-3-8B config.json" in str(error.value.hint)
    with pytest.raises(DoctorError, match="no such file"):
        read_model_config(Path("configs/missing.json"))


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_take_any_fact_key() -> None:
    facts = parse_settings(
        ["gpu.sm=sm90", "flash-attn.version = absent", "env.NVTE_FLASH_ATTN=0", "env.EMPTY=", "workload.window=null",
         "cudnn.version=null", "workload.cp_size=2", "workload.cp_size=4", "workload.attn_implementation=none"]
    )  # fmt: skip
    assert {key: fact.value for key, fact in facts.items()} == {
        "gpu.sm": "9.0",
        "flash-attn.version": ABSENT,
        "env.NVTE_FLASH_ATTN": "0",
        "env.EMPTY": "",
        "workload.window": ABSENT,
        "cudnn.version": None,
        "workload.cp_size": 4,
        "workload.attn_implementation": ABSENT,
    }
    assert facts["gpu.sm"].source == "--set gpu.sm"


@pytest.mark.parametrize(
    ("setting", "fragment", "hint"),
    [
        ("gpu.sm", "needs KEY=VALUE", "gpu.sm=9.0"),
        ("=3", "needs KEY=VALUE", None),
        ("workload.head_dim_k=128", "unknown fact key", "did you mean `workload.head_dim_qk`?"),
        ("is_causal=true", "unknown fact key", "did you mean `workload.mask`?"),
        ("flash_attn.versio=2.8", "unknown fact key", "did you mean `flash-attn.version`?"),
        ("head_dim=wide", "`workload.head_dim_qk`: needs a value of kind integer", None),
        ("workload.gqa=true", "unknown fact key `workload.gqa`", None),
        ("gpu.smm=9.0", "unknown fact key", "did you mean `gpu.sm`?"),
        ("torch.version=", "has no value", "absent"),
        ("torch.version=two", "needs a version", None),
        ("workload.num_heads=0", "needs an integer from 1", None),
        ("workload.mask=diagonal\nly", "needs one of", None),
    ],
)
def test_bad_settings_are_reported_in_one_line(setting: str, fragment: str, hint: str | None) -> None:
    with pytest.raises(DoctorError) as error:
        parse_settings([setting])
    assert fragment in error.value.message
    assert "\n" not in error.value.message
    assert hint is None or hint in str(error.value.hint)


@pytest.mark.parametrize("names", [SYNONYMS, ALIASES], ids=["hints", "accepted"])
def test_other_names_are_for_known_keys(names: dict[str, str | tuple[str, ...]]) -> None:
    for key, meant in names.items():
        assert f"workload.{key}" not in TERMS or TERMS[f"workload.{key}"].derived
        for full in (meant,) if isinstance(meant, str) else meant:
            assert not TERMS[f"workload.{full}"].derived


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("workload.dtype=bf16", {"workload.dtype": "bfloat16"}),
        ("dtype=FP16", {"workload.dtype": "float16"}),
        ("dtype=fp8", {"workload.dtype": "float8"}),
        ("dtype=BFloat16", {"workload.dtype": "bfloat16"}),
        ("framework=huggingface", {"workload.framework": "transformers"}),
        ("mask=none", {"workload.mask": "no_mask"}),
        ("attn_implementation=fa2", {"workload.attn_implementation": "flash_attention_2"}),
        ("head_dim_qk=64", {"workload.head_dim_qk": 64}),
        ("workload.head_dim=64", {"workload.head_dim_qk": 64, "workload.head_dim_v": 64}),
        ("seq_len=8192", {"workload.seq_len_q": 8192, "workload.seq_len_kv": 8192}),
        ("num_key_value_heads=8", {"workload.num_kv_heads": 8}),
        ("attn_mask_type=causal", {"workload.mask": "causal"}),
        ("flash_attn.version=2.8.3", {"flash-attn.version": "2.8.3"}),
        ("Transformer_Engine.version=2.3.0", {"transformer-engine.version": "2.3.0"}),
    ],
)
def test_settings_take_the_names_that_people_type(setting: str, expected: dict[str, object]) -> None:
    assert {key: fact.value for key, fact in parse_settings([setting]).items()} == expected


def test_a_file_takes_the_names_of_other_tools(tmp_path: Path) -> None:
    text = "framework: hf\ndtype: bf16\nhead_dim: 192\nhead_dim_v: 128\nseq_len: 4096\nheads: 16\n"
    (tmp_path / "job.yaml").write_text(text)
    found = read_job(tmp_path / "job.yaml")
    assert {key.removeprefix("workload."): fact.value for key, fact in found.items()} == {
        "framework": "transformers", "dtype": "bfloat16", "head_dim_qk": 192, "head_dim_v": 128,
        "seq_len_q": 4096, "seq_len_kv": 4096, "num_heads": 16,
    }  # fmt: skip


# -- assumptions ------------------------------------------------------------------------------------------------------


def completed(**given: str) -> Facts:
    return complete_workload(parse_settings([f"{key.replace('__', '.')}={value}" for key, value in given.items()]))


def test_nothing_is_assumed_without_a_workload() -> None:
    assert dict(completed(torch__version="2.6.0")) == dict(parse_settings(["torch.version=2.6.0"]))


@pytest.mark.parametrize(
    ("given_facts", "layout"),
    [
        ({"workload__framework": "megatron"}, "sbhd_sbhd_sbhd"),
        ({"workload__framework": "transformers"}, "bshd_bshd_bshd"),
        ({"workload__dtype": "float16", "transformer-engine.version": "2.3.0"}, "sbhd_sbhd_sbhd"),
        ({"workload__dtype": "float16", "torch.version": "2.6.0"}, "bshd_bshd_bshd"),
        ({"workload__framework": "xtuner", "workload__use_varlen_attn": "true"}, "thd_thd_thd"),
        ({"workload__framework": "megatron", "workload__packing": "true"}, "thd_thd_thd"),
        ({"workload__framework": "transformers", "workload__packing": "true"}, "bshd_bshd_bshd"),
        ({"workload__framework": "megatron", "workload__qkv_layout": "bs3hd"}, "bs3hd"),
        ({"workload__dtype": "float16"}, None),
    ],
)
def test_the_layout_follows_the_framework(given_facts: dict[str, str], layout: str | None) -> None:
    facts = completed(**given_facts)
    assert facts.value("workload.qkv_layout") == layout
    if layout not in (None, "bs3hd"):
        assert facts["workload.qkv_layout"].source.startswith("assumed: ")


@pytest.mark.parametrize(
    ("key", "value", "compiled"),
    [
        ("framework", "flex_attention", True),
        ("attn_implementation", "flex_attention", True),
        ("framework", "torch_sdpa", None),
    ],
)
def test_flex_attention_is_taken_as_compiled(key, value, compiled):
    given = Facts([Fact(f"workload.{key}", value, "test")])
    facts = complete_workload(given)
    assert facts.value("workload.torch_compile") is compiled
    assert compiled is None or facts["workload.torch_compile"].assumed
    stated = complete_workload(given.with_(Fact("workload.torch_compile", False, "test")))
    assert stated.value("workload.torch_compile") is False


@pytest.mark.parametrize(
    ("given_facts", "training"),
    [
        ({"inference_kv_cache": "true"}, False),
        ({"cache_implementation": "static"}, False),
        ({"inference_kv_cache": "true", "training": "true"}, True),
        ({"inference_kv_cache": "true", "training_method": "grpo"}, None),
        ({"cache_implementation": "static", "gradient_checkpointing": "true"}, None),
        ({"dtype": "bfloat16"}, None),
    ],
)
def test_a_job_that_decodes_is_taken_for_no_training(given_facts: dict[str, str], training: bool | None) -> None:
    facts = complete_workload(parse_settings([f"workload.{key}={value}" for key, value in given_facts.items()]))
    assert facts.value("workload.training") is training


@pytest.mark.parametrize(
    ("setting", "gpus"),
    [
        ("sharding=fsdp2", 2),
        ("sharding=zero2", None),
        ("cp_size=4", 4),
        ("tensor_parallel_size=8", 8),
        ("cp_size=1", None),
    ],
)
def test_a_job_of_several_ranks_has_as_many_gpus(setting: str, gpus: int | None) -> None:
    facts = complete_workload(parse_settings([f"workload.{setting}"]))
    assert facts.value("gpu.count") == gpus
    assert complete_workload(facts.with_(Fact("gpu.count", 1, "test"))).value("gpu.count") == 1


@pytest.mark.parametrize(
    ("backend", "framework", "pinned"),
    [
        (None, "torch_sdpa", None),
        ("native", "torch_sdpa", None),
        ("_native_cudnn", "torch_sdpa", "cudnn"),
        ("flash", "flash_attn", None),
        ("_sage_qk_int8_pv_fp16_cuda", "sageattention", None),
        ("flash_hub", "diffusers", None),
    ],
)
def test_a_job_of_diffusers_is_one_of_what_its_backend_calls(
    backend: str | None, framework: str, pinned: str | None
) -> None:
    given_facts = ["workload.framework=diffusers"] + ([f"workload.diffusers_backend={backend}"] if backend else [])
    facts = complete_workload(parse_settings(given_facts))
    assert facts.value("workload.framework") == framework
    assert facts.value("workload.diffusers_backend") == (backend or "native")
    assert facts.value("workload.sdpa_backend") == pinned


@pytest.mark.parametrize(("torch", "framework"), [("1.13.1", "diffusers"), ("2.0.1", "torch_sdpa")])
def test_diffusers_calls_no_sdpa_before_torch_2(torch: str, framework: str) -> None:
    facts = complete_workload(parse_settings(["workload.framework=diffusers", f"torch.version={torch}"]))
    assert facts.value("workload.framework") == framework


def test_assumptions_never_hide_an_unknown() -> None:
    facts = completed(workload__framework="torch_sdpa")
    for key in ("seq_len_q", "head_dim_qk", "num_heads", "dtype", "mask"):
        assert f"workload.{key}" not in facts
    assert facts.value("workload.batch_size") == 1
    kept = complete_workload(Facts([Fact("workload.batch_size", None, "x", None, "given as null")]))
    assert kept.value("workload.batch_size") is None


def test_jobs_of_megatron_have_usual_inputs_as_assumptions() -> None:
    for sm, dtype in (("9.0", "bfloat16"), ("7.0", "float16")):
        facts = completed(workload__framework="megatron", gpu__sm=sm)
        for key, value in (("mask", "causal"), ("seq_len_q", 4096), ("dtype", dtype)):
            assert (facts.value(f"workload.{key}"), facts[f"workload.{key}"].assumed) == (value, True)
        assert "workload.head_dim_qk" not in facts
    assert "workload.dtype" not in completed(workload__framework="megatron")
    assert "workload.mask" not in completed(workload__framework="megatron", workload__model_type="bert")


@pytest.mark.parametrize(
    ("setting", "fp8"),
    [("fp8_dpa=true", True), ("fp8_mha=true", True), ("fp8_recipe=mxfp8", True), ("fp8_dpa=false", None)],
)
def test_settings_of_fp8_attention_imply_fp8(setting: str, fp8: bool | None) -> None:
    stated = parse_settings(["workload.framework=transformer_engine", f"workload.{setting}"])
    assert complete_workload(stated).value("workload.fp8") is fp8
    off = stated.with_(*parse_settings(["workload.fp8=false"]).values())
    assert complete_workload(off).value("workload.fp8") is False  # as said, not assumed


@pytest.mark.parametrize(("key", "value"), [("num_heads", 0), ("head_dim_qk", ABSENT), ("dropout", -0.1)])
def test_impossible_values_are_refused_who_read_them(key: str, value: object) -> None:
    with pytest.raises(DoctorError, match=f"facts file: `workload.{key}`: needs"):
        complete_workload(Facts([Fact(f"workload.{key}", value, "facts file")]))


def test_another_length_than_the_models_holds_for_queries_and_keys() -> None:
    model = read_model_config(EXAMPLES / "models" / "llama-3-8b.json")
    facts = FactResolver(complete_workload(model.with_(*parse_settings(["workload.seq_len_q=2048"]).values())))
    assert (facts.value("workload.seq_len_q"), facts.value("workload.seq_len_kv")) == (2048, 2048)


def test_what_a_model_only_assumes_does_not_replace_what_was_said() -> None:
    said = parse_settings(["workload.seq_len_q=2048", "workload.mask=padding_causal", "workload.head_dim_qk=64"])
    facts = lay_over(said, read_model_config(EXAMPLES / "models" / "llama-3-8b.json"))
    assert facts.value("workload.seq_len_q") == 2048
    assert facts.value("workload.mask") == "padding_causal"
    assert facts.value("workload.head_dim_qk") == 128  # read from the config, so it counts


def test_context_parallelism_defaults_to_the_ring() -> None:
    assert completed(workload__framework="megatron", workload__cp_size="2").value("workload.cp_comm_type") == "p2p"
    assert "workload.cp_comm_type" not in completed(workload__framework="megatron", workload__cp_size="1")
    assert "workload.cp_comm_type" not in completed(workload__framework="transformers", workload__cp_size="2")


def test_packed_sequences_pad_an_assumed_mask_but_not_a_given_one() -> None:
    model = read_model_config(EXAMPLES / "models" / "llama-3-8b.json")
    packed = model.with_(*parse_settings(["workload.framework=megatron", "workload.qkv_layout=thd_thd_thd"]).values())
    assert complete_workload(packed).value("workload.mask") == "padding_causal"
    said = packed.with_(*parse_settings(["workload.mask=causal"]).values())
    assert complete_workload(said).value("workload.mask") == "causal"


@pytest.mark.parametrize(
    ("transformers", "torch", "mask", "window", "passed"),
    [
        ("4.54.0", "2.5.0", "causal", "null", True),
        ("4.53.3", "2.5.0", "causal", "null", False),
        ("4.54.0", "2.4.1", "causal", "null", False),
        ("4.54.0", "2.5.0", "padding_causal", "null", False),
        ("4.54.0", "2.5.0", "causal", "4095,0", False),
        ("4.54.0", "null", "causal", "null", None),
        ("4.54.0", "2.5.0", None, "null", None),
    ],
)
def test_transformers_leaves_heads_grouped_only_without_a_mask_tensor(
    transformers: str, torch: str, mask: str | None, window: str, passed: bool | None
) -> None:
    given_facts = {"workload__framework": "transformers", "transformers.version": transformers, "torch.version": torch}
    given_facts |= {"workload__window": window} | ({"workload__mask": mask} if mask else {})
    assert completed(**given_facts).value("workload.enable_gqa") is passed


# -- nothing but DoctorError ------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window", "layer_types", "alibi",
     "text_config", "model_type", "torch_dtype", "attn_config", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
     "sliding_window_pattern", "max_window_layers", "use_sliding_window", "architectures", "num_hidden_layers",
     "attention_dropout", "multi_query", "new_decoder_architecture", "window_size", "attention_types"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["falcon", "gemma2", "gpt_oss", "bloom", "qwen2", "llama", "gpt_neo", "t5"]),
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(content=st.dictionaries(KEYS, VALUES, max_size=8))
def test_no_config_raises_anything_but_a_clear_line(tmp_path: Path, content: dict[str, object]) -> None:
    try:
        workloads_of(config(tmp_path, **content))
    except DoctorError as error:
        assert "\n" not in error.message


@QUIET
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_no_bytes_raise_anything_but_a_clear_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    for reader in (read_job, read_model_config):
        try:
            reader(path)
        except DoctorError as error:
            assert "\n" not in error.message


WORKLOAD_KEYS = st.sampled_from(["window", "head_dim_qk", "dropout", "mask", "layer_types", "workload.mask", "given"])


@QUIET
@given(content=st.dictionaries(WORKLOAD_KEYS | st.text(max_size=4), VALUES, max_size=5))
def test_no_workload_raises_anything_but_a_clear_line(content: dict[str, object]) -> None:
    try:
        complete_workload(workload_facts(content))
    except DoctorError as error:
        assert "\n" not in error.message


@QUIET
@given(
    setting=st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(["gpu.sm", "workload.window"]), st.text())
)
def test_no_setting_raises_anything_but_a_clear_line(setting: str) -> None:
    try:
        parse_settings([setting])
    except DoctorError as error:
        assert "\n" not in error.message


def test_names_of_other_tools_mean_the_same():
    facts = workload_facts({"tp_size": 2, "trust_remote_code": True, "compile": True, "max_seqlen": 4096})
    expected = {"tensor_parallel_size": 2, "remote_code": True, "torch_compile": True, "seq_len_q": 4096}
    assert {key: facts[f"workload.{key}"].value for key in expected} == expected
