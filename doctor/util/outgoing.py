"""What leaves the program: every text for a terminal, a file or another program passes `outgoing` first."""

from __future__ import annotations

from .credentials import json_without_credentials, without_credentials
from .printable import printable, safe_text


def outgoing(text: str, *, colored: bool = False) -> str:
    """Return a finished answer or message: control characters are spelled out, credentials are `…`."""
    text = safe_text(text, colored=colored)
    return json_without_credentials(text) if text.lstrip()[:1] in ("{", "[") else without_credentials(text)


def outgoing_part(text: str) -> str:
    """Return a part of an answer that is wrapped or colored later, which could tear a credential from its name."""
    return without_credentials(printable(text))
