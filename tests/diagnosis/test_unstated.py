"""Packages that the job calls and whose release no input states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli

TURING = {"gpu.sm": "7.5", "torch.version": "2.8.0", "transformers.version": "4.56.2"}
FLASH = {"framework": "transformers", "attn_implementation": "flash_attention_2", "dtype": "float16"}
HUB = {"framework": "transformers", "attn_implementation": "kernels-community/vllm-flash-attn3", "dtype": "bfloat16"}
SPARK = {"gpu.sm": "12.1", "torch.version": "2.10.0", "transformers.version": "5.5.0"}


def check(
    capsys: pytest.CaptureFixture[str], folder: Path, facts: dict[str, Any], workload: dict[str, Any]
) -> dict[str, Any]:
    file = folder / "facts.json"
    file.write_text(json.dumps({"facts": facts, "workload": workload}))
    code = cli.run(["check", "--no-run", "--format", "json", "--facts", str(file)])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    report: dict[str, Any] = json.loads(out)
    return {item["id"]: item for item in report["findings"]} | {"fixes": report["fixes"]}


def test_a_package_that_the_job_calls_is_judged_without_a_stated_release(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = check(capsys, tmp_path, TURING, FLASH)
    assert found["FA008"]["severity"] == "warning"
    assert "no release of flash-attn is stated" in found["FA008"]["message"]
    assert any(fix.get("config", {}).get("workload.attn_implementation") == "sdpa" or "sdpa" in json.dumps(fix)
               for fix in found["fixes"])  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "workload"),
    [
        (TURING, {**FLASH, "attn_implementation": "sdpa"}),
        ({**TURING, "gpu.sm": "8.0"}, FLASH),
        ({**TURING, "flash-attn.version": "absent"}, FLASH),
    ],
    ids=["not called", "a GPU that it serves", "stated to be absent"],
)
def test_a_package_is_not_assumed_where_nothing_calls_it_or_it_is_stated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, facts: dict[str, Any], workload: dict[str, Any]
) -> None:
    assert "FA008" not in check(capsys, tmp_path, facts, workload)


def test_a_package_that_the_index_lacks_is_judged_by_the_releases_that_rules_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = check(capsys, tmp_path, SPARK, HUB)
    assert "a release below 0.15" in found["HUB111"]["message"]
    assert "TF383" not in found  # the newest does not fit this transformers: another one is installed


def test_a_release_that_does_not_fit_the_stated_packages_is_no_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = {"framework": "transformers", "attn_implementation": "sdpa", "dtype": "bfloat16"}
    assert "TF017" not in check(capsys, tmp_path, {"torch.version": "2.5.1", "gpu.sm": "9.0"}, job)


def test_a_package_that_is_stated_to_be_absent_is_not_what_pip_installs_today(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent = {"transformer-engine.version": "absent", "transformer-engine-torch.version": "absent", "gpu.sm": "9.0"}
    found = check(capsys, tmp_path, absent, {"framework": "transformer_engine", "dtype": "bfloat16"})
    assert [name for name in found if name != "fixes"] == ["NOT_INSTALLED"]
