"""Progress of a command on stderr: one live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from doctor.util.outgoing import outgoing_part

from .streams import to_stderr

_DELAY = 1.0  # seconds without an answer before the line appears: quick commands show nothing
_EVERY = 15.0  # seconds between the lines of a count where stderr is no terminal


class Progress:
    """Show the current step, or a bar where the amount of work is known, with the elapsed time.

    A terminal gets one line that is redrawn and vanishes at the end. A file or pipe gets the counts alone.
    """

    def __init__(self, *, quiet: bool = False, delay: float = _DELAY) -> None:
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._delay = delay
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None  # a rich.progress.Progress
        self._state: tuple[str, int, int | None] = ("", 0, None)  # text, done, total
        self._began = self._last = time.monotonic()

    def step(self, text: str) -> None:
        """Name what is being done."""
        self._update(text, 0, None)

    def count(self, text: str, done: int, total: int) -> None:
        """Show how much of a known amount is done."""
        self._update(text, done, total)
        if self._live or self._quiet:
            return
        now = time.monotonic()
        if now - self._last >= _EVERY or done >= total:
            self._last = now
            to_stderr(f"{done}/{total} {text}, {now - self._began:.0f} s\n")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the line while something else writes to the terminal or reads from it."""
        self.close()
        yield
        if self._state[0]:
            self._update(*self._state)

    def close(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown is not None:
                with contextlib.suppress(OSError, ValueError):  # stderr may be closed
                    self._shown.stop()
                self._shown = None

    def _update(self, text: str, done: int, total: int | None) -> None:
        with self._lock:
            self._state = (outgoing_part(text), done, total)
            if not self._live:
                return
            if self._shown is not None:
                self._draw()
            elif self._timer is None:
                self._timer = threading.Timer(self._delay, self._appear)
                self._timer.daemon = True
                self._timer.start()

    def _appear(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._timer is None or self._shown is not None:
                return
            from .progress_line import live_line  # rich takes as long to import as a quick command

            self._shown = live_line()
            self._draw()
            self._shown.start()

    def _draw(self) -> None:
        text, done, total = self._state
        self._shown.update(0, description=text, completed=done, total=total)
