"""Read the output of uv and pip: accepted, refused with a shortened reason, or unknown and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

from doctor.packages.specifiers import normalized
from doctor.runner.command import Ran

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
_PIP_FINDS_NONE = "No matching distribution found"
_NO_WHEEL = re.compile(r"has no (?:usable )?wheels|building from source is disabled", re.IGNORECASE)
_OLD_PIP = re.compile(r"no such option: (--[\w-]+)")
_FROM_HERE = re.compile(r"(?:^|\n)\s*(?:cause:|╰─▶|├─▶|Caused by:)\s*")
_MARKERS = re.compile(r"\{[^{}]*==[^{}]*\}")


#: What uv reports in a hint only: an index did not answer, so a package that was not found proves nothing.
_UNASKED = re.compile(r"hint: An index (?:URL )?\(\S+\) (?P<why>(?:could not be queried|returned a)[^\n.]*)")
#: The same in pip's log, which separates a missing answer from a missing package. Some indexes answer 403 for both.
_NOT_THERE = re.compile(r"(404|410) Client Error")
_FORBIDDEN = re.compile(r"403 Client Error")
_NONE_FITS = re.compile(
    r"from versions: (?P<versions>[^)]*)\)(?s:.)*?No matching distribution found for (?P<name>[\w.-]+)"
)


@dataclass(frozen=True)
class Verdict:
    """Three outcomes, and the reason of every one but the first."""

    outcome: bool | None
    reason: str = ""
    reached: bool = True  # whether the registry answered


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
    silent = _silent(ran)
    if silent is not None:
        return Verdict(None, f"the package index could not be reached: {silent}", reached=False)
    if _UV_REFUSES in text.lower():
        reason = sentences(text)
        # A conclusion from a source that could not be read is no refusal.
        return Verdict(None, reason) if _BUILD.search(text) else Verdict(False, reason)
    if _PIP_REFUSES.search(text):
        return Verdict(False, _pip_sentences(text))
    old = _OLD_PIP.search(text)
    if old:
        return Verdict(None, f"this pip is too old: it has no `{old[1]}`")
    if _BUILD.search(text):
        return Verdict(None, f"building a source to read its requirements failed: {_cause(text)}")
    return Verdict(None, f"{name} {ran.end}")


def of_wheels(ran: Ran) -> Verdict:
    """The same where only wheels were considered: what has none is not refused, but unknown."""
    found = verdict(ran)
    without = _NO_WHEEL.search(ran.said) or ("conflict" not in ran.said and _PIP_FINDS_NONE in ran.said)
    if found.outcome is True or not found.reached or not without:
        return found
    return Verdict(
        None, f"{found.reason.rstrip('.')}; no source is built to read what it requires without `--allow-builds`"
    )


def installed(ran: Ran) -> Verdict:
    """The same of an installation, where a failure is a failure; only what was not its fault is unknown."""
    found = verdict(ran)
    its_own = ran.code is not None and found.reached and not _DISK.search(ran.said)
    return Verdict(False, found.reason) if found.outcome is None and its_own else found


def _silent(ran: Ran) -> str | None:
    """Why a registry did not say what it has; None if it did.

    pip takes a page that it cannot read for a page that is not there, and then says that no release matches.
    """
    if _NETWORK.search(ran.said):
        return _network(ran.said)
    unasked = _UNASKED.search(ran.said)
    if unasked:
        return f"an index {unasked['why']}"
    match = _NONE_FITS.search(ran.said)
    for page in ran.unread:
        address, _, why = page.partition(": ")
        other = match is not None and normalized(address.rstrip("/").rpartition("/")[2]) != normalized(match["name"])
        answered = match is not None and match["versions"] != "none"  # by another index, where one says no to anybody
        if not (other or _NOT_THERE.match(why) or (answered and _FORBIDDEN.match(why))):
            return shortened(_cause_of(why))
    return None


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


def _cause_of(why: str) -> str:
    """The innermost cause in Python's words for a lost connection, without objects and addresses."""
    inner = re.search(r"Caused by \w+\((?:[\"']?<[^>]*>: |[\"'])?(?P<cause>.*?)[\"']?\)+$", why)
    return inner["cause"] if inner else why.partition(" for url:")[0]


def _cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"failed to build|Error: |ERROR:|error:", line, re.IGNORECASE)]
    return shortened((telling or lines)[0])
