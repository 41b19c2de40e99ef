"""Trainings that job scripts start: their options become words of the workload."""

from __future__ import annotations

import pytest

from doctor.sources.manifests.scripts.interpreter import Script
from tests.helpers.watches import built_in_watch

MEGATRON = """GPUS=8
MODEL=(
    --num-layers 32   # Llama 8B
    --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192 --attention-dropout 0.0
)
MODEL+=(--window-size "(4096,0)")
PARALLEL="--context-parallel-size 2 --cp-comm-type allgather --pipeline-model-parallel-size 4"
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${MODEL[@]} $PARALLEL --bf16 \\
    --micro-batch-size 1 --attention-backend fused --fp8-format hybrid --fp8-recipe tensorwise \\
    --no-create-attention-mask-in-dataloader --cross-entropy-loss-fusion --cross-entropy-fusion-impl te
"""
LATENT = """python pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 16 --multi-latent-attention \\
    --qk-head-dim 64 --recompute-granularity full
"""
LOCAL = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 --transformer-impl local\n"
MODULE = "python -m torch.distributed.run tools/train.py --num-layers 2 --hidden-size 512 --num-attention-heads 8\n"
IN_SHELL = """CMD="python pretrain.py --load $(pwd) --num-layers 2 --hidden-size 512"
CMD="$CMD --num-attention-heads 8"
srun -l bash -c "$CMD"
"""
DEFAULT = """ENTRYPOINT=${ENTRYPOINT:-"-m verl.trainer.sft_trainer"}
torchrun --nnodes 1 ${ENTRYPOINT} data.max_length=2048
"""
BRIDGE = """uv run python -m torch.distributed.run scripts/training/run_recipe.py --recipe x model.seq_length=4096 \\
    model.context_parallel_size=$CP mixed_precision=bf16_with_mxfp8_mixed
"""
ONLY_ARGUMENTS = """export MODEL_OPTIONS=" \\
    --num-layers 2 --load ${CHECKPOINT}/model --hidden-size 512 --num-attention-heads 8"
EXTRA_ARGS=(--bf16 --micro-batch-size $BATCH)
"""
UNKNOWN_PROGRAM = "${LAUNCHER} ${PROGRAM} --num-layers 2 --hidden-size 512 --num-attention-heads 8\n"
MODEL_WORDS = {
    "trainer": "megatron.lm",
    "framework": "megatron", "head_dim_qk": 64, "head_dim_v": 64, "num_heads": 8, "num_kv_heads": 8, "dropout": 0.1,
    "moe_grouped_gemm": False,
}  # fmt: skip
GENERATION = "python run_text_generation_server.py --num-layers 2 --hidden-size 64 --num-attention-heads 2\n"
SCRIPT = """accelerate launch --config_file fsdp.yaml sft.py --model_name_or_path x --output_dir y \\
    --attn_implementation $ATTN --per_device_train_batch_size=4 --packing --bf16 True --max_length 4096
"""
CONFIG = "llamafactory-cli train conf.yaml flash_attn=sdpa\n"
SWIFT = """swift sft --model x --tuner_type full --attn_impl flash_attn --torch_dtype bfloat16 \\
    --deepspeed zero3_offload --padding_free true
"""
OPENRLHF = """ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --ds.zero_stage 3 --ds.packing_samples \\
    --train.micro_batch_size 8 --rollout.micro_batch_size 16 --ds.param_dtype bf16
"""
VERL = """python3 -m verl.trainer.main_ppo actor_rollout_ref.model.use_remove_padding=True \\
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa actor_rollout_ref.actor.strategy=fsdp2
"""
TRL = "trl dpo --config recipe.yaml --attn_implementation eager\n"
SOURCED = """source env/settings.sh
. env/settings.sh
python train.py "${ARGS[@]}"
"""
SWIFT_MEGATRON = """megatron rlhf --rlhf_type kto --packing true --tuner_type lora --micro_batch_size 1 \\
    --max_length 8192
"""
HEREDOC = """read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
    --ds.param_dtype bf16 --ds.packing_samples
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""
OTHER = "python evaluate.py --bf16 --model x\npython setup.py install --prefix x\n"
FILES = {
    "conf.yaml": "model_name_or_path: x\nfinetuning_type: full\nstage: sft\nflash_attn: fa2\npure_bf16: true\n",
    "fsdp.yaml": "distributed_type: FSDP\nmixed_precision: fp16\n"
    "fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}\n",
    "recipe.yaml": "model_name_or_path: x\nattn_implementation: sdpa\nbf16: true\n",
    "env/settings.sh": 'ARGS=(--attn_implementation sdpa --note "two words")\n',
}
TRAINED = {"framework": "transformers", "training": True}


def words(declaration):
    """The workload words, without their prefix; None where the value is unknown."""
    found = declaration.facts.items()
    return {key.removeprefix("workload."): fact.value for key, fact in found if key.startswith("workload.")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MEGATRON, {
            "trainer": "megatron.lm",
            "framework": "megatron", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 32, "num_kv_heads": 8,
            "seq_len_q": 8192, "seq_len_kv": 8192, "dropout": 0.0, "window": (4096, 0), "cp_size": 2,
            "cp_comm_type": "all_gather", "dtype": "bfloat16", "batch_size": 1, "attention_backend": "fused",
            "fp8": True, "fp8_recipe": "current", "mask": "causal", "pipeline_parallel_size": 4,
            "dataloader_mask": False, "cross_entropy_fusion": "te", "moe_grouped_gemm": False,
        }),
        (LATENT, {
            "trainer": "megatron.lm",
            "framework": "megatron", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16, "num_kv_heads": 16,
            "gradient_checkpointing": True, "dropout": 0.1, "mask": "causal", "moe_grouped_gemm": False,
            "dataloader_mask": True,
        }),
        (LATENT.rstrip() + " --fp4-format e2m1\n", {
            "trainer": "megatron.lm",
            "framework": "megatron", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16, "num_kv_heads": 16,
            "gradient_checkpointing": True, "dropout": 0.1, "mask": "causal", "moe_grouped_gemm": False,
            "dataloader_mask": True,
            "fp8": True, "fp8_recipe": "nvfp4",
        }),
        (LATENT.rstrip() + " --reset-attention-mask\n", {
            "trainer": "megatron.lm",
            "framework": "megatron", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16, "num_kv_heads": 16,
            "gradient_checkpointing": True, "dropout": 0.1, "mask": "causal", "moe_grouped_gemm": False,
            "dataloader_mask": True,
            "reset_attention_mask": True,
        }),
        (LATENT.rstrip() + " --sft\n", {
            "trainer": "megatron.lm",
            "framework": "megatron", "head_dim_qk": 128, "head_dim_v": 128, "num_heads": 16, "num_kv_heads": 16,
            "gradient_checkpointing": True, "dropout": 0.1, "mask": "causal", "moe_grouped_gemm": False,
        }),
        (LOCAL.replace("local", "kitchen"), {
            "trainer": "megatron.lm", "not_understood": ("transformer_impl=kitchen",),
        }),
        (LOCAL, {
            "framework": "megatron_local", "trainer": "megatron.lm", "head_dim_qk": 32, "head_dim_v": 32,
            "num_heads": 2, "num_kv_heads": 2, "dropout": 0.1, "mask": "causal", "dataloader_mask": True,
            "moe_grouped_gemm": False,
        }),
        (MODULE, MODEL_WORDS),
        (IN_SHELL, MODEL_WORDS),
        (DEFAULT, {**TRAINED, "trainer": "verl", "finetuning": "full", "liger_kernel": False}),
        (BRIDGE, {"framework": "megatron", "training": True, "trainer": "megatron_bridge", "seq_len_q": 4096,
                  "cp_size": None, "dtype": "bfloat16", "fp8_recipe": "mxfp8"}),
        (ONLY_ARGUMENTS, {**MODEL_WORDS, "dtype": "bfloat16", "batch_size": None}),
        (UNKNOWN_PROGRAM, MODEL_WORDS),
        (GENERATION, {}),
        (SCRIPT, {**TRAINED, "trainer": "trl.scripts",
                  "attn_implementation": None, "batch_size": 4, "packing": True, "dtype": "bfloat16",
                  "seq_len_q": 4096, "seq_len_kv": 4096, "sharding": "fsdp2", "finetuning": "full",
                  "fsdp_activation_checkpointing": True}),
        (CONFIG, {**TRAINED, "trainer": "llamafactory",
                  "attn_implementation": "sdpa", "dtype": "bfloat16", "finetuning": "full",
                  "training_method": "sft", "gradient_checkpointing": True, "sharding": "ddp",
                  "seq_len_q": 2048, "seq_len_kv": 2048, "liger_kernel": False}),
        (SWIFT, {**TRAINED, "trainer": "ms_swift",
                  "attn_implementation": "flash_attention_2", "dtype": "bfloat16", "finetuning": "full",
                 "padding_free": True, "sharding": "zero3", "training_method": "sft", "liger_kernel": False,
                 "optimizer_offload": True, "deepspeed_optimizer": False, "zero_quantized": False}),
        (OPENRLHF, {**TRAINED, "trainer": "openrlhf",
                  "attn_implementation": "flash_attention_2", "packing": True, "sharding": "zero3",
                    "batch_size": 8, "dtype": "bfloat16", "finetuning": "full", "liger_kernel": False,
                    "optimizer_offload": False}),
        (OPENRLHF.rstrip() + " --ds.adam_offload\n", {**TRAINED, "trainer": "openrlhf",
                  "attn_implementation": "flash_attention_2", "packing": True, "sharding": "zero3",
                    "batch_size": 8, "dtype": "bfloat16", "finetuning": "full", "liger_kernel": False,
                    "optimizer_offload": True}),
        (VERL, {**TRAINED, "trainer": "verl",
                  "attn_implementation": "sdpa", "padding_free": True, "sharding": "fsdp2",
                "finetuning": "full", "liger_kernel": False}),
        (TRL, {**TRAINED, "trainer": "trl.scripts",
                  "attn_implementation": "eager", "dtype": "bfloat16", "training_method": "dpo",
               "finetuning": "full"}),
        (SOURCED, {**TRAINED, "trainer": "trl.scripts",
                  "attn_implementation": "sdpa", "finetuning": "full"}),
        (SWIFT_MEGATRON, {
            "framework": "megatron", "training": True, "trainer": "ms_swift", "attention_backend": "flash",
            "qkv_layout": "thd_thd_thd", "packing": True, "dtype": "bfloat16", "finetuning": "lora",
            "training_method": "kto", "batch_size": 1, "seq_len_q": 8192, "seq_len_kv": 8192, "dropout": 0.1,
            "moe_grouped_gemm": True,
        }),
        (HEREDOC, {**TRAINED, "trainer": "openrlhf",
                  "attn_implementation": "flash_attention_2", "packing": True,
                   "dtype": "bfloat16", "finetuning": "full", "optimizer_offload": False, "liger_kernel": False}),
        (OTHER, {}),
    ],
)  # fmt: skip
def test_options_become_words(read, text, expected):
    assert words(read({**FILES, "job.sh": f"pip install transformers\n{text}"}, only=["job.sh"])) == expected


def test_two_trainings_that_differ_leave_the_word_unknown(read):
    found = words(read({"job.sh": "pip install trl\n" + TRL + TRL.replace("eager", "sdpa")}))
    assert found["attn_implementation"] is None and found["training_method"] == "dpo"


def test_what_only_one_of_two_trainings_states_is_unknown(read):
    found = words(read({"job.sh": "pip install trl\n" + TRL + "trl dpo --bf16 true\n"}))
    assert found["attn_implementation"] is None and found["dtype"] is None and found["framework"] == "transformers"


REQUIREMENTS = "torch==2.6.0\ntransformer-engine==2.1.0\ntransformers==4.51.0\n"


def test_a_folder_counts_its_only_training(write, read):
    write("scripts/train.sh", "#!/bin/bash\n" + MEGATRON)
    found = read({"requirements.txt": REQUIREMENTS}, only=["."])
    assert words(found)["cp_comm_type"] == "all_gather" and not any("left out" in note for note in found.notes)


def test_a_folder_without_the_trainer_says_that_the_job_is_left_out(write, read):
    write("train.sh", "#!/bin/bash\n" + MEGATRON)
    found = read({"requirements.txt": "torch==2.6.0\n"}, only=["."])
    assert words(found) == {}
    assert any("train.sh` is left out: the environment does not declare megatron" in note for note in found.notes)


def test_of_several_trainings_in_a_folder_none_counts(write, read):
    """No job has the options of two."""
    write("train.sh", "#!/bin/bash\n" + MEGATRON)
    write("tune.sh", "#!/bin/bash\ntorchrun train.py --attn_implementation sdpa --output_dir x\n")
    found = read({"requirements.txt": REQUIREMENTS}, only=["."])
    assert words(found) == {}
    assert any(note.startswith("several scripts start a job") and "tune.sh" in note for note in found.notes)


def test_arrays_install_packages_too(read):
    text = 'P=(torch==2.6.0)\nP+=("flash-attn==2.7.4.post1")\npip install "${P[@]}"\n'
    facts = read({"job.sh": text}).facts
    assert facts.value("torch.version") == "2.6.0" and facts.value("flash-attn.version") == "2.7.4.post1"


def test_an_array_that_depends_on_a_condition_is_unknown(read):
    text = "A=(--attn_implementation sdpa)\nif x; then A+=(--bf16); fi\npython train.py ${A[@]} --output_dir y\n"
    assert words(read({"job.sh": f"pip install trl\n{text}"})) == {}


PROGRAM = """import argparse
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument('--kernel', default='sdpa')
args = parser.parse_args()
AutoModelForCausalLM.from_pretrained('m', attn_implementation=args.kernel, dtype='float16')
"""


@pytest.mark.parametrize(
    ("command", "expected", "assumed"),
    [
        ("python own.py", "sdpa", True),
        ("torchrun --nproc_per_node 8 own.py --kernel eager", "eager", False),
        ("accelerate launch --config_file fsdp.yaml own.py --kernel=eager --model_name_or_path m", "eager", False),
    ],
)
def test_the_program_of_a_command_is_read_with_its_options(read, command, expected, assumed):
    """An option of one's own script reaches the call that takes it."""
    facts = read({"run.sh": f"{command}\n", "own.py": PROGRAM}, only=["run.sh"]).facts
    found = facts["workload.attn_implementation"]
    assert (found.value, found.assumed) == (expected, assumed)
    assert facts["workload.dtype"].value == "float16"


OWN_PROGRAM = "from transformers import AutoModel\nAutoModel.from_pretrained('m', attn_implementation='sdpa')\n"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node=8 own.py", "torchrun --standalone own.py", "accelerate launch --multi_gpu own.py",
        "deepspeed --no_local_rank own.py", "torchrun --nproc_per_node ${1:-8} own.py", "bash inner.sh own.py 8",
        "./inner.sh own.py",
    ],
)  # fmt: skip
def test_the_program_after_the_options_of_a_launcher_is_read(tmp_path, command):
    """The most usual launch, `torchrun --nproc_per_node=8 train.py`, was taken for the value of an option."""
    for name, text in {
        "train.sh": f"{command}\n",
        "own.py": OWN_PROGRAM,
        "inner.sh": "python -u $1 --x ${2:-4}\n",
    }.items():
        (tmp_path / name).write_text(text)
    found = Script(tmp_path / "train.sh", f"{command}\n", built_in_watch())
    found.run(f"{command}\n", 1)
    assert found.served["workload.attn_implementation"].value == "sdpa"


def test_a_python_file_as_the_value_of_an_option_is_no_program(tmp_path):
    (tmp_path / "own.py").write_text(OWN_PROGRAM)
    for command in ("serve --config own.py\n", "python main.py --config own.py\n"):
        found = Script(tmp_path / "train.sh", command, built_in_watch())
        found.run(command, 1)
        assert not found.served


def test_scripts_that_call_each_other_end(tmp_path):
    for name, other in (("a.sh", "b.sh"), ("b.sh", "a.sh")):
        (tmp_path / name).write_text(f"bash {other}\n")
    found = Script(tmp_path / "a.sh", "bash b.sh\n", built_in_watch())
    found.run("bash b.sh\n", 1)
    assert not found.served
