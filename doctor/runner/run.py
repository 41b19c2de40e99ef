"""Run a kernel program in the target interpreter and return one result per case, for any behaviour of that program.

The program may print, fork, hang, be killed by a signal or never start: each costs at most the case it happened in, and
what happened is the result. The program's side of the protocol is `kernels/protocol.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from doctor.errors import NoDiagnosis, reason_of
from doctor.util.resources import kernels_dir

from .process import PACKAGE, KernelProcess, Overlay, Request
from .result import ENDED_PROCESS, KernelResult

#: Steps that every program which announces them takes first.
SHARED_STEPS = ("import torch", "cuda context")
_RUN_FOLDER = "attn-doctor-run-"  # with the number of the process behind it
SNIPPET = "snippet"  # the name of a program that is given as text


def make_run_folder(programs: Mapping[str, str] | None = None) -> Path:
    """Create a temporary folder with the kernels; `programs` (name → source) are added to them or replace them.

    It contains nothing else, so that no file of the user's current directory can shadow an import. NoDiagnosis if it
    cannot be written.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_RUN_FOLDER}{os.getpid()}-"))
        _remove_left_over(folder.parent)
        package = folder / PACKAGE
        shutil.copytree(kernels_dir(), package, ignore=shutil.ignore_patterns("__pycache__"))
        for part in (package, *(path for path in package.rglob("*") if path.is_dir())):
            part.chmod(0o700)  # an installation may be read-only, its copy must not be
        for name, source in (programs or {}).items():
            (package / "programs" / f"{name}.py").write_text(source, "utf-8")
    except (OSError, shutil.Error) as problem:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise NoDiagnosis(f"cannot write temporary files: {reason_of(problem)}") from None
    return folder


def _remove_left_over(place: Path) -> None:
    """Remove the run folders of doctors of this user that were killed."""
    if not hasattr(os, "getuid"):
        return  # Windows: no run starts there, and `os.kill(process, 0)` would end the process
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(_RUN_FOLDER)]
    for name in names:
        owner = name.removeprefix(_RUN_FOLDER).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if int(owner) != os.getpid() and (place / name).lstat().st_uid == os.getuid() and _has_ended(int(owner)):
                shutil.rmtree(place / name, ignore_errors=True)


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


class PrewarmedProcess:
    """A program that does what every case needs, the import of torch, while the cases are still being prepared.

    If the process is gone when the cases are ready, they run in a new one.
    """

    def __init__(self, python: str, program: str) -> None:
        self.directory = make_run_folder()
        self.python = python
        self._process: KernelProcess | None = KernelProcess(python, program, self.directory, None, None)
        self.taken = False

    def send(self, cases: Sequence[Request]) -> KernelProcess | None:
        """Return the process after sending it the cases; None if it is gone or was taken before."""
        process, self._process, self.taken = self._process, None, True
        if process is None or process.send(cases):
            return process
        process.end()
        return None

    def close(self) -> None:
        """End the process if nothing took it."""
        if self._process is not None:
            self._process.end()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def run_program(
    python: str,
    program: str,
    cases: Sequence[Request],
    *,
    timeout: float,
    env: Overlay | None = None,
    programs: Mapping[str, str] | None = None,
    prewarmed: PrewarmedProcess | None = None,
) -> list[KernelResult]:
    """Run `program` (its name, or the path of a .py file) on `cases` with `python`; return one result per case.

    `timeout` is the longest wait, in seconds, for the next result; start, imports and context have it each to
    themselves. `env` is laid over our own environment, None removes a variable. `programs` (name → source) are added to
    those of the kernels. `prewarmed` is this program, already started in this interpreter. What the program does
    raises no error here.
    """
    programs = dict(programs or {})
    if program.endswith(".py"):
        path = Path(program)
        program = path.stem
        programs[program] = path.read_text("utf-8")
    prewarmed = None if prewarmed is None or prewarmed.taken else prewarmed
    directory = make_run_folder(programs) if prewarmed is None else prewarmed.directory
    results: list[KernelResult] = []
    try:
        process = None
        if prewarmed is not None:
            for name, source in programs.items():
                (directory / PACKAGE / "programs" / f"{name}.py").write_text(source, "utf-8")
            process = prewarmed.send(cases)
        while len(results) < len(cases):
            process = process or KernelProcess(python, program, directory, cases[len(results) :], env)
            collected, started = process.collect(timeout)
            process = None
            results += collected
            # A process that ends before its first case, or in a step that all cases share, ends so each time: one
            # result serves all, and the same hang is not waited for again.
            if not started or is_shared_failure(collected[-1]):
                results += [collected[-1]] * (len(cases) - len(results))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return results


def run_one(
    python: str, program: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> KernelResult:
    """Run a program on a single request."""
    return run_program(python, program, [request or {}], timeout=timeout, env=env)[0]


def run_snippet(
    python: str, source: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> KernelResult:
    """Run a program given as text on a single request; it imports from the kernels as `programs/` does."""
    programs = {SNIPPET: source}
    return run_program(python, SNIPPET, [request or {}], timeout=timeout, env=env, programs=programs)[0]


#: Runs a reproduction script in a process of its own, as the user will.
_ALONE = """
import subprocess
import sys

def run(request):
    done = subprocess.run([sys.executable, "-c", request["script"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return {"code": done.returncode, "said": (done.stdout + done.stderr[-2000:]).decode("utf-8", "replace")[-4000:]}
"""


def run_alone(python: str, script: str, *, timeout: float, env: Overlay | None = None) -> KernelResult:
    """Run a script that knows nothing of the protocol; observed are its exit `code` and its last output, `said`."""
    return run_snippet(python, _ALONE, {"script": script}, timeout=timeout, env=env)


def is_shared_failure(result: KernelResult) -> bool:
    """Return whether the process ended in a step that every case takes."""
    return result.outcome in ENDED_PROCESS and (result.where or "").lower() in SHARED_STEPS
