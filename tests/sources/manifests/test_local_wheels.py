"""Wheels that requirement files name and that are files here."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.sources.binaries import wheel_file
from doctor.sources.binaries.wheel_file import read_wheel
from doctor.sources.manifests.base import Manifest
from doctor.sources.manifests.formats.requirements import read
from doctor.util.reading import trust_project
from tests.helpers.fake_trees import elf
from tests.helpers.watches import built_in_watch

NAME = "torchvision-0.23.0-cp311-cp311-manylinux_2_28_x86_64.whl"
SET_DEVICE = "_ZN3c104cuda9SetDeviceEab"  # from torch 2.8 on


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def wheel(folder: Path, member: str = "torchvision/_C.so", name: str = NAME) -> Path:
    library = elf(folder / "made/_C.so", ("libc10.so", "libcudart.so.12"), undefined=(SET_DEVICE,))
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.write(library, member)
        archive.writestr("torchvision/__init__.py", "")
    return folder / name


def manifest(folder: Path, *lines: str) -> Manifest:
    (folder / "pyproject.toml").touch()
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines) + "\n")
    return read(path, path.read_text(), built_in_watch())


def test_what_a_wheel_fits(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    for _ in range(2):  # read, then remembered
        found = read_wheel(path, built_in_watch().packages)
        assert (found.name, found.version, found.gpu_code) == ("torchvision", "0.23.0", ())
        assert found.fitting_torch is not None
        assert "2.8.0+cu128" in found.fitting_torch and "2.6.0+cu124" not in found.fitting_torch
        assert not any("cu130" in build for build in found.fitting_torch)  # it links the CUDA 12 runtime


@pytest.mark.parametrize(
    "line",
    [f"./{NAME}", f"torchvision @ file:{NAME}", "torchvision==0.23.0", "torchvision==0.23.0 ; python_version > '3'"],
)
def test_a_wheel_of_a_requirements_file(tmp_path: Path, line: str) -> None:
    wheel(tmp_path)
    found = manifest(tmp_path, "--find-links .", "torch==2.6.0", line)
    facts = {fact.key: fact.value for fact in found.facts}
    assert "2.8.0+cu128" in facts["torchvision.fitting_torch"]


def test_other_addresses_and_releases_are_left_alone(tmp_path: Path) -> None:
    wheel(tmp_path)
    lines = (
        "-f https://example.org/wheels",
        f"https://example.org/{NAME}",
        "torchvision==0.24.0",
        "./not_there-1.0-py3-none-any.whl",
    )
    assert not [fact for fact in manifest(tmp_path, *lines).facts if fact.key.startswith("torchvision")]


def test_a_wheel_outside_the_project_is_read_where_the_user_trusts_it(tmp_path: Path) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    for folder in (outside, project):
        folder.mkdir()
    line = f"torchvision @ file://{wheel(outside)}"
    found = manifest(project, line)
    assert not [fact for fact in found.facts if fact.key.endswith("fitting_torch")]
    assert any("outside the project" in note for note in found.notes)
    with trust_project():
        found = manifest(project, line)
    assert [fact for fact in found.facts if fact.key.endswith("fitting_torch")]


def test_hostile_wheels_cost_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_bytes(b"PK\3\4 and then nothing")
    found = manifest(tmp_path, f"./{NAME}")
    assert any("cannot read wheel" in note and "\n" not in note for note in found.notes)
    with pytest.raises(DoctorError, match="leads out"):
        read_wheel(wheel(tmp_path, "../../evil.so", "natten-1.0-cp311-cp311-linux_x86_64.whl"), {})
    monkeypatch.setattr(wheel_file, "MAX_BYTES", 100)
    with pytest.raises(DoctorError, match="more than"):
        read_wheel(wheel(tmp_path), {})
    with pytest.raises(DoctorError, match="not the name of a wheel"):
        read_wheel(tmp_path / "x.whl", {})
