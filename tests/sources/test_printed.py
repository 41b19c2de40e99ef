"""What other programs print of an environment is read as facts, also inside a bug report."""

from __future__ import annotations

import json

import pytest

from doctor.errors import DoctorError
from doctor.facts.vocabulary import TERMS
from doctor.model import ABSENT, Facts
from doctor.sources.printed_form import is_printed
from doctor.sources.snapshot import document, parse_facts


def values(facts: Facts) -> dict[str, object]:
    return {key: fact.value for key, fact in facts.items()}


def read(text: str) -> dict[str, object]:
    return values(parse_facts(text, "report.txt"))


COLLECTED = """\
Hello, my job crashes. My environment:
```text
Collecting environment information...
PyTorch version: 2.6.0+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.5 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Clang version: Could not collect
CMake version: version 3.31.4
Libc version: glibc-2.35

Python version: 3.10.12 (main, Feb  4 2025, 14:57:36) [GCC 11.4.0] (64-bit runtime)
Python platform: Linux-5.15.0-130-generic-x86_64-with-glibc2.35
Is CUDA available: True
CUDA runtime version: 12.4.131
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 550.144.03
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7
HIP runtime version: N/A

Versions of relevant libraries:
[pip3] flash-attn==2.7.3
[pip3] nvidia-cudnn-cu12==9.1.0.70
[pip3] torch==2.6.0
[conda] numpy                     1.26.4                   pypi_0    pypi
[conda] torch                     2.6.0                    pypi_0    pypi
vLLM Version: 0.8.5.post1
NCCL_CUMEM_ENABLE=0
VLLM_ATTENTION_BACKEND=FLASHINFER
HF_API_TOKEN=hf_abcdefghijklmnopqrstuvwxyz
```
"""


def test_a_bug_report_with_the_report_of_torch_and_vllm():
    assert read(COLLECTED) == {
        "torch.version": "2.6.0+cu124", "torch.cuda": "12.4", "platform.system": "Linux", "platform.machine": "x86_64",
        "platform.glibc": "2.35", "toolkit.gcc": "11", "toolkit.nvcc": "12.4", "python.version": "3.10.12",
        "gpu.name": "NVIDIA H100 80GB HBM3", "gpu.count": 2, "driver.version": "550.144.03",
        "flash-attn.version": "2.7.3", "nvidia-cudnn-cu12.version": "9.1.0.70", "numpy.version": "1.26.4",
        "vllm.version": "0.8.5.post1", "env.NCCL_CUMEM_ENABLE": "0", "env.VLLM_ATTENTION_BACKEND": "FLASHINFER",
        "env.HF_API_TOKEN": None,
    }  # fmt: skip


def test_each_fact_names_its_line():
    assert parse_facts(COLLECTED, "report.txt")["flash-attn.version"].source == "report.txt:30"


def test_the_aligned_report_of_newer_vllm():
    found = read(
        "==============================\n       PyTorch Info\n==============================\n"
        "PyTorch version              : 2.8.0+cu128\nIs debug build               : False\n"
        "CUDA used to build PyTorch   : 12.8\nOS                           : Ubuntu 22.04.5 LTS (x86_64)\n"
        "Python version               : 3.12.11 (main, Jun  4 2025, 08:56:18) [GCC 11.4.0] (64-bit runtime)\n"
        "GPU models and configuration : GPU 0: NVIDIA L4\nNvidia driver version        : 570.133.20\n"
        "vLLM Version                 : 0.11.0\n[pip3] flashinfer-python==0.3.1\n[pip3] torch==2.8.0\n"
    )
    assert (found["torch.version"], found["vllm.version"], found["python.version"]) == (
        "2.8.0+cu128",
        "0.11.0",
        "3.12.11",
    )
    assert (found["gpu.name"], found["gpu.count"]) == ("NVIDIA L4", 1)


@pytest.mark.parametrize(
    "text",
    [
        "Package            Version     Editable project location\n------------------ ----------- ---------\n"
        "flash_attn         2.8.3\ntorch              2.6.0+cu124\nmine               0.1         /home/me/mine\n",
        "# packages in environment at /opt/conda:\n#\n# Name       Version       Build  Channel\n"
        "flash-attn                2.8.3                    pypi_0    pypi\n"
        "pytorch                   2.6.0+cu124     py3.10_cuda12.4_cudnn9.1.0_0    pytorch\n"
        "mine                      0.1                      pypi_0    pypi\n",
    ],
)  # fmt: skip
def test_whole_lists(text):
    found = read(text)
    assert found["flash-attn.version"] == "2.8.3" and found["torch.version"] == "2.6.0+cu124"
    assert found["distributions.complete"] is True


def test_a_list_of_conda():
    found = read(
        "# Name                    Version                   Build  Channel\n"
        "python                    3.11.9               h955ad1f_0\n"
        "pytorch                   2.5.1           cuda126_mkl_py311_h0ee  conda-forge\n"
        "libcublas                 12.6.4.1             h9ab20c4_0    conda-forge\n"
    )
    assert (found["python.version"], found["torch.version"], found["torch.cuda"]) == ("3.11.9", "2.5.1", "12.6")
    found = read("[conda] pytorch  2.1.0  py3.10_cpu_0  pytorch\n")
    assert found == {"torch.version": "2.1.0", "torch.cuda": ABSENT}


def test_frozen_lines_are_not_a_whole_list():
    found = read(
        "torch==2.6.0\nflash-attn @ https://github.com/Dao-AILab/flash-attention/releases/download/v2.7.4.post1/"
        "flash_attn-2.7.4.post1%2Bcu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl\n"
        "mine @ file:///home/me/mine\n"
    )
    assert found == {
        "torch.version": "2.6.0",
        "flash-attn.version": "2.7.4.post1+cu12torch2.6cxx11abifalse",
        "flash-attn.wheel": "flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl",
    }


def test_reports_of_hugging_face_and_llamafactory():
    found = read(
        "- `transformers` version: 4.57.1\n- Platform: Linux-5.15.0-x86_64-with-glibc2.35\n- Python version: 3.11.2\n"
        "- Huggingface_hub version: 0.35.3\n- Accelerate version: not installed\n"
        "- PyTorch version (accelerator?): 2.8.0+cu128 (CUDA)\n- Jax version: not installed\n"
        "- Using GPU in script?: <fill in>\n- GPU type: NVIDIA A100-SXM4-80GB\n- GPU number: 8\n"
        "- vLLM version: 0.10.2\n- `Accelerate` bash location: /usr/bin/accelerate\n- Git commit: abc\n"
    )
    assert found == {
        "transformers.version": "4.57.1", "platform.system": "Linux", "platform.machine": "x86_64",
        "python.version": "3.11.2", "huggingface-hub.version": "0.35.3", "accelerate.version": ABSENT,
        "torch.version": "2.8.0+cu128", "jax.version": ABSENT, "gpu.name": "NVIDIA A100-SXM4-80GB", "gpu.count": 8,
        "vllm.version": "0.10.2",
    }  # fmt: skip
    found = read("- 🤗 Diffusers version: 0.35.1\n- PyTorch version (GPU?): 2.5.1+cu124 (True)\n"
                 "- xFormers version: not installed\n- Accelerator: NVIDIA GeForce RTX 3090, 24576 MiB\n")  # fmt: skip
    assert found == {
        "diffusers.version": "0.35.1", "torch.version": "2.5.1+cu124", "xformers.version": ABSENT,
        "gpu.name": "NVIDIA GeForce RTX 3090",
    }  # fmt: skip


def test_the_report_of_sglang():
    found = read(
        "Python: 3.12.3 (main, Nov  6 2025, 13:44:16) [GCC 13.3.0]\nCUDA available: True\n"
        "GPU 0,1,2,3: NVIDIA B200\nGPU 0,1,2,3 Compute Capability: 10.0\nCUDA_HOME: /usr/local/cuda\n"
        "NVCC: Cuda compilation tools, release 12.9, V12.9.86\nCUDA Driver Version: 570.133.20\n"
        "PyTorch: 2.9.1+cu129\nsglang: 0.5.6\nsgl_kernel: 0.3.18.post2\nflashinfer_python: 0.5.3\n"
        "vllm: Module Not Found\nulimit soft: 1048576\n"
    )
    assert found == {
        "python.version": "3.12.3", "gpu.name": "NVIDIA B200", "gpu.count": 4, "gpu.sm": "10.0", "toolkit.nvcc": "12.9",
        "driver.version": "570.133.20", "torch.version": "2.9.1+cu129", "sglang.version": "0.5.6",
        "sgl-kernel.version": "0.3.18.post2", "flashinfer-python.version": "0.5.3", "vllm.version": ABSENT,
    }  # fmt: skip


def test_the_report_of_verl():
    found = read(
        "----------Python Info----------\nVersion      : 3.12.3\nvllm\t     : not found.\nsglang\t     : 0.5.6.post1\n"
        "torch\t     : 2.9.1+cu129\n----------verl Info-----------\nVersion      : 0.7.0.dev\n"
        "Platform     : Linux-5.15.0-1063-nvidia-x86_64-with-glibc2.39\nCUDA Runtime : 12.9\n"
        "CUDA Compiler : Cuda compilation tools, release 12.9, V12.9.86\nGPU Count\t: 8\n"
        "GPU 1\tType    : NVIDIA H100 80GB HBM3\nGPU 1\tMemory  : 79.65 GB\n"
    )
    assert found == {
        "vllm.version": ABSENT, "sglang.version": "0.5.6.post1", "torch.version": "2.9.1+cu129",
        "platform.system": "Linux", "platform.machine": "x86_64", "toolkit.nvcc": "12.9", "gpu.count": 8,
        "gpu.name": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip


def test_the_report_of_flashinfer():
    found = read(
        "==== FlashInfer ====\nflashinfer                   : 0.6.18\nflashinfer-cubin             : not installed\n"
        "JIT cache                    : /home/x/.cache/flashinfer (1 compiled .so)\n"
        "Target CUDA archs (resolved) : {(8, '6')}\n==== Python / Platform ====\nPython            : 3.12.14 (main)\n"
        "Platform          : Linux-6.5.0-18-generic-x86_64-with-glibc2.35\n==== GPU / Driver ====\n"
        "Driver version       : 595.91.07\nGPU 0 (CUDA order)   : NVIDIA RTX A6000 | SM86 | 84 SMs | 47.4 GiB\n"
    )
    assert found == {
        "flashinfer-python.version": "0.6.18", "flashinfer-cubin.version": ABSENT, "python.version": "3.12.14",
        "platform.system": "Linux", "platform.machine": "x86_64", "driver.version": "595.91.07",
        "gpu.name": "NVIDIA RTX A6000",
    }  # fmt: skip


def test_deepspeed_unsloth_and_the_driver():
    found = read(
        "DeepSpeed general environment info:\ntorch version .................... 2.6.0+cu124\n"
        "deepspeed info ................... 0.16.4, unknown, unknown\ntorch cuda version ............... 12.4\n"
        "nvcc version ..................... 12.2\n"
    )
    assert found == {
        "torch.version": "2.6.0+cu124", "deepspeed.version": "0.16.4", "torch.cuda": "12.4", "toolkit.nvcc": "12.2",
    }  # fmt: skip
    found = read(
        "==((====))==  Unsloth 2025.3.19: Fast Qwen2 patching. Transformers: 4.50.0. vLLM: 0.8.2.\n"
        "   \\\\   /|    Tesla T4. Num GPUs = 1. Max memory: 14.741 GB. Platform: Linux.\n"
        "O^O/ \\_/ \\    Torch: 2.6.0+cu124. CUDA: 7.5. CUDA Toolkit: 12.4. Triton: 3.2.0\n"
        "\\        /    Bfloat16 = FALSE. FA [Xformers = 0.0.29.post3. FA2 = False]\n"
    )
    assert found == {
        "unsloth.version": "2025.3.19", "transformers.version": "4.50.0", "vllm.version": "0.8.2",
        "gpu.name": "Tesla T4", "torch.version": "2.6.0+cu124", "gpu.sm": "7.5", "triton.version": "3.2.0", 
        "xformers.version": "0.0.29.post3",
    }  # fmt: skip
    found = read(
        "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |\n"
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |\n"
        "|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |\n"
    )
    assert found == {"driver.version": "550.54.15", "gpu.name": "NVIDIA H100 80GB HBM3", "gpu.count": 2}


def test_two_values_of_a_key_are_unknown_and_named():
    found = parse_facts("[pip3] torch==2.6.0\n[conda] torch  2.5.1  pypi_0  pypi\n", "report.txt")["torch.version"]
    assert found.value is None
    assert found.problem == "report.txt:1 says 2.6.0, report.txt:2 says 2.5.1"


def test_a_report_without_facts_is_refused():
    with pytest.raises(DoctorError, match=r"no facts could be read from the report in `report.txt`"):
        parse_facts("PyTorch version: N/A\nNvidia driver version: Could not collect\n", "report.txt")


def test_facts_files_are_not_taken_for_reports():
    written = document(parse_facts(COLLECTED, "report.txt"))
    assert not is_printed(json.dumps(written, indent=1))
    assert not is_printed("# PyTorch version: 2.6.0 is what we use\ntorch.version: 2.6.0\nworkload:\n  dtype: bf16\n")
    assert not is_printed("".join(f"{key}: x\n" for key in TERMS))
