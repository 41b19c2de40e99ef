"""Terms of how a job trains or generates: packing, context parallelism, compilation, code of the repository.

Rows of `vocabulary.TERMS`: key, kind, meaning, allowed texts, default.
"""

from __future__ import annotations

from typing import Any

from doctor.model import ABSENT

from .kinds import BOOLEAN, INTEGER, LIST, TEXT

SHARDINGS = ("ddp", "fsdp", "fsdp2", "zero0", "zero1", "zero2", "zero3")

JOB_TERMS: tuple[tuple[Any, ...], ...] = (
    ("workload.seq_len_assumed", BOOLEAN, "seq_len_q is the longest the model takes, not what the job runs", (), False),
    ("workload.remote_code", BOOLEAN, "the model runs code of its repository (trust_remote_code=True and auto_map)"),
    ("workload.finetuning", TEXT, "full, lora, qlora, prefix_tuning, prompt_tuning …", (), ABSENT),
    ("workload.trainer", TEXT, "the program that trains, by the name of its folder in rules/: axolotl, trl, verl …", (),
     ABSENT),
    ("workload.not_understood", LIST, "options of the job that bear on attention by name and that no reader knows",
     (), ABSENT),
    ("workload.training_method", TEXT, "sft, dpo, kto, grpo, ppo, reward, pretraining …", (), ABSENT),
    ("workload.sharding", TEXT, "how ranks share parameters and optimizer: fsdp2 is fully_shard of torch 2.4, zero0 "
     "DeepSpeed without ZeRO", SHARDINGS, ABSENT),
    ("workload.optimizer_offload", BOOLEAN, "DeepSpeed keeps the state of the optimizer in the memory of the host"),
    ("workload.deepspeed_optimizer", BOOLEAN,
     "the config of DeepSpeed names the optimizer, which is then an operator that DeepSpeed compiles"),
    ("workload.zero_quantized", BOOLEAN,
     "ZeRO quantizes what ranks exchange (zero_quantized_weights, zero_quantized_gradients)"),
    ("workload.moe_grouped_gemm", BOOLEAN, "Megatron: the experts of a rank are one GroupedLinear"),
    ("workload.gradient_checkpointing", BOOLEAN, "the backward pass computes whole layers again", (), False),
    ("workload.fsdp_activation_checkpointing", BOOLEAN,
     "FSDP wraps the layers so that the backward pass computes them again (fsdp_activation_checkpointing)", (), False),
    ("workload.gradient_accumulation_steps", INTEGER, "batches whose gradients make one optimizer step", (), ABSENT),
    ("workload.cache_implementation", TEXT, "transformers: generate with a dynamic, static, sliding_window … cache",
     (), ABSENT),
    ("workload.liger_kernel", BOOLEAN, "Liger kernels replace layers of the model", (), ABSENT),
    ("workload.pipeline_parallel_size", INTEGER, "stages of the model's layers, each on ranks of its own", (), 1),
    ("workload.expert_parallel_size", INTEGER, "ranks that share the experts of a layer", (), 1),
    ("workload.dataloader_mask", BOOLEAN, "Megatron-LM: the dataloader makes a mask of all pairs of tokens"),
    ("workload.reset_attention_mask", BOOLEAN, "Megatron-LM: the mask of the dataset separates documents in a row",
     (), False),
    ("workload.packing", BOOLEAN, "several samples share a row and must not see each other", (), False),
    ("workload.padding_free", BOOLEAN, "samples are flattened into one row without padding", (), False),
    ("workload.packing_strategy", TEXT, "TRL: bfd, bfd_split, ffd or wrapped", (), ABSENT),
    ("workload.left_padding", BOOLEAN, "the batch has rows that begin with padding", (), False),
    ("workload.torch_compile", BOOLEAN, "the model runs under torch.compile", (), False),
    ("workload.torch_compile_mode", TEXT, "torch.compile: default, reduce-overhead, max-autotune …", (), ABSENT),
    ("workload.higher_order_gradients", BOOLEAN,
     "gradients of gradients (create_graph=True) or forward-mode gradients (torch.func.jvp) are taken", (), False),
    ("workload.mha_fast_path", BOOLEAN,
     "nn.MultiheadAttention or nn.TransformerEncoder runs in eval() without gradients", (), False),
    ("workload.need_weights", BOOLEAN,
     "nn.MultiheadAttention returns its weights (need_weights=True, its default)", (), False),
    ("workload.flash_attention_impl", TEXT,
     "FlashAttention that the job gives torch with activate_flash_attention_impl", ("fa3", "fa4"), ABSENT),
    ("workload.dynamic_shapes", BOOLEAN, "torch.compile sees lengths that change"),
    ("workload.kernel_options", LIST, "flex_attention: kernel_options as NAME=VALUE: fwd_num_stages=2, BLOCK_M=64 …",
     (), ABSENT),
    ("workload.sdpa_backend", TEXT, "the SDPA backend that the job pins with sdpa_kernel",
     ("flash", "efficient", "cudnn", "math"), ABSENT),
    ("workload.attention_backend", TEXT, "Megatron: --attention-backend",
     ("auto", "flash", "fused", "unfused", "local"), ABSENT),
    ("workload.cross_entropy_fusion", TEXT, "Megatron: --cross-entropy-fusion-impl, where the loss is fused",
     ("native", "te"), ABSENT),
    ("workload.diffusers_backend", TEXT, "Diffusers: set_attention_backend(…): native, flash, sage, _flash_3_hub …",
     (), ABSENT),
    ("workload.vision_attn_implementation", TEXT, "attn_implementation of the vision tower, where it has its own",
     (), ABSENT),
    ("workload.text_attn_implementation", TEXT, "attn_implementation of the decoder, where it has its own",
     (), ABSENT),
    ("workload.other_attention", LIST, "parts of the model with an attention of their own, which is another workload",
     (), ABSENT),
    ("workload.sequence_parallel", TEXT, "who splits a long sequence over ranks: ulysses (DeepSpeed), ring, ms-swift …",
     (), ABSENT),
)  # fmt: skip
