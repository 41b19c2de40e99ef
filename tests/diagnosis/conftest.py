"""Fixtures of the diagnosis tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.diagnosis.watch import watch_of
from doctor.model import Fact, Facts
from doctor.sources.manifests.read import read_manifests
from doctor.sources.manifests.resolve import Declaration
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes a file into the test's folder."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def read(write: Callable[[str, str], Path], tmp_path: Path) -> Callable[..., Declaration]:
    """Return a function that reads what files declare: {name: text}; `stated` are further facts."""

    def read(files: dict[str, str], only: list[str] | None = None, **stated: object) -> Declaration:
        for name, text in files.items():
            write(name, text)
        facts = Facts(Fact(key.replace("_", "."), value, "--set") for key, value in stated.items())
        return read_manifests([str(tmp_path / name) for name in (only or files)], facts, watch_of(builtin_rulebook()))

    return read
