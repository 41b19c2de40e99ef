"""What kernels said, as lines: of a finding, of the job itself, and where the time went."""

from __future__ import annotations

from doctor.model import Confirmation, Finding, Report

from .page import Page

_RUNS = {"healthy": "ok", "failed": "error", "inconclusive": "dim"}
_CONFIRMED = {
    "confirmed": ("error", "confirmed by a run"),
    "refuted": ("ok", "refuted by a run"),
    "inconclusive": ("dim", "run inconclusive"),
    "unpredicted": ("error", "seen in a run"),
}
#: Stages of the kernels' time that are shown, and their names; most of it is the import of torch.
_STAGES = (("import", "import"), ("library", "libraries"), ("context", "CUDA context"), ("case", "cases"))


def confirmation_lines(page: Page, finding: Finding) -> None:
    """What a kernel said of this finding, and how to see it again."""
    item: Confirmation | None = finding.confirmation
    if item is not None:
        look, words = _CONFIRMED[item.verdict]
        reason = f": {item.reason}" if item.reason else ""
        page.say(
            f"`{item.kernel}` {item.outcome} in {item.seconds:.1f} s{reason}",
            lead=f"{words}:", look=look, indent=2, hang=4,
        )  # fmt: skip
    if finding.reproduction:
        page.line("  to reproduce, save as a file and run it:", "label")
        for line in finding.reproduction.rstrip("\n").split("\n"):
            page.line(f"    {line}", "command")


def run_lines(page: Page, report: Report) -> None:
    """The job's own attention, kernel by kernel."""
    if not report.runs:
        return
    page.gap()
    for run in report.runs:
        reason = f": {run.reason}" if run.reason else ""
        said = f"{run.verdict} in {run.seconds:.1f} s{reason}"
        page.say(said, lead=f"ran `{run.kernel}`:", look=_RUNS[run.verdict])


def timing_line(page: Page, report: Report) -> None:
    """Rules, seconds, and what the seconds of the kernels went to."""
    total = report.timing.get("total")
    if total is None:
        return
    kernels = report.timing.get("kernels")
    if kernels and report.kernels_run:
        detail = f", {kernels:.1f} s of it in kernels{_stages(report)}"
    else:
        detail = ", no kernel was run" if not report.kernels_run else ""
    rules = report.rulebook.get("rules")
    page.line(f"{rules} rules in {total:.2f} s{detail}" if rules else f"took {total:.2f} s{detail}", "dim")


def _stages(report: Report) -> str:
    stages = [(name, report.timing.get(f"kernels.{stage}")) for stage, name in _STAGES]
    parts = [f"{name} {seconds:.1f}" for name, seconds in stages if seconds and seconds >= 0.05]
    return f" ({', '.join(parts)})" if parts else ""
