"""What a sweep is asked for, and what it finds here: devices, libraries, the backends that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import DoctorError, NoDiagnosis
from ..target import Answer
from .axes import DOMAINS
from .worker import Worker

CPU_BACKENDS = ("sdpa.default", "sdpa.flash", "sdpa.math", "nested", "transformers.sdpa", "transformers.eager")


@dataclass(frozen=True)
class Options:
    """What is asked of a sweep."""

    python: str
    budget: float | None = None  # seconds for the cases; None: until they are through
    memory: int | None = None  # bytes on each GPU
    seed: int = 0
    cases: int | None = None
    backends: tuple[str, ...] = ()  # none: all that are there
    device: str | None = None
    timeout: float = 60.0
    shrink: float = 120.0  # seconds for smallest forms
    journal: Path | None = None
    restart: bool = False
    processes: int | None = None  # on each GPU; None: as the host's cores allow


def look(options: Options, tell: Callable[[str], None]) -> tuple[Mapping[str, Any], list[str]]:
    """What torch and the libraries say of themselves, and what went wrong on the way."""
    tell("looking at devices and libraries")
    worker = Worker(options.python, timeout=max(180.0, options.timeout))
    answer = worker.ask({"op": "hello", "device": options.device})
    problems = []
    if answer.outcome in ("crashed", "timeout"):
        problems.append(f"looking at the libraries: {answer.reason}")
        answer = _one_by_one(worker, options)
    if answer.outcome != "ran":
        raise NoDiagnosis(f"torch in `{options.python}` cannot be used: {answer.reason}")
    if answer.observed.get("no_gpu"):
        problems.append(f"no GPU: {answer.observed['no_gpu']}")
    return answer.observed, problems


def _one_by_one(worker: Worker, options: Options) -> Answer:
    """A library took the process with it: torch on its own, then each backend in a process of its own."""
    from concurrent.futures import ThreadPoolExecutor

    alone = {"op": "hello", "device": options.device}
    first = worker.ask({**alone, "backends": ["sdpa.default"]})
    if first.outcome != "ran":
        return first
    with ThreadPoolExecutor(4) as pool:
        ask = partial(_state, worker, {**alone, "context": False})
        states = dict(zip(DOMAINS, pool.map(ask, DOMAINS), strict=True))
    return Answer("ran", {**first.observed, "backends": states}, first.reason, first.seconds)


def _state(worker: Worker, request: Mapping[str, Any], name: str) -> str | None:
    answer = worker.ask({**request, "backends": [name]})
    if answer.outcome != "ran":
        return f"looking for it ended the process: {answer.reason}"
    state = answer.observed["backends"][name]
    return None if state is None else str(state)


def chosen(options: Options, hello: Mapping[str, Any], device: str) -> list[str]:
    """The backends to ask: those named, else all that are there."""
    states = hello.get("backends") or {}
    own = [name for name in options.backends if name.startswith("file:")]
    for name in own:
        if name.count(":") < 2:
            raise DoctorError(f"`{name}` names no function", "write it as `file:PATH:FUNCTION`")
        if not Path(name[5:].rpartition(":")[0]).is_file():
            raise DoctorError(f"there is no file `{name[5:].rpartition(':')[0]}`")
    wanted = [name for name in options.backends if name not in own]
    unknown = [name for name in wanted if name not in states]
    if unknown:
        raise DoctorError(f"there is no backend `{unknown[0]}`", f"backends are {', '.join(states)}")
    there = [name for name, problem in states.items() if problem is None]
    if not device.startswith("cuda"):
        there = [name for name in there if name in CPU_BACKENDS]
    if options.backends:
        missing = [name for name in wanted if name not in there]
        if missing:
            why = states[missing[0]] or "it needs a GPU"
            raise NoDiagnosis(f"`{missing[0]}` cannot be asked here: {why}")
        return [*wanted, *own]
    return there
