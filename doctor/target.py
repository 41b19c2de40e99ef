"""Run a program in the interpreter under examination and bring its answers back, whatever that program does.

The program may print, fork, hang, die of a signal or never start: each costs at most the case it happened in, and
what happened is the answer. The other half of the contract is `kernels/_probe.py`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from .process import Answer, Overlay, Process, Request, signal_name

__all__ = ["Answer", "Overlay", "Process", "Request", "ask", "run_alone", "run_program", "run_snippet", "signal_name"]

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
) -> list[Answer]:
    """Run `program` (a kernel's name, or a path to a .py file) on `cases` with `python`; one answer per case, in order.

    `timeout` is the longest wait, in seconds, for the next answer; the first one includes starting up. `env` is laid
    over our own environment, None removing a variable; `beside` are files that it finds in a folder `programs`. Nothing
    the program does raises here.
    """
    source = pathlib.Path(program)
    if source.suffix != ".py":
        from .assets import kernels_dir

        source = kernels_dir() / f"{program}.py"
    return _run(python, source.name, source.read_text("utf-8"), cases, timeout, env, beside)


def run_snippet(
    python: str, source: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> Answer:
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


def run_alone(python: str, script: str, *, timeout: float, env: Overlay | None = None) -> Answer:
    """Run a script that knows nothing of the contract; observed are its exit `code` and the last it `said`."""
    return run_snippet(python, _ALONE, {"script": script}, timeout=timeout, env=env)


def ask(
    python: str, program: str, request: Request | None = None, *, timeout: float, env: Overlay | None = None
) -> Answer:
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
) -> list[Answer]:
    import shutil
    import tempfile

    from .assets import kernels_dir

    answers: list[Answer] = []
    # Ours alone and otherwise empty: no file of the user's current directory can shadow what the program imports.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="attn-doctor-"))
    try:
        (directory / name).write_text(source, "utf-8")
        for shared in kernels_dir().glob("_*.py"):
            (directory / shared.name).write_bytes(shared.read_bytes())
        if beside:
            (directory / "programs").mkdir()  # a folder of its own, where no `import` finds them
        for path in beside:
            (directory / "programs" / path.name).write_bytes(path.read_bytes())
        while len(answers) < len(cases):
            process = Process(python, name, directory, cases[len(answers) :], env)
            got, started = process.collect(timeout)
            answers += got
            # What ends before its first case, or in what every case begins with, ends so each time: one answer serves
            # all, and nobody waits for the same hang again.
            if not started or _everyones(got[-1]):
                answers += [got[-1]] * (len(cases) - len(answers))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return answers


def _everyones(answer: Answer) -> bool:
    """Whether the process died in a step that no case gets around."""
    return answer.outcome in ("crashed", "timeout") and answer.where in SHARED_STEPS
