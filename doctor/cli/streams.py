"""The only writers to stdout and stderr: whatever a command prints is redacted here."""

from __future__ import annotations

import contextlib
import os
import sys

from doctor.util.outgoing import outgoing
from doctor.util.printable import without_commands


def to_stdout(text: str, *, colored: bool = False, commands: bool = False) -> None:
    """Write an answer; `commands`: its workflow commands of GitHub are meant. OSError where stdout takes nothing."""
    shown = outgoing(text, colored=colored)
    sys.stdout.write(shown if commands or not os.environ.get("GITHUB_ACTIONS") else without_commands(shown))
    sys.stdout.flush()


def to_stderr(text: str, *, colored: bool = False) -> None:
    """Write a message; a stderr that is closed or full is no error."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(without_commands(outgoing(text, colored=colored)))
        sys.stderr.flush()


def packed_to_stdout(text: str) -> None:
    """Write what only another attn-doctor reads, as it is: packed text may look like a credential, and is none."""
    sys.stdout.write(text)
    sys.stdout.flush()
