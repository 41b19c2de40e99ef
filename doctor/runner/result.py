"""What became of one case that a program was asked, and what its time went to."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Outcomes of a case; the last two are the host's own.
OUTCOMES = ("ran", "refused", "unavailable", "failed", "crashed", "timeout")

#: What torch says on a GPU, on a CPU, C++ and Python where memory is at its end; in small letters.
NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc",
             "memoryerror")  # fmt: skip


@dataclass(frozen=True)
class KernelResult:
    """What became of one case."""

    outcome: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    signal: str | None = None  # name of the signal that ended the process
    where: str | None = None  # the last step that was announced
    stderr_tail: str = ""
    #: Seconds by what they went to: start (the interpreter), import (of torch), library (imports of others), (CUDA)
    #: context, case.
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)


def out_of_memory(answer: KernelResult) -> bool:
    """Whether the case failed for want of memory, which says nothing of what it asked about."""
    return answer.outcome == "failed" and any(words in answer.reason.lower() for words in NO_MEMORY)


def stage_of(step: str) -> str:
    """The stage that an announced step belongs to; in `wait` nobody waits but the program, for its questions."""
    if step.startswith("import "):
        return "import" if step == "import torch" else "library"
    return {"cuda context": "context", "ready": "wait"}.get(step.lower(), "case")


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
