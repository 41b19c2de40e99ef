"""Logging for maintainers: `ATTN_DOCTOR_LOG=debug` prints each step with its time on stderr."""

from __future__ import annotations

import logging
import sys

from doctor.errors import DoctorError

from .outgoing import outgoing
from .printable import without_commands

VARIABLE = "ATTN_DOCTOR_LOG"
LEVELS = ("debug", "info", "warning", "error")


class _SafeFormatter(logging.Formatter):
    """Spells out control characters and hides credentials of what is logged."""

    def format(self, record: logging.LogRecord) -> str:
        return without_commands(outgoing(super().format(record)))


def enable_logging(level: str) -> None:
    """Print what the loggers below `doctor` report, from this level up; DoctorError for an unknown level."""
    if level.lower() not in LEVELS:
        raise DoctorError(f"`{VARIABLE}` is `{level}`", f"levels are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SafeFormatter("%(relativeCreated)7.0f ms %(name)s: %(message)s"))
    logger = logging.getLogger("doctor")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
