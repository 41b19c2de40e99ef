"""Run a program in the interpreter under examination and bring its answers back, whatever that program does.

The program may print, fork, hang, die of a signal or never start: each costs at most the case it happened in, and
what happened is the answer. The other half of the contract is `kernels/_probe.py`.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Sequence

from doctor.util.resources import kernels_dir

from .process import KernelProcess, Overlay, Request
from .result import KernelResult

#: Steps that every program which names them takes first.
SHARED_STEPS = ("import torch", "cuda context")


def run_program(
    python: str,
    program: str,
    cases: Sequence[Request],
    *,
    timeout: float,
    env: Overlay | None = None,
    beside: Sequence[pathlib.Path] = (),
    ahead: PrewarmedProcess | None = None,
) -> list[KernelResult]:
    """Run `program` (a kernel's name, or a path to a .py file) on `cases` with `python`; one answer per case, in order.

    `timeout` is the longest wait, in seconds, for the next answer; starting, imports and the context have it each to
    themselves. `env` is laid over our own environment, None removing a variable; `beside` are files that it finds in a
    folder `programs`; `ahead` is this program in this interpreter, started before. Nothing that it does raises here.
    """
    source = _source(program)
    return _run(python, source.name, source.read_text("utf-8"), cases, timeout, env, beside, ahead)


def _source(program: str) -> pathlib.Path:
    path = pathlib.Path(program)
    return path if path.suffix == ".py" else kernels_dir() / f"{program}.py"


class PrewarmedProcess:
    """A program that begins with what every case needs, the import of torch, while the cases are still being made.

    What it cannot bring about costs nothing: if it is gone when the cases are there, they go to a process of their own.
    """

    def __init__(self, python: str, program: str) -> None:
        source = _source(program)
        self.directory = _furnished(source.name, source.read_text("utf-8"))
        self.python = python
        self._process: KernelProcess | None = KernelProcess(python, source.name, self.directory, None, None)
        self.taken = False

    def hand(self, cases: Sequence[Request]) -> KernelProcess | None:
        """The process with these cases in hand; None where it is gone, or was taken before."""
        process, self._process, self.taken = self._process, None, True
        if process is None or process.hand(cases):
            return process
        process.end()
        return None

    def close(self) -> None:
        """End what nobody took."""

        if self._process is not None:
            self._process.end()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def run_snippet(
    python: str, source: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> KernelResult:
    """Run a program given as text, under the same contract, on one request."""
    return _run(python, "snippet.py", source, [request or {}], timeout, env)[0]


#: What the interpreter does with a script of ours: a process of its own, as the user will have it.
_ALONE = """
from _probe import main
def run(request):
    import subprocess, sys
    done = subprocess.run([sys.executable, "-c", request["script"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return {"code": done.returncode, "said": (done.stdout + done.stderr[-2000:]).decode("utf-8", "replace")[-4000:]}
main(run)
"""


def run_alone(python: str, script: str, *, timeout: float, env: Overlay | None = None) -> KernelResult:
    """Run a script that knows nothing of the contract; observed are its exit `code` and the last it `said`."""
    return run_snippet(python, _ALONE, {"script": script}, timeout=timeout, env=env)


def ask(
    python: str, program: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> KernelResult:
    """`run_program` for a single request."""
    return run_program(python, program, [request or {}], timeout=timeout, env=env)[0]


def _run(
    python: str,
    name: str,
    source: str,
    cases: Sequence[Request],
    timeout: float,
    env: Overlay | None,
    beside: Sequence[pathlib.Path] = (),
    ahead: PrewarmedProcess | None = None,
) -> list[KernelResult]:
    answers: list[KernelResult] = []
    ahead = None if ahead is None or ahead.taken else ahead
    directory = _furnished(name, source) if ahead is None else ahead.directory
    try:
        if beside:
            (directory / "programs").mkdir()  # a folder of its own, where no `import` finds them
        for path in beside:
            (directory / "programs" / path.name).write_bytes(path.read_bytes())
        process = None if ahead is None else ahead.hand(cases)
        while len(answers) < len(cases):
            process = process or KernelProcess(python, name, directory, cases[len(answers) :], env)
            got, started = process.collect(timeout)
            process = None
            answers += got
            # What ends before its first case, or in what every case begins with, ends so each time: one answer serves
            # all, and nobody waits for the same hang again.
            if not started or everyones(got[-1]):
                answers += [got[-1]] * (len(cases) - len(answers))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return answers


def _furnished(name: str, source: str) -> pathlib.Path:
    """A folder with the program and what it imports of ours."""

    # Ours alone and otherwise empty: no file of the user's current directory can shadow what the program imports.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-"))
    (directory / name).write_text(source, "utf-8")
    for shared in kernels_dir().glob("_*.py"):
        (directory / shared.name).write_bytes(shared.read_bytes())
    return directory


def everyones(answer: KernelResult) -> bool:
    """Whether the process died in a step that no case gets around."""
    return answer.outcome in ("crashed", "timeout") and (answer.where or "").lower() in SHARED_STEPS
