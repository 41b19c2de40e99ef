"""Redact what must not leave the machine: home folders become `~`, secrets are not read."""

from __future__ import annotations

import os
import re
from functools import lru_cache

# Compiled at first use: most commands check no variable.
_SECRET_NAME = r"(?i)TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH"
_SECRET_VALUE = r"""(?x)
    \b(hf_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|sk-|nvapi-|AKIA|ASIA|ya29\.)[A-Za-z0-9_-]{8}
    | ://[^/\s:@]*:[^/\s@]+@            # a password in an address
    | \beyJ[A-Za-z0-9_-]{10,}\.         # a JSON web token
    | -----BEGIN
    | \b(?=[A-Za-z]*\d)[A-Za-z0-9+]{40,}={0,2}(?![A-Za-z0-9/+.]) # a long random text
"""
_HOMES = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s:;,'\"`()]+")


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name or value looks like a credential."""
    return bool(re.search(_SECRET_NAME, name) or re.search(_SECRET_VALUE, value))


@lru_cache(maxsize=8)
def _home(home: str) -> re.Pattern[str] | None:
    home = home.rstrip("/")
    # A home of `/` or of one letter would match parts of every path.
    return re.compile(rf"(?<![\w.~/-]){re.escape(home)}(?![\w.-])") if len(home) > 2 and home[0] == "/" else None


def tilde(text: str) -> str:
    """Return the text with every home folder, ours and others', as `~`."""
    if "/" not in text:
        return text
    own = _home(os.environ.get("HOME", ""))
    if own is not None:
        text = own.sub("~", text)
    return _HOMES.sub("~", text)
