"""`--workload` with the config of a trainer."""

from __future__ import annotations

import json

import pytest

from doctor.errors import DoctorError
from doctor.sources.workload.recipes import read_job
from tests.helpers.watches import built_in_watch

AXOLOTL = """base_model: some/model
datasets: [{path: a, type: b}]
adapter: qlora
load_in_4bit: true
sequence_len: 8192
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
flash_attention: true
gradient_checkpointing: offload
deepspeed: deepspeed_configs/zero3.json
sequence_parallel_degree: 2
rl: dpo
torch_compile: auto
"""
LLAMAFACTORY = """model_name_or_path: some/model
stage: sft
do_train: true
finetuning_type: lora
quantization_bit: 4
template: qwen
cutoff_len: 4096
neat_packing: true
flash_attn: fa2
fp16: true
per_device_train_batch_size: 1
deepspeed: zero.json
"""
TRL = """model_name_or_path: some/model
attn_implementation: sdpa
torch_dtype: bfloat16
bf16: false
packing: false
max_seq_length: 2048
use_peft: true
gradient_checkpointing: true
torch_compile_mode: max-autotune
fsdp: full_shard auto_wrap
fsdp_config: {version: 2}
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2}
mixed_precision: bf16
num_processes: 8
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead}
"""
DEEPSPEED = {
    "zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}, "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4,
}  # fmt: skip

PLAIN = {
    "trainer": "deepspeed.config",
    "optimizer_offload": False,
    "deepspeed_optimizer": False,
    "zero_quantized": False,
}


def job_of(path):
    return read_job(path, built_in_watch())


def read(folder, text, name="job.yaml"):
    """The words of a config, without their prefix."""
    (folder / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (folder / name).write_text(text)
    return {key.removeprefix("workload."): fact.value for key, fact in job_of(folder / name).items()}


def test_axolotl(tmp_path):
    assert read(tmp_path, AXOLOTL) == {
        "framework": "transformers", "training": True, "attn_implementation": "flash_attention_2", "packing": True,
        "dtype": "bfloat16", "batch_size": 2, "gradient_accumulation_steps": 4, "finetuning": "qlora",
        "gradient_checkpointing": True, "seq_len_q": 8192, "seq_len_kv": 8192, "cp_size": 2,
        "sequence_parallel": "ring", "training_method": "dpo", "liger_kernel": False, "trainer": "axolotl",
        "sharding": None, "optimizer_offload": None, "deepspeed_optimizer": None, "zero_quantized": None,
    }  # fmt: skip  # the file of `deepspeed` is not there, so what it says is unknown; `auto` compiles on some GPUs


def test_llamafactory_with_the_deepspeed_config_next_to_it(tmp_path):
    assert read(tmp_path, LLAMAFACTORY) == {
        "framework": "transformers", "training": True, "attn_implementation": "flash_attention_2", "packing": True,
        "dtype": "float16", "batch_size": 1, "finetuning": "qlora", "training_method": "sft", "seq_len_q": 4096,
        "seq_len_kv": 4096, "gradient_checkpointing": True, "sharding": "zero3", "liger_kernel": False,
        "trainer": "llamafactory", "optimizer_offload": False, "deepspeed_optimizer": False, "zero_quantized": False,
    }  # fmt: skip


LLAMAFACTORY_V1 = """model: some/model
model_class: llm
flash_attn: flash_attention_2
kernel_config: {name: liger_kernel}
peft_config: {name: lora, r: 16}
quant_config: {name: bnb, quantization_bit: 4}
dist_config: {name: fsdp2, cp_mode: ulysses, cp_size: 2}
train_dataset: data/demo.yaml
micro_batch_size: 4
batching_strategy: padding_free
cutoff_len: 1024
"""


def test_llamafactory_of_the_second_generation(tmp_path):
    assert read(tmp_path, LLAMAFACTORY_V1) == {
        "framework": "transformers", "training": True, "trainer": "llamafactory.v1", "dtype": "bfloat16",
        "attn_implementation": "flash_attention_2", "finetuning": "qlora", "liger_kernel": True, "sharding": "fsdp2",
        "cp_size": 2, "sequence_parallel": "llamafactory", "padding_free": True, "batch_size": 4,
        "gradient_checkpointing": True, "seq_len_q": 1024, "seq_len_kv": 1024,
    }  # fmt: skip
    plain = read(tmp_path, "model: x\nmodel_class: llm\nbf16: false\nquant_config: null\n")
    assert plain["attn_implementation"] == "sdpa"
    assert "dtype" not in plain


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("infer_backend: vllm", "vllm"),
        ("infer_backend: huggingface", "transformers"),
        ("export_dir: x", "transformers"),
    ],
)
def test_llamafactory_for_chat_or_export_trains_nothing(tmp_path, line, framework):
    found = read(tmp_path, f"model_name_or_path: x\ntemplate: qwen3\n{line}\n")
    assert found == {"framework": framework, "training": False, "trainer": "llamafactory"}


def test_xformers_of_axolotl_computes_the_attention(tmp_path):
    for line in ("xformers_attention: true", "attn_implementation: xformers"):
        found = read(tmp_path, AXOLOTL.replace("flash_attention: true", line))
        assert found["framework"] == "xformers"
        assert "attn_implementation" not in found


def test_a_file_lists_the_options_and_variables_of_a_command(tmp_path):
    """Launchers of clusters keep the command line as a table: its options count as those of a command."""
    text = """ENV_VARS: {NVTE_FUSED_ATTN: 0, SOME_TOKEN: x}
MODEL_ARGS:
  --num-layers: 2
  --hidden-size: 512
  --num-attention-heads: 8
  --bf16: true
  --transformer-impl: transformer_engine
METRICS: [lm loss]
"""
    found = read(tmp_path, text)
    assert found == {
        "framework": "megatron", "head_dim_qk": 64, "head_dim_v": 64, "num_heads": 8, "num_kv_heads": 8,
        "dropout": 0.1, "dtype": "bfloat16", "moe_grouped_gemm": False, "env.NVTE_FUSED_ATTN": "0",
        "trainer": "megatron.lm",
    }  # fmt: skip
    local = read(tmp_path, text.replace("transformer_engine", "local"))
    assert (local["framework"], local["num_heads"]) == ("megatron_local", 8)
    other = read(tmp_path, text.replace("transformer_engine", "kitchen"))
    assert other["not_understood"] == ("transformer_impl=kitchen",)


def test_a_deepspeed_config_without_zero_is_stage_0(tmp_path):
    (tmp_path / "plain.json").write_text(json.dumps({"bf16": {"enabled": True}}))
    assert read(tmp_path, LLAMAFACTORY.replace("zero.json", "plain.json"))["sharding"] == "zero0"


ON_HOST = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
ADAM = {"type": "AdamW", "params": {"lr": 1e-5}}


@pytest.mark.parametrize(
    ("config", "offload", "compiled"),
    [
        ({"zero_optimization": ON_HOST}, True, False),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}, "optimizer": ADAM}, False, True),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, True, False),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "auto"}}}, None, False),
        ({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, False, False),
        ({"optimizer": {"type": "Muon"}}, False, False),
    ],
)
def test_a_deepspeed_config_says_whether_it_compiles_operators(tmp_path, config, offload, compiled):
    """Offload and an optimizer of its own: a rule on DeepSpeed's operators concerns no other job."""
    (tmp_path / "own.json").write_text(json.dumps(config))
    found = read(tmp_path, LLAMAFACTORY.replace("zero.json", "own.json"))
    assert (found["optimizer_offload"], found["deepspeed_optimizer"]) == (offload, compiled)


@pytest.mark.parametrize(("device", "expected"), [("cpu", True), ("none", False), (None, False)])
def test_the_config_of_accelerate_says_whether_the_optimizer_is_offloaded(tmp_path, device, expected):
    own = {"zero_stage": 2} if device is None else {"zero_stage": 2, "offload_optimizer_device": device}
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "deepspeed_config": own}
    found = read(tmp_path, json.dumps({**config, "num_processes": 8}))
    assert (found["sharding"], found["optimizer_offload"]) == ("zero2", expected)


def test_training_arguments_without_autocast_run_in_the_dtype_of_the_weights(tmp_path):
    assert read(tmp_path, TRL) == {
        "framework": "transformers", "training": True, "attn_implementation": "sdpa", "dtype": "bfloat16",
        "packing": False, "finetuning": "lora", "gradient_checkpointing": True, "torch_compile_mode": "max-autotune",
        "sharding": "fsdp2", "seq_len_q": 2048, "seq_len_kv": 2048, "trainer": "trl.scripts",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ACCELERATE, {"dtype": "bfloat16", "sharding": "fsdp2", "torch_compile": True,
                      "torch_compile_mode": "reduce-overhead", "trainer": "accelerate.launch"}),
        (ACCELERATE.replace("FSDP", "MULTI_GPU").replace("INDUCTOR", "NO"),
         {"dtype": "bfloat16", "sharding": "ddp", "trainer": "accelerate.launch"}),
        (json.dumps(DEEPSPEED), {**PLAIN, "dtype": "bfloat16", "sharding": "zero2", "gradient_accumulation_steps": 4}),
        (json.dumps({**DEEPSPEED, "zero_optimization": {"stage": 0}}),
         {**PLAIN, "dtype": "bfloat16", "sharding": "zero0", "gradient_accumulation_steps": 4}),
    ],
)  # fmt: skip
def test_configs_of_launchers(tmp_path, text, expected):
    assert read(tmp_path, text) == expected


def test_the_longest_row_is_an_assumed_length_unless_rows_are_packed(tmp_path):
    """Rows of a batch are as long as their samples; a packed row is full."""
    (tmp_path / "job.yaml").write_text(TRL)
    found = job_of(tmp_path / "job.yaml")["workload.seq_len_q"]
    assert found.assumed and found.source == "assumed: job.yaml:6: max_seq_length"
    (tmp_path / "job.yaml").write_text(AXOLOTL)
    assert not job_of(tmp_path / "job.yaml")["workload.seq_len_q"].assumed


def test_a_fact_names_the_line_of_its_option(tmp_path):
    (tmp_path / "job.yaml").write_text(AXOLOTL)
    assert job_of(tmp_path / "job.yaml")["workload.attn_implementation"].source == "job.yaml:10: flash_attention"


def test_our_own_words_are_read_as_before(tmp_path):
    assert read(tmp_path, "workload: {dtype: bf16, head_dim: 64}") == {
        "dtype": "bfloat16", "head_dim_qk": 64, "head_dim_v": 64,
    }  # fmt: skip
    with pytest.raises(DoctorError, match="unknown workload key `base_model`"):
        read(tmp_path, "base_model: x\n")


@pytest.mark.parametrize("value", ["[]", "{a: [1]}", "-1", "999999999999999999999", "1e400", "'\\0'", "~", "no"])
def test_values_of_another_kind_state_nothing(tmp_path, value):
    names = {line.partition(":")[0] for line in (AXOLOTL + LLAMAFACTORY + TRL + ACCELERATE).splitlines()}
    for start in ("base_model: x\nadapter: lora\n", "model_name_or_path: x\noutput_dir: y\n"):
        known = {line.partition(":")[0] for line in start.splitlines()}
        text = start + "".join(f"{name}: {value}\n" for name in sorted(names - known))
        assert "batch_size" not in read(tmp_path, text)


NESTED = """defaults: base.yaml
actor_train:
  model_args: {attn_implementation: fa2, dtype: "${precision}"}
  training_args: {learning_rate: 1e-6, per_device_train_batch_size: 2}
actor_infer:
  model_args: {attn_implementation: flash_attention_3}
reference: {model_args: {attn_implementation: fa2}}
dtensor_cfg: {enabled: false, context_parallel_size: 8}
"""


def test_the_config_of_an_unknown_program_is_read_in_any_table_on_top_of_its_base(tmp_path):
    """A trainer that no library describes nests its options, and names the file that it builds on."""
    (tmp_path / "base.yaml").write_text("precision: bf16\npretrain: some/model\nsequence_length: 4096\n")
    assert read(tmp_path, NESTED) == {
        "framework": "transformers", "training": True, "trainer": "any_table", "finetuning": "full",
        "attn_implementation": "flash_attention_2",
        "dtype": "bfloat16", "batch_size": 2, "seq_len_q": 4096, "seq_len_kv": 4096,
        "not_understood": ("actor_infer.model_args.attn_implementation=flash_attention_3",),
    }  # fmt: skip
    assert job_of(tmp_path / "job.yaml")["workload.attn_implementation"].source == "job.yaml:3: attn_implementation"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("megatron_cfg: {enabled: true}", "megatron"),
        ("megatron_cfg: {enabled: false}", "transformers"),
        ("strategy_args: {strategy_name: megatron_train}", "megatron"),
        ("attn_impl: xformers", "xformers"),
    ],
)
def test_who_computes_attention_in_the_config_of_an_unknown_program(tmp_path, text, expected):
    assert read(tmp_path, f"model_path: x\nlr: 1\nbatch_size: 2\n{text}\n")["framework"] == expected


def test_two_tables_that_differ_leave_an_option_unknown(tmp_path):
    text = "model_path: x\nlr: 1\nbatch_size: 2\none: {attn_implementation: sdpa}\ntwo: {attn_implementation: eager}\n"
    assert read(tmp_path, text)["attn_implementation"] is None


@pytest.mark.parametrize(
    "text", ["defaults: job.yaml\n", "defaults: [job, ../job]\n", "lr: ${lr}\n", "a: ${b}\nb: ${a}\n"]
)
def test_bases_and_pointers_in_a_circle_end(tmp_path, text):
    assert read(tmp_path, f"{text}model_path: x\noptimizer: y\nmicro_batch_size: 2\n")["batch_size"] == 2


def test_a_group_of_defaults_fills_its_table(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "small.yaml").write_text("attn_implementation: sdpa\n")
    text = "defaults: [_self_, {model: small}]\nmodel: {name_or_path: x}\nlr: 1\nbatch_size: 2\n"
    assert read(tmp_path, text)["attn_implementation"] == "sdpa"


def test_a_job_in_toml(tmp_path):
    tables = ("[job]", "[model]", "name='llama3'", "[training]", "seq_len=8192", "local_batch_size=1", "[parallelism]")
    text = "\n".join((*tables, "context_parallel_degree=2", ""))
    found = read(tmp_path, text, "job.toml")
    assert {key: found[key] for key in ("framework", "trainer", "batch_size", "cp_size", "seq_len_q")} == {
        "framework": "torch_sdpa", "trainer": "torchtitan", "batch_size": 1, "cp_size": 2, "seq_len_q": 8192,
    }  # fmt: skip
