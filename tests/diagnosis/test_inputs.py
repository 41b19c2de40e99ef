"""Inputs in any combination: each gives facts, a stated precedence decides, and differences are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli
from doctor.cli.request import TargetOptions
from doctor.diagnosis.path_kind import PathKind, kind_of_path
from tests.helpers.rulebook import builtin_rulebook

TRAIN = """\
import torch
from transformers import AutoModelForCausalLM
from trl import SFTConfig
model = AutoModelForCausalLM.from_pretrained("m", attn_implementation="flash_attention_2", torch_dtype=torch.bfloat16)
arguments = SFTConfig(output_dir="out", packing=True, max_length=2048)
"""
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}  # fmt: skip
FILES = {
    "train.py": TRAIN,
    "train.ipynb": '{"cells": [{"cell_type": "code", "source": "import torch"}]}',
    "model/config.json": json.dumps(LLAMA),
    "ds.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}',
    "axolotl.yaml": "base_model: m\ndatasets: []\nsequence_len: 4096\nattn_implementation: sdpa\nbf16: true\n",
    "job.yaml": "framework: transformers\nattn_implementation: eager\n",
    "run.sh": "export NVTE_FUSED_ATTN=0\npython train.py --bf16\n",
    "serve.sh": "vllm serve m --kv-cache-dtype fp8 --tensor-parallel-size 2\n",
    "compose.yaml": "services:\n  a:\n    image: vllm/vllm-openai:v0.10.0\n    command: --model m\n",
    "requirements.txt": "torch==2.7.1\ntransformers==4.56.2\n",
    "uv.lock": 'version = 1\n[[package]]\nname = "torch"\nversion = "2.7.1"\nsource = { registry = "https://x" }\n',
    "Dockerfile": "FROM python:3.11\nRUN pip install torch==2.7.1\n",
    "facts.yaml": "facts: {torch.version: '2.6.0', gpu.sm: '9.0'}\n",
    "snapshot.json": '{"schema": 1, "facts": {"torch.version": {"value": "2.6.0", "source": "here"}}}',
    "list.txt": "Package Version\n------- -------\ntorch 2.6.0\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files and work in their folder, which is no project; the active environment has no library."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = cli.run(["check", *arguments, "--format", "json", "--no-run", "--no-drift"])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    found: dict[str, Any] = json.loads(out)
    return found


def workload(report: dict[str, Any], key: str) -> Any:
    return report["workload"].get(key, {}).get("value")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.py", PathKind.SCRIPT), ("train.ipynb", PathKind.SCRIPT), ("model/config.json", PathKind.MODEL),
        ("model", PathKind.MODEL), ("ds.json", PathKind.WORKLOAD), ("axolotl.yaml", PathKind.WORKLOAD),
        ("job.yaml", PathKind.WORKLOAD), ("run.sh", PathKind.DECLARED), ("compose.yaml", PathKind.DECLARED),
        ("requirements.txt", PathKind.DECLARED), ("uv.lock", PathKind.DECLARED), ("Dockerfile", PathKind.DECLARED),
        ("facts.yaml", PathKind.FACTS), ("snapshot.json", PathKind.FACTS), ("list.txt", PathKind.FACTS),
        (sys.executable, PathKind.PYTHON), (sys.prefix, PathKind.PYTHON), (".", PathKind.DECLARED),
    ],
)  # fmt: skip
def test_the_kind_of_a_path(name: str, kind: PathKind) -> None:
    assert kind_of_path(Path(name), builtin_rulebook().trainers) == kind


def test_every_kind_of_path_has_a_place_in_a_request() -> None:
    """A kind that no field takes would be dropped in silence."""
    fields = set(TargetOptions._fields)
    assert {kind.replace("-", "_") for kind in PathKind} <= fields


def test_the_trainer_of_a_team_is_read_from_its_own_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """As a named file, as a job and in a command: the records of libraries are those of the rules in use."""
    library = """
name: acme
title: Acme Trainer
distributions: [acme-trainer]
trainers:
  - {id: acme, title: Acme, framework: transformers, trainer: trl, config: {any: [acme_model]},
     programs: {acme: [train]}, options: {acme_heads: {num_heads: integer}, acme_kind: {attn_implementation: text}}}
"""
    Path("rules/acme").mkdir(parents=True)
    Path("rules/acme/library.yaml").write_text(library)
    Path("acme.yaml").write_text("acme_model: m\nacme_heads: 3\n")
    Path("acme.sh").write_text("pip install torch==2.8.0\nacme train --acme-kind sdpa\n")
    for arguments in (("acme.yaml",), ("--workload", "acme.yaml")):
        report = check(capsys, "--facts", "facts.yaml", *arguments, "--rules", "rules")
        assert (workload(report, "framework"), workload(report, "num_heads")) == ("transformers", 3)
    report = check(capsys, "acme.sh", "--rules", "rules")
    assert workload(report, "attn_implementation") == "sdpa"
    assert cli.run(["check", "--facts", "facts.yaml", "acme.yaml", "--no-run"]) == 2


def test_all_inputs_at_once_give_their_facts_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(capsys, "requirements.txt", "run.sh", "train.py", "model", "--gpu", "h100")
    assert report["facts"]["torch.version"]["value"] == "2.7.1"
    assert report["facts"]["env.NVTE_FUSED_ATTN"]["value"] == "0"
    assert report["facts"]["gpu.sm"]["value"] == "9.0"
    keys = ("attn_implementation", "num_kv_heads", "packing", "dtype")
    assert [workload(report, key) for key in keys] == ["flash_attention_2", 8, True, "bfloat16"]
    gave = {item["path"]: item for item in report["inputs"]}
    assert list(gave) == ["requirements.txt", "run.sh", "model", "train.py"]
    assert "workload.packing" in gave["train.py"]["gave"] and gave["train.py"]["kind"] == "script"
    assert "workload.num_kv_heads" in gave["model"]["gave"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--facts", "facts.yaml", "--requirements", "requirements.txt"),
        ("--requirements", "requirements.txt", "--facts", "facts.yaml", "--workload", "axolotl.yaml"),
        ("facts.yaml", "requirements.txt"),
    ],
)
def test_facts_count_before_declared_files_and_the_difference_is_named(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(capsys, *arguments)
    assert report["facts"]["torch.version"]["value"] == "2.6.0"
    assert report["facts"]["transformers.version"]["value"] == "4.56.2"
    note = next(note for note in report["notes"] if note.startswith("the inputs differ"))
    assert "torch 2.6.0 (facts file facts.yaml) and not 2.7.1 (requirements.txt:1)" in note


def test_an_installed_environment_counts_before_declared_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, version in (("torch", "2.6.0"), ("transformers", "4.56.2")):
        info = folder / "tree" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (folder / "tree" / name).mkdir()
        (folder / "tree" / name / "__init__.py").write_text("")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "requirements.txt").write_text("torch==2.7.1\ntransformers==4.56.2\nflash-attn\n")
    report = check(capsys, "tree", "requirements.txt", "train.py")
    assert report["facts"]["torch.version"]["value"] == "2.6.0"
    note = next(note for note in report["notes"] if note.startswith("the inputs differ"))
    assert "torch 2.6.0" in note and "and not 2.7.1 (requirements.txt:1)" in note
    assert "requirements.txt:3 requires flash-attn, which is not installed" in note
    assert "transformers" not in note


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("axolotl.yaml",), "sdpa"),
        (("axolotl.yaml", "train.py"), "flash_attention_2"),
        (("job.yaml",), "eager"),
        (("axolotl.yaml", "train.py", "--set", "attn_implementation=eager"), "eager"),
    ],
)
def test_the_precedence_within_the_job(
    names: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workload(check(capsys, "requirements.txt", *names), "attn_implementation") == expected


@pytest.mark.parametrize("names", [("train.py",), ("model",), ("axolotl.yaml",), ("serve.sh",), ("job.yaml", "model")])
def test_a_job_without_an_environment_is_judged_with_todays_releases(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(capsys, *names, "--gpu", "h100")
    assert "torch" in report["today"]
    assert all(item["severity"] != "error" for item in report["findings"])
    cli.run(["check", *names, "--gpu", "h100"])
    assert capsys.readouterr().out.startswith(("INCOMPLETE", "WARN"))


def test_framework_and_gpu_without_a_release_are_a_diagnosis(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_text("facts: {gpu.sm: '12.0'}\nworkload: {framework: vllm, dtype: bfloat16}\n")
    report = check(capsys, "--facts", "job.yaml", "--set", "env.VLLM_ATTENTION_BACKEND=FLASHINFER")
    found = {item["id"]: item for item in report["findings"]}
    assert found["VLLM419"]["severity"] == "warning" and "pip would pick vllm" in found["VLLM419"]["message"]


def test_without_a_job_there_is_no_diagnosis(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "--python", sys.executable]) == 3


def test_a_program_without_attention_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plain.py").write_text("print('no attention')\n")
    assert cli.run(["check", "plain.py"]) == 3
    assert "nothing in plain.py says who computes attention" in capsys.readouterr().err


def test_two_installed_trees_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", sys.executable, sys.prefix]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_declared_range_that_is_not_met_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ranges.txt").write_text("torch>=2.7\nflash-attn\n")
    report = check(capsys, "facts.yaml", "ranges.txt")
    note = next(note for note in report["notes"] if note.startswith("the inputs differ"))
    assert "ranges.txt:1 requires `torch>=2.7`, found 2.6.0 (facts file facts.yaml)" in note


def test_a_project_with_a_model_gives_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check .` took a folder with a config.json for a model, and dropped its requirements."""
    (folder / "project").mkdir()
    (folder / "project" / "config.json").write_text(FILES["model/config.json"])
    (folder / "project" / "requirements.txt").write_text("torch==2.6.0\ntransformers==4.51.3\n")
    assert kind_of_path(folder / "project", builtin_rulebook().trainers) == PathKind.DECLARED
    found = check(capsys, "project")
    assert found["facts"]["torch.version"]["value"] == "2.6.0"
    assert workload(found, "head_dim_qk") == workload(check(capsys, "model"), "head_dim_qk") is not None
