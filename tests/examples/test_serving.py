"""The examples of serving and of flex_attention: each incident has its finding, each near miss none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doctor.cli import main as cli

SERVING = Path(__file__).parents[2] / "examples" / "serving"


def findings(capsys: pytest.CaptureFixture[str], *options: str) -> set[str]:
    """Return the ids of the findings that are at least warnings."""
    cli.run(["check", "--no-run", "--format", "json", *options])
    report = json.loads(capsys.readouterr().out)
    return {finding["id"] for finding in report["findings"] if finding["severity"] in ("error", "warning")}


@pytest.mark.parametrize(("name", "expected"), [("compose", {"VLLM419"}), ("compose-option", set())])
def test_a_compose_file(name: str, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM 0.16 ignores the variable and reads the option."""
    assert findings(capsys, "--requirements", str(SERVING / f"{name}.yaml"), "--gpu", "h100") == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("flex-rtx-4090", {"FLEX101", "FLEX102"}), ("flex-rtx-4090-smaller-blocks", set())],
)
def test_flex_attention(name: str, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Heads of 256 need more than 99 KiB, and smaller blocks fit."""
    assert findings(capsys, "--facts", str(SERVING / f"{name}.yaml")) == expected
