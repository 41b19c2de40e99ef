"""Environment variables that files set: those that a rule reads, and no others."""

from __future__ import annotations

from doctor.model import ABSENT, Fact
from doctor.sources.watch import Watch
from doctor.util.redact import NOT_READ, is_secret, tilde

UNKNOWN = "\ufffd"  # in place of a value that is known only at run time
#: Read whether or not a rule names them: they decide which GPUs the job sees.
_ALWAYS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: Paths on the machine that runs the job; a file that sets them does not show what these folders hold.
_NEVER = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDNN_HOME", "CUDNN_PATH")
_LONGEST = 4096


def is_read(name: str, watch: Watch) -> bool:
    """Return whether the variable becomes a fact where a file sets it."""
    return name not in _NEVER and (name in _ALWAYS or watch.reads_variable(name))


def variable(name: str, value: str | None, place: str, *, certain: bool = True) -> Fact:
    """Return `env.<NAME>` as a file sets it: `absent` where it is unset, unknown where only the running job knows."""
    key = f"env.{name}"
    if not certain:
        raw = None if value is None or is_secret(name, value) else value
        return Fact(key, None, place, raw, f"{place} sets it under a condition")
    if value is None:
        return Fact(key, ABSENT, place)
    if UNKNOWN in value:
        return Fact(key, None, place, problem=f"{place} sets it to a value that only the running job knows")
    if is_secret(name, value):
        return Fact(key, None, place, problem=NOT_READ)
    if len(value) > _LONGEST:
        return Fact(key, None, place, problem=f"set, but longer than {_LONGEST} characters")
    return Fact(key, tilde(value).strip(), place)
