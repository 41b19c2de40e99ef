"""The result of one kernel case, and where its time went."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from doctor.model import TextEnum


class KernelOutcome(TextEnum):
    """How a case ended. A program reports the first four; the host adds the last two."""

    RAN = "ran"
    REFUSED = "refused"  # the stack declined the workload
    UNAVAILABLE = "unavailable"  # a package, device or entry point is missing
    FAILED = "failed"  # an exception
    CRASHED = "crashed"  # the process was killed or aborted
    TIMEOUT = "timeout"


#: Outcomes after which the process is gone.
ENDED_PROCESS = (KernelOutcome.CRASHED, KernelOutcome.TIMEOUT)
#: Messages of torch on a GPU, on a CPU, of C++ and of Python when memory is exhausted; in lower case.
NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc",
             "memoryerror")  # fmt: skip


@dataclass(frozen=True)
class KernelResult:
    """The result of one case."""

    outcome: KernelOutcome
    observed: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    signal: str | None = None  # name of the signal that ended the process
    where: str | None = None  # the last step that was announced
    stderr_tail: str = ""
    #: Seconds per stage: start (the interpreter), import (of torch), library (imports of others), (CUDA) context, case.
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)


def out_of_memory(result: KernelResult) -> bool:
    """Return whether the case failed because memory was exhausted, which says nothing about the tested stack."""
    return result.outcome == KernelOutcome.FAILED and any(words in result.reason.lower() for words in NO_MEMORY)


def stage_of(step: str) -> str:
    """Return the stage that an announced step belongs to; in `wait` the program waits for its requests."""
    if step.startswith("import "):
        return "import" if step == "import torch" else "library"
    return {"cuda context": "context", "ready": "wait"}.get(step.lower(), "case")


def signal_name(number: int) -> str:
    """Return `SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
