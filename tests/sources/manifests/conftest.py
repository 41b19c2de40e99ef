"""Writes a project's files and reads what they declare."""

import pytest

from doctor.diagnosis.watch import watch_of
from doctor.model import Fact, Facts
from doctor.sources.manifests.read import read_manifests
from tests.helpers.rulebook import builtin_rulebook


@pytest.fixture
def write(tmp_path):
    """Files by name, beneath the test's folder."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def read(write, tmp_path):
    """What files declare: {name: text}; all of them are named unless `only` says which. `said` are further facts."""

    def read(files, only=None, **said):
        for name, text in files.items():
            write(name, text)
        facts = Facts(Fact(key.replace("_", "."), value, "--set") for key, value in said.items())
        return read_manifests([str(tmp_path / name) for name in (only or files)], facts, watch_of(builtin_rulebook()))

    return read


@pytest.fixture
def values():
    """Key → value of a declaration's known facts."""

    def values(declaration):
        return {key: fact.value for key, fact in declaration.facts.items() if fact.known}

    return values
