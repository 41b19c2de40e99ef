"""`attn-doctor explain`: a log or traceback → the known cause and its fix."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from doctor.diagnosis.diagnosis_input import DiagnosisInput
from doctor.diagnosis.examine import InputCache, examine, with_job
from doctor.diagnosis.logs.explain import LogExplainer
from doctor.diagnosis.logs.source import LogSource, open_log
from doctor.errors import DoctorError
from doctor.model import Facts
from doctor.report.explanation import as_json, as_text
from doctor.report.log_model import LogReport
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.signatures import load_log_rules

from .answer import Answer, Forms, reports
from .request import TargetOptions, examines, request_of

app = typer.Typer(rich_markup_mode="rich")


@app.command("explain")
@examines()
@reports("logs", "text", "json")
def explain(
    logs: Annotated[list[str], typer.Argument(metavar="FILE", help="Logs, also .gz .zst .xz; `-` reads stdin.")],
    target: TargetOptions,
    answer: Answer,
) -> int:
    """Name the known cause behind the error in a log, and its fix; exit with 1 if one was found."""
    explainer = explainer_of(target)
    found: list[LogReport] = []
    unread: list[DoctorError] = []
    for name in logs:
        try:
            found.append(explain_one(explainer, name))
        except DoctorError as problem:
            unread.append(problem)
    answer.give(forms_of(found))
    if unread:
        raise DoctorError("; ".join(problem.message for problem in unread[:3]), unread[0].hint)
    return int(any(report.diagnosis for report in found))


def explain_one(explainer: LogExplainer, name: str) -> LogReport:
    """Return what is known of one log."""
    source = open_log(name, sys.stdin.buffer)
    try:
        return explainer.explain(source)
    finally:
        source.close()


def forms_of(reports: Sequence[LogReport]) -> Forms:
    """Return what is known of the logs, in each format."""
    return {
        "text": lambda style: "\n".join(as_text(report, style) for report in reports),
        "json": lambda style: "".join(map(as_json, reports)),
    }


def explain_output(blocks: Iterator[bytes], notes: list[str], target: TargetOptions) -> LogReport:
    """Return what is known of the output of a command."""
    return explainer_of(target).explain(LogSource("the output of the command", blocks, notes))


def explainer_of(target: TargetOptions) -> LogExplainer:
    """Return the rules, with the facts of the target if one is named; a log alone needs no environment."""
    rulebook = load_rulebook(target.rules)
    examined: DiagnosisInput | None = None
    if target.python or target.site_packages or target.facts or target.requirements:
        examined = examine(request_of(target), rulebook)
    elif target.given():
        request = request_of(target)
        examined = with_job(DiagnosisInput(Facts()), request, InputCache(rulebook, request))
    return LogExplainer(rulebook, load_log_rules(target.rules), examined)
