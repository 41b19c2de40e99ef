"""The tests inside the rule files and the lint of each file, one pytest case for each folder of rules."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.rulebook.authoring.lint import lint_source, lint_unique
from doctor.rulebook.authoring.tests import failure_text, in_file_tests, load_libraries, rulebook_paths, run_test
from doctor.rulebook.rulebook import Rulebook
from doctor.rulebook.schema import Source, read_sources

FOLDERS = sorted({path.parent for path in rulebook_paths()})


@pytest.fixture(scope="session")
def libraries() -> Rulebook:
    return load_libraries()


@cache
def sources() -> tuple[list[Source], list[str]]:
    """(readable files, what is wrong with the others: one broken file must not hide the tests of the rest)."""
    readable, faults = [], []
    for path in rulebook_paths():
        try:
            readable += read_sources(path)
        except DoctorError as fault:
            faults.append(fault.message)
    return readable, faults


def rules_below(folder: Path) -> list[Source]:
    return [source for source in sources()[0] if source.kind == "rule" and Path(source.path).parent == folder]


def test_every_file_of_the_rulebook_is_readable():
    assert not sources()[1], "\n".join(sources()[1])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_tests_of_the_rules_pass(folder: Path, libraries: Rulebook):
    outcomes = [run_test(test, libraries) for source in rules_below(folder) for test in in_file_tests(source)]
    failed = [failure_text(outcome) for outcome in outcomes if not outcome.passed]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_lint_has_no_complaint(folder: Path, libraries: Rulebook):
    faults = [fault for source in rules_below(folder) for fault in lint_source(source, libraries)]
    assert not faults, "\n".join(map(str, faults))


def test_no_two_rules_share_an_id_or_a_name():
    faults = list(lint_unique([source for source in sources()[0] if source.kind == "rule"]))
    assert not faults, "\n".join(map(str, faults))
