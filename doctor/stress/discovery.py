"""What a sweep is asked for, and what it finds here: devices, libraries, the backends that can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from doctor.errors import DoctorError, NoDiagnosis
from doctor.runner.result import KernelResult
from doctor.runner.run import everyones

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
    must_keep: bool = True  # without its journal there is no sweep; else it is done without

    @property
    def own(self) -> list[str]:
        """Functions of the user's own among the backends: `file:PATH:FUNCTION`."""
        return [name for name in self.backends if name.startswith("file:")]


def look(options: Options, tell: Callable[[str], None]) -> tuple[Mapping[str, Any], list[str]]:
    """What torch and the libraries say of themselves, and what went wrong on the way.

    Where backends are named no other library is imported: some take seconds.
    """
    for name in options.own:
        _exists(name)
    named = [name for name in dict.fromkeys(options.backends) if name not in options.own]
    for name in named:
        if name not in DOMAINS:
            raise DoctorError(f"there is no backend `{name}`", f"backends are {', '.join(DOMAINS)}")
    tell("looking at devices and libraries")
    worker = Worker(options.python, timeout=max(180.0, options.timeout))
    request = {"op": "hello", "device": options.device, "own": options.own}
    request["backends"] = named if options.backends else None
    answer = worker.ask(request)
    problems = []
    if answer.outcome in ("crashed", "timeout") and answer.where is not None and not everyones(answer):
        problems.append(f"looking at the libraries: {answer.reason}")
        answer = _one_by_one(worker, request)
    if answer.outcome != "ran":
        raise NoDiagnosis(f"torch in `{options.python}` cannot be used: {answer.reason}")
    if answer.observed.get("no_gpu"):
        problems.append(f"no GPU: {answer.observed['no_gpu']}")
    return answer.observed, problems


def _exists(name: str) -> None:
    """Complain about a function that cannot be there, before anything is started."""
    path, _, function = name[5:].rpartition(":")
    if not path or not function:
        raise DoctorError(f"`{name}` names no function", "write it as `file:PATH:FUNCTION`")
    if not Path(path).is_file():
        raise DoctorError(f"there is no file `{path}`")


def _one_by_one(worker: Worker, request: Mapping[str, Any]) -> KernelResult:
    """A library took the process with it: torch on its own, then each backend in a process of its own."""

    first = worker.ask({**request, "backends": ["sdpa.default"], "own": []})
    if first.outcome != "ran":
        return first
    asked = request.get("backends")
    names = [*(DOMAINS if asked is None else asked), *request["own"]]
    with ThreadPoolExecutor(4) as pool:
        ask = partial(_state, worker, {**request, "context": False, "own": []})
        states = dict(zip(names, pool.map(ask, names), strict=True))
    return KernelResult("ran", {**first.observed, "backends": states}, first.reason, first.seconds)


def _state(worker: Worker, request: Mapping[str, Any], name: str) -> str | None:
    answer = worker.ask({**request, "backends": [name]})
    if answer.outcome != "ran":
        return f"looking for it ended the process: {answer.reason}"
    state = answer.observed["backends"][name]
    return None if state is None else str(state)


def chosen(options: Options, hello: Mapping[str, Any], device: str) -> list[str]:
    """The backends to ask: those named, else all that are there."""
    states = hello.get("backends") or {}
    own = options.own
    for name in own:
        if states.get(name) is not None:
            raise DoctorError(f"`{name}` cannot be asked: {' '.join(str(states[name]).split())}")
    wanted = list(dict.fromkeys(name for name in options.backends if name not in own))
    there = [name for name, problem in states.items() if problem is None]
    if not device.startswith("cuda"):
        there = [name for name in there if name in CPU_BACKENDS]
    if options.backends:
        missing = [name for name in wanted if name not in there]
        if missing:
            why = states[missing[0]] or "it needs a GPU"
            raise NoDiagnosis(f"`{missing[0]}` cannot be asked here: {why}")
        return [*wanted, *dict.fromkeys(own)]
    return there


def own_functions(backends: Sequence[str]) -> dict[str, int]:
    """What the files of the user's own functions hold: answers of another version of them are not taken up."""
    own = [name for name in backends if name.startswith("file:")]
    return {name: crc32(Path(name[5:].rpartition(":")[0]).read_bytes()) for name in own}
