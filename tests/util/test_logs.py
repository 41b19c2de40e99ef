"""Logging for maintainers: off by default, on by a variable, and a wrong level is refused."""

from __future__ import annotations

import logging

import pytest

from doctor.errors import DoctorError
from doctor.util.logs import enable_logging


@pytest.fixture(autouse=True)
def quiet_again():
    yield
    logger = logging.getLogger("doctor")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


def test_a_level_prints_what_loggers_below_doctor_report(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("doctor.rulebook").debug("before")
    enable_logging("debug")
    logging.getLogger("doctor.rulebook").debug("read %d rules", 3)
    printed = capsys.readouterr().err
    assert "doctor.rulebook: read 3 rules" in printed and "before" not in printed


def test_a_higher_level_prints_less(capsys: pytest.CaptureFixture[str]) -> None:
    enable_logging("WARNING")
    logging.getLogger("doctor.rulebook").debug("read 3 rules")
    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(DoctorError, match="`ATTN_DOCTOR_LOG` is `loud`"):
        enable_logging("loud")
