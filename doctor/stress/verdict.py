"""The verdict on one case of a sweep."""

from __future__ import annotations

from doctor.model import TextEnum
from doctor.runner.result import KernelOutcome, KernelResult, out_of_memory


class CaseVerdict(TextEnum):
    """What became of a planned case."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    NO_MEMORY = "no memory"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    NOT_REACHED = "not reached"


#: Verdicts that are faults.
BAD = (CaseVerdict.WRONG, CaseVerdict.FAILED, CaseVerdict.CRASHED, CaseVerdict.TIMEOUT)


def verdict(result: KernelResult) -> CaseVerdict:
    """Return the verdict on a result."""
    if result.outcome == KernelOutcome.RAN:
        return CaseVerdict.WRONG if result.observed.get("verdict") == "wrong" else CaseVerdict.RIGHT
    if out_of_memory(result):
        return CaseVerdict.NO_MEMORY
    return CaseVerdict(str(result.outcome))


def fault_kinds(result: KernelResult) -> list[str]:
    """Return the kinds of fault that the result shows: tensors, the type of the exception, or how the process ended."""
    if result.outcome == KernelOutcome.RAN:
        return list(result.observed.get("faults") or [])
    if result.outcome == KernelOutcome.FAILED:
        return ["failed:" + result.reason.split(":")[0].rsplit(".")[-1]]
    return [str(result.outcome)]
