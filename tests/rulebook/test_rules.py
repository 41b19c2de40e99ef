"""The tests inside the rule files and the lint of each file, one pytest case each."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.rulebook.authoring.lint import lint_source, lint_unique
from doctor.rulebook.authoring.tests import (
    RuleTest,
    failure_text,
    in_file_tests,
    load_libraries,
    rulebook_paths,
    run_test,
)
from doctor.rulebook.schema import Source, read_source


@pytest.fixture(scope="session")
def libraries():
    return load_libraries()


def _sources() -> tuple[list[Source], list[tuple[Path, DoctorError]]]:
    sources, faults = [], []
    for path in rulebook_paths():
        try:
            sources.append(read_source(path))
        except DoctorError as fault:  # one broken file must not hide the tests of the others
            faults.append((path, fault))
    return sources, faults


READABLE, FAULTS = _sources()
SOURCES = [source for source in READABLE if source.kind == "rule"]
TESTS = [test for source in SOURCES for test in in_file_tests(source)]


def test_every_file_of_the_rulebook_is_readable():
    assert not FAULTS, "\n".join(fault.message for _, fault in FAULTS)


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.id)
def test_rule(test: RuleTest, libraries):
    outcome = run_test(test, libraries)
    assert outcome.passed, failure_text(outcome)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{source.content['id']}::lint")
def test_lint(source: Source, libraries):
    faults = lint_source(source, libraries)
    assert not faults, "\n".join(map(str, faults))


def test_no_two_rules_share_an_id_or_a_name():
    faults = list(lint_unique(SOURCES))
    assert not faults, "\n".join(map(str, faults))
