"""The `attn-doctor` program: finds the command, imports only its module, and turns every error into one line."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, TypeGuard

import typer
from typer.core import TyperCommand, TyperGroup

from doctor._version import __version__
from doctor.errors import DoctorError, reason_of
from doctor.facts.vocabulary import nearest
from doctor.runner.process_group import graceful_shutdown
from doctor.util.logs import enable_logging
from doctor.util.outgoing import outgoing_part
from doctor.util.patterns import pattern
from doctor.util.reading import trust_project
from doctor.util.redact import shortened

from .click_errors import MissingParameter, NoSuchOption, UsageError
from .plain_values import convert_plain_values
from .streams import to_stderr, to_stdout

#: Command -> what it is for. Each is a module of this package, imported when it is called.
COMMANDS = {
    "check": "Check whether the attention of this job works here; explain what does not.",
    "backends": "Show which attention backend will be selected, and why not the others.",
    "fix": "Find the smallest change that clears the findings; write or install it.",
    "matrix": "Show backends x features of one environment as a table.",
    "wheels": "Find the official flash-attn wheel for this environment, or how to build it.",
    "explain": "Name the known cause behind the error in a log, and its fix.",
    "run": "Run a command unchanged; if it fails, explain why.",
    "diff": "Compare two environments: what differs, what that changes, and why.",
    "fleet": "Check many nodes: group equal environments, name outliers, report lost nodes.",
    "drift": "Find calls between installed packages that the installed callee does not answer.",
    "stress": "Test every installed attention on the GPUs against a float64 reference.",
    "snapshot": "Save the facts of this machine; every command reads them with --facts.",
    "init": "Write the project's section of pyproject.toml, which `check` reads in CI.",
    "keys": "List the words for facts and workloads, with meaning and example.",
    "schema": "Print JSON Schemas: facts, workload, rule, library, report, project.",
    "mcp": "Serve the Model Context Protocol for coding agents.",
    "rules": "List, show, test and write rules.",
}

#: Options that name the target: one of them on the command line replaces those of variables.
TARGETS = ("--python", "--site-packages", "--facts", "--requirements", "--snapshots")
#: Options that a variable may give: ATTN_DOCTOR_FAIL_ON for --fail-on. None of them changes anything on the machine.
BY_VARIABLE = frozenset(
    (*TARGETS, "--gpu", "--set", "--rules", "--model", "--workload", "--timeout", "--format", "--fail-on", "--baseline",
     "--color", "--quiet", "--verbose", "--expect", "--ray")
)  # fmt: skip

#: Accepted anywhere on the command line: it is about the files that every command reads.
TRUST = "--trust-project"
_INTERRUPTED = 130
_NO_DIAGNOSIS = 3
_UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EROFS)
LONGEST_MESSAGE = 480  # characters
_EXTRA_ARGUMENT = pattern(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)")  # the form differs by release
_GUIDE = (
    "Exit codes: 0 no finding at or above --fail-on, 1 findings, 2 bad input, 3 no diagnosis. "
    "`attn-doctor COMMAND --help` lists the options of a command."
)


class LazyCommands(TyperGroup):
    """A group that knows the name and purpose of each command and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order in which the help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import one command; while help or completion lists all of them, return their purpose only."""
        if cmd_name not in COMMANDS:
            return None
        if ctx.meta.get("listing"):
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name], short_help=COMMANDS[cmd_name])
        return command_of(cmd_name, ctx.meta.get("arguments", ()))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing every command."""
        ctx.meta["listing"] = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete command names without importing every command."""
        ctx.meta["listing"] = True
        return super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command; an unknown one is answered with the nearest that exists."""
        name = args[0]
        if name not in COMMANDS:
            raise DoctorError(f"there is no command `{name}`", _hint(name))
        ctx.meta["listing"] = False
        ctx.meta["arguments"] = args[1:]
        return super().resolve_command(ctx, args)


def command_of(name: str, arguments: Sequence[str] = ()) -> Any:
    """Return the command of one module: its `app`; its options can be given by `ATTN_DOCTOR_…` variables."""
    command = typer.main.get_command(import_module(f"doctor.cli.{name}").app)
    command.name = name
    convert_plain_values(command)
    given = {word.partition("=")[0] for word in arguments}
    skipped = TARGETS if given & set(TARGETS) else ()
    for parameter in command.params:
        option = next((item for item in parameter.opts if item in BY_VARIABLE and item not in skipped), None)
        if option is not None:
            parameter.envvar = f"ATTN_DOCTOR_{option.removeprefix('--').replace('-', '_').upper()}"
    return command


app = typer.Typer(
    name="attn-doctor",
    cls=LazyCommands,
    rich_markup_mode="rich",
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find what breaks the attention stack of LLM training and inference, before the job runs.",
    epilog=_GUIDE,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", "-V", help="Show the version and exit."),
    trust: bool = typer.Option(
        False, TRUST, help="Let paths and links of the project lead out of it. Accepted after the command too."
    ),
) -> None:
    """Find what breaks the attention stack of LLM training and inference, before the job runs."""
    if version:
        to_stdout(f"attn-doctor {__version__}\n")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        to_stdout(ctx.get_help() + "\n", colored=True)
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `attn-doctor` program; exit with 0 no finding that counts, 1 findings, 2 bad input, 3 no diagnosis."""
    _open_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        if not sys.stdout.closed:  # the SDK of `mcp` closes it with the session
            sys.stdout.flush()
    except OSError as problem:
        _close_stdout()
        if code < _NO_DIAGNOSIS and not isinstance(problem, BrokenPipeError):  # else reported already
            code = _unwritable(problem)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 gets the words all the same
    try:
        if level := os.environ.get("ATTN_DOCTOR_LOG"):
            enable_logging(level)
        with graceful_shutdown():
            words = _spelled(list(arguments))
            kept = [word for word in words if word != TRUST]
            with trust_project(len(kept) < len(words)):
                return _dispatch(kept)
    except DoctorError as error:
        _complain(error.message, error.hint, fatal=error.exit_code == 3)
        return error.exit_code
    except BrokenPipeError:  # `| head` has seen enough
        _close_stdout()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return _INTERRUPTED
    except Exception as error:
        if _is_of_stdout(error):
            return _unwritable(error)
        if isinstance(error, OSError) and error.filename is not None:  # a name that is too long, a disk that fails
            _complain(f"cannot use `{error.filename}`: {reason_of(error)}")
            return DoctorError.exit_code
        if os.environ.get("ATTN_DOCTOR_DEBUG"):
            raise
        kind = type(error).__name__
        text = shortened(" ".join(str(error).split()), 300)
        _complain(
            f"{kind}: {text}" if text else kind,
            "this is a fault of attn-doctor: run it again with `ATTN_DOCTOR_DEBUG=1` and report the traceback",
            fatal=True,
        )
        return _NO_DIAGNOSIS


def _is_of_stdout(error: Exception) -> TypeGuard[OSError]:
    """Return whether this is a full or broken stdout, as a help text meets it: no file is named."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE


def _unwritable(problem: OSError) -> int:
    _complain(f"cannot write the answer: {reason_of(problem)}", fatal=True)
    _close_stdout()
    return _NO_DIAGNOSIS


def _dispatch(arguments: list[str]) -> int:
    program = typer.main.get_command(app)
    convert_plain_values(program)
    with _as_doctor_errors(arguments):
        code = program.main(arguments, prog_name="attn-doctor", standalone_mode=False)
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _spelled(arguments: list[str]) -> list[str]:
    """Accept `attn-doctor help` and `attn-doctor version` as words."""
    words = {"help": "--help", "version": "--version"}
    return [words.get(arguments[0], arguments[0]), *arguments[1:]] if arguments else arguments


@contextlib.contextmanager
def _as_doctor_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Raise what is wrong with a command line as a DoctorError: one line, and a hint."""
    called = " ".join(("attn-doctor", *(word for word in arguments[:1] if word in COMMANDS)))  # some errors do not say
    try:
        yield
    except NoSuchOption as error:
        path = error.ctx.command_path if error.ctx else called
        if path == "attn-doctor":
            raise DoctorError(f"there is no command `{error.option_name}`", _hint(error.option_name)) from None
        known = [name for item in error.ctx.command.params for name in item.opts] if error.ctx else []
        hint = nearest(error.option_name, known) or f"`{path} --help` lists the options"
        raise DoctorError(f"`{path}` has no option `{error.option_name}`", hint) from None
    except MissingParameter as error:
        path = error.ctx.command_path if error.ctx else called
        name = (error.param.metavar or error.param.name or "").upper() if error.param else ""
        raise DoctorError(f"`{path}` needs {name}", f"see `{path} --help`") from None
    except UsageError as error:
        path = error.ctx.command_path if error.ctx else called
        message = error.message.rstrip(".")
        if extra := _EXTRA_ARGUMENT.match(message):
            options = {name for item in error.ctx.command.params for name in item.opts} if error.ctx else set()
            raise import_module("doctor.cli.stray").complaint(path, extra[1], options) from None
        if isinstance(error, typer.BadParameter) and error.param is not None:
            message = f"option {error.param.opts[0]}: {message}"
        raise DoctorError(message[:1].lower() + message[1:], f"`{path} --help` lists the options") from None


def _open_streams() -> None:
    """Open a stream that was closed (`>&-`, some schedulers) on the null device: no file may get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - for the life of the process


def _hint(name: str) -> str:
    if name.startswith("-"):
        return f"the command comes first: `attn-doctor check {name} …`"
    return nearest(name, COMMANDS) or f"commands are {', '.join(COMMANDS)}"


def _complain(message: str, hint: str | None = None, *, fatal: bool = False) -> None:
    lines = [f"fatal: {message}; no diagnosis was made" if fatal else f"error: {message}"]
    if hint:
        lines.append(f"hint: {hint}")
    to_stderr("".join(f"{_short(outgoing_part(' '.join(line.split())))}\n" for line in lines))


def _short(line: str) -> str:
    """Return a line that fits a screen: text that a user typed may be of any length."""
    half = LONGEST_MESSAGE // 2
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:half]} … {line[-half:]}"


def _close_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last flush does not complain about the broken pipe."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
