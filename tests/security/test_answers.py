"""Answers of kernels and archives that are made to break the reader."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from doctor.drift import download
from doctor.runner.process import KernelProcess, _is_case, _number
from doctor.runner.run import make_run_folder


def test_seconds_and_cases_of_any_kind() -> None:
    for value in (10**400, -1, float("nan"), float("inf"), "x", None, [], True):
        assert _number(value) in (0.0, 1.0)
    assert _number(1.5) == 1.5
    assert [_is_case(value) for value in (None, 0, 3, "0", [0], {}, True, 1.5)] == [True, True, True] + [False] * 5


@pytest.mark.parametrize(
    "answer",
    ['{"contract": 1, "case": 0, "observed": ' + "[" * 200_000, '{"contract": 1, "observed": ' + '{"a": ' * 100_000],
    ids=["lists", "objects"],
)
def test_an_answer_that_is_nested_too_deeply_is_a_failure_of_that_case(answer: str) -> None:
    folder = make_run_folder({"program": f"print({answer!r})"})
    (result,), _ = KernelProcess(sys.executable, "program", folder, [{}], None).collect(60)
    assert result.outcome != "ran" and "nested too deeply" in str(result.reason), result


def test_a_wheel_is_unpacked_up_to_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as made:
        for number in range(20):
            made.writestr(f"x/m{number}.py", "#" * 10_000)
    download.unpack_wheel(tmp_path / "x.whl", tmp_path / "whole")
    monkeypatch.setattr(download, "TOTAL_LIMIT", 100_000)
    with pytest.raises(ValueError, match="its files have more than"):
        download.unpack_wheel(tmp_path / "x.whl", tmp_path / "part")
