"""Where the program starts: `run -- CMD` starts the command at once, everything else goes on to the full program."""

from __future__ import annotations

import atexit
import gc
import os
import sys


def program() -> None:
    """Run the `attn-doctor` program, and end the process: taking the interpreter down takes a twentieth of a check."""
    code: str | int | None = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, int) and _is_alone():
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # the interpreter says what is wrong with the stream, and has an exit code for it
        else:
            os._exit(code)
    sys.exit(code)


def _is_alone() -> bool:
    """Whether no other thread has to end first."""
    threading = sys.modules.get("threading")
    return threading is None or threading.active_count() == 1


def main() -> None:
    """Run the program up to its exit code."""
    if sys.warnoptions:  # `PYTHONWARNINGS=error` is meant for other programs: no warning ends this one
        sys.modules["warnings"].simplefilter("ignore")  # Python has imported it for such a setting
    command = _plain_command(sys.argv[1:])
    if command:
        _run(command)
    gc.disable()  # imports leave no garbage, and searching what they made took a tenth of a check
    from .main import main as full  # the full program takes longer to import than a short command runs

    gc.freeze()  # nor will it become garbage
    gc.set_threshold(200_000, 20, 100)  # a check makes about that much, which lasts until its end
    gc.enable()
    try:
        full()
    finally:
        gc.freeze()  # the exit would search all that is left once more, which takes a tenth of a check


def _plain_command(arguments: list[str]) -> list[str]:
    """Return the command of `run -- CMD ...`; empty where options or variables need the full program."""
    if (
        arguments[:2] != ["run", "--"]
        or not hasattr(os, "killpg")
        or any(name.startswith("ATTN_DOCTOR_") for name in os.environ)
    ):
        return []
    try:
        for stream in range(3):
            os.fstat(stream)
    except OSError:
        return []
    return arguments[2:]


def _run(command: list[str]) -> None:
    """Run a command and end as it ended; return if it cannot be started, which the full program reports."""
    from doctor.runner.passthrough import CommandNotStarted, end_like, run_command

    try:
        outcome = run_command(command)
    except CommandNotStarted:
        return
    except KeyboardInterrupt:
        sys.exit(130)
    if outcome.failed:
        from .run import explain_failure

        explain_failure(outcome)
    else:
        os._exit(0)  # nothing of ours is open, and taking down the interpreter takes longer than starting it
    sys.exit(end_like(outcome))
