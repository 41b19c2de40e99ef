"""Redact what must not leave the machine: home folders become `~`, credentials become `…`, secrets are not read."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from .credentials import without_credentials
from .patterns import pattern

# Compiled at first use: most commands check no variable.
_SECRET_NAME = r"""(?xi)
    TOKEN | SECRET | PASSW | PASSPHRASE | PASSCODE | CREDENTIAL | COOKIE | API_?KEY | ACCESS_?KEY | PRIVATE_?KEY | AUTH
    | BEARER | JWT | WEBHOOK | KEY$ | (?:^|_)(?:PASS|PWD|PW|KEY|CRED|CREDS|DSN)(?:_|$)
"""  # noqa: S105 - a pattern of names
_PREFIXED = r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|sk-|nvapi-|pypi-|AKIA|ASIA|ya29\.)"
_SECRET_VALUE = rf"""(?x)
    {_PREFIXED}[A-Za-z0-9_-]{{8}}
    | ://[^/\s@]+@                      # a user or a token in an address
    | (?:^|[\s,;=])[^\s:@/,;=]+:[^\s@/]+@[\w.-]   # user:password@host without a scheme
    | [?&](?:\w*token|sig|signature|password|key|X-Amz-\w+)=[^&\s]
    | \beyJ[A-Za-z0-9_-]{{10,}}\.         # a JSON web token
    | -----BEGIN
    | \b(?=[A-Za-z]*\d)[A-Za-z0-9+]{{40,}}={{0,2}}(?![A-Za-z0-9/+.]) # a long random text
"""
NOT_READ = "set, but looks like a secret: not read"  # the problem of a variable that holds one
_SCHEME = r"(?i)(?:basic|bearer|token|digest)\s+\S+"  # a whole value as the header `Authorization` takes it
_WORD_END = pattern(r"[\s\"'<>`\\]")  # what no credential contains
_LAST_WORD = pattern(r"[^\s\"'<>`\\]*$")
_LONGEST_WORD = 16_384
_HOMES = pattern(r"(?<![\w.~-])/(?:home|Users)/[^/\s:;,'\"`()]+")


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name or value looks like a credential."""
    if re.search(_SECRET_NAME, name) or re.search(_SECRET_VALUE, value) or re.fullmatch(_SCHEME, value.strip()):
        return True
    return without_credentials(value) != value


def shortened(text: str, most: int, end: str = "...") -> str:
    """Return at most `most` characters; credentials are hidden first, as half of one is not recognized."""
    words = _whole_words(text, most)
    shown = without_credentials(words)
    return shown if len(shown) <= most and len(words) == len(text) else shown[: most - len(end)] + end


def _whole_words(text: str, most: int) -> str:
    """Return the start of a long text up to the end of the word at `most`; without that word if its end is far."""
    if len(text) <= most + _LONGEST_WORD:
        return text
    after = _WORD_END.search(text, most, most + _LONGEST_WORD)
    return text[: after.start()] if after else _LAST_WORD.sub("", text[:most])


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
