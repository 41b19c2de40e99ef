"""The tests inside the rule files, one pytest case each."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.errors import DoctorError
from doctor.ruletests import RuleTest, failure_text, in_file_tests, load_libraries, rule_paths, run_test
from doctor.schema import Source, read_source


@pytest.fixture(scope="session")
def libraries():
    return load_libraries()


def _sources() -> tuple[list[Source], list[tuple[Path, DoctorError]]]:
    sources, faults = [], []
    for path in rule_paths():
        try:
            sources.append(read_source(path))
        except DoctorError as fault:  # one broken file must not hide the tests of the others
            faults.append((path, fault))
    return sources, faults


SOURCES, FAULTS = _sources()
TESTS = [test for source in SOURCES for test in in_file_tests(source)]


def test_every_rule_file_is_readable():
    assert not FAULTS, "\n".join(fault.message for _, fault in FAULTS)


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.id)
def test_rule(test: RuleTest, libraries):
    outcome = run_test(test, libraries)
    assert outcome.passed, failure_text(outcome)
