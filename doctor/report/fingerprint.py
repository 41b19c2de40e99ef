"""What makes two findings the same trouble, for any line and any wording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from doctor.model import Finding

#: Keys that an environment settles by itself; all others follow from the GPU or the job.
_OF_ENVIRONMENT = ("env.", "torch.", "cudnn.", "driver.", "python.", "platform.", "distributions.", "ignore.")

Seen = tuple[str, object, bool]  # fact key, what was found, whether something else is needed


def fingerprint(finding: Finding) -> str:
    """The same for the same trouble: rule, what it is about and what was found, but neither line nor wording.

    One that was found in several cases is the same in whichever: what the GPU and the job add is left out.
    """
    seen = [(item.key, item.fact.value, bool(item.needs)) for item in finding.evidence]
    return fingerprint_of(finding.rule, of_environment(seen) if finding.cases else seen)


def fingerprint_of(rule: str, seen: Sequence[Seen]) -> str:
    """The fingerprint of a rule and its evidence."""

    about = [item for item in seen if item[2]] or seen
    parts = [rule, *sorted(f"{key}={value}" for key, value, _ in about)]
    return sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def of_environment(seen: Iterable[Seen]) -> list[Seen]:
    """The evidence that is alike for every GPU and every job."""
    return [item for item in seen if item[0].endswith(".version") or item[0].startswith(_OF_ENVIRONMENT)]
