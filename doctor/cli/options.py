"""How a command line is read: the options commands share, and one clear sentence for each mistake.

argparse, because a command-line library would cost more than all the rest of a check (docs/adr/0004).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from doctor.errors import DoctorError
from doctor.model import SEVERITIES

FAIL_ON = (*SEVERITIES, "never")
TIMEOUT = 120.0


class _Formatter(argparse.HelpFormatter):
    """Help of one width: argparse makes a formatter per option, and measuring the terminal imports `shutil`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are a `DoctorError` with a hint."""

    def __init__(self, command: str, summary: str, **more: Any) -> None:
        prog = f"attn-doctor {command}".strip()
        super().__init__(
            prog=prog, description=summary, allow_abbrev=False, add_help=False, formatter_class=_Formatter, **more
        )
        self.command = command

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours."""
        raise DoctorError(message.replace("argument ", "option ", 1), f"`{self.prog} --help` lists the options")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of this command line; an unknown one is answered with the nearest that exists."""
        options, rest = self.parse_known_args(arguments)
        if not rest:
            return options
        from doctor.facts.vocabulary import nearest

        word = rest[0].partition("=")[0]
        if word.startswith("-") and len(word) > 1:
            hint = nearest(word, self._option_string_actions) or f"`{self.prog} --help` lists the options"
            raise DoctorError(f"`{self.prog}` has no option `{word}`", hint)
        raise DoctorError(f"`{self.prog}` does not know what to do with `{rest[0]}`", f"see `{self.prog} --help`")


def parser(command: str, summary: str, *, target: bool = False, workload: bool = False) -> Parser:
    """A parser for `command` with the shared groups of options it takes."""
    made = Parser(command, summary)
    if target:
        _target(made)
    if workload:
        _workload(made)
    general = made.add_argument_group("general")
    general.add_argument("-h", "--help", action="help", help="show this text and exit")
    return made


def add_output(made: Parser, *, formats: bool = True) -> None:
    """`--format` and `--output`."""
    group = made.add_argument_group("how it is shown")
    if formats:
        from doctor.report.formats import FORMATS

        names = ", ".join(FORMATS)
        group.add_argument("--format", default="text", metavar="F", help=f"{names} (default: text)")
    group.add_argument("-o", "--output", metavar="FILE", help="write to a file, whole or not at all")


def add_rules(made: Parser) -> None:
    """`--rules`."""
    made.add_argument(
        "--rules", action="append", default=[], metavar="DIR", help="a folder with further rules; repeatable"
    )


def _target(made: Parser) -> None:
    group = made.add_argument_group(
        "what is examined", "default: the active virtual or conda environment, else the interpreter that runs this"
    )
    only = group.add_mutually_exclusive_group()
    only.add_argument("--python", type=path, metavar="PATH", help="interpreter of another environment")
    only.add_argument(
        "--site-packages", type=path, metavar="DIR", help="an unpacked tree: a Docker layer, a mounted image"
    )
    only.add_argument(
        "--facts", type=path, metavar="FILE", help="facts from `snapshot` or written by hand; no machine needed"
    )
    only.add_argument(
        "--requirements", action="append", type=path, default=[], metavar="FILE",
        help="a declared environment: requirements, lock or project file, environment.yml, Dockerfile, job script, or "
        "a project's folder; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--gpu", action="append", default=[], metavar="NAME",
        help="diagnose for this GPU: a100, h100, b200, rtx4090, sm90 …; `check` takes several, as a100,h100 too",
    )  # fmt: skip
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="add or override a fact: torch.version=2.6.0; repeatable",
    )  # fmt: skip
    add_rules(made)


def _workload(made: Parser) -> None:
    group = made.add_argument_group("what the job does", "also: --set workload.KEY=VALUE")
    several = "; `check` takes several"
    for name, value, what in (
        ("--model", "CONFIG", "a Hugging Face config.json"),
        ("--workload", "FILE", "a workload in YAML or JSON"),
    ):
        group.add_argument(name, action="append", type=path, default=[], metavar=value, help=what + several)


def add_kernels(made: Parser) -> None:
    """`--run`, `--no-run` and `--timeout`."""
    group = made.add_argument_group("kernels")
    group.add_argument(
        "--run", action=argparse.BooleanOptionalAction, default=True,
        help="confirm on the GPU what can be confirmed (default where there is a GPU)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, metavar="SECONDS", help="longest wait for one kernel"
    )


def add_baseline(made: Parser) -> None:
    """`--baseline`."""
    made.add_argument(
        "--baseline",
        type=path,
        metavar="FILE",
        help="tell only what a report that `--format json` wrote does not have already",
    )


def add_fail_on(made: Parser) -> None:
    """`--fail-on`."""
    made.add_argument(
        "--fail-on", choices=FAIL_ON, metavar="SEVERITY",
        help=f"exit 1 at this severity or worse: {', '.join(FAIL_ON)} (default: error)",
    )  # fmt: skip


def path(text: str) -> str:
    """A file or folder by its name; an empty shell variable is none, and not the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("names no file")
    return text


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"needs a positive number of seconds, found `{text}`")
    return value
