"""`attn-doctor run -- CMD...`: run a command unchanged; if it fails, explain why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from doctor.errors import DoctorError
from doctor.runner.process_group import need_process_groups

from .answer import Answer, reports
from .options import Rules
from .output import Destination, Screen
from .request import TargetOptions
from .streams import to_stderr

if TYPE_CHECKING:  # it imports what only POSIX systems have
    from doctor.runner.passthrough import Outcome

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
@reports("the explanation", "text", "json")
def run(
    answer: Answer,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD ...", help="The command with its arguments.")],
    rules: Rules = None,
) -> int:
    """Run a command; output, input, signals and exit code pass unchanged. If it fails, explain why on stderr."""
    need_process_groups("`run`")
    from doctor.runner.passthrough import end_like, run_command

    outcome = run_command(command)
    if outcome.failed:
        explain_failure(outcome, tuple(rules or ()), answer)
    return end_like(outcome)


def explain_failure(outcome: Outcome, rules: tuple[str, ...] = (), answer: Answer | None = None) -> None:
    """Write the explanation to files, or to stderr: stdout is the command's alone."""
    try:
        _explain(outcome, TargetOptions(rules=rules), answer or Answer((Destination("text", None),), Screen()))
    except DoctorError as problem:
        to_stderr(f"attn-doctor: no explanation: {problem.message}\n")


def _explain(outcome: Outcome, target: TargetOptions, answer: Answer) -> None:
    from .explain import explain_output, forms_of  # what only a failure needs

    notes = ["the output was too long: its middle part was not looked at"] if outcome.spool.dropped else []
    notes += [f"{_STREAMS[stream]} goes to /dev/null and was not looked at" for stream in outcome.spool.discarded]
    report = explain_output(outcome.spool.blocks(), notes, target)
    if answer.screen.quiet and not report.diagnosis:
        return
    forms = forms_of([report])
    for item in answer.outputs:
        if item.file is None:
            to_stderr(f"\n{forms[item.format](answer.screen.style(to_file=True))}", colored=True)
    in_files = tuple(item for item in answer.outputs if item.file is not None)
    answer._replace(outputs=in_files).give(forms)
