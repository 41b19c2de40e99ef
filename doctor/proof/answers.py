"""What uv and pip say, read: accepted, refused with their own sentences made short, or no answer and why."""

from __future__ import annotations

import re

from ..records import dataclass
from .child import Ran

LONGEST = 420  # characters of a quoted reason

_NETWORK = re.compile(
    r"failed to fetch|request failed after|error sending request|dns error|failed to lookup address|connection refused"
    r"|network was disabled|network connectivity is disabled|could not connect|NewConnectionError|Max retries exceeded"
    r"|Temporary failure in name resolution|Name or service not known|Retrying \(Retry\(|Could not fetch URL"
    r"|Network is unreachable|connection timed out|operation timed out|ReadTimeoutError|ConnectTimeoutError"
    r"|certificate verify failed|invalid peer certificate|ProxyError|tunnel error|Connection reset by peer",
    re.IGNORECASE,
)
_BUILD = re.compile(
    r"failed to build|building from source is disabled|building source distributions is disabled"
    r"|metadata-generation-failed|subprocess-exited-with-error|failed building wheel|failed to resolve requirements"
    r"|`build-system\.requires`|call to `[\w.:]+` failed|failed to download and build",
    re.IGNORECASE,
)
_DISK = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_UV_REFUSES = "no solution found"
_PIP_REFUSES = re.compile(r"conflicting dependencies|ResolutionImpossible|No matching distribution found")
_OLD_PIP = re.compile(r"no such option: (--[\w-]+)")
_FROM_HERE = re.compile(r"(?:^|\n)\s*(?:cause:|╰─▶|├─▶|Caused by:)\s*")
_MARKERS = re.compile(r"\{[^{}]*==[^{}]*\}")


@dataclass(frozen=True)
class Verdict:
    """Three outcomes, and the reason of every one but the first."""

    outcome: bool | None
    reason: str = ""


def verdict(ran: Ran) -> Verdict:
    """What a resolver or installer answered."""
    if ran.good:
        return Verdict(True)
    name = "uv" if "pip" not in ran.command[1:3] or ran.command[1:2] == ("pip",) else "pip"
    if ran.trouble is not None:
        return Verdict(None, f"{name} {ran.trouble}")
    text = ran.said
    if _DISK.search(text):
        return Verdict(None, "the disk is full")
    if _NETWORK.search(text):
        return Verdict(None, f"the registry could not be reached: {_network(text)}")
    if _UV_REFUSES in text.lower():
        reason = sentences(text)
        # A conclusion that rests on a source nobody could read is no refusal.
        return Verdict(None, reason) if _BUILD.search(text) else Verdict(False, reason)
    if _PIP_REFUSES.search(text):
        return Verdict(False, _pip_sentences(text))
    old = _OLD_PIP.search(text)
    if old:
        return Verdict(None, f"this pip is too old: it has no `{old[1]}`")
    if _BUILD.search(text):
        return Verdict(None, f"a source has to be built to tell what it needs, and that failed: {_cause(text)}")
    return Verdict(None, f"{name} {ran.end}")


def installed(ran: Ran) -> Verdict:
    """The same of an installation, where a failure is a failure; only what was not its fault is unknown."""
    found = verdict(ran)
    if found.outcome is None and ran.code is not None and not _NETWORK.search(ran.said) and not _DISK.search(ran.said):
        return Verdict(False, found.reason)
    return found


def sentences(text: str) -> str:
    """uv's derivation: its sentences in a row, without markers, hints and the conclusion that everybody knows."""
    whole = text[text.lower().index(_UV_REFUSES) :]
    parts = _FROM_HERE.split(whole)
    body = parts[1] if len(parts) > 1 else whole
    body = re.split(r"\n\s*hint:", body)[0]
    body = _MARKERS.sub("", " ".join(body.split()))
    body = re.sub(r",? we can conclude that (your requirements|the requirements) are unsatisfiable", "", body)
    return shortened(body)


def shortened(text: str) -> str:
    """At most a few lines, cut between sentences where that is possible."""
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    cut = text.rfind(". ", 0, LONGEST)
    return text[: cut + 1] + " …" if cut > LONGEST // 3 else text[: LONGEST - 2] + " …"


def _pip_sentences(text: str) -> str:
    caused = re.search(r"The conflict is caused by:\n(.*?)(?:\n\s*\n|\nTo fix|\Z)", text, re.DOTALL)
    if caused:
        lines = [line.strip() for line in caused[1].splitlines() if line.strip()]
        return shortened("; ".join(dict.fromkeys(lines)))
    lines = [line.partition("ERROR:")[2].strip() for line in text.splitlines() if line.startswith("ERROR:")]
    return shortened("; ".join(line for line in lines if not line.startswith("ResolutionImpossible")))


def _network(text: str) -> str:
    """The innermost cause; the addresses are the user's own affair."""
    causes = [part.strip().splitlines()[0] for part in _FROM_HERE.split(text)[1:] if part.strip()]
    if causes:
        return shortened(causes[-1])
    match = _NETWORK.search(text)
    assert match is not None
    line = next(line for line in text.splitlines() if match[0] in line)
    return shortened(line.strip())


def _cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"failed to build|Error: |ERROR:|error:", line, re.IGNORECASE)]
    return shortened((telling or lines)[0])
