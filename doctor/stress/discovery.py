"""The options of a sweep, and what it finds in the target environment: devices, libraries, usable backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from doctor.errors import DoctorError, NoDiagnosis
from doctor.runner.result import ENDED_PROCESS, KernelOutcome, KernelResult
from doctor.runner.run import is_shared_failure
from doctor.stress.devices import on_gpu

from .axes import DOMAINS
from .worker import Worker

CPU_BACKENDS = ("sdpa.default", "sdpa.flash", "sdpa.math", "nested", "transformers.sdpa", "transformers.eager")


@dataclass(frozen=True)
class SweepOptions:
    """What a sweep covers, and its limits."""

    python: str
    budget: float | None = None  # seconds for the whole sweep; None: until all cases have run
    memory: int | None = None  # bytes on each GPU
    seed: int = 0
    cases: int | None = None
    backends: tuple[str, ...] = ()  # none: all that are installed
    device: str | None = None
    timeout: float = 60.0  # seconds for one case
    shrink: float = 120.0  # seconds for minimizing failing cases, within the budget
    journal: Path | None = None
    restart: bool = False
    processes: int | None = None  # on each GPU; None: as many as the cores allow
    must_keep: bool = True  # fail if the journal cannot be written

    @property
    def own(self) -> list[str]:
        """Return the user's own functions among the backends: `file:PATH:FUNCTION`."""
        return [name for name in self.backends if name.startswith("file:")]


def discover(
    options: SweepOptions, on_step: Callable[[str], None], until: float | None = None
) -> tuple[Mapping[str, Any], list[str]]:
    """Return what torch and the libraries report about themselves, and the problems met.

    If backends are named, no other library is imported: some take seconds. `until`: see Worker.run.
    """
    for name in options.own:
        _check_exists(name)
    named = [name for name in dict.fromkeys(options.backends) if name not in options.own]
    for name in named:
        if name not in DOMAINS:
            raise DoctorError(f"there is no backend `{name}`", f"backends are {', '.join(DOMAINS)}")
    on_step("looking for devices and libraries")
    worker = Worker(options.python, timeout=max(180.0, options.timeout))
    request = {"op": "hello", "device": options.device, "own": options.own}
    request["backends"] = named if options.backends else None
    result = worker.run_one(request, until)
    problems = []
    if result.outcome in ENDED_PROCESS and result.where is not None and not is_shared_failure(result):
        problems.append(f"importing the libraries: {result.reason}")
        result = _one_by_one(worker, request, until)
    if until is not None and time.monotonic() > until:
        raise NoDiagnosis("the budget was spent before the first case", "give it more with `--budget SECONDS`")
    if result.outcome != KernelOutcome.RAN:
        raise NoDiagnosis(f"torch in `{options.python}` cannot be used: {result.reason}")
    if result.observed.get("no_gpu"):
        problems.append(f"no GPU: {result.observed['no_gpu']}")
    return result.observed, problems


def _check_exists(name: str) -> None:
    """Raise DoctorError for a function that cannot exist, before anything starts."""
    path, _, function = name[5:].rpartition(":")
    if not path or not function:
        raise DoctorError(f"`{name}` names no function", "write it as `file:PATH:FUNCTION`")
    if not Path(path).is_file():
        raise DoctorError(f"there is no file `{path}`")


def _one_by_one(worker: Worker, request: Mapping[str, Any], until: float | None) -> KernelResult:
    """Import each backend in a process of its own, because one of them ended the shared process."""
    first = worker.run_one({**request, "backends": ["sdpa.default"], "own": []}, until)
    if first.outcome != KernelOutcome.RAN:
        return first
    named = request.get("backends")
    names = [*(DOMAINS if named is None else named), *request["own"]]
    with ThreadPoolExecutor(4) as pool:
        state_of = partial(_state, worker, {**request, "context": False, "own": []}, until)
        states = dict(zip(names, pool.map(state_of, names), strict=True))
    return KernelResult(KernelOutcome.RAN, {**first.observed, "backends": states}, first.reason, first.seconds)


def _state(worker: Worker, request: Mapping[str, Any], until: float | None, name: str) -> str | None:
    result = worker.run_one({**request, "backends": [name]}, until)
    if result.outcome != KernelOutcome.RAN:
        return f"importing it ended the process: {result.reason}"
    state = result.observed["backends"][name]
    return None if state is None else str(state)


def selected_backends(options: SweepOptions, hello: Mapping[str, Any], device: str) -> list[str]:
    """Return the backends of the sweep: the named ones, or all that are installed."""
    states = hello.get("backends") or {}
    own = options.own
    for name in own:
        if states.get(name) is not None:
            raise DoctorError(f"`{name}` cannot run: {' '.join(str(states[name]).split())}")
    wanted = list(dict.fromkeys(name for name in options.backends if name not in own))
    usable = [name for name, problem in states.items() if problem is None]
    if not on_gpu(device):
        usable = [name for name in usable if name in CPU_BACKENDS]
    if options.backends:
        missing = [name for name in wanted if name not in usable]
        if missing:
            why = states[missing[0]] or "it needs a GPU"
            raise NoDiagnosis(f"`{missing[0]}` cannot run here: {why}")
        return [*wanted, *dict.fromkeys(own)]
    return usable


def own_functions(backends: Sequence[str]) -> dict[str, int]:
    """Return a checksum of the files of the user's own functions: results of another version are not reused."""
    own = [name for name in backends if name.startswith("file:")]
    return {name: crc32(Path(name[5:].rpartition(":")[0]).read_bytes()) for name in own}
