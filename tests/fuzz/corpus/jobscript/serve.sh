#!/usr/bin/env bash
MODEL=${1:-meta-llama/Llama-3.1-8B}
export VLLM_ATTENTION_BACKEND=FLASH_ATTN CUDA_VISIBLE_DEVICES=0,1
vllm serve "$MODEL" --dtype float16 --kv-cache-dtype fp8_e4m3 --max-model-len 8192 \
  --tensor-parallel-size 2 --enable-prefix-caching &
python -m sglang.launch_server --model-path "$MODEL" --attention-backend=flashinfer --kv-cache-dtype fp8_e5m2
torchrun --nproc_per_node 8 pretrain_gpt.py --context-parallel-size 2 --cp-comm-type a2a --bf16 --seq-length 4096
