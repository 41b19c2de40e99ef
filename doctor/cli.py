"""The command line: reads options, calls the session, prints the answer. Nothing else in the package prints."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from .errors import DoctorError

#: Command → what it is for. Each lives in its own function of `commands`, imported when it is called.
COMMANDS = {
    "check": "will this job's attention work here, and if not, why and what helps",
    "backends": "which attention backend will run, and why not the others",
    "matrix": "backends × features for one environment, as a table",
    "fix": "the smallest change that clears the findings",
    "wheels": "the official flash-attn wheel that fits, or the nearest, or how to build it",
    "stress": "is every attention here right? the whole sweep on the GPUs, minutes",
    "drift": "which calls between installed packages the installed callee does not answer",
    "snapshot": "the facts of this machine as a file that every command takes back",
    "init": "write the project's GPUs, jobs and files into pyproject.toml, for `check` in CI",
    "rules": "list, show, test and start rules",
}


LONGEST = 480  # characters of a complaint


def main(arguments: Sequence[str] | None = None) -> None:
    """The `attn-doctor` program; ends the process with 0 healthy, 1 findings, 2 bad input, 3 no diagnosis."""
    import gc

    gc.disable()  # a check lives for a tenth of a second and makes no cycles worth a collection
    _open_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError:  # was told already, or the reader has left
        _close_stdout()
    if arguments is None:
        _leave(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 gets the words all the same
    from .lifeline import ended_properly

    try:
        with ended_properly():
            return _dispatch(list(arguments))
    except DoctorError as error:
        _complain(error.message, error.hint, fatal=error.exit_code == 3)
        return error.exit_code
    except BrokenPipeError:  # `| head` has seen enough
        _close_stdout()
        return 0
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except Exception as error:
        if os.environ.get("ATTN_DOCTOR_DEBUG"):
            raise
        kind = type(error).__name__
        text = " ".join(str(error).split())[:300]
        _complain(
            f"{kind}: {text}" if text else kind,
            "this is a fault of attn-doctor: run it again with `ATTN_DOCTOR_DEBUG=1` and report the traceback",
            fatal=True,
        )
        return 3


def _leave(code: int) -> None:
    """End without taking a hundred thousand objects apart first, which costs half a bare Python start.

    All that needs an end has had it: files are written, streams flushed, programs and temporary folders gone. Whoever
    watches the run, a profiler or a debugger, gets the ordinary end.
    """
    if sys.gettrace() is None and sys.getprofile() is None and not sys.flags.inspect:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _open_streams() -> None:
    """Started with a stream closed (`>&-`, some schedulers), write to nothing: no file of ours may get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - for the life of the process


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("--version", "-V", "version"):
        from . import __version__

        sys.stdout.write(f"attn-doctor {__version__}\n")
        return 0
    if name not in COMMANDS:
        raise DoctorError(f"there is no command `{name}`", _hint(name))
    from . import commands

    command = getattr(commands, name)
    try:
        code: int = command(rest, commands.Streams(sys.stdin, sys.stdout, _tell))
    except SystemExit as end:  # argparse after --help
        code = int(end.code or 0)
    return code


def _hint(name: str) -> str:
    if name.startswith("-"):
        return f"the command comes first: `attn-doctor check {name} …`"
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"did you mean `{near[0]}`?" if near else f"commands are {', '.join(COMMANDS)}"


def _usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [
        "attn-doctor finds what breaks the attention stack of LLM training, before the job runs",
        "",
        "usage: attn-doctor COMMAND [options]",
        "",
        *(f"  {name:<{width}}{purpose}" for name, purpose in COMMANDS.items()),
        "",
        "`attn-doctor COMMAND --help` lists a command's options; `attn-doctor --version` its version",
        "exit codes: 0 nothing found, 1 findings, 2 bad input, 3 no diagnosis could be made",
        "",
    ]
    return "\n".join(lines)


def _tell(text: str) -> None:
    """Chatter: what is under way."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _complain(message: str, hint: str | None = None, *, fatal: bool = False) -> None:
    from .report.page import printable

    lines = [f"fatal: {message}; no diagnosis was made" if fatal else f"error: {message}"]
    if hint:
        lines.append(f"hint: {hint}")
    with contextlib.suppress(OSError, ValueError):  # nobody may be listening
        sys.stderr.write("".join(f"{_short(printable(' '.join(line.split())))}\n" for line in lines))


def _short(line: str) -> str:
    """A line that fits a screen: what a user typed, and we repeat, may be of any length."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"


def _close_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain about the broken pipe."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
