"""`fix --diff` and `--write` narrow a range once, whatever number of findings concern it."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.apply.edit.edits import edits_of
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.model import RemedyKind

LLAMA = Path(__file__).parents[3] / "examples" / "models" / "llama-3-8b.json"
REWRITTEN = "torch>=2.8.0,<2.10\n"


@pytest.mark.parametrize("text", ["torch>=2.3,<2.10\n", "torch>=2.7.1,<2.10\n"], ids=["several", "one"])
def test_every_finding_about_a_range_narrows_it(tmp_path: Path, text: str):
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    settings = ("workload.attn_implementation=sdpa",)
    report = diagnose(Request(declared=(str(path),), gpu="b200", model=str(LLAMA), settings=settings, run=False))
    kinds = [remedy.kind for finding in report.findings for remedy in finding.alternatives[:1]]
    assert RemedyKind.NARROWS_RANGE in kinds
    edits = edits_of(report, [str(path)])
    assert "+" + REWRITTEN in edits.diff
    edits.write()
    assert path.read_text() == REWRITTEN
