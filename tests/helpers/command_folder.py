"""A folder in which the commands of the documents can be carried out."""

from __future__ import annotations

import json
import shutil
import sys
import venv
from pathlib import Path

from tests.helpers import fake_trees
from tests.helpers.text_commands import ROOT

WHEEL = "flash_attn-2.7.4.post1-cp311-cp311-linux_x86_64.whl"
CALL = "print('trained')\n"
LOG = 'Traceback (most recent call last):\n  File "/opt/train.py", line 1, in <module>\nImportError: {}\n'.format(
    "/opt/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"
)
LOCK = """version = 1
requires-python = ">=3.11"
[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://pypi.org/simple" }
"""
PROJECT = """[project]
name = "ours"
version = "1.0"
dependencies = ["torch==2.6.0"]
[project.optional-dependencies]
train = ["transformers==4.50.0"]
"""
RULE = """id: ACME001
name: forbid-a-release
severity: error
summary: our kernels fail with flash-attn 2.7.4.post1
why: They were compiled for another release.
references: [https://example.org/acme]
when: {flash-attn.version: "==2.7.4.post1"}
tests:
  fires: {given: {flash-attn.version: 2.7.4.post1}, expect: fires}
  silent: {given: {flash-attn.version: 2.7.3}, expect: silent}
"""
PACKAGES = {"flash-attn": "2.7.4.post1", "transformers": "4.50.0", "transformer-engine": "2.3.0", "numpy": "2.1.0"}


def install_stack(site: Path) -> None:
    fake_trees.torch(site)
    fake_trees.cudnn_wheel(site, "9.1.0")
    for name, version in PACKAGES.items():
        fake_trees.install(site, name, version)


def prepare(folder: Path) -> None:
    """Write what the commands name: an environment, an image, a project, a job, a log, snapshots, a rule of our own."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    venv.create(folder / "venv", symlinks=True)
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    install_stack(folder / "venv" / "lib" / release / "site-packages")
    install_stack(folder / "image")
    llama = (ROOT / "examples" / "models" / "llama-3-8b.json").read_text(encoding="utf-8")
    incident, job = ROOT / "examples" / "incidents" / "b", ROOT / "examples" / "project" / "job.yaml"
    declared = ROOT / "examples" / "declared" / "project"
    texts = {
        "config.json": llama, "llama.json": llama, "configs/llama-3-8b.json": llama,
        "gemma.json": (ROOT / "examples" / "models" / "gemma-2-9b.json").read_text(encoding="utf-8"),
        "facts.yaml": (incident / "facts.yaml").read_text(encoding="utf-8"),
        "workload.yaml": (incident / "workload.yaml").read_text(encoding="utf-8"),
        "job.yaml": job.read_text(encoding="utf-8"),
        "axolotl.yml": "base_model: org/model\nbf16: true\nflash_attention: true\nsequence_len: 4096\n",
        "bug.md": "It fails:\n\n```\nCollecting environment information...\nPyTorch version: 2.6.0+cu124\n"
        "CUDA used to build PyTorch: 12.4\nPython version: 3.11.7 (64-bit runtime)\n[pip3] torch==2.6.0\n```\n",
        "list.txt": "Package Version\n------- -------\ntorch   2.6.0\nflash-attn 2.7.4.post1\n",
        "train.log": LOG, "train.py": CALL, "uv.lock": LOCK, "pyproject.toml": PROJECT,
        "train.sh": (declared / "train.sbatch").read_text(encoding="utf-8"),
        "train.sbatch": (declared / "train.sbatch").read_text(encoding="utf-8"),
        "Dockerfile": "FROM python:3.11\nRUN pip install torch==2.6.0 flash-attn==2.7.4.post1\n",
        "serve.sh": "vllm serve org/model --dtype bfloat16\n",
        "requirements.txt": "torch==2.6.0\nflash-attn==2.7.4.post1\n",
        "our-rules/library.yaml": "name: acme\ntitle: Acme\nreferences: [https://example.org/acme]\n",
        "our-rules/ACME001.yaml": RULE,
    }  # fmt: skip
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.make_archive(str(folder / "wheel"), "zip", folder / "image", "torch")
    (folder / "wheel.zip").rename(folder / WHEEL)
    facts = {"torch.version": "2.6.0", "gpu.sm": "9.0"}
    for name, version in (("node-a.json", "9.1.0"), ("node-b.json", "9.8.0")):
        (folder / name).write_text(json.dumps({"facts": {**facts, "cudnn.version": version}}), encoding="utf-8")
    (folder / "baseline.json").write_text('{"schema": 1, "findings": []}', encoding="utf-8")
