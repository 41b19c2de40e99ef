"""Flags of `os.open` that not every system has; zero where one is missing."""

from __future__ import annotations

import os

BINARY: int = getattr(os, "O_BINARY", 0)  # Windows changes line ends without it
CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", 0)
FOLDER: int = getattr(os, "O_DIRECTORY", 0)
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)  # a named pipe without a writer
