"""Every command that the documents show is carried out, and does not end as bad input or with a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor.cli.main import run
from tests.helpers import fake_trees
from tests.helpers.text_commands import GRAMMAR, ROOT, Command, in_documents, words_of

#: A word of a text -> what stands for it in the prepared folder.
STANDS_FOR = {
    "/path/to/venv/bin/python": "venv/bin/python", "/path/to/train/bin/python": "venv/bin/python",
    "/mnt/image/usr/lib/python3.12/site-packages": "image", "/dev/stdin": "list.txt",
    "FILE": "requirements.txt", "FILE.whl": "flash_attn-2.7.4.post1-cp311-cp311-linux_x86_64.whl",
    "A": "node-a.json", "B": "node-b.json", "LOG": "train.log", "WORD": "head_dim", "IMAGE": "image:tag",
    "PATH": "our-rules",
}  # fmt: skip
#: A command with another meaning of such a word -> what stands for it.
ALSO = {
    "attn-doctor snapshot -o FILE": {"FILE": "facts-of-this-node.json"},
    "attn-doctor check --format NAME": {"NAME": "json"},
    "attn-doctor schema NAME": {"NAME": "facts"},
}
#: Commands that cannot be carried out here -> why not. Other tests parse their words.
NOT_RUN = {
    r"stress\b": "runs kernels: needs torch and a GPU",
    r"fleet stress\b": "runs kernels: needs torch and a GPU",
    r"fleet --slurm": "needs an allocation of Slurm",
    r"fix --dry-run": "a resolver reads a package registry",
    r"mcp$": "serves until its input ends: tests/cli/test_mcp.py",
    r"--install-completion": "writes to the start file of the shell",
}
#: Mentions of a family of commands: without more words they say what is missing.
FAMILIES = (
    "attn-doctor backends --batch",
    "attn-doctor check --facts",
    "attn-doctor fleet",
    "attn-doctor explain",
    "attn-doctor diff",
    "attn-doctor rules",
    "attn-doctor run",
)


def commands() -> dict[str, Command]:
    """Each command once."""
    found = {}
    for command in in_documents():
        text = re.split(r"\s+#|\s*…$", command.text)[0].strip()
        grammar = GRAMMAR.search(text) and not re.search(r"\[\w+\]['\"]", text)
        if not grammar and text not in FAMILIES:
            found.setdefault(text, command)
    return found


def reason_not_to_run(text: str) -> str | None:
    words = text.removeprefix("attn-doctor ")
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, words)), None)


def words_here(text: str) -> list[str]:
    stands = {**STANDS_FOR, **ALSO.get(text, {})}
    return [stands.get(word, word) for word in words_of(text)]


TO_RUN = [text for text in commands() if reason_not_to_run(text) is None]

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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands name: an environment, an image, a project, a job, a log, snapshots, a rule of our own."""
    folder = tmp_path_factory.mktemp("prepared")
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
        "requirements.txt": "torch==2.6.0\nflash-attn==2.7.4.post1\n",
        "our-rules/library.yaml": "name: acme\ntitle: Acme\nreferences: [https://example.org/acme]\n",
        "our-rules/ACME001.yaml": RULE,
    }  # fmt: skip
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.make_archive(str(folder / "wheel"), "zip", folder / "image", "torch")
    (folder / "wheel.zip").rename(folder / STANDS_FOR["FILE.whl"])
    facts = {"torch.version": "2.6.0", "gpu.sm": "9.0"}
    for name, version in (("node-a.json", "9.1.0"), ("node-b.json", "9.8.0")):
        (folder / name).write_text(json.dumps({"facts": {**facts, "cudnn.version": version}}), encoding="utf-8")
    (folder / "baseline.json").write_text('{"schema": 1, "findings": []}', encoding="utf-8")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy for one command, which may write; the environment is active."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("venv", "image"))
    for name in ("venv", "image"):
        (tmp_path / name).symlink_to(prepared / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", str(prepared / "venv"))
    monkeypatch.setenv("PATH", f"{prepared / 'venv' / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with (tmp_path / "train.log").open(encoding="utf-8") as log:
        monkeypatch.setattr(sys, "stdin", log)
        yield tmp_path


@pytest.mark.parametrize("text", TO_RUN)
def test_a_command_of_the_documents_does_what_it_says(text, folder, capfd):
    code = run(words_here(text))
    said = capfd.readouterr()
    assert code in (0, 1), f"{commands()[text].where}: exit code {code}: {said.err}"
    assert "Traceback (most recent call last)" not in said.err and "fault of attn-doctor" not in said.err


def test_what_is_not_run_is_there_and_few():
    left_out = [text for text in commands() if reason_not_to_run(text) is not None]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, text.removeprefix("attn-doctor ")) for text in left_out), pattern
    assert len(TO_RUN) > 3 * len(left_out), left_out
