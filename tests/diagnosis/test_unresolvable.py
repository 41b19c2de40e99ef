"""Lines of a project that no resolver meets together are an error in `check`, as they are for pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"requirements.txt": "torch==2.8.0\ntrl>=1.16\naccelerate==0.33.0\n"}, "error"),
        ({"requirements.txt": "torch==2.8.0\ntrl==1.16.0\naccelerate==0.33.0\n"}, "error"),
        ({"requirements.txt": "torch==2.8.0\ntrl==1.16.0\n", "more.txt": "accelerate==0.33.0\n"}, "warning"),
        ({"requirements.txt": "torch==2.8.0\ntrl>=1.16\naccelerate>=1.10.1\n"}, None),
    ],
    ids=["a range", "two pins", "two files, installed one after the other", "what resolves"],
)
def test_lines_that_no_resolver_meets_together_are_an_error(tmp_path: Path, files, severity):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    declared = tuple(str(tmp_path / name) for name in files)
    report = diagnose(Request(declared=declared, run=False, fixes=True))
    found = [finding.severity for finding in report.findings if finding.rule == "DCL042"]
    assert found == ([severity] if severity else [])
    if severity == "error":
        (change,) = report.fixes[0].changes
        assert change.name == "accelerate" and change.after == "1.10.1"
