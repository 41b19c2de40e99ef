"""`attn-doctor wheels FILE.whl`: the verdict on a wheel that is a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.cli.main import run as command_line
from tests.sources.manifests.test_local_wheels import wheel


@pytest.fixture(autouse=True)
def _cache(cache_of_its_own: Path) -> None:
    """What is read of a wheel is kept for one test."""


@pytest.mark.parametrize(
    ("torch", "cuda", "loads", "words"),
    [
        ("2.8.0", "12.8", True, ""),
        ("2.6.0", "12.4", False, "lacks libraries or symbols"),
        ("2.6.0", "12.6", None, "not on record"),
    ],
)
def test_a_wheel_next_to_a_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], torch: str, cuda: str, loads: bool | None, words: str
) -> None:
    facts = tmp_path / "facts.yaml"
    facts.write_text(f'facts: {{torch.version: "{torch}", torch.cuda: "{cuda}", gpu.sm: "9.0"}}\n')
    path = wheel(tmp_path)
    status = command_line(["wheels", str(path), "--facts", str(facts), "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (status, found["loads"], found["package"]) == (0 if loads else 1, loads, "torchvision")
    assert words in (found["problem"] or "")
    assert "2.8.0+cu128" in found["fitting_torch"]
    assert command_line(["wheels", str(path), "--facts", str(facts)]) == status
    out = capsys.readouterr().out
    assert out.startswith("torchvision 0.23.0: ") and "torch builds on record that fit: " in out


def test_a_file_that_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("missing-1.0-py3-none-any.whl", "x.whl"):
        if name == "x.whl":
            (tmp_path / name).write_text("text")
        assert command_line(["wheels", str(tmp_path / name)]) == 2
        assert "Traceback" not in capsys.readouterr().err
