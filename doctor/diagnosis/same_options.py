"""Options of a command that name the same target and job again, as a shell takes them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from doctor.util.patterns import pattern
from doctor.util.redact import tilde

from .request import Request

_PLAIN = pattern(r"[\w~./+=:,-]+")  # what a shell takes as it is, `~` included


def target_options(request: Request) -> str:
    """Return the options that name target, GPU and job of a request."""
    return " ".join(_options(request))


def _options(request: Request) -> Iterator[str]:
    one = (("python", request.python), ("site-packages", request.site_packages))
    yield from (f"--{name} {shell_word(value)}" for name, value in one if value is not None)
    several = (
        ("facts", request.facts), ("requirements", request.declared),
        ("gpu", request.gpus or _some(request.gpu)), ("model", request.models or _some(request.model)),
        ("workload", request.workloads or _some(request.workload)), ("set", request.settings),
    )  # fmt: skip
    for name, values in several:
        yield from (f"--{name} {shell_word(str(value))}" for value in values)


def _some(value: str | None) -> tuple[str, ...]:
    return (value,) if value is not None else ()


def shell_word(text: str) -> str:
    """Return a path or value as one word of a shell, the home folder as `~`."""
    short = tilde(text)
    same = os.path.expanduser(short) == text  # noqa: PTH111 - no home of another user  # fmt: skip
    return short if same and _PLAIN.fullmatch(short) else shlex.quote(text)
