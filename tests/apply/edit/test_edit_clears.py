"""The edited file, read again: what the fix was to clear is gone. Environments drawn from real releases."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from doctor.apply.edit.edits import edits_of
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import Report
from doctor.packages.index import load_index

GPUS = ("a100", "h100", "b200", "rtx4090", "l40s")
FRAMEWORKS = ("transformer_engine", "megatron", "transformers", "flash_attn", "torch_sdpa")


def drawn(chance: random.Random, package: str) -> str:
    """A release of a package as a requirement, in one of the spellings people use."""
    versions = [
        text for text, item in load_index().releases(package).items() if not (item.is_prerelease or item.yanked)
    ]
    form = chance.choice(["{}=={}", "{} == {}  # pinned", "{}=={} ; sys_platform == 'linux'"])
    return form.format(package, chance.choice(versions[-25:]))


def environment(chance: random.Random) -> tuple[list[str], list[str], str]:
    """(requirements, settings, GPU)"""
    lines = [drawn(chance, "torch")]
    for package, share in (("transformer-engine", 0.8), ("flash-attn", 0.6), ("transformers", 0.5), ("xformers", 0.3)):
        lines += [drawn(chance, package)] if chance.random() < share else []
    chance.shuffle(lines)
    workload = {
        "dtype": "bfloat16", "head_dim_qk": chance.choice([64, 128, 192, 256]), "num_heads": 16, "training": "true",
        "mask": chance.choice(["causal", "padding_causal", "no_mask"]), "framework": chance.choice(FRAMEWORKS),
    }  # fmt: skip
    if chance.random() < 0.4:
        workload |= {"cp_size": 2, "cp_comm_type": "all_gather"}
    settings = ["python.version=3.11.7", *(f"workload.{key}={value}" for key, value in workload.items())]
    return lines, settings, chance.choice(GPUS)


def errors(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings if finding.severity == "error"}


def asked(path: Path, gpu: str, settings: list[str], fixes: bool = True) -> Report:
    return diagnose(Request(declared=(str(path),), gpu=gpu, settings=tuple(settings), fixes=fixes, run=False))


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.slow) for part in (2, 3))])
def test_what_was_to_be_cleared_is_gone_from_the_file(tmp_path: Path, part: int):
    chance, cleared = random.Random(100 + part), 0
    path = tmp_path / "requirements.txt"
    for _ in range(10):
        lines, settings, gpu = environment(chance)
        path.write_text("\n".join(lines) + "\n")
        try:
            report = asked(path, gpu, settings)
        except DoctorError:
            continue  # releases that no installer would put together
        if not errors(report) or not report.fixes:
            continue
        fix = report.package_fix
        for file in edits_of(report, [str(path)]).files:
            file.write()
        settings += [f"env.{item.name}={item.after or 'absent'}" for item in fix.changes if item.kind == "env"]
        settings += [f"workload.{item.name}={item.after}" for item in fix.changes if item.kind == "config"]
        by_code = {rule for item in fix.changes if item.kind == "call" for rule in item.resolves}
        left = errors(asked(path, gpu, settings, fixes=False)) - set(fix.leaves) - by_code
        assert not left, (lines, path.read_text(), gpu, settings, fix.title)
        cleared += 1
    assert cleared >= 2
