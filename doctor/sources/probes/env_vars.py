"""Environment variables that bear on attention: those on the list, and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator

from doctor.model import Fact
from doctor.util.redact import is_secret, tilde

from .target import Target, Watch

PROMISES: tuple[str, ...] = ()

#: Where libraries are sought and what GPUs the job sees, whichever framework it uses.
ALWAYS = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH",
    "CUDNN_HOME", "CUDNN_PATH",
)  # fmt: skip
MAX_VALUE = 4096


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """`env.<NAME>` of every listed variable that is set."""
    names = {name for name in (*ALWAYS, *watch.environment) if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in watch.environment if name.endswith("*") and len(name) > 1)
    for name in sorted(os.environ):
        if name not in names and not (prefixes and name.startswith(prefixes)):
            continue
        if not name.isidentifier() or not name.isascii():
            continue  # no shell sets such a name, and no rule can ask for it
        value = os.environ[name]
        if is_secret(name, value):
            yield Fact(f"env.{name}", None, "environment", problem="set, but looks like a secret: not read")
        elif len(value) > MAX_VALUE:
            yield Fact(f"env.{name}", None, "environment", problem=f"set, but longer than {MAX_VALUE} characters")
        else:
            yield Fact(f"env.{name}", tilde(value.encode("utf-8", "replace").decode()).strip(), "environment")
