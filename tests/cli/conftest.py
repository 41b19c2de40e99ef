"""The prepared folder in which commands are carried out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_folder import prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made once for a test file."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


@pytest.fixture
def command_folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy for one command, which may write; the environment is active."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("venv", "image"))
    for name in ("venv", "image"):
        (tmp_path / name).symlink_to(prepared / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ENV", str(prepared / "venv"))
    monkeypatch.setenv("PATH", f"{prepared / 'venv' / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with (tmp_path / "train.log").open(encoding="utf-8") as log:
        monkeypatch.setattr(sys, "stdin", log)
        yield tmp_path
