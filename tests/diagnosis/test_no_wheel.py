"""Projects whose installation compiles a package, because no official wheel serves their torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from doctor.cli import main as cli

EXTRA = """\
[project]
name = "app"
version = "1.0"
dependencies = ["torch=={torch}"]
[project.optional-dependencies]
fast = ["{wanted}"]
"""


def findings(capsys: pytest.CaptureFixture[str], folder: Path, name: str, text: str) -> dict[str, Any]:
    file = folder / name
    file.write_text(text)
    code = cli.run(["check", "--no-run", "--format", "json", "--requirements", str(file)])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    return {item["id"]: item["message"] for item in json.loads(out)["findings"]}


@pytest.mark.parametrize(
    ("torch", "wanted", "reported"),
    [
        ("2.11.0", "flash-attn==2.8.3", "flash-attn 2.8.3 has no official wheel for torch 2.11"),
        ("2.13.0", "mamba-ssm", "No mamba-ssm release has an official wheel for torch 2.13"),
        ("2.8.0", "flash-attn==2.8.3", None),
        ("2.11.0", "flash-attn>=2.7", None),  # which release it takes is not known
    ],
)
def test_an_extra_that_is_not_chosen_is_judged_by_its_wheels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, torch: str, wanted: str, reported: str | None
) -> None:
    found = findings(capsys, tmp_path, "pyproject.toml", EXTRA.format(torch=torch, wanted=wanted)).get("BIN020")
    assert (found is None) is (reported is None)
    assert reported is None or (reported in str(found) and "(extra `fast`)" in str(found))


def test_a_requirements_file_with_a_pair_without_a_wheel_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "torch==2.5.0\nflash-attn=={}\n"
    assert "for torch 2.5" in findings(capsys, tmp_path, "requirements.txt", text.format("2.6.3"))["BIN020"]
    assert "BIN020" not in findings(capsys, tmp_path, "requirements.txt", text.format("2.7.4.post1"))


def test_an_image_that_limits_the_jobs_means_to_compile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04\n{}RUN pip install torch==2.13.0\n" \
        "RUN pip install --no-build-isolation mamba-ssm==2.3.1\n"  # fmt: skip
    assert "BIN020" in findings(capsys, tmp_path, "Dockerfile", image.format(""))
    for variable in ("MAX_JOBS=4", "MAMBA_FORCE_BUILD=TRUE"):
        assert "BIN020" not in findings(capsys, tmp_path, "Dockerfile", image.format(f"ENV {variable}\n"))
