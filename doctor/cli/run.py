"""`attn-doctor run -- CMD...`: run a command unchanged; if it fails, explain why."""

from __future__ import annotations

from typing import Annotated

import typer

from doctor.errors import DoctorError
from doctor.runner.passthrough import Outcome, end_like, run_command

from .options import Color, Output, Quiet, Rules
from .output import Screen, write
from .request import TargetOptions
from .streams import to_stderr

_STREAMS = {1: "stdout", 2: "stderr"}

app = typer.Typer(rich_markup_mode="rich")


@app.command(
    "run",
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    },
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD ...", help="The command with its arguments.")],
    rules: Rules = None,
    output: Output = None,
    quiet: Quiet = False,
    color: Color = "auto",
) -> int:
    """Run a command; output, input, signals and exit code pass unchanged. If it fails, explain why on stderr."""
    outcome = run_command(command)
    if outcome.failed:
        explain_failure(outcome, tuple(rules or ()), output, Screen(quiet=quiet, color=color))
    return end_like(outcome)


def explain_failure(
    outcome: Outcome, rules: tuple[str, ...] = (), output: str | None = None, screen: Screen | None = None
) -> None:
    """Write the explanation to a file, or to stderr: stdout is the command's alone."""
    try:
        _explain(outcome, TargetOptions(rules=rules), output, screen or Screen())
    except DoctorError as problem:
        to_stderr(f"attn-doctor: no explanation: {problem.message}\n")


def _explain(outcome: Outcome, target: TargetOptions, output: str | None, screen: Screen) -> None:
    from .explain import explain_output  # what only a failure needs

    notes = ["the output was too long: its middle part was not looked at"] if outcome.spool.dropped else []
    notes += [f"{_STREAMS[stream]} goes to /dev/null and was not looked at" for stream in outcome.spool.discarded]
    text = explain_output(outcome.spool.blocks(), notes, target, screen)
    if text is None:
        return
    if output is not None:
        write(text, output)
        return
    to_stderr(f"\n{text}", colored=True)
