"""Environment variables that affect attention: those that rules read, and a fixed list."""

from __future__ import annotations

import os
from collections.abc import Iterator

from doctor.model import Fact
from doctor.sources.watch import Watch
from doctor.util.redact import NOT_READ, is_secret, tilde

from .target import Target

PROMISES: tuple[str, ...] = ()

#: Library search paths and visible GPUs, whichever framework the job uses.
ALWAYS = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH",
    "CUDNN_HOME", "CUDNN_PATH",
)  # fmt: skip
MAX_VALUE = 4096


def collect(target: Target, watch: Watch) -> Iterator[Fact]:
    """Yield `env.<NAME>` of every listed variable that is set."""
    for name in sorted(os.environ):
        if name not in ALWAYS and not watch.reads_variable(name):
            continue
        value = os.environ[name]
        if is_secret(name, value):
            yield Fact(f"env.{name}", None, "environment", problem=NOT_READ)
        elif len(value) > MAX_VALUE:
            yield Fact(f"env.{name}", None, "environment", problem=f"set, but longer than {MAX_VALUE} characters")
        else:
            yield Fact(f"env.{name}", tilde(value.encode("utf-8", "replace").decode()).strip(), "environment")
