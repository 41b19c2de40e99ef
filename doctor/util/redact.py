"""Redact what must not leave the machine: home folders become `~`, credentials become `…`, secrets are not read."""

from __future__ import annotations

import os
import re
from functools import lru_cache

# Compiled at first use: most commands check no variable.
_SECRET_NAME = r"""(?xi)
    TOKEN | SECRET | PASSW | PASSPHRASE | PASSCODE | CREDENTIAL | COOKIE | API_?KEY | ACCESS_?KEY | PRIVATE_?KEY | AUTH
    | (?:^|_)(?:PASS|PWD|PW|KEY|CRED|CREDS|DSN)(?:_|$)
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
_HIDDEN = "…"
#: A text that a credential contains -> the pattern of such credentials; only patterns whose text occurs are tried.
_CREDENTIALS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    # `https://user:password@host`, `https://token@host`; `${TOKEN}` is no credential, and `git@` of ssh none either.
    (("@",), r"(?<=://)(?!git@)(?!(?:\w*:)?\$\{?\w+\}?@)[^/\s\"'<>`\\]+@(?=[\w\[$])", f"{_HIDDEN}@"),
    (("hf_", "sk-", "AKIA", "ASIA", "nvapi-", "pypi-", "ya29."),
     r"\b(?:hf_[A-Za-z0-9]{16}|sk-(?:[a-z]+-)?[A-Za-z0-9_]{20}|nvapi-[A-Za-z0-9_-]{16}|pypi-[A-Za-z0-9_-]{32}"
     r"|(?:AKIA|ASIA)[A-Z0-9]{16}|ya29\.[A-Za-z0-9_-]{16})[A-Za-z0-9_-]*", _HIDDEN),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox"),
     r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abpr]-)[A-Za-z0-9_-]{8,}", _HIDDEN),
    (("eyJ",), r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+", _HIDDEN),
    (("-----BEGIN",), r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*-----)?", _HIDDEN),
    (("=",), r"(?i)(?<=[?&])((?:\w*token|sig|signature|password|key|X-Amz-\w+)=)[^&\s\"'<>`\\)]+", rf"\1{_HIDDEN}"),
    (("uthorization",),
     r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)[^\s\"'\\]+", rf"\1{_HIDDEN}"),
)  # fmt: skip
#: `NAME=value` as shells and Dockerfiles write it; numbers, switches and references to other variables are no secrets.
_ASSIGNMENT = r"""\b([A-Z][A-Z0-9_]{2,})(=\\?["']?)(?!\d+\b|true\b|false\b|\$)([^\s"'\\;&|,`<>()…]{2,})"""
_WORD_END = re.compile(r"[\s\"'<>`\\]")  # what no credential contains
_LAST_WORD = re.compile(r"[^\s\"'<>`\\]*$")
_LONGEST_WORD = 16_384
_HOMES = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s:;,'\"`()]+")


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name or value looks like a credential."""
    return bool(re.search(_SECRET_NAME, name) or re.search(_SECRET_VALUE, value))


def without_credentials(text: str) -> str:
    """Return the text with passwords and tokens as `…`, in addresses and on their own."""
    for marks, pattern, shown in _CREDENTIALS:
        if any(mark in text for mark in marks):
            text = re.sub(pattern, shown, text)
    return re.sub(_ASSIGNMENT, _assigned, text) if "=" in text else text


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


def _assigned(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    is_placeholder = name in ("KEY", "TOKEN", "PASSWORD") and value.isupper()  # as in `--set KEY=VALUE`
    return f"{name}{between}{_HIDDEN}" if is_secret(name, value) and not is_placeholder else match[0]


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
