"""Downloads of releases into a folder that holds those of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.packages import archives


def test_the_wheel_of_another_package_is_not_taken_for_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "hypertensor-1.0.1-py3-none-any.whl").touch()

    def pip(command: list[str], work: Path) -> archives._Attempt:
        name, _, version = command[-1].partition("==")
        if name == "warp-rnnt":
            (work / "wheels" / f"warp_rnnt-{version}-py3-none-any.whl").touch()
        return archives._Attempt(error="no wheel of it")

    monkeypatch.setattr(archives, "_pip", pip)
    assert archives._wheel("torch-ans", "0.4.0", tmp_path, "python", [[]]).file is None
    found = archives._wheel("warp-rnnt", "0.7.0", tmp_path, "python", [[]]).file
    assert found is not None and found.name.startswith("warp_rnnt-")
