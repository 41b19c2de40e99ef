"""Environment variables that files set: those the rulebook asks for, and no other."""

from __future__ import annotations

import functools

from doctor.model import ABSENT, Fact
from doctor.rulebook.rulebook import load_rulebook
from doctor.util.redact import is_secret, tilde

from .shell import UNKNOWN

#: Whatever the rulebook says: what GPUs the job sees.
_ALWAYS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: Paths of the machine that runs the job; a file that sets them says nothing about what lies there.
_NEVER = ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "CUDNN_HOME", "CUDNN_PATH")
_LONGEST = 4096


@functools.cache
def _watched() -> tuple[frozenset[str], tuple[str, ...]]:
    names = (*_ALWAYS, *load_rulebook().watched_environment)
    exact = frozenset(name for name in names if not name.endswith("*")) - set(_NEVER)
    return exact, tuple(name[:-1] for name in names if name.endswith("*") and len(name) > 1)


@functools.lru_cache(maxsize=4096)
def watched(name: str) -> bool:
    """Whether some rule may ask for the variable."""
    exact, prefixes = _watched()
    return (
        name.isascii() and name.isidentifier() and name not in _NEVER and (name in exact or name.startswith(prefixes))
    )


def variable(name: str, value: str | None, place: str, *, certain: bool = True) -> Fact:
    """`env.<NAME>` as a file sets it; unset is `absent`, and what depends on the machine is unknown."""
    key = f"env.{name}"
    if not certain:
        return Fact(key, None, place, value, f"{place} sets it under a condition")
    if value is None:
        return Fact(key, ABSENT, place)
    if UNKNOWN in value:
        return Fact(key, None, place, problem=f"{place} sets it to what only the running job knows")
    if is_secret(name, value):
        return Fact(key, None, place, problem="set, but looks like a secret: not read")
    if len(value) > _LONGEST:
        return Fact(key, None, place, problem=f"set, but longer than {_LONGEST} characters")
    return Fact(key, tilde(value).strip(), place)
