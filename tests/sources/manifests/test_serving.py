"""Servers that files start: their options become words of the workload."""

from __future__ import annotations

import pytest

from doctor.sources.manifests.scripts.interpreter import Script
from tests.helpers.watches import built_in_watch

COMPOSE = """services:
  web:
    image: nginx
  llm:
    image: vllm/vllm-openai:v0.16.0
    environment:
      - VLLM_USE_V1=1
    command: --model google/gemma-3-27b-it --kv-cache-dtype fp8 --attention-backend ${BACKEND:-FLASH_ATTN}
"""
KUBERNETES = """apiVersion: v1
kind: Service
metadata: {name: x}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - image: lmsysorg/sglang:v0.5.9
          command: [python3, -m, sglang.launch_server]
          args: ["--attention-backend", flashmla, "--page-size", "64", --disable-radix-cache]
        - image: busybox
"""
SHELL = """kind: Pod
apiVersion: v1
spec:
  containers:
  - image: vllm/vllm-openai:latest
    command: [/bin/sh, -c]
    args:
    - |
      vllm serve x --attention-backend FLASHINFER --kv-cache-dtype {{ .Values.kv }}
"""
DOCKERFILE = """FROM python:3.11 AS base
ENTRYPOINT ["vllm", "serve", "x", "--block-size=32"]
FROM base
RUN pip install vllm==0.11.2
CMD ["--attention-config", "{\\"backend\\": \\"FLASHINFER\\", \\"flash_attn_version\\": 3}"]
"""
SCRIPT = """pip install vllm==0.10.2
exec python3 -m vllm.entrypoints.openai.api_server --model x \\
  --kv_cache_dtype fp8_e5m2 --dtype half --block-size $BLOCK --port 8000
"""
TWO = """vllm serve a --kv-cache-dtype fp8 --block-size 16
vllm serve b --kv-cache-dtype auto --block-size 16
"""
SWITCHES = """vllm serve a --enable-prefix-caching --no-enable-chunked-prefill -tp 4 -q awq --enforce-eager \\
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'
"""
OLD_SWITCHES = """vllm serve a --enable-prefix-caching=False --speculative-model [ngram] --num-speculative-tokens 5
"""
CONDITION = """if [ -n "$FAST" ]; then
  vllm serve a --kv-cache-dtype fp8
fi
"""


def words(declaration):
    """The workload words, without their prefix; None where the value is unknown."""
    found = declaration.facts.items()
    return {key.removeprefix("workload."): fact.value for key, fact in found if key.startswith("workload.")}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("compose.yaml", COMPOSE,
         {"framework": "vllm", "kv_cache_dtype": "fp8", "attention_backend_option": "FLASH_ATTN"}),
        ("deploy.yaml", KUBERNETES,
         {"framework": "sglang", "attention_backend_option": "flashmla", "page_size": 64, "disable_radix_cache": True}),
        ("pod.yml", SHELL,
         {"framework": "vllm", "attention_backend_option": "FLASHINFER", "kv_cache_dtype": None}),
        ("Dockerfile", DOCKERFILE,
         {"framework": "vllm", "block_size": 32, "attention_backend_option": "FLASHINFER",
          "flash_attn_version_option": 3}),
        ("serve.sh", SCRIPT,
         {"framework": "vllm", "kv_cache_dtype": "fp8_e5m2", "dtype": "float16", "block_size": None}),
        ("two.sh", TWO, {"framework": "vllm", "kv_cache_dtype": None, "block_size": 16}),
        ("switches.sh", SWITCHES,
         {"framework": "vllm", "prefix_caching": True, "chunked_prefill": False, "tensor_parallel_size": 4,
          "quantization": "awq", "enforce_eager": True, "speculative_algorithm": "MTP", "speculative_num_steps": 3}),
        ("old.sh", OLD_SWITCHES,
         {"framework": "vllm", "prefix_caching": False, "speculative_algorithm": "NGRAM", "speculative_num_steps": 5}),
        ("condition.sh", CONDITION, {"framework": "vllm", "kv_cache_dtype": "fp8"}),
        ("other.sh", "vllm bench serve --kv-cache-dtype fp8\necho vllm serve --block-size 1\n", {}),
    ],
)  # fmt: skip
def test_options_of_a_server(read, name, text, expected):
    """Each command states what its options say, and nothing else."""
    if expected and "training" not in expected:
        expected = {**expected, "training": False}
    assert words(read({name: text})) == expected


def test_images_and_variables(read):
    """An image of a server is its release; variables of its container count."""
    found = read({"compose.yaml": COMPOSE}).facts
    assert found.value("vllm.version") == "0.16.0" and found.value("env.VLLM_USE_V1") == "1"
    assert read({"deploy.yaml": KUBERNETES}).facts.value("sglang.version") == "0.5.9"


def test_a_folder_counts_servers_of_its_environment(write, read):
    """A training project with a script that serves elsewhere gets no serving workload."""
    write("serve.sh", "#!/bin/sh\nvllm serve x --kv-cache-dtype fp8\n")
    assert words(read({"requirements.txt": "torch==2.8.0\n"}, only=["."])) == {}
    serving = read({"requirements.txt": "torch==2.8.0\nvllm==0.11.0\n"}, only=["."])
    assert words(serving)["kv_cache_dtype"] == "fp8"


CONFIG = """attention-backend: FLASHINFER
kv-cache-dtype: fp8
enforce-eager: true
enable-prefix-caching: false
"""


def served_by(tmp_path, command):
    found = Script(tmp_path / "serve.sh", command, built_in_watch())
    found.run(command, 1)
    return {key.removeprefix("workload."): fact.value for key, fact in found.served.items()}


def test_the_file_of_options_that_a_server_takes_is_read(tmp_path):
    """`vllm serve --config x.yaml` had nothing but the framework; what the command gives itself counts first."""
    (tmp_path / "x.yaml").write_text(CONFIG)
    assert served_by(tmp_path, "vllm serve --config x.yaml --kv-cache-dtype auto\n") == {
        "framework": "vllm", "training": False, "attention_backend_option": "FLASHINFER", "kv_cache_dtype": "auto",
        "enforce_eager": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("trtllm-serve some/model --tp_size 8 --extra_llm_api_options more.yaml",
         {"framework": "tensorrt_llm", "tensor_parallel_size": 8, "attention_backend_option": "FLASHINFER",
          "kv_cache_dtype": "fp8", "block_size": 32, "speculative_algorithm": "MTP",
          "not_understood": ("enable_attention_dp=true",)}),
        ("lmdeploy serve api_server some/model --quant-policy 8 --tp 2 --cp 2",
         {"framework": "lmdeploy", "tensor_parallel_size": 2, "kv_cache_dtype": "int8",
          "decode_context_parallel_size": 2}),
    ],
)  # fmt: skip
def test_servers_of_other_libraries(tmp_path, command, expected):
    (tmp_path / "more.yaml").write_text(
        "attn_backend: FLASHINFER\nenable_attention_dp: true\nkv_cache_config: {dtype: fp8, tokens_per_block: 32}\n"
        "speculative_config: {decoding_type: MTP}\n"
    )
    assert served_by(tmp_path, f"{command}\n") == {"training": False, **expected}
