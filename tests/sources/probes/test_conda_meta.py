"""Packages of conda that were installed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.sources.probes.collect import collect
from doctor.sources.probes.target import Target, TargetKind
from tests.helpers.fake_trees import install
from tests.helpers.watches import built_in_watch


def facts_of(prefix: Path) -> object:
    site = prefix / "lib/python3.11/site-packages"
    target = Target(
        str(prefix / "bin/python"), prefix, (site,), TargetKind.INTERPRETER, "3.11.7", "cpython", "Linux", "x86_64",
        "2.36", {},
    )  # fmt: skip
    return collect(target, built_in_watch(), ("conda_meta",)).value("files.conda_and_pip")


@pytest.mark.parametrize(
    ("listed", "installed", "found"),
    [
        ("pytorch-2.5.1-py3.11_cuda12.4_cudnn9.1.0_0", "2.8.0", "torch: conda lists pytorch 2.5.1, and 2.8.0 was"),
        ("pytorch-2.5.1-py3.11_cuda12.4_cudnn9.1.0_0", "2.5.1", None),
        ("pytorch-cuda-12.4-h3fd98bf_7", "2.8.0", None),
        ("pytorch-gpu-2.6.0-cuda126_mkl_ha999a5f_300", "2.8.0", "torch: conda lists pytorch-gpu 2.6.0, and 2.8.0"),
        ("history", "2.8.0", None),
    ],
)
def test_what_conda_lists_and_what_is_installed(tmp_path: Path, listed: str, installed: str, found: str | None) -> None:
    install(tmp_path / "lib/python3.11/site-packages", "torch", installed)
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / f"conda-meta/{listed}.json").write_text("{}")
    facts = facts_of(tmp_path)
    assert facts is None if found is None else str(facts[0]).startswith(found)  # type: ignore[index]


def test_an_environment_of_another_kind(tmp_path: Path) -> None:
    install(tmp_path / "lib/python3.11/site-packages", "torch", "2.8.0")
    assert facts_of(tmp_path) is None
