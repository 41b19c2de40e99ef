"""Answers of kernels and archives that are made to break the reader."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from doctor.drift import download
from doctor.runner.process import _is_case, _number


def test_seconds_and_cases_of_any_kind() -> None:
    for value in (10**400, -1, float("nan"), float("inf"), "x", None, [], True):
        assert _number(value) in (0.0, 1.0)
    assert _number(1.5) == 1.5
    assert [_is_case(value) for value in (None, 0, 3, "0", [0], {}, True, 1.5)] == [True, True, True] + [False] * 5


def test_a_wheel_is_unpacked_up_to_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as made:
        for number in range(20):
            made.writestr(f"x/m{number}.py", "#" * 10_000)
    download.unpack_wheel(tmp_path / "x.whl", tmp_path / "whole")
    monkeypatch.setattr(download, "TOTAL_LIMIT", 100_000)
    with pytest.raises(ValueError, match="its files have more than"):
        download.unpack_wheel(tmp_path / "x.whl", tmp_path / "part")
